"""The bounds of a rendering: its steps, the characters that it makes, the size of its numbers.

A step is an iteration of a loop or a call. An operation whose result may be larger than its
operands is estimated before it is done (`"x" * 10**12`). So a loop without end and a text without
end are errors at their line.

The price: Jinja2's operators call a function, and what is neither a text nor a number has no bound
(`[x, x]` of a list `x`, over and over).
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from functools import wraps
from itertools import permutations
from typing import Any, NoReturn

from jinja2 import TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import TemplateRuntimeError
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

from tilusbuild.runtime.semantics import MAX_BITS

MAX_STEPS = 1_000_000
"""Loop iterations and calls in one rendering."""
MAX_CHARACTERS = 16 << 20
"""Length of one rendering, and of one text in it."""
MAX_MADE = 4 * MAX_CHARACTERS
"""Length of all texts that a rendering makes on its way."""

# Methods, filters and operators whose result may be longer than all of their operands.
_GROWING = frozenset(
    ("*", "%", "format", "format_map", "join", "replace", "translate", "wordwrap", "indent", "hex",
     "center", "ljust", "rjust", "zfill", "expandtabs", "batch", "slice", "tojson", "to_bytes",
     "extend", "update")
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
            widths = [
                int(width) for groups in _WIDTHS.findall(texts[0]) for width in groups if width
            ]
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


class Steps:
    """An iterable that counts each iteration, and the `characters` of the text in the loop;
    `loop.length` needs the length, if there is one."""

    def __init__(
        self, environment: BoundedEnvironment, items: Iterable[Any], characters: int
    ) -> None:
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


class _Parser(Parser):
    """Jinja2's parser; it places a block without an end at the line where the block begins."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._block_lines: list[int] = []

    def parse_statement(self) -> Any:
        self._block_lines.append(self.stream.current.lineno)
        tree = super().parse_statement()
        self._block_lines.pop()
        return tree

    def fail_eof(
        self, end_tokens: tuple[str, ...] | None = None, lineno: int | None = None
    ) -> NoReturn:
        super().fail_eof(end_tokens, self._block_lines[-1] if self._block_lines else lineno)


class BoundedEnvironment(SandboxedEnvironment):
    """An environment whose renderings raise `TemplateRuntimeError` beyond the bounds. Used from
    several threads, one rendering a thread at a time."""

    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Renderings in several threads share the compiled templates, and count their own steps.
        self.local = threading.local()
        self.filters["_made"] = self.count_made
        self.filters["_steps"] = pass_context(
            lambda context, items, characters: Steps(self, items, characters)
        )

    def bound_filters(self) -> None:
        """Bound the filters that may make a long text. Call this once all filters are there."""
        for name in _GROWING & self.filters.keys():
            self.filters[name] = self._bound_filter(name, self.filters[name])

    def reset_counts(self) -> None:
        """Let this thread's next rendering take all steps and make all characters."""
        self.local.steps = MAX_STEPS
        self.local.characters = MAX_MADE

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

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        try:
            tree = _Parser(self, source, name, filename).parse()
        except TemplateSyntaxError as error:
            error.name = name  # Jinja2's lexer has the file's path for it
            raise
        _instrument_loops(tree, name)
        for concatenation in tree.find_all(nodes.Concat):
            concatenation.nodes = [
                nodes.Filter(part, "_made", [], [], None, None, lineno=part.lineno)
                for part in concatenation.nodes
            ]
        return tree

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
    """Have each loop count its steps. Raises `TemplateSyntaxError` for a jump outside of a loop:
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
