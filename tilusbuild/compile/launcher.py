"""The generated launcher: C that checks the arguments of a call and launches, one per signature.

A launcher depends on the signature, the symbol, the pipeline and those launch expressions that read
an argument: the schedules of an instance share it. What a schedule fixes (block, shared memory, the
tile sizes in the grid) is read from the table `tilus_constants`, which the program's own object
holds beside the device code. Raises `ValueError` for a recipe that no launcher can serve.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

from tilusbuild.compile.model import Launch, Recipe
from tilusbuild.expr import Expr, ExprError, Value, c_prelude
from tilusbuild.runtime.dtypes import DTYPES, integer_limits
from tilusbuild.signature import Argument, Dim, Signature

EXPORTS = ("__tvm_ffi_launch", "launch", "launch_error")
"""What every `lib.so` offers."""

_INT64 = (-(1 << 63), (1 << 63) - 1)
_MAX_RANK = 32
_PLACES = ("grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z", "smem")
_FIELDS = {
    "bool": "boolean",
    **{name: name for name in DTYPES if name[0] in "iu" or name in ("f32", "f64")},
}


@dataclass(frozen=True, slots=True)
class Geometry:
    """A launch with its constants taken out: the table of the program, C for the rest."""

    constants: tuple[int, ...]
    """The values of `tilus_constants`: a slot for each of the seven numbers, then named ones."""
    texts: tuple[str, ...]
    """The seven numbers as C: a slot, or an expression over slots and arguments."""
    sources: tuple[str, ...]
    """For messages: `grid.x = cdiv(n, block_n)`; empty for what is a slot."""


def geometry(recipe: Recipe) -> Geometry:
    """Divide a launch into what the schedule fixes and what the arguments decide.

    Raises `ValueError` when an expression has no value, is no integer, or uses an unknown name.
    """
    if recipe.launch is None:
        raise ValueError("the kernel pipeline needs a launch")
    places = _places(recipe.launch)
    key = _shape(recipe, places)
    shape = _shapes.get(key)
    if shape is not None and (constants := _values(recipe, places, *shape)) is not None:
        return Geometry(constants, *shape)
    numbers = _numbers(recipe.signature)
    table = {name: index for index, name in enumerate(_table_names(recipe, places))}
    fixed, texts, sources = [], [], []
    for slot, (place, expression) in enumerate(zip(_PLACES, places, strict=True)):
        value, text = _place(recipe, place, expression, numbers, table)
        fixed.append(value)
        texts.append(text or f"tilus_constants[{slot}]")
        sources.append(f"{place} = {expression.source}" if text and expression else "")
    fixed += [_int64(name, int(recipe.constants[name])) for name in table]
    if len(_shapes) >= _MOST_SHAPES:
        _shapes.clear()
    _shapes[key] = tuple(texts), tuple(sources)
    return Geometry(tuple(fixed), tuple(texts), tuple(sources))


def _places(launch: Launch) -> list[Expr | None]:
    """The seven numbers; None is 1."""
    places: list[Expr | None] = []
    for sizes in (launch.grid, launch.block):
        if not 1 <= len(sizes) <= 3:
            raise ValueError(f"grid and block have 1 to 3 sizes, not {len(sizes)}")
        places += [*sizes, *([None] * (3 - len(sizes)))]
    return [*places, launch.smem]


_MOST_SHAPES = 256
_shapes: dict[object, tuple[tuple[str, ...], tuple[str, ...]]] = {}
"""`texts` and `sources` by all that decides them: schedules whose constants differ in whole numbers
only have the same, and there may be a hundred thousand of them."""


def _shape(recipe: Recipe, places: list[Expr | None]) -> object:
    used = {name for place in places if place is not None for name in place.names}
    kinds = (
        (name, type(value), None if type(value) is int else value)
        for name, value in recipe.constants.items()
        if name in used
    )
    written = tuple(None if place is None else (place.source, place.canonical) for place in places)
    return written, recipe.signature, tuple(kinds)


def _values(
    recipe: Recipe, places: list[Expr | None], texts: tuple[str, ...], sources: tuple[str, ...]
) -> tuple[int, ...] | None:
    """The constants of a known shape; None when something is wrong with them."""
    constants: list[Value] = []
    try:
        for place, source in zip(places, sources, strict=True):
            given = None if source else place
            constants.append(int(not source) if given is None else given.evaluate(recipe.constants))
    except ExprError:
        return None
    constants += [recipe.constants[name] for name in _table_names(recipe, places)]
    whole = [value for value in constants if type(value) is int and _fits(value)]
    return tuple(whole) if len(whole) == len(constants) else None


def _place(
    recipe: Recipe,
    place: str,
    expression: Expr | None,
    numbers: dict[str, str],
    table: dict[str, int],
) -> tuple[int, str | None]:
    """A number's value for its slot, or 0 and its C text."""
    if expression is None:
        return 1, None
    try:
        expression.check_names({*numbers, *recipe.constants})
        if not expression.names & numbers.keys():
            value = expression.evaluate(recipe.constants)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{place} = {expression.source} is {value!r}, not an integer")
            return _int64(place, value), None
        rest = expression.substitute(
            {name: value for name, value in recipe.constants.items() if name not in table}
        )
        names = {
            name: f"tilus_constants[{len(_PLACES) + i}]" for name, i in table.items()
        } | numbers
        if rest.c_type() == "float":
            raise ValueError(f"{place} = {expression.source} is not an integer: use //")
        return 0, rest.c(names)
    except ExprError as error:
        raise ValueError(f"{place} = {expression.source}: {error.message}") from None


