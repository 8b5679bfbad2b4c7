"""The Jinja2 environment: sandboxed, strict, deterministic, and bounded.

A template reads what it is given and nothing else: no Python internals, no file outside the project
and the shipped templates, no random numbers. What it may use is bounded in steps (turns of a loop
and calls) and in characters, so that a mistake ends in an error and not in a full memory.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from jinja2 import (
    BytecodeCache,
    StrictUndefined,
    Template,
    UndefinedError,
    filters,
    nodes,
    pass_context,
)
from jinja2.exceptions import TemplateRuntimeError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from tilusbuild.render import cuda
from tilusbuild.render.loader import ProjectLoader

SHARED_NAMES = ("target", "arch", "args", "script")
"""What an imported template sees without `with context`: not the schedule."""
MAX_STEPS = 1_000_000
"""Turns of loops and calls in one rendering."""
MAX_CHARACTERS = 64 << 20
"""Length of one rendering, and of a text that one operation makes."""
MAX_EXPONENT_BITS = 1 << 16
"""Length of an integer that `**` makes."""

# Their results change from run to run, or depend on where Python put an object.
_NOT_DETERMINISTIC = {"filters": ("random", "pprint"), "globals": ("lipsum",)}


class LimitExceededError(TemplateRuntimeError):
    """A template used more than a rendering may."""


class UndefinedNameError(UndefinedError):
    """A name, or an attribute of `owner`, that does not exist."""

    def __init__(self, message: str, name: str | None = None, owner: object = missing) -> None:
        super().__init__(message)
        self.name = name
        self.owner = owner


class Strict(StrictUndefined):
    """`StrictUndefined` whose error remembers which name it was."""

    __slots__ = ()

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = missing,
        name: str | None = None,
        exc: type[TemplateRuntimeError] = UndefinedError,
    ) -> None:
        error: Any = exc
        if exc is UndefinedError:
            error = partial(UndefinedNameError, name=name, owner=obj)
        super().__init__(hint, obj, name, error)


class Steps:
    """An iterable that charges each turn; `loop.length` needs the length where there is one."""

    def __init__(self, environment: Environment, items: Iterable[Any]) -> None:
        self._environment = environment
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        charge = self._environment.charge
        for item in self._items:
            charge()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]


class ProjectTemplate(Template):
    """A template whose imports see the rendering's shared names, however deep, and are made once
    a rendering."""

    def _get_default_module(self, ctx: Context | None = None) -> Any:
        local = self.environment.local  # type: ignore[attr-defined]
        if (module := local.modules.get(self.name)) is None:
            module = local.modules[self.name] = self.make_module(local.shared)
        return module


class Environment(ImmutableSandboxedEnvironment):
    """The environment of templates. Used from several threads, one rendering a thread at a time."""

    intercepted_binops = frozenset({"*", "**", "%"})
    template_class = ProjectTemplate

    def __init__(
        self, loader: ProjectLoader, *, bytecode_cache: BytecodeCache | None = None
    ) -> None:
        super().__init__(
            loader=loader,
            undefined=Strict,
            finalize=self.finalized,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            auto_reload=False,
            cache_size=-1,
            bytecode_cache=bytecode_cache,
            extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"],
        )
        self.templates = loader
        self.local = threading.local()
        for table, names in _NOT_DETERMINISTIC.items():
            for name in names:
                getattr(self, table).pop(name, None)
        self.globals.update(cuda.GLOBALS)
        self.filters.update(_BOUNDED)
        self.filters.update(cuda.FILTERS)
        self.filters["_steps"] = pass_context(lambda context, items: Steps(self, items))
        self.tests.update(cuda.TESTS)

    def begin(self, context: Mapping[str, Any], used: Callable[[str], None]) -> None:
        """Start a rendering in this thread; `used` is told the name of every template asked for."""
        self.local.steps = MAX_STEPS
        self.local.used = used
        self.local.modules = {}
        self.local.shared = {name: context[name] for name in SHARED_NAMES if name in context}

    def charge(self) -> None:
        """Count one step."""
        self.local.steps -= 1
        if self.local.steps < 0:
            raise LimitExceededError(
                f"a rendering may take {MAX_STEPS:,} steps (turns of loops and calls), no more"
            )

    def finalized(self, value: object) -> object:
        """Hook of `{{ }}`."""
        return cuda.spell(value)

    def join_path(self, template: str, parent: str) -> str:
        """`./x` and `../x` are relative to the directory of the template that names them."""
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
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_steps", [], [], None, None, lineno=loop.lineno)
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.charge()
        text = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(text, str):
            if __obj.__name__ in ("format", "format_map"):
                _check_format(text)
            for value in (*args, *kwargs.values()):
                if type(value) is int:
                    _check_width(value)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        elif isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)


def _check_product(left: Any, right: Any) -> None:
    for sequence, count in ((left, right), (right, left)):
        if (
            isinstance(sequence, (str, bytes, list, tuple))
            and isinstance(count, int)
            and len(sequence) * count > MAX_CHARACTERS
        ):
            raise LimitExceededError(f"{len(sequence) * count:,} elements are too many")


def _check_power(left: Any, right: Any) -> None:
    if (
        isinstance(left, int)
        and isinstance(right, int)
        and left.bit_length() * right > MAX_EXPONENT_BITS
    ):
        raise LimitExceededError(f"{left} ** {right} is too large")


def _check_width(width: Any) -> None:
    if isinstance(width, int) and width > MAX_CHARACTERS:
        raise LimitExceededError(f"a text of {width:,} characters is too long")


def _check_format(text: str) -> None:
    if re.search(r"[0-9]{5}", text):
        raise LimitExceededError(f"a width in the format {text!r:.60} is too long")


def _center(value: str, width: int = 80) -> str:
    _check_width(width)
    return filters.do_center(value, width)


def _indent(text: str, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    _check_width(width * (text.count("\n") + 1) if isinstance(width, int) else 0)
    return filters.do_indent(text, width, first, blank)


def _format(text: str, *args: Any, **kwargs: Any) -> str:
    _check_format(text)
    return filters.do_format(text, *args, **kwargs)


_BOUNDED = {"center": _center, "indent": _indent, "format": _format}
