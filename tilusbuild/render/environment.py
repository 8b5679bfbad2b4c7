"""The Jinja2 environment and its loader: sandboxed, strict, deterministic, and bounded.

A template reads its context, the project's templates and the shipped ones under `tilusbuild/`, and
nothing else: no Python internals, no other file, no random numbers. A template's name never leads
out of these directories, neither by `..` nor by a symbolic link. Each template is read once in a
loader's life, so one plan sees one content. A rendering is bounded in steps (loop iterations and
calls) and in the characters that it writes, so that a loop without end is an error at its line.

The price: one operation may make a text or a number that takes all memory or time (`"x" * 10**12`).
Whoever can write templates is trusted as the author of a Makefile is.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from jinja2 import (
    BaseLoader,
    StrictUndefined,
    Template,
    TemplateError,
    TemplateNotFound,
    TemplateSyntaxError,
    Undefined,
    UndefinedError,
    nodes,
    pass_context,
)
from jinja2.exceptions import TemplateRuntimeError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing
from msgspec import Struct

from tilusbuild.manifest.names import PACKAGE
from tilusbuild.render import cuda, find_templates_directory
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.where import is_within
from tilusbuild.state.stamp import DeviceStamp, read_device_stamp
from tilusbuild.toolchain.headers import find_package_directory

SHARED_NAMES = ("target", "arch", "args", "script")
"""The names that an imported template sees without `with context`: not the schedule."""
MAX_STEPS = 1_000_000
"""Loop iterations and calls in one rendering."""
MAX_CHARACTERS = 16 << 20
"""Length of one rendering."""

_MAX_NAMES = 10_000
"""Names of templates to compare a misspelt one with."""

# Their results differ from run to run, or hold the address of a Python object.
_NOT_DETERMINISTIC = {"filters": ("random", "pprint"), "globals": ("lipsum",)}


SHIPPED = "tilusbuild/"


class Style(Struct, frozen=True):
    """How the templates of a script are read: Jinja2's settings, or no rendering at all."""

    rendered: bool = True
    """Whether they are templates. Otherwise a source is a file's bytes."""
    trim_blocks: bool = True
    lstrip_blocks: bool = True
    keep_trailing_newline: bool = True
    strict: bool = True
    """Whether an undefined name is an error; otherwise it writes nothing and is false."""
    cpp_values: bool = True
    """Whether `{{ true }}` writes what C++ calls it, and not what Python does."""


DEFAULT_STYLE = Style()


