"""The generated launcher: C that checks the arguments of a call and launches the kernel.

A launcher depends on the signature, the symbol, the kind of the launcher and those launch
expressions that use an argument: the schedules of an instance share it. Raises `ValueError` for a
recipe that no launcher can serve.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache

from tilusbuild.compile.constants import unit_bytes, variable_symbol
from tilusbuild.compile.geometry import (
    INT64_LIMITS,
    geometry,
    launch_places,
    map_places,
    numbers_in_c,
)
from tilusbuild.compile.kernel_names import VARIABLE, is_looked_up, plain_name
from tilusbuild.compile.model import Recipe
from tilusbuild.expr import Expr, ExprError, c_prelude
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.runtime.dtypes import DTYPES, POINTER, DataType, integer_limits, scalar_type
from tilusbuild.runtime.regular import read_text
from tilusbuild.runtime.structs import Struct, is_struct, struct_of
from tilusbuild.signature import Argument, Dim, Signature

EXPORTS = ("__tvm_ffi_launch", "launch", "launch_error")
"""The functions that every `lib.so` exports."""

_MAX_RANK = 32
_FIELDS = {
    "bool": "boolean",
    POINTER: "pointer",
    **{name: name for name in DTYPES if name[0] in "iu" or name in ("f32", "f64")},
}


@dataclass(frozen=True, slots=True)
class LauncherKind:
    """What a launcher does after it has checked the arguments."""

    part: str
    """The C fragment that does it, in `launcher_parts`."""
    cuda: bool
    """Whether it is for a GPU: with devices and streams, and tensors in device memory."""
    starts_kernel: bool
    """Whether it starts the kernel itself, with the manifest's launch; else it calls the template's
    function. Such a library is linked by ld alone and needs no other library."""
    passes_stream: bool
    """Whether the template's function takes a stream and returns an error number."""

    @property
    def is_there(self) -> bool:
        """Whether there is one."""
        return bool(self.part)


KERNEL_LAUNCHER = LauncherKind("kernel", cuda=True, starts_kernel=True, passes_stream=False)
HOST_LAUNCHER = LauncherKind("host", cuda=True, starts_kernel=False, passes_stream=True)
CPU_LAUNCHER = LauncherKind("cpu", cuda=False, starts_kernel=False, passes_stream=False)
NO_LAUNCHER = LauncherKind("", cuda=True, starts_kernel=False, passes_stream=False)
"""Of objects and libraries, which nobody calls through a launcher."""
NO_CPU_LAUNCHER = LauncherKind("", cuda=False, starts_kernel=False, passes_stream=False)


def launcher_source(recipe: Recipe) -> str:
    """Return the launcher as one C file that includes only the C library's headers."""
    kind = recipe.pipeline.launcher
    launch = geometry(recipe) if kind.starts_kernel else None
    own = launch_places(recipe.launch) if launch and recipe.launch else ()
    texts = tuple(zip(launch.texts, launch.sources, strict=True))[: len(own)] if launch else ()
    more = launch is not None and recipe.launch is not None and recipe.launch.has_attributes
    named = is_looked_up(recipe)
    return _source(kind, plain_name(recipe.symbol), recipe.signature, texts, named, more)