def _table_names(recipe: Recipe, places: Iterable[Expr | None]) -> list[str]:
    """The integer constants that stand beside an argument in some expression."""
    arguments = {argument.name for argument in recipe.signature.arguments}
    used = {
        name
        for expression in places
        if expression is not None and expression.names & arguments
        for name in expression.names - arguments
    }
    return sorted(
        name
        for name in used
        if isinstance(value := recipe.constants.get(name), int) and not isinstance(value, bool)
    )


def _numbers(signature: Signature) -> dict[str, str]:
    """The arguments that an expression can read, as C."""
    return {
        argument.name: f"number[{index}]"
        for index, argument in enumerate(signature.arguments)
        if argument.dims is None
        and argument.dtype in ("i8", "i16", "i32", "i64", "u8", "u16", "u32")
    }


def _fits(value: int) -> bool:
    return _INT64[0] <= value <= _INT64[1]


def _int64(what: str, value: int) -> int:
    if not _fits(value):
        raise ValueError(f"{what} is {value}, which 64 bits cannot hold")
    return value


def program_source(recipe: Recipe, image: str) -> str:
    """The assembly of a program's own object: its device code and its constants."""
    archs = ", ".join(arch.name for arch in recipe.archs) + (" and PTX" if recipe.ptx else "")
    numbers = "\n".join(f"    .quad {value}" for value in geometry(recipe).constants)
    return f"""\
    .section .rodata
    .balign 64
    .globl tilus_image
    .hidden tilus_image
    .type tilus_image, %object
tilus_image:
    .incbin "{image}"
    .size tilus_image, . - tilus_image
    .balign 8
    .globl tilus_constants
    .hidden tilus_constants
    .type tilus_constants, %object
tilus_constants:
{numbers}
    .size tilus_constants, . - tilus_constants
    .globl tilus_archs
    .hidden tilus_archs
    .type tilus_archs, %object
tilus_archs:
    .asciz "{archs}"
    .size tilus_archs, . - tilus_archs
    .section .note.GNU-stack,"",%progbits
"""


def launcher_source(recipe: Recipe) -> str:
    """The launcher as one C file that includes only the C library's headers."""
    launch = geometry(recipe) if recipe.pipeline == "kernel" else None
    texts = tuple(zip(launch.texts, launch.sources, strict=True)) if launch else ()
    return _source(recipe.pipeline, recipe.symbol, recipe.signature, texts)


@lru_cache(maxsize=64)
def _source(
    pipeline: str, symbol: str, signature: Signature, geometry_texts: tuple[tuple[str, str], ...]
) -> str:
    """All that a launcher depends on: the schedules of an instance get the same text, made once."""
    _check(pipeline, symbol, signature)
    arguments = signature.arguments
    dims = _Dims(signature)
    kernel = pipeline == "kernel"
    own_launch = pipeline == "host" and symbol == "launch"
    parts = [
        "/* Written by tilusbuild: checks the arguments of a call, and launches. */\n",
        f"#define TL_ARGUMENTS {len(arguments)}\n",
        "" if pipeline == "cpu" else "#define TL_CUDA 1\n",
        _part("values.c"),
        c_prelude(),
        _tables(symbol, arguments, dims),
        _part("checks.c"),
        _expressions(dims),
        _part(f"{pipeline}.c"),
        _geometry_function(geometry_texts)
        if kernel
        else _template_call(pipeline, symbol, arguments),
        "" if own_launch else _plain_launch(arguments),
    ]
    return "\n".join(part for part in parts if part)


