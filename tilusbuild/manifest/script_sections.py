"""The sections of a script: template, rules, launch, levels, prune, dispatch, tune."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal

from tilusbuild.expr import Expr, Value, parse_expression
from tilusbuild.manifest.names import PACKAGE
from tilusbuild.manifest.sections import Directory
from tilusbuild.manifest.table import (
    NOTHING,
    Entries,
    Key,
    Table,
    ValueFault,
    check_table,
    describe_kind,
    make_adapter,
)
from tilusbuild.manifest.values import VALUE_SCHEMA, AnyValue, ExprSource, Text, wrap_single


def _check_rule_or_false(value: object) -> object:
    if value is not False and not isinstance(value, str):
        kind = describe_kind(value)
        raise ValueFault(f"must be an expression in quotes, or false, not {kind}")
    return value


# Typed: `1` and `true` are equal keys, and different constants.
@lru_cache(maxsize=4096, typed=True)
def parse_cached(source: Value) -> Expr:
    """Return the expression of a text or a constant. Raises `ExprError`. Results are cached, as
    each target of a script asks for the same texts."""
    return parse_expression(source)


RuleOrFalse = Annotated[
    Text | bool,
    Key(
        before=_check_rule_or_false,
        schema={"anyOf": [{"type": "string", "minLength": 1}, {"const": False}]},
    ),
]


class LevelsSection(Table, frozen=True):
    """The sample that level 1 builds."""

    sample: Annotated[int, Key(ge=1)] = 64
    """The number of schedules of an instance."""
    seed: Annotated[int, Key(ge=0)] = 0
    """The random seed. The same seed gives the same sample."""


class PruneSection(Table, frozen=True):
    """Limits of compiled kernels. A program beyond a limit is left out.

    A limit is a number, or an expression over parameters, derived values and `arch.*`. The reason
    is recorded, and the program is not compiled again.
    """

    max_registers: Annotated[
        ExprSource | None, Key(examples=[255, "255 if stages > 3 else 128"])
    ] = None
    """The largest number of registers of a thread."""
    max_spill_bytes: Annotated[ExprSource | None, Key(examples=[0])] = None
    """The largest number of bytes that a thread spills to local memory."""
    min_blocks_per_sm: Annotated[ExprSource | None, Key(examples=[1])] = None
    """The smallest number of blocks that fit on a multiprocessor at a time."""


def _check_edges(edges: tuple[int, ...]) -> tuple[int, ...]:
    for edge, following in pairwise((0, *edges)):
        if following <= edge:
            raise ValueFault(f"must be counts that rise, and {following} follows {edge}")
    return edges


class BucketSection(Table, frozen=True):
    """How the sizes of one dimension are grouped.

    Written as `"tilus"` (two buckets an octave, the default), `"pow2"` (one), `"exact"` (one for
    each size), an array of edges, or `{ every = N }`.
    """

    shorthands = ((str, "kind"), (tuple, "edges"))

    kind: Annotated[Literal["tilus", "pow2", "exact"] | None, Key(examples=["tilus"])] = None
    """A rule by name."""
    edges: Annotated[
        tuple[int, ...] | None, Key(min_length=1, after=_check_edges, examples=[[16, 64, 256]])
    ] = None
    """The greatest size of each bucket, rising."""
    every: Annotated[int | None, Key(ge=1, examples=[128])] = None
    """The number of sizes in a bucket."""

    def __post_init__(self) -> None:
        # A table may have two rules, as `{ kind = "pow2", every = 8 }` has.
        if sum(rule is not None for rule in (self.kind, self.edges, self.every)) != 1:
            rules = '"tilus", "pow2", "exact", an array of edges, { every = N }'
            raise ValueFault("must be exactly one rule", rules)


class DispatchTableRow(Table, frozen=True):
    """One row of a hand-written dispatch table."""

    when: Annotated[Text, Key(examples=["m <= 16"])]
    """An expression over the integer arguments of the call, `params`, `arch.*` and `facts.*`."""
    use: Annotated[Entries[AnyValue], Key(examples=[{"block_m": 16}])]
    """The parameters of the schedule. Those that you leave out are as in the default schedule."""


class DispatchSection(Table, frozen=True):
    """Which schedule serves which sizes."""

    keys: Annotated[tuple[Text, ...], Key(min_length=1, examples=[["m", "n"]])] = ()
    """The integer arguments that decide. Without it: all dimensions."""
    bucket: Annotated[Entries[BucketSection], Key(examples=[{"m": "tilus", "n": "exact"}])] = (
        NOTHING
    )
    """How the sizes of each key are grouped. Without it: `tilus`."""
    model: Annotated[
        Text | None, Key(examples=["cdiv(m, block_m) * cdiv(n, block_n) / facts.sms"])
    ] = None
    """An expression for the cost of a schedule; the least cost wins. It sees the keys, the
    schedule, and `resources.NAME` of the compiled program."""
    bytes: Annotated[
        Text | None,
        Key(examples=["2 * (m * k + n * k + m * n)"]),
    ] = None
    """The bytes that a call moves to and from memory, for the report. Without it: each tensor
    once."""
    flops: Annotated[Text | None, Key(examples=["2 * m * n * k"])] = None
    """The operations of a call, for the report."""
    table: Annotated[
        tuple[DispatchTableRow, ...], Key(examples=[[{"when": "m <= 16", "use": {"block_m": 16}}]])
    ] = ()
    """Rules by hand. They take precedence over measurements."""
    measured: Annotated[Text | None, Key(examples=["tuned/matmul.jsonl"])] = None
    """A file of measured choices for the repository, which `tilusbuild dispatch export` writes.
    Measurements of this machine take precedence."""


def _flatten_members(value: object) -> object:
    """Return sizes with a name for each member of a struct: `p.alpha`, `p.strides[0]`. A value that
    is not a table is returned unchanged, for the check of its type."""
    if not isinstance(value, dict):
        return value
    # TOML's dotted key `p.alpha = 1` is a table: { p = { alpha = 1 } }.
    sizes: dict[str, object] = {}
    for name, size in value.items():
        if not isinstance(size, dict):
            sizes[name] = size
            continue
        for member, number in size.items():
            if isinstance(number, list | tuple):
                for index, element in enumerate(number):
                    sizes[f"{name}.{member}[{index}]"] = element
            else:
                sizes[f"{name}.{member}"] = number
    return sizes


_NUMBERS = {"anyOf": [VALUE_SCHEMA, {"type": "array", "items": VALUE_SCHEMA}]}
CallSizes = Annotated[
    Entries[AnyValue],
    Key(
        before=_flatten_members,
        schema={
            "type": "object",
            "additionalProperties": {
                "anyOf": [VALUE_SCHEMA, {"type": "object", "additionalProperties": _NUMBERS}]
            },
        },
    ),
]


PYTHON_FUNCTION = r"^.+\.py:[A-Za-z_][A-Za-z0-9_]*$"


def split_function(text: str) -> tuple[str, str]:
    """Return the file and the name of `FILE.py:FUNCTION`."""
    file, _, name = text.rpartition(":")
    return file, name


class TuneSection(Table, frozen=True):
    """How `run` and `tune` call the kernel and check its results."""

    ref: Annotated[Text | None, Key(pattern=PYTHON_FUNCTION, examples=["ref.py:matmul"])] = None
    """A Python function that returns the expected outputs: `FILE.py:FUNCTION`. It gets the
    arguments of the call."""
    inputs: Annotated[Text | None, Key(pattern=PYTHON_FUNCTION, examples=["ref.py:make"])] = None
    """A Python function that returns inputs: a mapping from names of arguments to arrays and
    numbers. It gets the sizes, the constants and a seeded `numpy.random.Generator`."""
    compare: Annotated[Text | None, Key(pattern=PYTHON_FUNCTION, examples=["ref.py:same"])] = None
    """A Python function that decides whether outputs are right, in place of the tolerances:
    `same(outputs, expected, inputs)`. It gets mappings from names to arrays and numbers, and
    returns true, false, or a text that says what is wrong."""
    rtol: Annotated[float, Key(ge=0, examples=[1e-2])] = 1e-3
    """The largest relative error."""
    atol: Annotated[float, Key(ge=0, examples=[1e-3])] = 1e-5
    """The largest absolute error."""
    sizes: Annotated[tuple[CallSizes, ...], Key(examples=[[{"m": 16, "n": 4096, "k": 4096}]])] = ()
    """Sizes to call with: dimensions, and other scalar arguments. `p.alpha = 0.5` is a member of a
    struct. A pointer needs 0, which is null."""

    @property
    def judge_names(self) -> tuple[str, ...]:
        """Return the functions that decide on outputs, as `FILE.py:FUNCTION`; () if nothing is
        compared."""
        return tuple(name for name in (self.ref, self.compare) if name is not None)


def _check_template_name(value: object) -> object:
    """Return the name of a template of a package, `package:PACKAGE/PATH`, for a table; any other
    value unchanged. Raises `ValueFault`, and pydantic's `ValidationError`."""
    if not isinstance(value, dict):
        return value
    file = check_table(Directory, value)
    if file.package is None or ".." in file.path.split("/") or file.path.startswith("/"):
        raise ValueFault("must be inside of the project, or of a package")
    return f"{PACKAGE}{file.package}/{file.path}"