@lru_cache(maxsize=64)
def _source(
    kind: LauncherKind,
    symbol: str,
    signature: Signature,
    geometry_texts: tuple[tuple[str, str], ...],
    has_cpp_name: bool,
    has_attributes: bool,
) -> str:
    """Return the launcher's C from all that it depends on."""
    _check(kind, symbol, signature)
    arguments = signature.valued
    dims = _Dims(signature)
    features = _features(arguments)
    constants = signature.constants if kind.starts_kernel else ()
    if constants:
        features |= {_CONSTANTS}
    if kind.starts_kernel and (arguments != signature.parameters or "TL_STRUCT" in features):
        features |= {_PARAMETERS, *([_MAPS] if signature.tensor_maps else [])}
    launch_features = features | ({_ATTRIBUTES} if has_attributes else set())
    own_launch = kind.passes_stream and symbol == "launch"
    parts = [
        "/* Written by tilusbuild: checks the arguments of a call, and launches. */\n",
        f"#define TL_ARGUMENTS {len(arguments)}\n",
        "#define TL_CUDA 1\n" if kind.cuda else "",
        _with_features("values.c", features),
        c_prelude(),
        _tables(symbol, arguments, dims, features),
        _parameters(signature, len(geometry_texts)) if _PARAMETERS in features else "",
        _constants(arguments) if constants else "",
        _with_features("messages.c", features),
        _with_features("checks.c", features),
        _expressions(dims),
        _SYMBOL if has_cpp_name else "",
        _with_features("driver.c", launch_features) if kind.starts_kernel else "",
        _with_features(f"{kind.part}.c", launch_features),
        _part("constants.c") if constants else "",
        _geometry_function(geometry_texts)
        if kind.starts_kernel
        else _template_call(kind, symbol, arguments),
        "" if own_launch else _plain_launch(arguments),
    ]
    return "\n".join(part for part in parts if part)


# The name is for messages up to here, and for the driver from here on.
_SYMBOL = f"""\
extern const char {VARIABLE}[] TL_HIDDEN;
#define tl_name {VARIABLE}
"""


@cache
def _part(name: str) -> str:
    directory = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launcher_parts")
    return read_text(os.path.join(directory, name))


_FEATURES: dict[str, Callable[[Argument], bool]] = {
    "TL_U64": lambda argument: argument.dims is None and argument.dtype == "u64",
    "TL_OPTIONAL": lambda argument: argument.optional,
    "TL_STRIDES": lambda argument: argument.strides is not None,
    "TL_POINTER": lambda argument: argument.dtype == POINTER,
    "TL_STRUCT": lambda argument: is_struct(argument.dtype),
    "TL_NEW_FLOATS": lambda argument: argument.dtype in ("f8e8m0", "f4e2m1x2"),
}
"""What only the launchers of some arguments have a part for."""
_ATTRIBUTES = "TL_ATTRIBUTES"
"""The same, where a launch has attributes."""
_PARAMETERS, _MAPS = "TL_PARAMETERS", "TL_TENSOR_MAPS"
"""The same, where a kernel's parameters are not the arguments' values, and where some are maps."""
_CONSTANTS = "TL_CONSTANTS"
"""The same, where some arguments are copied to variables of the device code."""


def _features(arguments: Iterable[Argument]) -> frozenset[str]:
    every = [*arguments]
    return frozenset(name for name, has in _FEATURES.items() if any(map(has, every)))


@cache
def _with_features(name: str, features: frozenset[str]) -> str:
    """Return a part of a launcher. Launchers have nothing of what is for others, so that their
    text, and with it the hashes of their programs, stays as it was."""
    pattern = re.compile(
        r"^#ifdef (TL_\w+)\n(.*?)(?:^#else\n(.*?))?^#endif\n", re.MULTILINE | re.DOTALL
    )

    def chosen(found: re.Match[str]) -> str:
        if found[1] not in (*_FEATURES, _ATTRIBUTES, _PARAMETERS, _MAPS, _CONSTANTS):
            return found[0]
        return found[2] if found[1] in features else found[3] or ""

    return pattern.sub(chosen, _part(name))


def _is_u64(argument: Argument) -> bool:
    return argument.dims is None and argument.dtype == "u64"


def _check(kind: LauncherKind, symbol: str, signature: Signature) -> None:
    taken = symbol in EXPORTS and not kind.starts_kernel
    # A host function called `launch` has the exported function's own C type, and is that function.
    if taken and not (kind.passes_stream and symbol == "launch"):
        raise ValueError(
            f'the function cannot be called "{symbol}" on {kind.part}: '
            "lib.so exports a function of that name"
        )
    for argument in signature.valued:
        if argument.dims is not None and len(argument.dims) > _MAX_RANK:
            raise ValueError(f"{argument.name} has more than {_MAX_RANK} dimensions")


