"""The renderer: from a template's name and a context to source; mistakes are `InputError`s.

A rendering is a function of the templates' content and of the context. A renderer reads each
template once in its life and writes nothing. A rendering ends: its steps (`bounds.py`) and its
length are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateRuntimeError
from msgspec import Struct

from tilusbuild.errors import InputError, Location, TilusbuildError, input_error
from tilusbuild.render.bounds import MAX_CHARACTERS
from tilusbuild.render.environment import (
    DEFAULT_STYLE,
    NOT_USABLE,
    Environment,
    ProjectLoader,
    Style,
)
from tilusbuild.render.problems import explain_error
from tilusbuild.runtime.regular import read_text
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import DeviceStamp

if TYPE_CHECKING:
    from tilusbuild.render.linemap import LineMap, MarkingEnvironment


class Rendering(Struct, frozen=True):
    """A rendered text, and the templates that it used, in the order of first use."""

    text: str
    templates: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Templates that were used and do not exist (`ignore missing`, or the first of a list): when
    one appears, the text may change."""
    parts: Mapping[str, Any] = {}
    """The fields of a `generate.Source` or `Cubin` that a generator has set, besides the text."""
    is_cubin: bool = False
    """Whether the text is a cubin, as UTF-8 with `surrogateescape`."""


