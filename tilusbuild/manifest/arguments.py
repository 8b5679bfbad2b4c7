"""`args`: the arguments of a kernel as the manifest has them, and as the signature's `Argument`."""

import re
from typing import Annotated, Any, Literal

from msgspec import field

from tilusbuild.manifest.script_sections import parse_cached
from tilusbuild.manifest.table import Key, Table, ValueFault
from tilusbuild.manifest.values import ExprSource, Text
from tilusbuild.runtime.dtypes import POINTER, TENSOR_MAP
from tilusbuild.signature.model import Argument, SignatureError, Tile
from tilusbuild.signature.parsing import parse_argument

_VARIABLE = r"^(::)?[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*$"


def _check_variable(value: object) -> object:
    """Return a boolean, or the name of a C++ variable. Raises `ValueFault`."""
    if isinstance(value, bool) or (isinstance(value, str) and re.fullmatch(_VARIABLE, value)):
        return value
    raise ValueFault(
        "must be true, or the name of a variable in the template",
        'as in constant = "d_filter"',
    )


_VARIABLE_SCHEMA = {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": _VARIABLE}]}
VariableName = Annotated[bool | Text, Key(before=_check_variable, schema=_VARIABLE_SCHEMA)]


class InitSection(Table, frozen=True):
    """The content of an argument before a call of `run`, `tune` and `check`.

    Written `"zeros"`, `"ones"`, `"arange"` (0, 1, 2, …) or `"permutation"` (these numbers in random
    order), or as a table with one distribution. Bounds are expressions over the sizes of the call
    and `params`.
    """

    shorthands = ((str, "kind"),)

    kind: Literal["zeros", "ones", "arange", "permutation"] | None = None
    """The content by name."""
    integers: Annotated[tuple[ExprSource, ExprSource] | None, Key(examples=[[0, "m"]])] = None
    """Random integers from the first bound up to the second, which is excluded. `[0, "m"]`:
    indices into `m` elements."""
    uniform: Annotated[tuple[ExprSource, ExprSource] | None, Key(examples=[[-1, 1]])] = None
    """Uniform random floats between the bounds."""
    normal: Annotated[tuple[ExprSource, ExprSource] | None, Key(examples=[[0, 1]])] = None
    """Normal random floats with this mean and this standard deviation."""

    def __post_init__(self) -> None:
        if [self.kind, self.integers, self.uniform, self.normal].count(None) != 3:
            rules = '"zeros", "ones", "arange", "permutation", or one of integers, uniform, normal'
            raise ValueFault("must be exactly one rule", rules)


class Arg(Table, frozen=True):
    """One argument of the kernel: a tensor such as `f16*[m, k]`, or a scalar such as `i32`.

    Written as its type, or as a table. An `i32` or `i64` that is alone a dimension of a tensor is
    read from the shape; callers do not pass it.
    """

    shorthands = ((str, "type"),)

    type: Annotated[
        Text,
        Key(examples=["f16*[m, k]", "i32", "void*", "struct Params { f32 alpha; i64 strides[3] }"]),
    ]
    """The type. A tensor is an element type, `*` and its dimensions; `[...]` is any shape. `[m, k]`
    without an element type has that of the kernel's parameter. An element type is one of `bool i8
    i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2 f8e8m0 f4e2m1x2` (the last has two
    values in a byte), or a name of `params`, with such values or those of C++ (`float`, `__half`).
    `void*` is an address, or None. A struct has its C++ name and its members."""
    out: bool = False
    """The kernel writes this tensor."""
    inout: bool = False
    """The kernel reads and writes this tensor. No call can leave it out."""
    bounds: Annotated[tuple[int, int] | None, Key(examples=[[1, 8192]])] = field(
        name="range", default=None
    )
    """The smallest and the largest value of an integer argument."""
    align: Annotated[int | None, Key(ge=1, examples=[16])] = None
    """The address of the tensor is a multiple of this number of bytes. Without it: the size of an
    element."""
    optional: bool = False
    """A caller may pass None; the kernel gets a null pointer."""
    strides: Annotated[tuple[Text | int, ...] | None, Key(examples=[["row", 1]])] = None
    """The strides of the tensor, in elements: a number that the stride must equal, or an `i32` or
    `i64` argument that gets it. Without it: contiguous."""
    parameter: bool = True
    """`false`: the kernel has no parameter for it. Checks, launch, shapes and tensor maps use it.
    The functions of `cpu` targets and of `entry` have a parameter for it."""
    constant: Annotated[VariableName, Key(examples=[True, "d_filter", "conv::filter"])] = False
    """The `__constant__` or `__device__` variable that gets a copy of the argument before each
    launch; `true`: the one with its name. The kernel has no parameter for it. The functions of
    `cpu` targets have one. The tensor may be on the host."""
    init: Annotated[
        InitSection | None, Key(examples=["zeros", {"integers": [0, "m"]}, {"normal": [0, 1]}])
    ] = None
    """The content before a call of `run`, `tune` and `check`. Without it: floats between -1 and 1,
    or integers between -8 and 8."""
    reset: bool = False
    """`true`: `run` and `tune` restore the content of this `inout` tensor before each launch. The
    measured time excludes it. Use it for counters and semaphores."""
    bytes: Annotated[ExprSource | None, Key(examples=["4 * m * n * splits"])] = None
    """Of a `void*`: the size of a workspace, memory that calls may leave out. An expression over
    sizes and constants. With `init = "zeros"` it holds zeros at each launch, else anything."""
    tensor_map: Annotated[Text | None, Key(examples=["a"])] = None
    """The tensor of this tensor map, for sm_90 and later. The parameter is a `const
    __grid_constant__ CUtensorMap`, which the launcher makes. Leave out `type`. The functions of
    `cpu` targets have no such parameter."""
    box: Annotated[tuple[ExprSource, ...] | None, Key(examples=[["block_m", "block_k"]])] = None
    """Of a tensor map: the elements of a copy, in the order of the dimensions. An expression over
    constants, like the keys below."""
    element_strides: Annotated[tuple[ExprSource, ...] | None, Key(examples=[[1, 2]])] = None
    """Of a tensor map: the traversal strides."""
    swizzle: Annotated[ExprSource, Key(examples=[128, "block_k * 2"])] = 0
    """Of a tensor map: 0, 32, 64 or 128 bytes."""
    interleave: ExprSource = 0
    """Of a tensor map: 0, 16 or 32 bytes."""
    l2_promotion: ExprSource = 0
    """Of a tensor map: 0, 64, 128 or 256 bytes, which L2 fetches."""
    oob_fill: Literal["zero", "nan"] = "zero"
    """Of a tensor map: the value of elements outside of the tensor."""

    @classmethod
    def read(cls, value: object) -> object:
        # `type` is the one required key, and that of a tensor map follows.
        if isinstance(value, dict) and "tensor-map" in value:
            return {"type": TENSOR_MAP, **value}
        return super().read(value)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        schema = super().__get_pydantic_json_schema__(core, handler)
        text, table = schema["anyOf"]
        # The type may be read from the template.
        return {**schema, "anyOf": [text, {**table, "required": []}]}


def make_argument(name: str, arg: Arg) -> Argument:
    """Return the signature's argument for one of the manifest, checked without the others. Raises
    `SignatureError`, and `ExprError` for an expression of a tensor map."""
    if arg.tensor_map is not None:
        return _make_tensor_map(name, arg, arg.tensor_map)
    # By value, so that a key that is written with its default is allowed.
    for key, default in _TENSOR_MAP_DEFAULTS.items():
        if getattr(arg, key) != default:
            message = f'"{key.replace("_", "-")}" is for tensor maps'
            raise SignatureError(message, hint=_MAP_HINT)
    if arg.reset and not arg.inout:
        raise SignatureError('"reset" is for tensors that are `inout`: others are not read')
    init = arg.init if arg.bytes is not None else None
    if init is not None and init.kind != "zeros":
        raise SignatureError('a workspace holds anything before a launch, or init = "zeros"')
    low, high = arg.bounds or (None, None)  # None: any value
    argument = parse_argument(
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
            bytes=None if arg.bytes is None else parse_cached(arg.bytes),
            zeroed=init is not None,
        )
    )
    if argument.bytes is not None and (argument.dtype != POINTER or argument.constant):
        raise SignatureError('"bytes" is the size of a workspace, which has the type "void*"')
    return argument