class _Dims:
    """The dimensions of all arguments, in the order of the C table `tl_dims`."""

    def __init__(self, signature: Signature) -> None:
        self._numbers = numbers_in_c(signature)
        self._index = {argument.name: i for i, argument in enumerate(signature.valued)}
        self.rows: list[str] = []
        self.expressions: list[tuple[str, str]] = []

    def add(self, dims: Iterable[Dim]) -> int:
        first = len(self.rows)
        for dim in dims:
            if isinstance(dim, int):
                row = f"TL_DIM_LITERAL, INT64_C({dim}), NULL"
            elif isinstance(dim, str) and dim in self._index:
                row = f"TL_DIM_ARGUMENT, {self._index[dim]}, {_c_string(dim)}"
            elif isinstance(dim, str):
                raise ValueError(f"dimension {dim} is neither an argument nor a number")
            else:
                row = f"TL_DIM_EXPRESSION, {len(self.expressions)}, {_c_string(dim.canonical)}"
                self.expressions.append((dim.canonical, self._text(dim)))
            self.rows.append(row)
        return first

    def _text(self, dim: Expr) -> str:
        try:
            if dim.c_type() == "float":
                raise ValueError(f"dimension {dim.canonical} is not an integer: use //")
            return dim.c(self._numbers)
        except ExprError as error:
            raise ValueError(f"dimension {dim.canonical}: {error.message}") from None


_STRUCT = DataType("struct", "struct", 255, 0, "const void *", "", "", "")
"""A struct in the table of arguments. It is passed to the launcher by its address."""


def _tables(
    symbol: str, arguments: Sequence[Argument], dims: _Dims, features: frozenset[str]
) -> str:
    rows = []
    for argument in arguments:
        kind = _STRUCT if is_struct(argument.dtype) else scalar_type(argument.dtype)
        low, high = _range(argument)
        rank = "TL_SCALAR" if argument.dims is None else str(len(argument.dims))
        first = dims.add(argument.dims or ())
        rows.append(
            f"  {{{_c_string(argument.name)}, {_c_string(argument.type_text())}, {kind.code}, "
            f"{kind.bits}, {rank}, {int(argument.is_passed)}, {first}, "
            f"{argument.align or kind.bytes}, {_c_int(low)}, {_c_int(high)}}},"
        )
    strides = [dims.add(a.strides) if a.strides is not None else -1 for a in arguments]
    optional = [int(argument.optional) for argument in arguments]
    structs = [struct_of(a.dtype).size if is_struct(a.dtype) else 0 for a in arguments]
    empty = "  {0},"
    return "\n".join(
        [
            f"static const char tl_name[] = {_c_string(symbol)};",
            "static const tl_argument tl_arguments[] = {",
            *(rows or [empty]),
            "};",
            "static const tl_dim tl_dims[] = {",
            *([f"  {{{row}}}," for row in dims.rows] or [empty]),
            "};",
            *_table("int16_t", "tl_strides", strides, None if _MAPS in features else -1),
            *_table("uint8_t", "tl_optional", optional, 0),
            *_table("uint16_t", "tl_struct_bytes", structs, None if _PARAMETERS in features else 0),
            "",
        ]
    )


def _table(kind: str, name: str, values: Sequence[int], nothing: int | None) -> list[str]:
    """Return a table of a number for each argument; none where all say nothing."""
    if all(value == nothing for value in values):
        return []
    return [f"static const {kind} {name}[] = {{{', '.join(map(str, values)) or '0'}}};"]


