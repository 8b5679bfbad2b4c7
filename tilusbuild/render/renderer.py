"""The renderer: from a template's name and a context to source; mistakes are `InputError`s.

A rendering is a function of the templates' content and of the context. A renderer reads each
template once in its life and writes nothing but bytecode, in a directory that belongs to this user
alone: Jinja2's bytecode is code. A rendering ends: steps, length and recursion are bounded, and
with `limits` memory and time too, by a process of its own (`worker.py`).
"""

from __future__ import annotations

import json
import marshal
import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import BytecodeCache, TemplateError, meta
from jinja2.bccache import Bucket

from tilusbuild.errors import InputError, TilusbuildError
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.render.environment import (
    MAX_CHARACTERS,
    NOT_USABLE,
    OURS,
    Environment,
    LimitExceededError,
    ProjectLoader,
    Style,
)
from tilusbuild.render.problems import explain
from tilusbuild.render.worker import Render, RenderLimits, RenderWorker
from tilusbuild.runtime.regular import open_regular, read_text
from tilusbuild.state.envelope import Envelope
from tilusbuild.state.files import sha256_file, sha256_text, write_atomic
from tilusbuild.state.stamp import Sighting

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
    """Renders the templates of the project in `root`. May be used from several threads at once.

    With `limits`, renders in a child process under them; without, in this one. `style` is how
    templates are read, and `styled` returns a renderer with another one.
    """

    def __init__(
        self,
        root: str,
        *,
        bytecode_dir: str | None = None,
        limits: RenderLimits | None = None,
        style: Style = OURS,
    ) -> None:
        self._loader = ProjectLoader(root, exact=not style.rendered)
        self._style = style
        cache = PrivateBytecode(bytecode_dir, style) if bytecode_dir else None
        self._environment = Environment(self._loader, style, bytecode_cache=cache)
        self._limits = limits
        self._others = partial(Renderer, root, bytecode_dir=bytecode_dir, limits=limits)
        self._styled: dict[Style, Renderer] = {}
        self._marking: MarkingEnvironment | None = None
        self._worker = self._worker_for(self._environment, render_text)
        self._marker: RenderWorker | None = None
        """The worker of marked renderings."""

    def close(self) -> None:
        """End the child processes, if there are any; the next rendering starts another."""
        for other in self._styled.values():
            other.close()
        for worker in (self._worker, self._marker):
            if worker is not None:
                worker.close()

    def styled(self, style: Style) -> Renderer:
        """Return the renderer of a style, which is closed with this one."""
        if style == self._style:
            return self
        if style not in self._styled:
            self._styled[style] = self._others(style=style)
        return self._styled[style]

    def render(self, template: str, context: Mapping[str, Any]) -> Rendering:
        """Render a template by its name relative to the project, `/` between its parts.

        Raises `InputError`, located in the template whose line is at fault.
        """
        return self.render_some(template, [context])[0]

    def render_some(self, template: str, contexts: Sequence[Mapping[str, Any]]) -> list[Rendering]:
        """Return the renderings of the first of `contexts`, of one at least.

        In a child process, several together cost less. Raises `InputError` as `render` does, for
        the first of them.
        """
        if not self._style.rendered:
            return [self.plain(template)] * len(contexts)
        if self._worker is not None:
            return [self._rendering(*each) for each in self._worker.render(template, contexts)]
        names: dict[str, None] = {}
        text = render_text(self._environment, template, contexts[0], names)
        return [self._rendering(text, names)]

    def _worker_for(self, environment: Environment, render: Render) -> RenderWorker | None:
        return None if self._limits is None else RenderWorker(environment, self._limits, render)

    def plain(self, name: str) -> Rendering:
        """Return a file of the project as it is. Raises `InputError`."""
        try:
            return Rendering(self._loader.text(name), (name,), ())
        except NOT_USABLE as error:
            raise self._explained(error, name, {}) from None

    def _rendering(self, text: str, used: Iterable[str]) -> Rendering:
        absent = tuple(name for name in used if not self._exists(name))
        return Rendering(text, tuple(name for name in used if name not in absent), absent)

    def path(self, template: str) -> str:
        """Return the file of a template. Raises `InputError` for a name outside the project."""
        try:
            return self._loader.path(template)
        except NOT_USABLE as error:
            raise self._explained(error, template, {}) from None

    @property
    def sightings(self) -> Mapping[str, Sighting]:
        """Every template that was asked for, by path, as it was before it was read."""
        found = dict(self._loader.sightings)
        for other in self._styled.values():
            for path, seen in other.sightings.items():
                found.setdefault(path, seen)
        return found

    def digest(self, template: str) -> str:
        """Return the sha256 of a template's text; "" if it does not exist."""
        try:
            return sha256_text(self._loader.text(template))
        except NOT_USABLE:
            return ""

    def line_map(self, template: str, context: Mapping[str, Any], text: str) -> LineMap:
        """Return the line map of `text`, which `render` returned for the same arguments.

        Takes a second rendering.
        """
        from tilusbuild.render.linemap import MarkingEnvironment, build, of_itself

        if not self._style.rendered:
            return of_itself(template, text, self._loader.text)
        if self._marking is None:
            self._marking = MarkingEnvironment(self._loader, self._style)
            self._marker = self._worker_for(self._marking, _render_marked)
        try:
            if self._marker is None:
                answer = _render_marked(self._marking, template, context, {})
            else:
                ((answer, _),) = self._marker.render(template, [context])
        except TilusbuildError:
            answer = '[[], ""]'
        names, marked = json.loads(answer)
        return build(marked, text, names, self._loader.text)

    def dependencies(self, template: str) -> tuple[str, ...]:
        """Return the templates that `template` names in include, import and extends tags, however
        deep, itself first; names that are computed are not known. Raises `InputError`."""
        found: dict[str, None] = {template: None}
        queue = [template]
        while queue:
            name = queue.pop()
            try:
                tree = self._environment.parse(self._loader.text(name), name)
            except NOT_USABLE as error:
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
        except NOT_USABLE:
            return False
        return True

    def _explained(self, error: Exception, template: str, context: Mapping[str, Any]) -> Exception:
        return explain(error, template, context, self._environment)