def _make_template_schema() -> Mapping[str, Any]:
    file = make_adapter(Directory).json_schema()["anyOf"][1]
    return {"anyOf": [{"type": "string", "minLength": 1}, file]}


TemplateName = Annotated[Text, Key(before=_check_template_name, schema=_make_template_schema)]


_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
# No brace inside: the language of expressions has none.
_VALUE = r"\{\{[^{}]*\}\}"
_PART = rf"([A-Za-z_]|{_VALUE})([A-Za-z0-9_]|{_VALUE})*"
KERNEL_NAME = rf"^(::)?{_PART}(::{_PART})*(<.*>)?$"
"""A C name, or a C++ one with template arguments; either with values of the program."""


def has_values(text: str) -> bool:
    """Return whether a text, such as the flag `-maxrregcount={{ regs }}`, depends on the program:
    `{{ … }}` is an expression over constants, parameters and derived values."""
    return _EXPRESSION.search(text) is not None


def list_expressions(text: str) -> Iterator[str]:
    """Yield the sources of the expressions in a text."""
    for match in _EXPRESSION.finditer(text):
        # Blanks stand for the text before the expression, so that a mistake's column is the text's.
        yield " " * match.start(1) + match[1]


def fill_in_values(text: str, value_of: Callable[[str], Value]) -> str:
    """Return a text with values in place of its expressions. `value_of` gets the source of each,
    without blanks around it."""

    def replace_expression(match: re.Match[str]) -> str:
        value = value_of(match[1].strip())
        # As C++ and nvcc spell it, not as Python does.
        return str(value).lower() if isinstance(value, bool) else str(value)

    return _EXPRESSION.sub(replace_expression, text)