def _parameters(signature: Signature, slot: int) -> str:
    """Return what each of the kernel's parameters is, and the tensor maps, whose numbers begin at
    a slot of `tilus_constants`."""
    index = {argument.name: number for number, argument in enumerate(signature.valued)}
    rows = []
    for number, (name, tile) in enumerate(signature.tensor_maps):
        tensor = signature.valued[index[tile.tensor]]
        index[name] = -1 - number
        size = scalar_type(tensor.dtype).bytes
        kind = _MAP_TYPES.get(tensor.dtype, 0)
        numbers = (index[tile.tensor], kind, size, int(tile.nan), slot)
        rows.append(f"  {{{_c_string(name)}, {', '.join(map(str, numbers))}}},")
        slot += len(map_places(name, tile))
    wanted = [index[argument.name] for argument in signature.parameters]
    return "\n".join(
        [
            f"enum {{ TL_PARAMETER_COUNT = {len(wanted)}, TL_MAP_COUNT = {len(rows)} }};",
            *_table("int16_t", "tl_parameters", wanted, None),
            *(["static const tl_map_of tl_maps[] = {", *rows, "};"] if rows else []),
            "",
        ]
    )


def _constants(arguments: Sequence[Argument]) -> str:
    """Return which arguments are copied to variables, and to which."""
    rows = [
        f"  {{{_c_string(variable_symbol(argument.constant))}, {index}, {unit_bytes(argument)}}},"
        for index, argument in enumerate(arguments)
        if argument.constant
    ]
    return "\n".join(
        [
            f"enum {{ TL_CONSTANT_COUNT = {len(rows)} }};",
            *_table("uint8_t", "tl_is_constant", [int(bool(a.constant)) for a in arguments], None),
            "static const tl_constant_of tl_constants[] = {",
            *rows,
            "};",
            "",
        ]
    )


_MAP_TYPES = {
    "u16": 1,
    "i16": 1,
    "u32": 2,
    "i32": 3,
    "u64": 4,
    "i64": 5,
    "f16": 6,
    "f32": 7,
    "f64": 8,
    "bf16": 9,
}
"""CUtensorMapDataType of cuda.h; all types of one byte are UINT8."""


def _range(argument: Argument) -> tuple[int, int]:
    """Return an integer argument's limits: of its type, of its range, and from 0 for a size."""
    if argument.dtype == "bool":
        return 0, 1
    low, high = integer_limits(argument.dtype) or (0, 0)
    if argument.is_dimension:
        low = 0
    if argument.low is not None:
        low = max(low, argument.low)
    if argument.high is not None:
        high = min(high, argument.high)
    return low, high


def _expressions(dims: _Dims) -> str:
    cases = "\n".join(
        f"    case {index}: *result = {text}; break;"
        for index, (_, text) in enumerate(dims.expressions)
    )
    names = "\n".join(
        f"    case {index}: what = {_c_string(name)}; break;"
        for index, (name, _) in enumerate(dims.expressions)
    )
    return f"""\
static int tl_expression_failed(const char *what) {{
  static const char *const why[] = {{"", "a division by zero", "a number beyond 64 bits",
                                    "an argument outside a function's domain"}};
  return tl_fail("ValueError", "%s: %s", what, why[tb_expr_error]);
}}

static int tl_dimension(int which, const int64_t *number, int64_t *result) {{
  const char *what = "";
  (void)number;
  tb_expr_error = 0;
  *result = 0;
  switch (which) {{
{cases or "    default: break;"}
  }}
  if (!tb_expr_error) return 0;
  switch (which) {{
{names or "    default: break;"}
  }}
  return tl_expression_failed(what);
}}
"""


def _geometry_function(texts: Iterable[tuple[str, str]]) -> str:
    lines = []
    for slot, (text, what) in enumerate(texts):
        lines.append(f"  geometry[{slot}] = {text};")
        if what:
            lines.append(f"  if (tb_expr_error) return tl_expression_failed({_c_string(what)});")
    body = "\n".join(lines)
    return f"""\
static int tl_geometry(const int64_t *number, int64_t *geometry) {{
  (void)number;
  tb_expr_error = 0;
{body}
  return 0;
}}
"""


