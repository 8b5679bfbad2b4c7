"""The Jinja2 environment and its loader: sandboxed, strict, deterministic, bounded (`bounds.py`).

A template reads its context, the project's templates and the shipped ones under `tilusbuild/`, and
nothing else: no Python internals, no other file, no random numbers. A template's name never leads
out of these directories, neither by `..` nor by a symbolic link. Each template is read once in a
loader's life, so one plan sees one content. Whoever can write templates is trusted as the author of
a Makefile is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from jinja2 import (
    BaseLoader,
    StrictUndefined,
    Template,
    TemplateError,
    TemplateNotFound,
    Undefined,
    UndefinedError,
)
from jinja2.exceptions import TemplateRuntimeError
from jinja2.runtime import Context
from jinja2.utils import missing
from msgspec import Struct

from tilusbuild.manifest.names import PACKAGE
from tilusbuild.render import cuda, find_templates_directory
from tilusbuild.render.bounds import BoundedEnvironment
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.where import is_within
from tilusbuild.signature.reading import JINJA_EXTENSIONS
from tilusbuild.state.stamp import DeviceStamp, read_device_stamp
from tilusbuild.toolchain.headers import find_package_directory

SHARED_NAMES = ("target", "arch", "args", "script")
"""The names that an imported template sees without `with context`: not the schedule."""
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
    function: str = ""
    """The Python function in the file that returns the source; "" for a template."""
    language: str = ""
    """The module that compiles the function; "" if the function itself returns the source."""


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
        self.first_stamps: dict[str, DeviceStamp] = {}
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

        The file's stamp is added to `first_stamps`. Raises `TemplateNotFound`, and
        `BadTemplateError` if the file cannot be read.
        """
        if (stored_text := self.texts.get(name)) is not None:
            return stored_text
        path = self.resolve_path(name)
        # The stamp is taken before the file is read, so that it differs from the file's stamp if
        # the file changes in between.
        self.first_stamps.setdefault(path, read_device_stamp(path))
        try:
            data = read_bytes(path)
        except (FileNotFoundError, NotADirectoryError):
            raise TemplateNotFound(name) from None
        except OSError as error:
            raise BadTemplateError(name, f'the template "{name}": {error.strerror}') from None
        # A source may be in any encoding: a byte that is not UTF-8 is a surrogate until it is
        # written.
        if self._exact:
            return self.texts.setdefault(name, data.decode("utf-8", "surrogateescape"))
        text = data.decode("utf-8-sig", "surrogateescape")
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


class ProjectTemplate(Template):
    """A template whose imports see the rendering's shared names, however deep, and are evaluated
    once in a rendering."""

    def _get_default_module(self, ctx: Context | None = None) -> Any:
        local = self.environment.local  # type: ignore[attr-defined]
        if (module := local.modules.get(self.name)) is None:
            module = local.modules[self.name] = self.make_module(local.shared)
        return module


class Environment(BoundedEnvironment):
    """The environment of templates."""

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
            extensions=JINJA_EXTENSIONS,
        )
        self.templates = loader
        self._cpp_values = style.cpp_values
        for table, names in _NOT_DETERMINISTIC.items():
            for name in names:
                getattr(self, table).pop(name, None)
        self.globals.update(cuda.GLOBALS)
        self.filters.update(cuda.FILTERS)
        self.bound_filters()
        self.tests.update(cuda.TESTS)

    def begin_rendering(self, context: Mapping[str, Any], used: Callable[[str], None]) -> None:
        """Start a rendering in this thread: reset its steps and its imports. `used` is called with
        the name of each template."""
        self.reset_counts()
        self.local.used = used
        self.local.modules = {}
        self.local.shared = {name: context[name] for name in SHARED_NAMES if name in context}

    def finalize_value(self, value: object) -> object:
        """Return what `{{ value }}` writes: Jinja2 calls it. Raises `TemplateRuntimeError`."""
        if isinstance(value, str):
            self.count_made(value)
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
