"""The Jinja2 environment and its loader: sandboxed, strict, deterministic, and bounded.

A template reads its context, the project's templates and the shipped ones under `tilusbuild/`, and
nothing else: no Python internals, no other file, no random numbers. A template's name never leads
out of these directories, neither by `..` nor by a symbolic link. Each template is read once in a
loader's life, so one plan sees one content. A rendering is bounded in steps (loop iterations and
calls), in the characters that it makes and writes, and in the size of its numbers. An operation
whose result may be larger than its operands is estimated before it is done (`"x" * 10**12`). So a
loop without end and a text without end are errors at their line.

The price: Jinja2's operators call a function, and what is neither a text nor a number has no bound
(`[x, x]` of a list `x`, over and over). Whoever can write templates is trusted as the author of a
Makefile is.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial, wraps
from itertools import permutations
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
from tilusbuild.runtime.semantics import MAX_BITS
from tilusbuild.runtime.where import is_within
from tilusbuild.signature.reading import JINJA_EXTENSIONS
from tilusbuild.state.stamp import DeviceStamp, read_device_stamp
from tilusbuild.toolchain.headers import find_package_directory

SHARED_NAMES = ("target", "arch", "args", "script")
"""The names that an imported template sees without `with context`: not the schedule."""
MAX_STEPS = 1_000_000
"""Loop iterations and calls in one rendering."""
MAX_CHARACTERS = 16 << 20
"""Length of one rendering, and of one text in it."""
MAX_MADE = 4 * MAX_CHARACTERS
"""Length of all texts that a rendering makes on its way."""

_MAX_NAMES = 10_000
"""Names of templates to compare a misspelt one with."""

# Their results differ from run to run, or hold the address of a Python object.
_NOT_DETERMINISTIC = {"filters": ("random", "pprint"), "globals": ("lipsum",)}


# Methods of strings, filters and operators whose result may be longer than all of their operands.
_GROWING = frozenset(
    ("*", "%", "format", "format_map", "join", "replace", "translate", "wordwrap", "indent", "hex",
     "center", "ljust", "rjust", "zfill", "expandtabs", "batch", "slice", "tojson", "to_bytes")
)  # fmt: skip
# The widths in `%-8d`, `%.3f` and `{:>8}`.
_WIDTHS = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\d*)\.?(\d*)|:[^{}]*?(\d+)[^{}]*\}")


def _measure(value: object) -> int:
    """Return the length of a text, or of a list's texts together; 0 for any other value."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, str):
        return len(value)
    # A range is not counted out: its numbers have 6 digits.
    if isinstance(value, range):
        return 24 * len(value)
    items = value if isinstance(value, Iterable) and isinstance(value, Sized) else ()
    return sum(len(item) if isinstance(item, str) else 24 for item in items)


def estimate_length(operation: str, operands: Sequence[object]) -> int:
    """Return a length that the result of a growing operation does not exceed."""
    # Jinja2 passes its own objects first to some filters.
    operands = [operand for operand in operands if isinstance(operand, int | float | Sized)]
    texts = [operand for operand in operands if isinstance(operand, str)]
    lists = [o for o in operands if isinstance(o, Collection) and not isinstance(o, str)]
    # Of `n | hex(8)` the width is the second one; in `n * text` either is a number of times.
    numbers = operands if operation == "*" else operands[1:]
    counts = [abs(operand) for operand in numbers if isinstance(operand, int)]
    sizes = [*map(_measure, operands), 1]
    match operation:
        case "replace":
            pairs = permutations(texts[1:], 2)
            return max((texts[0].count(old) * len(new) for old, new in pairs), default=0)
        case "join":
            return sum(sizes) + math.prod(len(operand) for operand in (*texts, *lists))
        case "format" | "format_map" | "%" if texts:
            widths = [int(width) for found in _WIDTHS.findall(texts[0]) for width in found if width]
            # A width that is an argument: `%*d`, `{:{}}`.
            if "*" in texts[0] or re.search(r":[^}]*\{", texts[0]):
                widths += counts
                widths += [abs(item) for items in lists for item in items if isinstance(item, int)]
            escapes = 2 * (texts[0].count("{{") + texts[0].count("%%"))
            fields = texts[0].count("{") + texts[0].count("%") - escapes
            return fields * max([*sizes, *widths])
        case "*" | "%" if not texts and not lists:
            return 0
        case "translate":
            return max(sizes) ** 2
    return max(sizes) * max([*map(len, texts[1:]), *counts, 1])


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