def _template_call(kind: LauncherKind, symbol: str, arguments: tuple[Argument, ...]) -> str:
    """Return the call of the template's function."""
    # Declared under another name: the function's own may be a keyword of C (`restrict`).
    types = [_c_type(argument) for argument in arguments]
    values = [f"value[{index}].{_field(argument)}" for index, argument in enumerate(arguments)]
    structs, copies = [], []
    for index, argument in enumerate(arguments):
        if is_struct(argument.dtype):
            # A copy, because a caller's bytes may lie anywhere.
            structs.append(_struct_type(f"tl_struct_{index}", struct_of(argument.dtype)))
            copies.append(f"  tl_struct_{index} s{index};\n")
            copies.append(f"  memcpy(&s{index}, value[{index}].pointer, sizeof s{index});\n")
            types[index], values[index] = f"tl_struct_{index}", f"s{index}"
    if kind.passes_stream:
        types.append("void *")
        values.append("stream")
    taken = ", ".join(types) or "void"
    result = "int" if kind.passes_stream else "void"
    extra = ", void *stream" if kind.passes_stream else ""
    return f"""\
{"".join(structs)}extern {result} tl_template({taken}) __asm__({_c_string(symbol)});

static {result} tl_call_template(const tl_value *value{extra}) {{
  (void)value;
{"".join(copies)}  {"return " if kind.passes_stream else ""}tl_template({", ".join(values)});
}}
"""


def _plain_launch(arguments: tuple[Argument, ...]) -> str:
    parameters = [f"{_c_type(argument)} a{i}" for i, argument in enumerate(arguments)]
    stores = []
    for i, argument in enumerate(arguments):
        if argument.dims is not None or is_struct(argument.dtype):
            stores.append(f"  call.value[{i}].pointer = (void *)a{i};")
            continue
        stores.append(f"  call.value[{i}].u64 = 0;")
        stores.append(f"  call.value[{i}].{_FIELDS[argument.dtype]} = a{i};")
        if argument.dtype not in ("f32", "f64", POINTER):
            stores.append(f"  call.number[{i}] = {'(int64_t)' * _is_u64(argument)}a{i};")
    body = "\n".join(stores)
    return f"""\
TL_EXPORT int launch({", ".join([*parameters, "void *stream"])}) {{
  tl_call call;
  tl_begin(&call);
{body}
  if (tl_check_plain(&call)) return -1;
  return tl_start(&call, stream, 1);
}}
"""


def _c_type(argument: Argument) -> str:
    if argument.dims is None and not is_struct(argument.dtype):
        return scalar_type(argument.dtype).c
    return "void *" if argument.out else "const void *"


def _field(argument: Argument) -> str:
    is_pointer = argument.dims is not None or is_struct(argument.dtype)
    return "pointer" if is_pointer else _FIELDS[argument.dtype]


def _struct_type(name: str, kind: Struct) -> str:
    """Return a struct for a call by value: what C has no name for is an integer of its size, which
    every ABI passes alike."""
    members = []
    for member in kind.members:
        c = scalar_type(member.dtype).c
        c = f"uint{member.bytes * 8}_t" if c == "void" else c
        members.append(f"{c} {member.name}" + (f"[{member.elements}]" if member.elements else ""))
    return f"typedef struct {{ {'; '.join(members)}; }} {name};\n"


def _c_int(value: int) -> str:
    if value == INT64_LIMITS[0]:
        return "INT64_MIN"
    if value > INT64_LIMITS[1]:
        return f"(int64_t)UINT64_C({value})"  # a u64's limit, whose bits are kept
    return f"INT64_C({value})"


def _c_string(text: str) -> str:
    """Return a C string literal; quotes, `?` and bytes outside ASCII are octal escapes."""
    # Always 3 digits: C takes a digit that follows a shorter escape into it.
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "surrogateescape")
    )
    return f'"{plain}"'
