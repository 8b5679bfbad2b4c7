"""The tables of a generated launcher: what it knows of its arguments, as constants of C.

A name is an offset in one array of characters, `tl_strings`. A table of pointers would be written
to when the library is loaded, with 24 bytes in the file for each pointer; the loader does nothing
for a table of offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilusbuild.compile.arguments import count_unit_bytes, mangle_variable_name
from tilusbuild.compile.geometry import (
    INT64_LIMITS,
    LaunchError,
    collect_map_numbers,
    map_arguments_to_c,
)
from tilusbuild.expr import Expr, ExprError
from tilusbuild.runtime.dtypes import (
    POINTER,
    TENSOR_MAP_TYPES,
    DataType,
    get_integer_limits,
    get_scalar_type,
)
from tilusbuild.runtime.structs import is_struct, parse_struct
from tilusbuild.signature.model import (
    ANY_SHAPE,
    NULL,
    Argument,
    Dim,
    Signature,
    list_packed_values,
)


class StringTable:
    """The names in the tables: one C array of characters, and each name by its offset there."""

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        self._end = 0

    def add_text(self, text: str) -> int:
        """Return the offset of a text in the array; add the text if it is new."""
        if text not in self._offsets:
            self._offsets[text] = self._end
            self._end += len(text.encode("utf-8", "surrogateescape")) + 1
        return self._offsets[text]

    def format_table(self) -> str:
        """Return the C array of the texts that were added."""
        # The NUL after each text is written out, since adjacent literals are one string to C.
        texts = "".join(f'\n  {format_c_string(text)[:-1]}\\000"' for text in self._offsets)
        return f"static const char tl_strings[] ={texts or ' {0}'};\n"


class DimensionTable:
    """The dimensions of all arguments, in the order of the C table `tl_dims`."""

    def __init__(self, signature: Signature, strings: StringTable) -> None:
        self.strings = strings
        """The table of the dimensions' names."""
        self._numbers = map_arguments_to_c(signature)
        self._index = {argument.name: i for i, argument in enumerate(signature.value_arguments)}
        self.rows: list[str] = []
        self.expressions: list[tuple[int, str]] = []
        """(offset of the name in `strings`, C) of each dimension that is computed."""

    def add_rows(self, dims: Iterable[Dim]) -> int:
        """Add a row for each dimension; return the index of the first. Raises `ValueError` for a
        dimension that is not a whole number."""
        first_row = len(self.rows)
        for dim in dims:
            if isinstance(dim, int):
                row = f"TL_DIM_LITERAL, 0, INT64_C({dim})"
            elif isinstance(dim, str) and dim in self._index:
                row = f"TL_DIM_ARGUMENT, {self.strings.add_text(dim)}, {self._index[dim]}"
            elif isinstance(dim, str):
                raise ValueError(f"dimension {dim} is neither an argument nor a number")
            else:
                offset = self.strings.add_text(dim.canonical)
                row = f"TL_DIM_EXPRESSION, {offset}, {len(self.expressions)}"
                self.expressions.append((offset, self._format_dimension(dim)))
            self.rows.append(row)
        return first_row

    def _format_dimension(self, dim: Expr) -> str:
        """Return a computed dimension as C. Raises `ValueError` for one that is not an integer."""
        try:
            if dim.find_c_type() == "float":
                raise ValueError(f"{dim.canonical} is not an integer: use //")
            return dim.to_c(self._numbers)
        except ExprError as error:
            raise ValueError(f"{dim.canonical}: {error.message}") from None


# Of C's malloc, and so of every allocator, in bytes: the kernel may read vectors of this size.
_WORKSPACE_ALIGN = 16
# A struct in the table of arguments. It is passed to the launcher by its address.
_STRUCT = DataType(
    name="struct", kind="struct", code=255, bits=0, c="const void *", cuda="", numpy="", struct=""
)