class Steps:
    """An iterable that counts each iteration, and the `characters` of the text in the loop;
    `loop.length` needs the length, if there is one."""

    def __init__(self, environment: Environment, items: Iterable[Any], characters: int) -> None:
        self._environment = environment
        self._characters = characters
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        count_step = self._environment.count_step
        for item in self._items:
            count_step(self._characters)
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
    intercepted_binops = frozenset(("+", "*", "%", "**"))

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
        # Renderings in several threads share the compiled templates, and count their own steps.
        self.local = threading.local()
        for table, names in _NOT_DETERMINISTIC.items():
            for name in names:
                getattr(self, table).pop(name, None)
        self.globals.update(cuda.GLOBALS)
        self.filters.update(cuda.FILTERS)
        for name in _GROWING & self.filters.keys():
            self.filters[name] = self._bound_filter(name, self.filters[name])
        self.filters["_made"] = self.count_made
        self.filters["_steps"] = pass_context(
            lambda context, items, characters: Steps(self, items, characters)
        )
        self.tests.update(cuda.TESTS)

    def begin_rendering(self, context: Mapping[str, Any], used: Callable[[str], None]) -> None:
        """Start a rendering in this thread: reset its steps and its imports. `used` is called with
        the name of each template."""
        self.local.steps = MAX_STEPS
        self.local.characters = MAX_MADE
        self.local.used = used
        self.local.modules = {}
        self.local.shared = {name: context[name] for name in SHARED_NAMES if name in context}

    def _bound_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that raises `TemplateRuntimeError` before it makes too long a text."""

        @wraps(function)
        def apply_filter(*args: Any, **kwargs: Any) -> Any:
            # An iterator has no length before it is read.
            args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
            self.check_growth(name, (*args, *kwargs.values()))
            return self.count_made(function(*args, **kwargs))

        return apply_filter

    def check_growth(self, operation: str, operands: Sequence[object]) -> None:
        """Raise `TemplateRuntimeError` if an operation may make too long a text."""
        length = estimate_length(operation, operands) if operation in _GROWING else 0
        if length > MAX_CHARACTERS:
            raise TemplateRuntimeError(
                f'"{operation}" makes up to {length:,} characters or items here, '
                f"and a text has at most {MAX_CHARACTERS:,}"
            )

    def count_made(self, value: Any) -> Any:
        """Return a value after its characters are counted. Raises `TemplateRuntimeError` after
        `MAX_MADE`, and for an integer of more than `MAX_BITS`."""
        if isinstance(value, str):
            self.local.characters -= len(value)
            if self.local.characters < 0:
                raise TemplateRuntimeError(
                    f"the texts of a rendering exceed {MAX_MADE:,} characters"
                )
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise TemplateRuntimeError(f"an integer has at most {MAX_BITS:,} bits")
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator that Jinja2 passes to this method."""
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            # Most operands are numbers, whose sums and remainders never become large.
            if operator in ("+", "%"):
                return self.binop_table[operator](left, right)
            bits = left.bit_length() * right if isinstance(left, int) else 0
            if operator == "**" and bits > MAX_BITS:
                raise TemplateRuntimeError(f"an integer has at most {MAX_BITS:,} bits")
        else:
            self.check_growth(operator, (left, right))
        return self.count_made(self.binop_table[operator](left, right))

    def count_step(self, characters: int = 0) -> None:
        """Count one step of this thread's rendering, and characters. Raises `TemplateRuntimeError`
        after `MAX_STEPS` and `MAX_MADE`."""
        self.local.steps -= 1
        if characters:
            self.local.characters -= characters
            self.count_made("")
        if self.local.steps < 0:
            raise TemplateRuntimeError(
                f"a rendering may take {MAX_STEPS:,} steps (loop iterations and calls), no more"
            )

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

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _instrument_loops(tree, name)
        for concatenation in tree.find_all(nodes.Concat):
            concatenation.nodes = [
                nodes.Filter(part, "_made", [], [], None, None, lineno=part.lineno)
                for part in concatenation.nodes
            ]
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
        # Jinja2 wraps `str.format`.
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, int | Sized):
            __self.check_growth(method.__name__, (owner, *args, *kwargs.values()))
        return __self.count_made(super().call(__context, __obj, *args, **kwargs))


_FUNCTIONS = (nodes.Macro, nodes.CallBlock, nodes.Block)


def _instrument_loops(node: nodes.Node, name: str | None, *, in_loop: bool = False) -> None:
    """Have each loop count its steps. Raise `TemplateSyntaxError` for a jump outside of a loop:
    Jinja2 makes wrong Python of it."""
    if isinstance(node, (nodes.Break, nodes.Continue)) and not in_loop:
        keyword = type(node).__name__.lower()
        raise TemplateSyntaxError(f'"{keyword}" outside of a loop', node.lineno, name)
    if isinstance(node, nodes.For):
        characters = nodes.Const(sum(len(data.data) for data in node.find_all(nodes.TemplateData)))
        node.iter = nodes.Filter(
            node.iter, "_steps", [characters], [], None, None, lineno=node.lineno
        )
        in_loop = True
    # Jinja2 makes a Python function of a macro's body, so a `break` in it cannot leave the loop
    # around the macro.
    stays_in_loop = in_loop and not isinstance(node, _FUNCTIONS)
    for child in node.iter_child_nodes():
        if isinstance(child, nodes.Stmt):
            _instrument_loops(child, name, in_loop=stays_in_loop)
