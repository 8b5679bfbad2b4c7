"""The renderer: a template's name and a context in, CUDA source out; mistakes as `InputError`.

A rendering is a function of the templates' content and of the context. It reads each template once
in its life, writes nothing but bytecode, and ends: steps, length and recursion are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, TemplateNotFound, meta

from tilusbuild.errors import TilusbuildError
from tilusbuild.render.bytecode import PrivateBytecode
from tilusbuild.render.environment import MAX_CHARACTERS, Environment, LimitExceededError
from tilusbuild.render.loader import ProjectLoader
from tilusbuild.render.problems import explain
from tilusbuild.state.files import sha256_text

if TYPE_CHECKING:
    from tilusbuild.render.linemap import LineMap
    from tilusbuild.render.marking import MarkingEnvironment


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendering: its text, and the templates that had a part in it, in the order of first use."""

    text: str
    templates: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Templates that were asked for and are not there (`ignore missing`, or the first of a list):
    when one appears, the text may change."""


class Renderer:
    """Renders the templates of the project in `root`. May be used from several threads at once."""

    def __init__(self, root: str, *, bytecode_dir: str | None = None) -> None:
        self._loader = ProjectLoader(root)
        cache = PrivateBytecode(bytecode_dir) if bytecode_dir else None
        self._environment = Environment(self._loader, bytecode_cache=cache)
        self._marking: MarkingEnvironment | None = None

    def render(self, template: str, context: Mapping[str, Any]) -> Rendered:
        """Render a template by its name relative to the project, `/` between its parts.

        Raises `InputError`, located in the template whose line is at fault.
        """
        used: dict[str, None] = {}
        text = render_text(self._environment, template, context, used)
        absent = tuple(name for name in used if not self._exists(name))
        return Rendered(text, tuple(name for name in used if name not in absent), absent)

    def path(self, template: str) -> str:
        """Return the file of a template. Raises `InputError` for a name that leads out of the
        project."""
        try:
            return self._loader.path(template)
        except TemplateNotFound as error:
            raise self._explained(error, template, {}) from None

    def digest(self, template: str) -> str:
        """Return the sha256 of a template's text as it is rendered; "" when there is none."""
        try:
            return sha256_text(self._loader.text(template))
        except TemplateNotFound:
            return ""

    def line_map(self, template: str, context: Mapping[str, Any], text: str) -> LineMap:
        """Return where each line of `text`, which `render` gave for the same arguments, comes from.

        Takes a second rendering, so ask when there is something to locate. A line that cannot be
        traced with certainty has no place.
        """
        from tilusbuild.render.linemap import build
        from tilusbuild.render.marking import MarkingEnvironment

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
    """Render within bounds; fills `used` with the names asked for. Raises `InputError`."""
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