def format_argument_tables(
    symbol: str,
    arguments: Sequence[Argument],
    dims: DimensionTable,
    *,
    always_structs: bool,
) -> str:
    """Return the C tables of the arguments and of all dimensions. The tables of strides and of
    structs are left out if no argument has any, that of structs unless `always_structs` is set.

    Names are added to the strings of `dims`, dimensions and strides to its rows. Raises
    `LaunchError` for a dimension that is not an integer.
    """
    rows = []
    add_text = dims.strings.add_text
    for argument in arguments:
        data_type = _STRUCT if is_struct(argument.dtype) else get_scalar_type(argument.dtype)
        low, high = _find_range(argument)
        shape = () if argument.dims == ANY_SHAPE else argument.dims
        rank = "TL_SCALAR" if shape is None else str(len(shape))
        align = data_type.bytes if argument.bytes is None else _WORKSPACE_ALIGN
        try:
            # A workspace, which is a scalar, has one row: its size.
            first_dimension = dims.add_rows(shape or filter(None, [argument.bytes]))
        except ValueError as error:
            raise LaunchError(str(error), "args", argument.name) from None
        rows.append(
            f"  {{{add_text(argument.name)}, {add_text(argument.format_type())}, {data_type.code}, "
            f"{data_type.bits}, {rank}, {int(argument.is_passed)}, {first_dimension}, "
            f"{argument.align or align}, {format_c_int(low)}, {format_c_int(high)}}},"
        )
    strides = [dims.add_rows(a.strides) if a.strides is not None else _NO_ROW for a in arguments]
    optional_flags = [int(argument.optional) for argument in arguments]
    workspaces = [int(a.bytes is not None) + int(a.zeroed) for a in arguments]
    struct_bytes = [parse_struct(a.dtype).size if is_struct(a.dtype) else 0 for a in arguments]
    any_shape_flags = [int(argument.dims == ANY_SHAPE) for argument in arguments]
    empty = "  {0},"  # C has no arrays without elements
    return "\n".join(
        [
            f"static const char tl_name[] = {format_c_string(symbol)};",
            "static const tl_argument tl_arguments[] = {",
            *(rows or [empty]),
            "};",
            "static const tl_dim tl_dims[] = {",
            *([f"  {{{row}}}," for row in dims.rows] or [empty]),
            "};",
            *_format_number_table("int16_t", "tl_strides", strides, _NO_ROW),
            *_format_number_table("uint8_t", "tl_optional", optional_flags, 0),
            *_format_number_table("uint8_t", "tl_any_shape", any_shape_flags, 0),
            *_format_number_table("uint8_t", "tl_workspace", workspaces, 0),
            *_format_number_table(
                "uint16_t", "tl_struct_bytes", struct_bytes, 0, always=always_structs
            ),
            "",
        ]
    )


_NO_ROW = -1  # for an argument without strides


def _format_number_table(
    c_type: str, name: str, values: Sequence[int], default: int, *, always: bool = False
) -> list[str]:
    """Return the lines of a C table with a number for each argument. Unless it is `always` needed,
    return [] for a table whose numbers are all `default`."""
    if not always and all(value == default for value in values):
        return []
    return [f"static const {c_type} {name}[] = {{{', '.join(map(str, values)) or '0'}}};"]


