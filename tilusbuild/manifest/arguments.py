"""`args`: the arguments of a kernel as the manifest has them, and as the signature's `Argument`."""

import re
from typing import Annotated, Any, Literal

from msgspec import field

from tilusbuild.manifest.script_sections import parse_cached
from tilusbuild.manifest.table import Key, Table, ValueFault
from tilusbuild.manifest.values import ExprSource, Text
from tilusbuild.runtime.dtypes import TENSOR_MAP
from tilusbuild.signature import Argument, SignatureError, Tile, parse_argument

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


class Arg(Table, frozen=True):
    """One argument of the kernel: a tensor such as `f16*[m, k]`, or a scalar such as `i32`.

    Written as its type, or as a table. An `i32` or `i64` that a tensor names as a bare dimension is
    read off that tensor's shape, so callers do not pass it.
    """

    shorthands = ((str, "type"),)

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
    low, high = arg.bounds or (None, None)  # None: any value
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
    has_other_keys = any((*tensor_keys, arg.constant)) or arg.type != TENSOR_MAP
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