_TENSOR_MAP_DEFAULTS = {
    "box": None,
    "element_strides": None,
    **dict.fromkeys(("swizzle", "interleave", "l2_promotion"), 0),
    "oob_fill": "zero",
}
_MAP_HINT = 'as in { tensor-map = "a", box = [64, 32], swizzle = 128 }'


def _make_tensor_map(name: str, arg: Arg, tensor: str) -> Argument:
    """Return the argument of a tensor map. Raises `SignatureError` for keys of other arguments."""
    tensor_keys = (arg.out, arg.inout, arg.bounds, arg.align, arg.optional, arg.strides)
    has_other_keys = (
        any((*tensor_keys, arg.constant, arg.init, arg.reset, arg.bytes)) or arg.type != TENSOR_MAP
    )
    if has_other_keys or arg.box is None:
        rule = "has a box" if arg.box is None else "has no type and no key of a tensor"
        raise SignatureError(f"a tensor map {rule}", hint=_MAP_HINT)
    tile = Tile(
        tensor,
        tuple(parse_cached(source) for source in arg.box),
        tuple(parse_cached(source) for source in arg.element_strides or ()),
        interleave=parse_cached(arg.interleave),
        swizzle=parse_cached(arg.swizzle),
        l2_promotion=parse_cached(arg.l2_promotion),
        nan=arg.oob_fill == "nan",
    )
    return Argument(name, TENSOR_MAP, None, tile=tile, is_parameter=arg.parameter)