def format_parameter_tables(signature: Signature, first_slot: int, dims: DimensionTable) -> str:
    """Return the C tables of the kernel's parameters, of the tensor maps, and of the structs that
    the launcher makes. The numbers of the maps begin at `first_slot` of `tilus_constants`. Names,
    and the sizes and strides of maps, are added to `dims`. Raises `ValueError` for a size that is
    not an integer."""
    # A number from 0 on is an argument's value, and behind the arguments a place of 8 bytes in the
    # structs; -1 is the first map, -2 the second, …; behind the last map is the null pointer.
    number_of = {argument.name: index for index, argument in enumerate(signature.value_arguments)}
    rows = []
    slot = first_slot
    for map_index, (name, tile) in enumerate(signature.tensor_maps):
        tensor_number = number_of[tile.tensor]
        tensor = tile.view or signature.value_arguments[tensor_number]
        number_of[name] = -1 - map_index
        element_bytes = get_scalar_type(tensor.dtype).bytes
        sizes = dims.add_rows(tensor.dims or ())
        strides = _NO_ROW if tensor.strides is None else dims.add_rows(tensor.strides)
        fields = (
            *(dims.strings.add_text(name), tensor_number, _MAP_TYPES.get(tensor.dtype, 0)),
            *(element_bytes, int(tile.nan), len(tile.box), slot, sizes, strides),
        )
        rows.append(f"  {{{', '.join(map(str, fields))}}},")
        slot += len(collect_map_numbers(name, tile))
    number_of[NULL.name] = -1 - len(rows)
    members = []
    computed = 0
    packed_size = 0
    for value in list_packed_values(signature):
        number_of.setdefault(
            value.parameter.name, len(signature.value_arguments) + value.offset // 8
        )
        source = number_of[value.argument.name] if value.argument is not None else -1 - computed
        computed += value.argument is None
        size = 8 if value.dtype == POINTER else get_scalar_type(value.dtype).bytes
        low, high = map(format_c_int, get_integer_limits(value.dtype) or (0, 0))
        cells = (dims.strings.add_text(value.name), value.offset, size, source, low, high)
        members.append(f"  {{{', '.join(map(str, cells))}}},")
        packed_size = value.offset // 8 + 1
    parameters = [number_of[argument.name] for argument in signature.parameters]
    return "\n".join(
        [
            f"enum {{ TL_PARAMETER_COUNT = {len(parameters)}, TL_MAP_COUNT = {len(rows)} }};",
            *_format_number_table("int16_t", "tl_parameters", parameters, 0, always=True),
            *(["static const tl_map_of tl_maps[] = {", *rows, "};"] if rows else []),
            f"enum {{ TL_PACKED_SIZE = {packed_size}, TL_COMPUTED_COUNT = {computed} }};",
            *(["static const tl_member_of tl_members[] = {", *members, "};"] if members else []),
            "",
        ]
    )


def format_constant_tables(arguments: Sequence[Argument], strings: StringTable) -> str:
    """Return the C table of the arguments that are copied to variables, with the variables. Names
    are added to `strings`."""
    rows = [
        f"  {{{strings.add_text(mangle_variable_name(argument.constant))}, {index}, "
        f"{count_unit_bytes(argument)}}},"
        for index, argument in enumerate(arguments)
        if argument.constant
    ]
    constant_flags = [int(bool(argument.constant)) for argument in arguments]
    return "\n".join(
        [
            f"enum {{ TL_CONSTANT_COUNT = {len(rows)} }};",
            *_format_number_table("uint8_t", "tl_is_constant", constant_flags, 0, always=True),
            "static const tl_constant_of tl_constants[] = {",
            *rows,
            "};",
            "",
        ]
    )


# The one type of two bytes that CUDA does not have. Those of one byte are UINT8.
_MAP_TYPES = {"i16": 1, **{dtype: number for number, dtype in enumerate(TENSOR_MAP_TYPES)}}


def _find_range(argument: Argument) -> tuple[int, int]:
    """Return the least and the greatest value of an integer argument, by the limits of its type and
    of its range, and 0 as the least for a size. Return (0, 0) for other types."""
    if argument.dtype == "bool":
        return 0, 1
    low, high = get_integer_limits(argument.dtype) or (0, 0)
    if argument.is_dimension:
        low = 0
    if argument.low is not None:
        low = max(low, argument.low)
    if argument.high is not None:
        high = min(high, argument.high)
    return low, high


def format_c_int(value: int) -> str:
    """Return an integer constant of C, of type int64_t."""
    # C has no literal for the minimum: it reads a minus, and a number that is too large.
    if value == INT64_LIMITS[0]:
        return "INT64_MIN"
    if value > INT64_LIMITS[1]:
        return f"(int64_t)UINT64_C({value})"  # a u64's limit, whose bits are kept
    return f"INT64_C({value})"


def format_c_string(text: str) -> str:
    """Return a C string literal; quotes, `?` and bytes outside ASCII are octal escapes."""
    # Always 3 digits: C takes a digit that follows a shorter escape into it.
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "surrogateescape")
    )
    return f'"{plain}"'