class Renderer:
    """Renders the templates of the project in `root`, which it reads as `style` says. May be used
    from several threads at once."""

    def __init__(
        self,
        root: str,
        *,
        style: Style = DEFAULT_STYLE,
        make_generated: Callable[[str, Style], Renderer] | None = None,
    ) -> None:
        """`make_generated` returns the renderer of a root whose style names a generator."""
        self._make_generated = make_generated
        self._loader = ProjectLoader(root, exact=not style.rendered)
        self._style = style
        self._environment = Environment(self._loader, style)
        self._styled: dict[Style, Renderer] = {}
        self._marking: MarkingEnvironment | None = None

    def get_styled_renderer(self, style: Style) -> Renderer:
        """Return the renderer of a style for the same project; the same one for an equal style."""
        if style == self._style:
            return self
        if style not in self._styled:
            root = self._loader.root
            if style.function:
                if self._make_generated is None:
                    raise input_error(f"{style.function}: no generator can be called here")
                self._styled[style] = self._make_generated(root, style)
            else:
                self._styled[style] = Renderer(root, style=style)
        return self._styled[style]

    @property
    def jobs(self) -> int:
        """How many renderings at once are faster than one after the other."""
        return 1

    def render(self, template: str, context: Mapping[str, Any]) -> Rendering:
        """Render a template by its name relative to the project, `/` between its parts.

        Raises `InputError`, located in the template whose line is at fault.
        """
        if not self._style.rendered:
            return self.read_plain(template)
        # A dict keeps the order of first use.
        names: dict[str, None] = {}
        text = render_text(self._environment, template, context, names)
        # Names of `ignore missing` and of a list are asked for, too. Those without a text are
        # missing.
        texts = self._loader.texts
        used = tuple(name for name in names if name in texts)
        missing = tuple(name for name in names if name not in texts)
        return Rendering(text, used, missing)

    def generate_ir(self, template: str, context: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the intermediate texts of a generator's compiler, by file name."""
        return {}

    def release_workers(self) -> None:
        """End the processes of the project's generators, which have read its files."""
        for renderer in self._styled.values():
            renderer.release_workers()

    def cancel_calls(self) -> None:
        """Kill the processes that generate a source now: each `render` raises `CancelledError`."""

    def read_plain(self, name: str) -> Rendering:
        """Return a file of the project as it is. Raises `InputError`."""
        try:
            return Rendering(self._loader.read_text(name), (name,), ())
        except NOT_USABLE as error:
            raise explain_error(error, name, {}, self._environment) from None

    def resolve_path(self, template: str) -> str:
        """Return the file of a template. Raises `InputError` for a name outside the project."""
        try:
            return self._loader.resolve_path(template)
        except NOT_USABLE as error:
            raise explain_error(error, template, {}, self._environment) from None

    @property
    def first_stamps(self) -> Mapping[str, DeviceStamp]:
        """The stamp of every template that was asked for, by path, from before it was read."""
        stamps = dict(self._loader.first_stamps)
        for renderer in self._styled.values():
            for path, stamp in renderer.first_stamps.items():
                # If two styles have read a file, its first stamp shows a change in between.
                stamps.setdefault(path, stamp)
        return stamps

    def digest_template(self, template: str) -> str:
        """Return the sha256 of a template's text; "" if it does not exist."""
        try:
            return sha256_text(self._loader.read_text(template))
        except NOT_USABLE:
            return ""

    def map_lines(self, template: str, context: Mapping[str, Any], text: str) -> LineMap:
        """Return the line map of `text`, which `render` returned for the same arguments.

        Takes a second rendering.
        """
        from tilusbuild.render.linemap import MarkingEnvironment, build_line_map, map_to_itself

        if not self._style.rendered:
            return map_to_itself(template, text, self._loader.read_text)
        # Another thread may be here, too: marks are read by the names of the environment that
        # wrote them.
        environment = self._marking or MarkingEnvironment(self._loader, self._style)
        self._marking = environment
        try:
            marked = render_text(environment, template, context, {})
        # A marked rendering is longer, and may exceed the limit: the log stays as it is.
        except TilusbuildError:
            marked = ""
        return build_line_map(marked, text, environment.names, self._loader.read_text)


def render_text(
    environment: Environment,
    template: str,
    context: Mapping[str, Any],
    used: dict[str, None],
) -> str:
    """Render within bounds; add the names of used templates to `used`. Raises `InputError`."""
    environment.begin_rendering(context, lambda name: used.setdefault(name))
    try:
        compiled = environment.get_template(template)
        parts: list[str] = []
        length = 0
        # Jinja2's own `render` would join all parts before their length can be looked at.
        stream: Any = compiled.root_render_func(compiled.new_context(dict(context)))
        for part in stream:
            problem = None
            if isinstance(part, str):
                length += len(part)
            else:
                problem = "this call writes no text"
            if length > MAX_CHARACTERS:
                problem = f"the rendering is longer than {MAX_CHARACTERS:,} characters"
            if problem is not None:
                # Thrown into the template's code, so that the error has the line that is running.
                stream.throw(TemplateRuntimeError(problem))
            parts.append(part)
        # `concat` of a marked rendering returns a text without marks; `str` of it has the marks.
        text = str(environment.concat(parts))
        # This only raises `UnicodeEncodeError` for a lone surrogate that stands for no byte.
        text.encode("utf-8", "surrogateescape")
        return text
    except UnicodeEncodeError:
        raise input_error(
            "the rendering has a lone surrogate", location=Location(template)
        ) from None
    except Exception as error:
        raise explain_error(error, template, context, environment) from error


_INCLUDE = re.compile(r"""\{%[-+]?\s*include\s+(?P<quote>["'])(?P<name>.+?)(?P=quote)[^%]*%\}""")


def resolve_includes(renderer: Renderer, template: str, around: tuple[str, ...] = ()) -> str:
    """Return a template with the templates that it includes in their place, for people to read.

    Only includes by a literal name are followed. An include that cannot be read, or that names one
    of the templates `around` it, stays. Raises `InputError` and `OSError` when the template itself
    cannot be read.
    """
    text = read_text(renderer.resolve_path(template), "replace")

    def replace_include(match: re.Match[str]) -> str:
        """Return the included text between two comments with its name, or the include itself."""
        name = match["name"]
        # A template may include itself under a condition: that include stays.
        if name in (template, *around):
            return match[0]
        try:
            inner = resolve_includes(renderer, name, (template, *around))
        except (InputError, OSError):
            return match[0]
        return f"{{# {name} #}}{inner}{{# end of {name} #}}"

    return _INCLUDE.sub(replace_include, text)
