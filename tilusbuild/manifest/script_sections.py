"""The sections of a script: template, rules, arguments, launch, levels, prune, dispatch, tune."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal

from msgspec import field

from tilusbuild.expr import Expr, Value, parse_expression
from tilusbuild.manifest.names import PACKAGE
from tilusbuild.manifest.table import (
    NOTHING,
    VALUE_SCHEMA,
    AnyValue,
    Entries,
    ExprSource,
    Key,
    Table,
    Text,
    ValueFault,
    describe_kind,
)
from tilusbuild.runtime.dtypes import TENSOR_MAP
from tilusbuild.signature import Argument, SignatureError, Tile, parse_argument


def _check_rule(value: object) -> object:
    if not isinstance(value, str):
        raise ValueFault(
            f"must be an expression in quotes, not {describe_kind(value)}",
            "in an override, false removes a rule" if isinstance(value, bool) else None,
        )
    return value


def _check_rule_or_false(value: object) -> object:
    return value if value is False else _check_rule(value)


@lru_cache(maxsize=4096, typed=True)
def parse_cached(source: Value) -> Expr:
    """`parse`, remembered: views of many targets ask for the same texts. Raises `ExprError`."""
    return parse_expression(source)


RestrictRule = Annotated[Text, Key(before=_check_rule)]
RuleOrFalse = Annotated[
    Text | bool,
    Key(
        before=_check_rule_or_false,
        schema={"anyOf": [{"type": "string", "minLength": 1}, {"const": False}]},
    ),
]


class LevelsSection(Table, frozen=True):
    """Meaning of the levels of the search space: 0 is the default only, 1 a sample, 2 all."""

    sample: Annotated[int, Key(ge=1)] = 64
    """How many schedules level 1 builds of an instance."""
    seed: Annotated[int, Key(ge=0)] = 0
    """The random seed of the sample: the same seed gives the same sample."""


class PruneSection(Table, frozen=True):
    """Which compiled kernels are left out, by the resources that their cubin needs.

    Each is a number, or an expression over parameters, derived values and `arch.*`. A program that
    is left out is recorded with the reason, and is not compiled again.
    """

    max_registers: Annotated[
        ExprSource | None, Key(examples=[255, "255 if stages > 3 else 128"])
    ] = None
    """The maximum number of registers of a thread."""
    max_spill_bytes: Annotated[ExprSource | None, Key(examples=[0])] = None
    """The maximum number of bytes that a thread spills to local memory; leave it out to keep
    spillers."""
    min_blocks_per_sm: Annotated[ExprSource | None, Key(examples=[1])] = None
    """The minimum number of blocks that fit one multiprocessor at a time."""


def _check_edges(edges: tuple[int, ...]) -> tuple[int, ...]:
    for edge, following in pairwise((0, *edges)):
        if following <= edge:
            raise ValueFault(f"must be counts that rise, and {following} follows {edge}")
    return edges


class BucketSection(Table, frozen=True):
    """How the sizes of one dimension are grouped.

    Written `"tilus"` (two buckets an octave, the default), `"pow2"` (one), `"exact"` (each size),
    as an array of edges, or as `{ every = N }`.
    """

    short = (
        {"enum": ["tilus", "pow2", "exact"]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    )
    shorthands = ((str, "kind"), (tuple, "edges"))
    wanted = ("a rule", 'one of "tilus", "pow2", "exact", an array of edges, { every = N }')

    kind: Annotated[Literal["tilus", "pow2", "exact"] | None, Key(examples=["tilus"])] = None
    """A rule by name."""
    edges: Annotated[
        tuple[int, ...] | None, Key(min_length=1, after=_check_edges, examples=[[16, 64, 256]])
    ] = None
    """The greatest size of each bucket, rising."""
    every: Annotated[int | None, Key(ge=1, examples=[128])] = None
    """Buckets of this many sizes."""

    def __post_init__(self) -> None:
        if sum(rule is not None for rule in (self.kind, self.edges, self.every)) != 1:
            raise ValueFault(
                "must be exactly one rule",
                '"tilus", "pow2", "exact", an array of edges, { every = N }',
            )


class DispatchTableRow(Table, frozen=True):
    """One row of a hand-written dispatch table."""

    when: Annotated[Text, Key(examples=["m <= 16"])]
    """An expression over the integer arguments of the call, `params`, `arch.*` and `facts.*`."""
    use: Annotated[Entries[AnyValue], Key(examples=[{"block_m": 16}])]
    """The schedule to use: parameters of the space; what is left out is as in the default
    schedule."""


class DispatchSection(Table, frozen=True):
    """Which schedule serves which sizes, where nothing is measured or a person knows better.

    The first rule of `table` whose `when` holds decides; then what was measured, here or in the
    file `measured`; then `model`; then the default schedule.
    """

    keys: Annotated[tuple[Text, ...], Key(min_length=1, examples=[["m", "n"]])]
    """The integer arguments that the choice depends on."""
    bucket: Annotated[Entries[BucketSection], Key(examples=[{"m": "tilus", "n": "exact"}])] = (
        NOTHING
    )
    """How the sizes of each key are grouped; a key that is left out: `tilus`."""
    model: Annotated[
        Text | None, Key(examples=["cdiv(m, block_m) * cdiv(n, block_n) / facts.sms"])
    ] = None
    """An expression for the cost of a schedule at some sizes: lower is better. It sees the keys,
    the schedule, and `resources.NAME` of the compiled program."""
    bytes: Annotated[
        Text | None,
        Key(examples=["2 * (m * k + n * k + m * n)"]),
    ] = None
    """For the report: the bytes that a call moves to and from memory, over the keys. Without it:
    each tensor once."""
    flops: Annotated[Text | None, Key(examples=["2 * m * n * k"])] = None
    """Likewise the operations of a call."""
    table: Annotated[
        tuple[DispatchTableRow, ...], Key(examples=[[{"when": "m <= 16", "use": {"block_m": 16}}]])
    ] = ()
    """Rules by hand, which take precedence over everything else."""
    measured: Annotated[Text | None, Key(examples=["tuned/matmul.jsonl"])] = None
    """A file of measured choices, by schedule, for the repository: `tilusbuild dispatch export`
    writes it. Measurements on this machine take precedence."""


def _flatten_members(value: object) -> object:
    """Give the members of structs names of their own: `p.alpha`, `p.strides[0]`."""
    if not isinstance(value, dict):
        return value
    found: dict[str, object] = {}
    for name, given in value.items():
        if not isinstance(given, dict):
            found[name] = given
            continue
        for member, each in given.items():
            place = f"{name}.{member}"
            if isinstance(each, list | tuple):
                found |= {f"{place}[{number}]": item for number, item in enumerate(each)}
            else:
                found[place] = each
    return found


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


class TuneSection(Table, frozen=True):
    """How `run` and `tune` call the kernel and check its results."""

    ref: Annotated[
        Annotated[Text, Key(pattern=r"^.+\.py:[A-Za-z_][A-Za-z0-9_]*$")] | None,
        Key(examples=["ref.py:matmul"]),
    ] = None
    """A Python function that takes the arguments and returns the expected outputs:
    `FILE.py:FUNCTION`, relative to the manifest."""
    rtol: Annotated[float, Key(ge=0, examples=[1e-2])] = 1e-3
    """The relative error allowed."""
    atol: Annotated[float, Key(ge=0, examples=[1e-3])] = 1e-5
    """The absolute error allowed."""
    sizes: Annotated[tuple[CallSizes, ...], Key(examples=[[{"m": 16, "n": 4096, "k": 4096}]])] = ()
    """Sizes to call with: the dimensions, and other scalar arguments where wanted; of a struct its
    members, as `p.alpha = 0.5`. A pointer needs 0, which is null."""


_VARIABLE = r"^(::)?[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*$"


def _check_variable(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, str) and re.fullmatch(_VARIABLE, value)):
        return value
    raise ValueFault(
        "must be true, or the name of a variable in the template",
        'as in constant = "d_filter"',
    )


VariableName = Annotated[
    bool | Text,
    Key(
        before=_check_variable,
        schema={"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": _VARIABLE}]},
    ),
]


class Arg(Table, frozen=True):
    """One argument of the kernel: a tensor such as `f16*[m, k]`, or a scalar such as `i32`.

    Written as its type, or as a table. An `i32` or `i64` that a tensor names as a bare dimension is
    read off that tensor's shape, so callers do not pass it.
    """

    short = ({"type": "string", "minLength": 1},)
    shorthands = ((str, "type"),)
    wanted = ("a type or a table", 'as in "f16*[m, k]" or { type = "f16*[m, k]", out = true }')

    type: Annotated[
        Text,
        Key(examples=["f16*[m, k]", "i32", "void*", "struct Params { f32 alpha; i64 strides[3] }"]),
    ]
    """The type. A tensor is an element type, `*` and its dimensions: `[...]` is any shape. `[m, k]`
    alone has the element type of the template's parameter of this name. Element types: `bool i8 i16
    i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2 f8e8m0 f4e2m1x2` (two values, one byte),
    or a parameter of `params` whose value is one. `void*` is an opaque pointer: an address, or
    None. A struct that is passed by value has its C++ name and its members."""
    out: bool = False
    """The kernel writes this tensor."""
    inout: bool = False
    """The kernel reads this tensor and writes it: an output that no call can leave out."""
    bounds: Annotated[tuple[int, int] | None, Key(examples=[[1, 8192]])] = field(
        name="range", default=None
    )
    """The least and the greatest value of an integer argument, both allowed."""
    align: Annotated[int | None, Key(ge=1, examples=[16])] = None
    """Bytes that a tensor's address must be a multiple of. Without it: the element's size."""
    optional: bool = False
    """A caller may pass None for this tensor: its pointer is null then."""
    strides: Annotated[tuple[Text | int, ...] | None, Key(examples=[["row", 1]])] = None
    """The strides of a tensor that need not be contiguous, in elements: a number that it must have,
    or an `i32` or `i64` argument that is read off it."""
    parameter: bool = True
    """`false`: the kernel does not take it. It is checked, and launch, shapes and tensor maps use
    it. The functions of `cpu` targets and of `entry` take it all the same."""
    constant: Annotated[VariableName, Key(examples=[True, "d_filter", "conv::filter"])] = False
    """The `__constant__` (or `__device__`) variable that the argument is copied to before each
    launch; `true` for the one with its name. The kernel has no parameter for it; the functions of
    `cpu` targets take it all the same. A tensor may be on the host."""
    tensor_map: Annotated[Text | None, Key(examples=["a"])] = None
    """The tensor that this parameter, a `const __grid_constant__ CUtensorMap`, is a map of. The
    launcher makes it, and no caller passes it; `type` is left out. For sm_90 and later; the
    functions of `cpu` targets do not take it."""
    box: Annotated[tuple[ExprSource, ...] | None, Key(examples=[["block_m", "block_k"]])] = None
    """Of a tensor map: the elements of a copy, in the tensor's order of dimensions. Expressions
    over constants, as in the following ones."""
    element_strides: Annotated[tuple[ExprSource, ...] | None, Key(examples=[[1, 2]])] = None
    """Of a tensor map: its traversal strides."""
    swizzle: Annotated[ExprSource, Key(examples=[128, "block_k * 2"])] = 0
    """Of a tensor map: the bytes of the swizzle, 0, 32, 64 or 128."""
    interleave: ExprSource = 0
    """Of a tensor map: the bytes of the interleaved layout, 0, 16 or 32."""
    l2_promotion: ExprSource = 0
    """Of a tensor map: the bytes that L2 fetches, 0, 64, 128 or 256."""
    oob_fill: Literal["zero", "nan"] = "zero"
    """Of a tensor map: what elements outside of the tensor read as."""

    @classmethod
    def read(cls, value: object) -> object:
        if isinstance(value, dict) and "tensor-map" in value:
            return {"type": TENSOR_MAP, **value}
        return super().read(value)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        made = super().__get_pydantic_json_schema__(core, handler)
        text, table = made["anyOf"]
        return {**made, "anyOf": [text, {**table, "required": []}]}  # the type may be read


def make_argument(name: str, arg: Arg) -> Argument:
    """Return an argument by itself. Raises `SignatureError`."""
    if arg.tensor_map is not None:
        return _make_tensor_map(name, arg, arg.tensor_map)
    for key, default in _OF_A_MAP.items():
        if getattr(arg, key) != default:
            what = f'"{key.replace("_", "-")}" is for tensor maps'
            raise SignatureError(what, hint=_MAP_HINT)
    low, high = arg.bounds or (None, None)
    return parse_argument(
        Argument(
            name,
            arg.type,
            out=arg.out or arg.inout,
            inout=arg.inout,
            low=low,
            high=high,
            align=arg.align,
            optional=arg.optional,
            strides=arg.strides,
            is_parameter=arg.parameter,
            constant=name if arg.constant is True else arg.constant or "",
        )
    )


_WIDTHS = ("swizzle", "interleave", "l2_promotion")
_OF_A_MAP = {"box": None, "element_strides": None, **dict.fromkeys(_WIDTHS, 0), "oob_fill": "zero"}
_MAP_HINT = 'as in { tensor-map = "a", box = [64, 32], swizzle = 128 }'


def _make_tensor_map(name: str, arg: Arg, tensor: str) -> Argument:
    others = (arg.out or arg.inout, arg.bounds, arg.align, arg.optional, arg.strides, arg.constant)
    if any(others) or arg.type != TENSOR_MAP or arg.box is None:
        what = "has a box" if arg.box is None else "has no type and no key of a tensor"
        raise SignatureError(f"a tensor map {what}", hint=_MAP_HINT)
    tile = Tile(
        tensor,
        tuple(parse_cached(source) for source in arg.box),
        tuple(parse_cached(source) for source in arg.element_strides or ()),
        parse_cached(arg.interleave),
        parse_cached(arg.swizzle),
        parse_cached(arg.l2_promotion),
        nan=arg.oob_fill == "nan",
    )
    return Argument(name, TENSOR_MAP, None, tile=tile, is_parameter=arg.parameter)


class _InPackage(Table, frozen=True):
    """A file of an installed Python package."""

    package: Annotated[str, Key(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")]
    """The package's import name."""
    path: Text
    """The file, relative to the package's own directory."""


def _check_template_name(value: object) -> object:
    if not isinstance(value, dict):
        return value
    from tilusbuild.manifest.table import check_table

    file = check_table(_InPackage, value)
    if ".." in file.path.split("/") or file.path.startswith("/"):
        raise ValueFault("a package's file is inside the package")
    return f"{PACKAGE}{file.package}/{file.path}"


def _make_template_schema() -> Mapping[str, Any]:
    from tilusbuild.manifest.table import make_adapter

    return {"anyOf": [{"type": "string", "minLength": 1}, make_adapter(_InPackage).json_schema()]}


TemplateName = Annotated[
    Text,
    Key(
        before=_check_template_name,
        schema=_make_template_schema,
    ),
]


_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_VALUE = r"\{\{[^{}]*\}\}"
_PART = rf"([A-Za-z_]|{_VALUE})([A-Za-z0-9_]|{_VALUE})*"
KERNEL_NAME = rf"^(::)?{_PART}(::{_PART})*(<.*>)?$"
"""A C name, or a C++ one with template arguments; either with values of the program."""


def has_values(text: str) -> bool:
    """Return whether a text, such as the flag `-maxrregcount={{ regs }}`, depends on the program:
    `{{ … }}` is an expression over constants, parameters and derived values."""
    return _EXPRESSION.search(text) is not None


def list_expressions(text: str) -> Iterator[str]:
    """Yield the sources of the expressions in a text, each behind as many blanks as stand before
    it: a mistake's column is that of the text."""
    for found in _EXPRESSION.finditer(text):
        yield " " * found.start(1) + found[1]


def fill_in_values(text: str, value_of: Callable[[str], Value]) -> str:
    """Return a text with the values of its expressions."""

    def replace_expression(found: re.Match[str]) -> str:
        value = value_of(found[1].strip())
        return str(value).lower() if isinstance(value, bool) else str(value)

    return _EXPRESSION.sub(replace_expression, text)


class JinjaSection(Table, frozen=True):
    """How Jinja2 reads a script's templates, where they were written for other settings."""

    short = ({"const": "jinja2"},)

    trim_blocks: bool = True
    """A block tag takes the newline behind it along."""
    lstrip_blocks: bool = True
    """A block tag takes the blanks before it along."""
    keep_trailing_newline: bool = True
    """The last newline stays."""
    undefined: Literal["error", "empty"] = "error"
    """Meaning of a name that nothing defines: an error, or empty and false."""
    cpp_values: bool = True
    """`{{ true }}` writes `true`; without it `True`, as Python does."""

    @classmethod
    def read(cls, value: object) -> object:
        if value == "jinja2":
            return dict.fromkeys((*_SWITCHES, "cpp-values"), False) | {"undefined": "empty"}
        if not isinstance(value, dict):
            raise ValueFault(
                'must be "jinja2" or a table', 'as in jinja = { "trim-blocks" = false }'
            )
        return value


_SWITCHES = ("trim-blocks", "lstrip-blocks", "keep-trailing-newline")


def _wrap_single(value: object) -> object:
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


_SOURCES = {"type": "array", "items": VALUE_SCHEMA, "minItems": 1, "maxItems": 3}
_ONE_OR_MORE = Key(before=_wrap_single, schema={"anyOf": [VALUE_SCHEMA, _SOURCES]})


class LaunchSection(Table, frozen=True):
    """The launch geometry, which the launcher computes at each call.

    Expressions see the script's parameters, its derived values, `arch.*`, `facts.*`, and the
    integer arguments of the call. Needed with `kernel` for GPU targets; a `cpu` target ignores it.
    """

    grid: Annotated[
        tuple[ExprSource, ...] | None,
        Key(min_length=1, max_length=3, examples=["cdiv(n, 256)", ["n // tile_n", "m // tile_m"]]),
        _ONE_OR_MORE,
    ] = None
    """An expression, or an array of up to three: blocks in x, y and z."""
    block: Annotated[
        tuple[ExprSource, ...] | None,
        Key(min_length=1, max_length=3, examples=[256, ["threads"]]),
        _ONE_OR_MORE,
    ] = None
    """An expression, or an array of up to three: threads of a block in x, y and z."""
    smem: Annotated[ExprSource | None, Key(examples=["smem"])] = None
    """Bytes of dynamic shared memory of a block; without it none."""
    cluster: Annotated[
        tuple[ExprSource, ...] | None,
        Key(min_length=1, max_length=3, examples=[["cluster_m", 1]]),
        _ONE_OR_MORE,
    ] = None
    """An expression, or an array of up to three: blocks of a cluster in x, y and z. The grid is a
    multiple of it. For sm_90 and later; without it, and where it is one block, there are not
    clusters."""
    cooperative: Annotated[ExprSource | None, Key(examples=[True])] = None
    """Whether all blocks must be resident at once, as `grid.sync()` needs. A bool, or an expression
    without arguments of the call."""
    pdl: Annotated[ExprSource | None, Key(examples=["arch.number >= 90"])] = None
    """Programmatic dependent launch: whether the kernel may start before the one ahead of it in the
    stream has ended; the kernel then waits for that (`cudaGridDependencySynchronize()`). For sm_90
    and later. A bool, or an expression without arguments of the call."""
    carve_out: Annotated[ExprSource | None, Key(examples=[100])] = None
    """How many percent of the memory that shared memory and the L1 cache have in common the driver
    should give to shared memory: 0 to 100, or an expression without arguments of the call."""