class BadTemplateError(TemplateError):
    """A template exists and cannot be used; the message says why. `ignore missing` does not hide
    it."""

    def __init__(self, name: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.bad_line = line


NOT_USABLE = (TemplateNotFound, BadTemplateError)
"""The errors of reading a template."""


class ProjectLoader(BaseLoader):
    """Finds templates below `root`, in the shipped directory, and in installed packages. With
    `exact` their bytes may be in any encoding, and stay as they are."""

    def __init__(self, root: str, *, exact: bool = False) -> None:
        self._exact = exact
        self.root = os.path.realpath(root)
        self.shipped = os.path.realpath(find_templates_directory())
        self.texts: dict[str, str] = {}
        """The texts of the templates that were read, by name."""
        self.sightings: dict[str, DeviceStamp] = {}
        """The stamps of files by path, from before they were read."""

    def resolve_path(self, name: str) -> str:
        """Return the file of a template, whether it exists or not. Raises `BadTemplateError`."""
        if not name or name.startswith("/") or "\0" in name:
            raise BadTemplateError(
                name, f'the template "{name}" is not a path relative to the project'
            )
        if ".." in name.split("/"):
            raise BadTemplateError(name, f'the template "{name}" leads out of the project')
        if name.startswith(PACKAGE):
            package, _, path = name.removeprefix(PACKAGE).partition("/")
            directory, file = os.path.split(path)
            try:
                return os.path.join(find_package_directory(package, directory), file)
            except LookupError as error:
                raise BadTemplateError(name, str(error)) from None
        base = self.shipped if name.startswith(SHIPPED) else self.root
        path = os.path.join(base, name)
        real = os.path.realpath(path)
        if not is_within(real, base):
            raise BadTemplateError(
                name, f'the template "{name}" is a link that leads out of the project'
            )
        return path

    def read_text(self, name: str) -> str:
        """Return the content of a template, which is read once and kept in `texts`.

        The file's stamp is added to `sightings`. Raises `TemplateNotFound`, and `BadTemplateError`
        if the file cannot be read or is not UTF-8.
        """
        if (stored_text := self.texts.get(name)) is not None:
            return stored_text
        path = self.resolve_path(name)
        # The stamp is taken before the file is read, so that it differs from the file's stamp if
        # the file changes in between.
        self.sightings.setdefault(path, read_device_stamp(path))
        try:
            data = read_bytes(path)
        except (FileNotFoundError, NotADirectoryError):
            raise TemplateNotFound(name) from None
        except OSError as error:
            raise BadTemplateError(name, f'the template "{name}": {error.strerror}') from None
        # A source that is not rendered may be in any encoding.
        if self._exact:
            return self.texts.setdefault(name, data.decode("utf-8", "surrogateescape"))
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise BadTemplateError(name, f'the template "{name}" is not UTF-8', line) from None
        # Editors and git change line ends, and these must not change a program's hash.
        return self.texts.setdefault(name, re.sub(r"\r\n?", "\n", text))

    def get_source(
        self, environment: Any, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        # The last one says whether the text is up to date: always, since one plan sees one content.
        return self.read_text(template), self.resolve_path(template), lambda: True

    def list_templates(self) -> list[str]:
        """Return the names of the project's and the shipped templates, for suggestions. If there
        are more than `_MAX_NAMES`, some are missing."""
        names = []
        for base, top in ((self.root, ""), (self.shipped, SHIPPED)):
            for directory, directories, files in os.walk(os.path.join(base, top)):
                # `os.walk` descends into the directories that are in this list, so it is changed in
                # place to leave out hidden ones.
                directories[:] = sorted(inner for inner in directories if not inner.startswith("."))
                names += [
                    os.path.relpath(os.path.join(directory, file), base)
                    for file in sorted(files)
                    if file.endswith((".j2", ".jinja", ".cu", ".cuh", ".h"))
                ]
                if len(names) > _MAX_NAMES:
                    break
        return names


class UndefinedNameError(UndefinedError):
    """A name, or an attribute of `owner`, that does not exist."""

    def __init__(self, message: str, name: str | None = None, owner: object = missing) -> None:
        super().__init__(message)
        self.name = name
        self.owner = owner


class Strict(StrictUndefined):
    """`StrictUndefined` whose error holds the name."""

    __slots__ = ()

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = missing,
        name: str | None = None,
        exc: type[TemplateRuntimeError] = UndefinedError,
    ) -> None:
        error: Any = exc
        # A hint is Jinja2's own message, such as "parameter 'x' was not provided": it stays.
        if exc is UndefinedError and hint is None:
            error = partial(UndefinedNameError, name=None if name is None else str(name), owner=obj)
        super().__init__(hint, obj, name, error)


class Steps:
    """An iterable that counts each iteration; `loop.length` needs the length, if there is one."""

    def __init__(self, environment: Environment, items: Iterable[Any]) -> None:
        self._environment = environment
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        count_step = self._environment.count_step
        for item in self._items:
            count_step()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]


class ProjectTemplate(Template):
    """A template whose imports see the rendering's shared names, however deep, and are evaluated
    once in a rendering."""

    def _get_default_module(self, ctx: Context | None = None) -> Any:
        local = self.environment.local  # type: ignore[attr-defined]
        if (module := local.modules.get(self.name)) is None:
            module = local.modules[self.name] = self.make_module(local.shared)
        return module


