"""What tools print, as text that is the same wherever and whenever it was printed."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TIMES = re.compile(r"^.*\bCompile time = [0-9.]+ ms.*\n?", re.MULTILINE)
_TEMPORARY = re.compile(r"tmpxft_[0-9a-f]{8}_[0-9a-f]{8}(-\d+)?|\bcc[A-Za-z0-9]{6}(?=\.[a-z]+\b)")


def scrub(output: bytes, directories: Mapping[str, str]) -> str:
    """Return a tool's output as text that is the same wherever and whenever it was printed.

    `directories` maps absolute directories to their replacements; "" drops one. Temporary names
    with process ids in them and ptxas's times are replaced too."""
    text = output.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "�")
    # The longest first: the private directory may lie below another one of these.
    for directory, name in sorted(directories.items(), key=lambda item: -len(item[0])):
        if name:
            text = text.replace(directory, name)
        else:
            text = text.replace(directory.rstrip("/") + "/", "").replace(directory, ".")
    text = _TIMES.sub("", text)
    return _TEMPORARY.sub("tmp", text)
