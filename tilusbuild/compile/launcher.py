"""The generated launcher: C that checks the arguments of a call and launches the kernel.

A launcher depends on the signature, the symbol, the kind of the launcher and those launch
expressions that use an argument: the schedules of an instance share it.

One object serves all schedules of a script, where host code in each makes a build three to four
times as long. The price is C that we generate and must hold to CUDA's driver API
(docs/design-notes.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

from tilusbuild.compile.arguments import format_c_type
from tilusbuild.compile.geometry import build_geometry, list_launch_numbers
from tilusbuild.compile.kernel_names import VARIABLE, is_symbol_looked_up, strip_template_arguments
from tilusbuild.compile.launcher_tables import (
    DimensionTable,
    StringTable,
    format_argument_tables,
    format_c_string,
    format_constant_tables,
    format_parameter_tables,
)
from tilusbuild.compile.model import LauncherKind, Recipe
from tilusbuild.compile.steps import LAUNCHER
from tilusbuild.expr import write_c_prelude
from tilusbuild.runtime.dtypes import DTYPES, POINTER, get_scalar_type
from tilusbuild.runtime.regular import read_text
from tilusbuild.runtime.structs import StructType, is_struct, parse_struct
from tilusbuild.signature.model import ANY_SHAPE, Argument, Signature, list_packed_values

EXPORTS = ("__tvm_ffi_launch", "launch", "launch_error")
"""The functions that every `lib.so` exports."""

_MAX_RANK = 32
# The fields of `tl_value`, a union of all types of values (launcher_parts/values.c).
_VALUE_FIELDS = {
    "bool": "boolean",
    POINTER: "pointer",
    **{name: name for name in DTYPES if name[0] in "iu" or name in ("f32", "f64")},
}


KERNEL_LAUNCHER = LauncherKind("kernel", cuda=True, starts_kernel=True, passes_stream=False)
HOST_LAUNCHER = LauncherKind("host", cuda=True, starts_kernel=False, passes_stream=True)
CPU_LAUNCHER = LauncherKind("cpu", cuda=False, starts_kernel=False, passes_stream=False)
NO_LAUNCHER = LauncherKind("", cuda=True, starts_kernel=False, passes_stream=False)
"""For objects and libraries: no launcher calls them."""
NO_CPU_LAUNCHER = LauncherKind("", cuda=False, starts_kernel=False, passes_stream=False)


def format_launcher(recipe: Recipe) -> str:
    """Return the launcher as one C file that includes only the C library's headers.

    A program that is compiled again from its entry has its recorded launcher. Raises `ValueError`
    for a recipe that no launcher can serve.
    """
    if recipe.recorded is not None:
        return recipe.recorded[LAUNCHER]
    kind = recipe.pipeline.launcher
    geometry_texts: list[tuple[str, str]] = []
    launch = recipe.launch if kind.starts_kernel else None
    if kind.starts_kernel:
        geometry = build_geometry(recipe)
        geometry_texts = list(zip(geometry.c_expressions, geometry.sources, strict=True))
    if launch is not None:
        # The numbers of tensor maps follow: they depend on constants alone, and need no C.
        computed = [v for v in list_packed_values(recipe.signature) if v.argument is None]
        del geometry_texts[len(list_launch_numbers(launch)) + len(computed) :]
    return _format_source(
        kind,
        strip_template_arguments(recipe.symbol),
        recipe.signature,
        tuple(geometry_texts),
        has_cpp_name=is_symbol_looked_up(recipe),
        has_attributes=launch is not None and launch.has_attributes,
    )


def _list_features(kind: LauncherKind, signature: Signature, has_attributes: bool) -> list[str]:
    """Return the macros that switch parts of the launcher on."""
    arguments = signature.value_arguments
    features = ["TL_CUDA"] if kind.cuda else []
    features += [name for name, needs_part in _FEATURES.items() if any(map(needs_part, arguments))]
    if kind.starts_kernel and signature.constants:
        features.append(_CONSTANTS)
    if has_attributes:
        features.append(_ATTRIBUTES)
    # Otherwise a kernel's parameters are the arguments' values in order, without a table.
    if kind.starts_kernel and (arguments != signature.parameters or "TL_STRUCT" in features):
        features.append(_PARAMETERS)
        if signature.tensor_maps:
            features.append(_MAPS)
        if signature.packed:
            features.append(_PACKED)
    return features


@lru_cache(maxsize=64)
def _format_source(
    kind: LauncherKind,
    symbol: str,
    signature: Signature,
    geometry_texts: tuple[tuple[str, str], ...],
    has_cpp_name: bool,
    has_attributes: bool,
) -> str:
    """Return the launcher's C, which depends on nothing but the parameters. Raises `ValueError`.

    `geometry_texts` are (C, source for messages) of the launch's own numbers, by slot.
    """
    _check_supported(kind, symbol, signature)
    arguments = signature.value_arguments
    strings = StringTable()
    dims = DimensionTable(signature, strings)
    features = _list_features(kind, signature, has_attributes)
    constants = _CONSTANTS in features
    # A host function `launch` is exported itself: a second function of this name would not link.
    is_launch_exported = kind.passes_stream and symbol == "launch"
    tables = [
        # First, as they add the dimensions of maps to the table of the arguments' dimensions.
        format_parameter_tables(signature, len(geometry_texts), dims)
        if _PARAMETERS in features
        else "",
        format_argument_tables(symbol, arguments, dims, always_structs=_PARAMETERS in features),
        format_constant_tables(arguments, strings) if constants else "",
    ]
    if dims.expressions:
        features.append("TL_EXPRESSIONS")
    parts = [
        "/* Written by tilusbuild: checks the arguments of a call, and launches. */\n",
        f"#define TL_ARGUMENTS {len(arguments)}",
        f"#define TL_PASSED {sum(argument.is_passed for argument in arguments)}\n",
        *(f"#define {feature}" for feature in features),
        _read_part("values.c"),
        write_c_prelude(),
        strings.format_table(),
        *tables,
        _read_part("messages.c"),
        _read_part("checks.c"),
        _read_part("workspaces.c") if signature.workspaces else "",
        _EXPRESSION_FAILED
        if dims.expressions or any(source for _, source in geometry_texts)
        else "",
        _format_dimensions(dims) if dims.expressions else "",
        _SYMBOL if has_cpp_name else "",
        _read_part("driver.c") if kind.starts_kernel else "",
        _read_part(f"{kind.part}.c"),
        _read_part("constants.c") if constants else "",
        _format_geometry_function(geometry_texts)
        if kind.starts_kernel
        else _format_template_call(kind, symbol, arguments),
        "" if is_launch_exported else _format_plain_function(_PLAIN_LAUNCH, arguments),
        _format_plain_function(_PLAIN_WORKSPACE, arguments) if signature.workspaces else "",
    ]
    return "\n".join(part for part in parts if part)


# C: `tl_name` is the manifest's name, for messages, up to here, and the symbol from here on.
_SYMBOL = f"""\
extern const char {VARIABLE}[] TL_HIDDEN;
#define tl_name {VARIABLE}
"""


@cache
def _read_part(name: str) -> str:
    directory = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launcher_parts")
    return read_text(os.path.join(directory, name))


# The macros that compile a part of the launcher, and whether an argument needs the part.
_FEATURES: dict[str, Callable[[Argument], bool]] = {
    "TL_U64": lambda argument: argument.dims is None and argument.dtype == "u64",
    "TL_OPTIONAL": lambda argument: argument.optional,
    "TL_ANY_SHAPE": lambda argument: argument.dims == ANY_SHAPE,
    "TL_STRIDES": lambda argument: argument.strides is not None,
    "TL_POINTER": lambda argument: argument.dtype == POINTER,
    "TL_STRUCT": lambda argument: is_struct(argument.dtype),
    "TL_WORKSPACES": lambda argument: argument.bytes is not None,
    "TL_ZEROED": lambda argument: argument.zeroed,
    "TL_NEW_FLOATS": lambda argument: argument.dtype in ("f8e8m0", "f4e2m1x2"),
}
_ATTRIBUTES = "TL_ATTRIBUTES"  # of a launch with attributes
# Of kernels whose parameters are not the arguments' values, of tensor maps, and of structs that the
# launcher makes.
_PARAMETERS, _MAPS, _PACKED = "TL_PARAMETERS", "TL_TENSOR_MAPS", "TL_PACKED"
_CONSTANTS = "TL_CONSTANTS"  # of arguments that are copied to variables of the device code


def _check_supported(kind: LauncherKind, symbol: str, signature: Signature) -> None:
    """Raise `ValueError` for a name that lib.so exports itself, and for too many dimensions."""
    exports = (*EXPORTS, "workspace") if signature.workspaces else EXPORTS
    is_exported = symbol in exports and not kind.starts_kernel
    # A host function called `launch` has the exported function's own C type, and is that function.
    # It would not get its workspaces zeroed.
    may_be_launch = kind.passes_stream and not any(a.zeroed for a in signature.workspaces)
    if is_exported and not (may_be_launch and symbol == "launch"):
        raise ValueError(
            f'the function cannot be called "{symbol}" on {kind.part}: '
            "lib.so exports a function of that name"
        )
    for argument in signature.value_arguments:
        if argument.dims is not None and len(argument.dims) > _MAX_RANK:
            raise ValueError(f"{argument.name} has more than {_MAX_RANK} dimensions")


_EXPRESSION_FAILED = """\
TL_COLD static int tl_expression_failed(const char *what) {
  static const char why[][40] = {"", "a division by zero", "a number beyond 64 bits",
                                 "an argument outside a function's domain"};
  return tl_fail("ValueError", "%s: %s", what, why[tb_expr_error]);
}
"""


def _format_dimensions(dims: DimensionTable) -> str:
    """Return the C function `tl_dimension`, which computes the dimensions given by expressions."""
    cases = "\n".join(
        f"    case {index}: *result = {text}; break;"
        for index, (_, text) in enumerate(dims.expressions)
    )
    offsets = ", ".join(str(offset) for offset, _ in dims.expressions)
    return f"""\
