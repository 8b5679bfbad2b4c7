"""The report as one file of HTML: style, library, code and data, and nothing from anywhere else.

The data are the lines of `report --json` as one JSON array, gzipped and in base64: no character of
theirs can end their element, and ten thousand programs are 1 MB in place of 12. The page shows them
as text, and a policy in the document lets nothing run, load or be sent but the parts that are named
here by their digests.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
from collections.abc import Iterable

from tilusbuild.runtime.regular import read_text

_LIBRARY = "vendor/echarts.min.js"
_CODE = ("model.js", "charts.js", "page.js")
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>report</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>tilusbuild</h1><p></p><button type="button" id="theme">light / dark</button>
<nav aria-label="pages"><a href="#build">Build</a><a href="#space">Space</a>\
<a href="#tuning">Tuning and dispatch</a><a href="#package">Package</a></nav>
</header>
<main></main>
<noscript>This report draws itself with JavaScript.</noscript>
<script type="text/plain" id="data">{data}</script>
<script>{library}</script>
<script>{code}</script>
</body>
</html>
"""


def make_page(lines: Iterable[str]) -> bytes:
    """Return the document for lines of JSON."""
    # The policy names each part by its digest: nothing else runs, whatever the data are.
    style, library = _read_part("page.css"), _read_part(_LIBRARY)
    code = "\n".join(map(_read_part, _CODE))
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest_part(library)}' '{_digest_part(code)}'",
            f"style-src '{_digest_part(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    # Without a time: the same lines are the same page.
    packed = gzip.compress(f"[{','.join(lines)}]".encode(), mtime=0)
    data = base64.b64encode(packed).decode()
    text = _PAGE.format(policy=policy, style=style, data=data, library=library, code=code)
    return text.encode()


def _read_part(name: str) -> str:
    """Return a part of the page."""
    return read_text(os.path.join(os.path.dirname(__file__), name))


def _digest_part(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
