"""The renderer: from a template's name and a context to source; mistakes are `InputError`s.

A rendering is a function of the templates' content and of the context. A renderer reads each
template once in its life and writes nothing but bytecode. A rendering ends: steps, length and
recursion are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, TemplateNotFound, meta

from tilusbuild.errors import InputError, TilusbuildError
from tilusbuild.render.bytecode import PrivateBytecode
from tilusbuild.render.environment import (
    MAX_CHARACTERS,
    Environment,
    LimitExceededError,
    ProjectLoader,
)
from tilusbuild.render.problems import explain
from tilusbuild.state.files import sha256_text

if TYPE_CHECKING:
    from tilusbuild.render.linemap import LineMap, MarkingEnvironment


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered text, and the templates that it used, in the order of first use."""

    text: str
    templates: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Templates that were used and do not exist (`ignore missing`, or the first of a list): when
    one appears, the text may change."""


class Renderer:
    """Renders the templates of the project in `root`. May be used from several threads at once."""

    def __init__(self, root: str, *, bytecode_dir: str | None = None) -> None:
        self._loader = ProjectLoader(root)
        cache = PrivateBytecode(bytecode_dir) if bytecode_dir else None
        self._environment = Environment(self._loader, bytecode_cache=cache)
        self._marking: MarkingEnvironment | None = None

    def render(self, template: str, context: Mapping[str, Any]) -> Rendering:
        """Render a template by its name relative to the project, `/` between its parts.

        Raises `InputError`, located in the template whose line is at fault.
        """
        used: dict[str, None] = {}
        text = render_text(self._environment, template, context, used)
        absent = tuple(name for name in used if not self._exists(name))
        return Rendering(text, tuple(name for name in used if name not in absent), absent)

    def path(self, template: str) -> str:
        """Return the file of a template. Raises `InputError` for a name outside the project."""
        try:
            return self._loader.path(template)
        except TemplateNotFound as error:
            raise self._explained(error, template, {}) from None

    def digest(self, template: str) -> str:
        """Return the sha256 of a template's text; "" if it does not exist."""
        try:
            return sha256_text(self._loader.text(template))
        except TemplateNotFound:
            return ""

    def line_map(self, template: str, context: Mapping[str, Any], text: str) -> LineMap:
        """Return the line map of `text`, which `render` returned for the same arguments.

        Takes a second rendering.
        """
        from tilusbuild.render.linemap import MarkingEnvironment, build

        if self._marking is None:
            self._marking = MarkingEnvironment(self._loader)
        try:
            marked = render_text(self._marking, template, context, {})
        except TilusbuildError:
            marked = ""
        return build(marked, text, self._marking.names, self._loader.text)

    def dependencies(self, template: str) -> tuple[str, ...]:
        """Return the templates that `template` names in include, import and extends tags, however
        deep, itself first; names that are computed are not known. Raises `InputError`."""
        found: dict[str, None] = {template: None}
        queue = [template]
        while queue:
            name = queue.pop()
            try:
                tree = self._environment.parse(self._loader.text(name), name)
            except TemplateNotFound as error:
                if name == template:
                    raise self._explained(error, template, {}) from None
                continue
            except TemplateError as error:
                raise self._explained(error, template, {}) from None
            for other in meta.find_referenced_templates(tree):
                if other is None:
                    continue
                joined = self._environment.join_path(other, name)
                if joined not in found:
                    found[joined] = None
                    queue.append(joined)
        return tuple(found)

    def _exists(self, name: str) -> bool:
        try:
            self._loader.text(name)
        except TemplateNotFound:
            return False
        return True

    def _explained(self, error: Exception, template: str, context: Mapping[str, Any]) -> Exception:
        return explain(error, template, context, self._environment) or error


def render_text(
    environment: Environment, template: str, context: Mapping[str, Any], used: dict[str, None]
) -> str:
    """Render within bounds; add the names of used templates to `used`. Raises `InputError`."""
    environment.begin(context, lambda name: used.setdefault(name))
    try:
        compiled = environment.get_template(template)
        parts: list[str] = []
        length = 0
        for part in compiled.root_render_func(compiled.new_context(dict(context))):
            parts.append(part)
            length += len(part)
            if length > MAX_CHARACTERS:
                raise LimitExceededError(
                    f"the rendering is longer than {MAX_CHARACTERS >> 20} Mi characters"
                )
        return "".join(parts)
    except Exception as error:
        explained = explain(error, template, context, environment)
        if explained is None:
            raise
        raise explained from error


_INCLUDE = re.compile(r"""\{%[-+]?\s*include\s+(?P<quote>["'])(?P<name>.+?)(?P=quote)[^%]*%\}""")


def resolved(renderer: Renderer, template: str, around: tuple[str, ...] = ()) -> str:
    """Return a template with the templates that it includes in their place, for people to read.

    Only includes by a literal name are followed. Raises `InputError` and `OSError` when the
    template cannot be read.
    """
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