static int tl_dimension(int which, const int64_t *number, int64_t *result) {{
  static const uint32_t what[] = {{{offsets}}};
  (void)number;
  tb_expr_error = 0;
  *result = 0;
  switch (which) {{
{cases}
  }}
  return tb_expr_error ? tl_expression_failed(tl_strings + what[which]) : 0;
}}
"""


def _format_geometry_function(texts: Iterable[tuple[str, str]]) -> str:
    """Return the C function `tl_geometry`, which computes the numbers of a launch from the
    arguments. `texts` are (C, source for messages) by slot."""
    lines = []
    for slot, (text, source) in enumerate(texts):
        lines.append(f"  geometry[{slot}] = {text};")
        if source:  # an expression, which can fail
            lines.append(
                f"  if (tb_expr_error) return tl_expression_failed({format_c_string(source)});"
            )
    body = "\n".join(lines)
    return f"""\
static int tl_geometry(const int64_t *number, int64_t *geometry) {{
  (void)number;
  tb_expr_error = 0;
{body}
  return 0;
}}
"""


def _format_template_call(kind: LauncherKind, symbol: str, arguments: tuple[Argument, ...]) -> str:
    """Return the C function `tl_call_template`, which calls the template's function."""
    # Declared under another name: the function's own may be a keyword of C (`restrict`).
    types = [format_c_type(argument) for argument in arguments]
    values = [
        f"value[{index}].{_format_field(argument)}" for index, argument in enumerate(arguments)
    ]
    structs, copies = [], []  # C of types, and of statements
    for index, argument in enumerate(arguments):
        if is_struct(argument.dtype):
            # A copy, because a caller's bytes may lie anywhere.
            structs.append(_format_struct_type(f"tl_struct_{index}", parse_struct(argument.dtype)))
            copies.append(f"  tl_struct_{index} s{index};\n")
            copies.append(f"  memcpy(&s{index}, value[{index}].pointer, sizeof s{index});\n")
            types[index], values[index] = f"tl_struct_{index}", f"s{index}"
    result, keyword, stream = "void", "", ""
    if kind.passes_stream:
        result, keyword, stream = "int", "return ", ", void *stream"
        types.append("void *")
        values.append("stream")
    parameters = ", ".join(types) or "void"
    return f"""\
{"".join(structs)}extern {result} tl_template({parameters}) __asm__({format_c_string(symbol)});

static {result} tl_call_template(const tl_value *value{stream}) {{
  (void)value;
{"".join(copies)}  {keyword}tl_template({", ".join(values)});
}}
"""