class Environment(ImmutableSandboxedEnvironment):
    """The environment of templates. Used from several threads, one rendering a thread at a time."""

    template_class = ProjectTemplate

    def __init__(self, loader: ProjectLoader, style: Style = DEFAULT_STYLE) -> None:
        super().__init__(
            loader=loader,
            undefined=Strict if style.strict else Undefined,
            finalize=self.finalize_value,
            autoescape=False,
            trim_blocks=style.trim_blocks,
            lstrip_blocks=style.lstrip_blocks,
            keep_trailing_newline=style.keep_trailing_newline,
            auto_reload=False,
            cache_size=-1,
            optimized=False,  # folding takes the square of how deep an expression is nested
            extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"],
        )
        self.templates = loader
        self._cpp_values = style.cpp_values
        # Renderings in several threads share the compiled templates, and count their own steps.
        self.local = threading.local()
        for table, names in _NOT_DETERMINISTIC.items():
            for name in names:
                getattr(self, table).pop(name, None)
        self.globals.update(cuda.GLOBALS)
        self.filters.update(cuda.FILTERS)
        self.filters["_steps"] = pass_context(lambda context, items: Steps(self, items))
        self.tests.update(cuda.TESTS)

    def begin_rendering(self, context: Mapping[str, Any], used: Callable[[str], None]) -> None:
        """Start a rendering in this thread: reset its steps and its imports. `used` is called with
        the name of each template."""
        self.local.steps = MAX_STEPS
        self.local.used = used
        self.local.modules = {}
        self.local.shared = {name: context[name] for name in SHARED_NAMES if name in context}

    def count_step(self) -> None:
        """Count one step of this thread's rendering. Raises `TemplateRuntimeError` after
        `MAX_STEPS`."""
        self.local.steps -= 1
        if self.local.steps < 0:
            raise TemplateRuntimeError(
                f"a rendering may take {MAX_STEPS:,} steps (loop iterations and calls), no more"
            )

    def finalize_value(self, value: object) -> object:
        """Return what `{{ value }}` writes: Jinja2 calls it. Raises `TemplateRuntimeError`."""
        if not self._cpp_values and (value is None or isinstance(value, (bool, float))):
            return value
        return cuda.spell_value(value)

    def join_path(self, template: str, parent: str) -> str:
        """Return a template's name; `./x` and `../x` are relative to the directory of `parent`."""
        if not isinstance(template, str):
            raise TemplateRuntimeError(f"the name of a template is a string, not {template!r:.60}")
        if not template.startswith(("./", "../")):
            return template
        parts = parent.split("/")[:-1]
        for part in template.split("/"):
            if part == ".." and parts and parts[-1] != "..":
                parts.pop()
            elif part != ".":
                parts.append(part)
        return "/".join(parts)

    def _load_template(self, name: str, globals: Any) -> Any:  # noqa: A002 - Jinja2's own name
        used = getattr(self.local, "used", None)
        if used is not None:
            used(name)
        return super()._load_template(name, globals)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _instrument_loops(tree, name)
        return tree

    def compile(self, source: Any, name: Any = None, filename: Any = None, *rest: Any) -> Any:
        """Compile as Jinja2 does. Raises `BadTemplateError` where Jinja2 writes Python that is not
        valid, as for a macro's argument that is there twice."""
        tree = self._parse(source, name, filename) if isinstance(source, str) else source
        try:
            return super().compile(tree, name, filename, *rest)
        except SyntaxError as error:
            # The Python code ends with `debug_info = '1=13&4=20'`: template line 4 begins at Python
            # line 20. The last template line that begins before the error has the mistake.
            python = self._generate(tree, None, None)
            line_pairs = re.findall(r"(\d+)=(\d+)", python.rpartition("debug_info =")[2])
            template_lines = (
                int(template_line)
                for template_line, python_line in line_pairs
                if int(python_line) <= (error.lineno or 0)
            )
            # In the message a template's name `x` is `l_0_x`, as in Jinja2's Python code.
            message = re.sub(r"'l_\d+_(\w+)'", r'"\1"', error.msg)
            line = max(template_lines, default=1)
            raise BadTemplateError(str(name), message, line) from None

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.count_step()
        return super().call(__context, __obj, *args, **kwargs)


_FUNCTIONS = (nodes.Macro, nodes.CallBlock, nodes.Block)


def _instrument_loops(node: nodes.Node, name: str | None, *, in_loop: bool = False) -> None:
    """Have each loop count its steps. Raise `TemplateSyntaxError` for a jump outside of a loop:
    Jinja2 makes wrong Python of it."""
    if isinstance(node, (nodes.Break, nodes.Continue)) and not in_loop:
        keyword = type(node).__name__.lower()
        raise TemplateSyntaxError(f'"{keyword}" outside of a loop', node.lineno, name)
    if isinstance(node, nodes.For):
        node.iter = nodes.Filter(node.iter, "_steps", [], [], None, None, lineno=node.lineno)
        in_loop = True
    # Jinja2 makes a Python function of a macro's body, so a `break` in it cannot leave the loop
    # around the macro.
    stays_in_loop = in_loop and not isinstance(node, _FUNCTIONS)
    for child in node.iter_child_nodes():
        if isinstance(child, nodes.Stmt):
            _instrument_loops(child, name, in_loop=stays_in_loop)