def render_text(
    environment: Environment,
    template: str,
    context: Mapping[str, Any],
    used: dict[str, None],
    most: int = MAX_CHARACTERS,
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
            if length > most:
                raise LimitExceededError(
                    f"the rendering is longer than {most:,} characters (template-size in [build])"
                )
        return "".join(parts)
    except Exception as error:
        raise explain(error, template, context, environment) from error


def _render_marked(
    environment: Environment,
    template: str,
    context: Mapping[str, Any],
    used: dict[str, None],
    most: int = MAX_CHARACTERS,
) -> str:
    """Return, as JSON, the names that the marks count, and a marked rendering."""
    marked = render_text(environment, template, context, used, most)
    return json.dumps((environment.names, marked), ensure_ascii=False)  # type: ignore[attr-defined]


_INCLUDE = re.compile(r"""\{%[-+]?\s*include\s+(?P<quote>["'])(?P<name>.+?)(?P=quote)[^%]*%\}""")


def resolved(renderer: Renderer, template: str, around: tuple[str, ...] = ()) -> str:
    """Return a template with the templates that it includes in their place, for people to read.

    Only includes by a literal name are followed. Raises `InputError` and `OSError` when the
    template cannot be read.
    """
    text = read_text(renderer.path(template), "replace")

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


def _implementation() -> str:
    """Return all but its source that decides a template's bytecode: tilusbuild, Jinja2, Python."""
    directory = os.path.dirname(os.path.abspath(__file__))
    ours = [sha256_file(os.path.join(directory, name)) for name in ("environment.py", "cuda.py")]
    return "\n".join([*ours, jinja2.__version__, sys.version])


class PrivateBytecode(BytecodeCache):
    """Keeps one file per template in `directory`, which is created by the first write."""

    def __init__(self, directory: str, style: Style = OURS) -> None:
        self._directory = directory
        self._salt = f"{_implementation()}\n{style}"

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        return sha256_text(f"{self._salt}\n{name}")

    def load_bytecode(self, bucket: Bucket) -> None:
        try:
            _check_private(os.lstat(self._directory))
            handle = open_regular(self._path(bucket), follow=False)
            with os.fdopen(handle, "rb") as file:
                _check_private(os.fstat(handle))
                data = file.read()
        except OSError:
            return
        payload = _envelope(bucket).unwrap(data)
        if payload is not None:
            bucket.code = marshal.loads(payload)  # noqa: S302 - checked above

    def dump_bytecode(self, bucket: Bucket) -> None:
        payload = marshal.dumps(bucket.code)
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            _check_private(os.lstat(self._directory))  # a link is not ours to follow
            write_atomic(self._path(bucket), _envelope(bucket).wrap(payload), mode=0o600)
        except OSError:
            pass

    def _path(self, bucket: Bucket) -> str:
        return os.path.join(self._directory, bucket.key)


def _envelope(bucket: Bucket) -> Envelope:
    """Return the envelope of the bucket's file: it fits this template with this content only."""
    return Envelope(f"template 2 {bucket.key} {bucket.checksum}")


def _check_private(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError
