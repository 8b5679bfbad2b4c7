"""A template with what it includes in its place: for people, who want to read one text.

Only includes by a literal name are followed; what the template computes stays as it is written.
"""

from __future__ import annotations

import re

from tilusbuild.errors import InputError
from tilusbuild.render.renderer import Renderer

_INCLUDE = re.compile(r"""\{%[-+]?\s*include\s+(?P<quote>["'])(?P<name>.+?)(?P=quote)[^%]*%\}""")


def resolved(renderer: Renderer, template: str, around: tuple[str, ...] = ()) -> str:
    """Return the text. Raises `InputError` and `OSError` when the template cannot be read."""
    with open(renderer.path(template), encoding="utf-8", errors="replace") as file:
        text = file.read()

    def included(match: re.Match[str]) -> str:
        name = match["name"]
        if name in (template, *around):
            return match[0]
        try:
            inner = resolved(renderer, name, (template, *around))
        except (InputError, OSError):
            return match[0]
        return f"{{# {name} #}}{inner}{{# end of {name} #}}"

    return _INCLUDE.sub(included, text)
