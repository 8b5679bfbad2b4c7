"""The report as one file of HTML: style, library, code and data, and nothing from anywhere else.

The data are the lines of `report --json`, once, by columns. They are text in the document: what
could end their element is escaped, the page reads them as JSON and shows them as text, and a
policy in the document lets nothing run, load or be sent but the parts that are named here by their
digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable

from tilusbuild.report.columns import pack
from tilusbuild.runtime.regular import read_text

LIBRARY = "vendor/echarts.min.js"
CODE = ("model.js", "charts.js", "page.js")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
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
<a href="#tuning">Tuning and dispatch</a><a href="#package">Package</a>\
<a href="#compare">Compare</a></nav>
</header>
<main></main>
<noscript>This report draws itself with JavaScript.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{library}</script>
<script>{code}</script>
</body>
</html>
"""


def page(lines: Iterable[str]) -> bytes:
    """Return the document for lines of JSON."""
    style, library = text_of("page.css"), text_of(LIBRARY)
    code = "\n".join(map(text_of, CODE))
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(library)}' '{_digest(code)}'",
            f"style-src '{_digest(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    data = json.dumps(pack([json.loads(line) for line in lines]), separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    made = _PAGE.format(policy=policy, style=style, data=data, library=library, code=code)
    return made.encode()


def text_of(name: str) -> str:
    """Return a part of the page."""
    return read_text(os.path.join(os.path.dirname(__file__), "page", name))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