class JinjaSection(Table, frozen=True):
    """The settings of Jinja2, for templates that were written for others."""

    trim_blocks: bool = True
    """A block tag removes the newline behind it."""
    lstrip_blocks: bool = True
    """A block tag removes the blanks before it."""
    keep_trailing_newline: bool = True
    """The last newline stays."""
    undefined: Literal["error", "empty"] = "error"
    """An undefined name: an error, or empty and false."""
    cpp_values: bool = True
    """`{{ true }}` writes `true`; without it `True`, as Python does."""

    @classmethod
    def read(cls, value: object) -> object:
        """Return the keys of a table, or those that `"jinja2"` stands for. Raises `ValueFault`."""
        # Jinja2's own defaults, as a template of another project was written for.
        if value == "jinja2":
            return dict.fromkeys((*_SWITCHES, "cpp-values"), False) | {"undefined": "empty"}
        if not isinstance(value, dict):
            raise ValueFault(
                'must be "jinja2" or a table', 'as in jinja = { "trim-blocks" = false }'
            )
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        schema = super().__get_pydantic_json_schema__(core, handler)
        return {"description": schema.pop("description"), "anyOf": [{"const": "jinja2"}, schema]}


_SWITCHES = ("trim-blocks", "lstrip-blocks", "keep-trailing-newline")


_SOURCES = {"type": "array", "items": VALUE_SCHEMA, "minItems": 1, "maxItems": 3}
_Extents = Annotated[
    tuple[ExprSource, ...],
    Key(min_length=1, max_length=3),
    Key(before=wrap_single, schema={"anyOf": [VALUE_SCHEMA, _SOURCES]}),
]


class LaunchSection(Table, frozen=True):
    """The launch geometry, which the launcher computes at each call.

    An extent is an expression, or an array of up to three, for x, y and z. Expressions see the
    integer arguments of the call. A `cpu` target ignores this table.
    """

    grid: Annotated[
        _Extents | None, Key(examples=["cdiv(n, 256)", ["n // tile_n", "m // tile_m"]])
    ] = None
    """The blocks of the grid."""
    block: Annotated[_Extents | None, Key(examples=[256, ["threads"]])] = None
    """The threads of a block."""
    smem: Annotated[ExprSource | None, Key(examples=["smem"])] = None
    """The bytes of dynamic shared memory of a block. Without it: none."""
    cluster: Annotated[_Extents | None, Key(examples=[["cluster_m", 1]])] = None
    """The blocks of a cluster, for sm_90 and later. The grid must be a multiple of it. Without it,
    or with one block, the launch has no clusters."""
    cooperative: Annotated[ExprSource | None, Key(examples=[True])] = None
    """Whether all blocks must be resident at once, as `grid.sync()` requires. A bool, or an
    expression without arguments of the call."""
    pdl: Annotated[ExprSource | None, Key(examples=["arch.number >= 90"])] = None
    """Whether the kernel may start before the previous kernel of the stream has ended, for sm_90
    and later (programmatic dependent launch). The kernel then calls
    `cudaGridDependencySynchronize()`. A bool, or an expression without arguments of the call."""
    carve_out: Annotated[ExprSource | None, Key(examples=[100])] = None
    """The percentage of a multiprocessor's memory for shared memory; the rest is the L1 cache. 0 to
    100, or an expression without arguments of the call."""