@cache
def _part(name: str) -> str:
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launcher_parts")
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def _check(pipeline: str, symbol: str, signature: Signature) -> None:
    taken = symbol in EXPORTS and pipeline != "kernel"
    if taken and (pipeline, symbol) != ("host", "launch"):
        raise ValueError(
            f'the function cannot be called "{symbol}" on {pipeline}: '
            "lib.so exports a function of that name"
        )
    for argument in signature.arguments:
        if argument.dims is not None and len(argument.dims) > _MAX_RANK:
            raise ValueError(f"{argument.name} has more than {_MAX_RANK} dimensions")


class _Dims:
    """All shapes in one row, as the C table has them."""

    def __init__(self, signature: Signature) -> None:
        self._numbers = _numbers(signature)
        self._index = {argument.name: i for i, argument in enumerate(signature.arguments)}
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


def _tables(symbol: str, arguments: Iterable[Argument], dims: _Dims) -> str:
    rows = []
    for argument in arguments:
        kind = DTYPES[argument.dtype]
        low, high = _range(argument)
        rank = "TL_SCALAR" if argument.dims is None else str(len(argument.dims))
        first = dims.add(argument.dims or ())
        rows.append(
            f"  {{{_c_string(argument.name)}, {_c_string(argument.type_text())}, {kind.code}, "
            f"{kind.bits}, {rank}, {0 if argument.is_dimension else 1}, {first}, "
            f"{argument.align or kind.bytes}, {_c_int(low)}, {_c_int(high)}}},"
        )
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
            "",
        ]
    )


def _range(argument: Argument) -> tuple[int, int]:
    """What an integer may be: its type's values, those of its range, none below 0 for a size."""
    if argument.dtype == "bool":
        return 0, 1
    low, high = integer_limits(argument.dtype) or (0, 0)
    if argument.is_dimension:
        low = 0
    if argument.low is not None:
        low = max(low, argument.low)
    if argument.high is not None:
        high = min(high, argument.high)
    return low, min(high, _INT64[1])


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


def _template_call(pipeline: str, symbol: str, arguments: tuple[Argument, ...]) -> str:
    """The call of the template's own function, under a name of ours: it may be a word of C."""
    types = [_c_type(argument) for argument in arguments]
    values = [
        f"value[{index}].{'pointer' if argument.dims is not None else _FIELDS[argument.dtype]}"
        for index, argument in enumerate(arguments)
    ]
    host = pipeline == "host"
    if host:
        types.append("void *")
        values.append("stream")
    result = "int" if host else "void"
    extra = ", void *stream" if host else ""
    return f"""\
extern {result} tl_template({", ".join(types) or "void"}) __asm__({_c_string(symbol)});

static {result} tl_call_template(const tl_value *value{extra}) {{
  (void)value;
  {"return " if host else ""}tl_template({", ".join(values)});
}}
"""


def _plain_launch(arguments: tuple[Argument, ...]) -> str:
    parameters = [f"{_c_type(argument)} a{i}" for i, argument in enumerate(arguments)]
    stores = []
    for i, argument in enumerate(arguments):
        if argument.dims is not None:
            stores.append(f"  call.value[{i}].pointer = (void *)a{i};")
            continue
        stores.append(f"  call.value[{i}].u64 = 0;")
        stores.append(f"  call.value[{i}].{_FIELDS[argument.dtype]} = a{i};")
        if argument.dtype == "u64":
            stores.append(f"  call.number[{i}] = a{i} > INT64_MAX ? INT64_MAX : (int64_t)a{i};")
        elif argument.dtype not in ("f32", "f64"):
            stores.append(f"  call.number[{i}] = a{i};")
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
    if argument.dims is None:
        return DTYPES[argument.dtype].c
    return "void *" if argument.out else "const void *"


def _c_int(value: int) -> str:
    if value == _INT64[0]:
        return "INT64_MIN"
    return f"INT64_C({value})"


def _c_string(text: str) -> str:
    """A C string literal. Every byte that is no plain character is an octal escape of 3 digits."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "surrogateescape")
    )
    return f'"{plain}"'
