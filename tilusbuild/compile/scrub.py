"""Compiler output made the same wherever and whenever it was printed.

What changes from run to run goes: the private folder's name, temporary names with process ids in
them, and how long ptxas took. What a person needs stays: `source.cu(12): error …`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TIMES = re.compile(r"^.*\bCompile time = [0-9.]+ ms.*\n?", re.MULTILINE)
_TEMPORARY = re.compile(r"tmpxft_[0-9a-f]{8}_[0-9a-f]{8}(-\d+)?|\bcc[A-Za-z0-9]{6}(?=\.[a-z]+\b)")


def scrub(output: bytes, folders: Mapping[str, str]) -> str:
    """The output as text. `folders` maps absolute folders to what stands for them; "" drops one."""
    text = output.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "�")
    for folder, name in sorted(folders.items(), key=lambda item: -len(item[0])):
        if name:
            text = text.replace(folder, name)
        else:
            text = text.replace(folder.rstrip("/") + "/", "").replace(folder, ".")
    text = _TIMES.sub("", text)
    return _TEMPORARY.sub("tmp", text)