_PLAIN_LAUNCH = (
    "launch",
    "void *stream",
    "  if (tl_check_plain(&call)) return -1;\n  return tl_start(&call, stream, 1);",
)
_PLAIN_WORKSPACE = (
    "workspace",
    "int64_t *bytes",
    "  if (tl_check_ranges(&call)) return -1;\n  return tl_count_workspaces(&call, bytes);",
)


def _format_plain_function(function: tuple[str, str, str], arguments: tuple[Argument, ...]) -> str:
    """Return an exported C function, which takes plain values and pointers. `function` has its
    name, its last parameter, and the end of its body."""
    name, last_parameter, end = function
    parameters = [f"{format_c_type(argument)} a{i}" for i, argument in enumerate(arguments)]
    stores = []
    for i, argument in enumerate(arguments):
        if argument.dims is not None or is_struct(argument.dtype):
            stores.append(f"  call.value[{i}].pointer = (void *)a{i};")
            continue
        stores.append(f"  call.value[{i}].u64 = 0;")
        stores.append(f"  call.value[{i}].{_VALUE_FIELDS[argument.dtype]} = a{i};")
        if argument.dtype not in ("f32", "f64", POINTER):
            cast = "(int64_t)" if argument.dtype == "u64" else ""
            stores.append(f"  call.number[{i}] = {cast}a{i};")
    body = "\n".join(stores)
    return f"""\
TL_EXPORT int {name}({", ".join([*parameters, last_parameter])}) {{
  tl_call call;
  tl_begin(&call);
{body}
{end}
}}
"""


def _format_field(argument: Argument) -> str:
    is_pointer = argument.dims is not None or is_struct(argument.dtype)
    return "pointer" if is_pointer else _VALUE_FIELDS[argument.dtype]


def _format_struct_type(name: str, kind: StructType) -> str:
    """Return the C struct for a call by value. A field of a type that C does not have becomes an
    integer of its size: every ABI passes both alike."""
    members = []
    for member in kind.members:
        c_type = get_scalar_type(member.dtype).c
        if c_type == "void":
            c_type = f"uint{member.bytes * 8}_t"
        dimension = f"[{member.elements}]" if member.elements else ""
        members.append(f"{c_type} {member.name}{dimension}")
    return f"typedef struct {{ {'; '.join(members)}; }} {name};\n"
