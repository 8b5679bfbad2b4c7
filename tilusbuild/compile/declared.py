"""Does the template's own function take what the manifest declares? Asked of the host compiler.

The launcher calls the function by the declared types, and C linkage has no types: one parameter too
few, or two in another order, would link and then compute nonsense. So the function's type is
compared with the declaration by a unit of its own, which is never linked and in no identity.
Compared is what a call passes: sizes, integer or not, what pointers point to as far as C has a name
for it, and that an output can be written. Signs and names of equal types are the author's.

Where the parameters are written in C's own types the unit holds the declaration alone: schedules
share it, and it is compiled once. Otherwise it includes the source. A unit that does not compile
for another reason says nothing.

A kernel's binary says how many bytes a parameter has, and nothing of what is in it. So a source
whose kernels take structs ends in assertions of their sizes and their members' places.

It costs one run of the host compiler without code generation, for each declaration or, where the
source is included, for each schedule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tilusbuild.runtime.dtypes import DTYPES, get_scalar_type
from tilusbuild.runtime.structs import StructType, is_struct, parse_struct
from tilusbuild.signature.reading import DeclaredKernel, KernelParameter, KernelSource

if TYPE_CHECKING:
    from tilusbuild.compile.model import Recipe
    from tilusbuild.signature.model import Argument

CHECK = "declared.cc"

# A failed assertion of the unit, as compilers name it: `tl_parameter<2, float*, const int*>`.
_DIFFERENCE = re.compile(r"tl_(parameter|count)<(\d+), ([^>]*?), ([^>]*?)>")

_UNIT_TEMPLATE = """\
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
typedef struct CUstream_st *cudaStream_t;
{declaration}
namespace {{
template <class T> struct tl_kind {{
  static constexpr int value = std::is_integral<T>::value || std::is_enum<T>::value ? 1
                               : std::is_floating_point<T>::value                   ? 2
                                                                                    : 9;
}};
template <class G, class W> struct tl_fits {{
  static constexpr bool value = sizeof(G) == sizeof(W) && tl_kind<G>::value == tl_kind<W>::value;
}};
template <class G, class W> struct tl_fits<G *, W> {{ static constexpr bool value = false; }};
template <class G, class W> struct tl_fits<G &, W> : tl_fits<G *, W> {{}};
template <class G, class W> struct tl_fits<G, W *> {{ static constexpr bool value = false; }};
template <class G> struct tl_fits<G *, void *> {{ static constexpr bool value = true; }};
template <class G, class W> struct tl_fits<G *, W *> {{
  using T = typename std::remove_cv<G>::type;
  static constexpr bool named = tl_kind<T>::value != 9;
  static constexpr bool value =
      !named || tl_fits<typename std::conditional<named, T, char>::type, W>::value;
}};
template <class G, class W> struct tl_fits<G *, const W *> : tl_fits<G *, W *> {{}};
template <int N, class Got, class Want> struct tl_parameter {{
  static constexpr bool written = !std::is_const<typename std::remove_pointer<Got>::type>::value ||
                                  std::is_const<typename std::remove_pointer<Want>::type>::value;
  static_assert(tl_fits<Got, Want>::value && written, "parameter");
}};
template <int N, int Got, int Want> struct tl_count {{
  static_assert(Got == Want, "count");
}};
template <class R, class... A> std::tuple<A...> tl_takes(R (*)(A...));
using tl_taken = decltype(tl_takes(&::{symbol}));
template struct tl_count <0, std::tuple_size<tl_taken>::value, {count}>;
{parameters}
}}
"""


class DeclarationCheck(NamedTuple):
    """A C++ unit that compares the template's function with the declared arguments."""

    unit: str
    shared: bool
    """Whether the unit depends on the declaration alone, so that schedules share its answer."""


def write_declaration_check(recipe: Recipe) -> DeclarationCheck | None:
    """Return the unit that checks the recipe's function. Return None if the host compiler cannot
    read the source and the parameters are not of C's own types."""
    parameter_list = _format_c_parameters(recipe)
    if parameter_list is None and recipe.pipeline.launcher.cuda:
        return None
    if parameter_list is None:
        declaration = '#include "source.cu"'
    else:
        declaration = f'extern "C" void {recipe.symbol}({parameter_list});'
    parameter_types = _list_parameter_types(recipe)
    unit = _UNIT_TEMPLATE.format(
        declaration=declaration + _format_structs(recipe),
        symbol=recipe.symbol,
        count=len(parameter_types),
        # A blank before the "<": otherwise `_DIFFERENCE` matches the lines that a compiler quotes.
        parameters="\n".join(
            f"template struct tl_parameter <{number}, "
            f"std::tuple_element<{number - 1}, tl_taken>::type, {expected_type}>;"
            for number, expected_type in enumerate(parameter_types, 1)
        ),
    )
    return DeclarationCheck(unit, shared=parameter_list is not None)


def derive_check_command(source_command: tuple[str, ...], *, shared: bool) -> tuple[str, ...]:
    """Return the command that compiles the unit of a `DeclarationCheck`. Unless the unit is
    `shared`, the command is derived from that of the source."""
    if shared:
        return ("{cxx}", "-fsyntax-only", "-x", "c++", "-std=c++17", "-w", CHECK)
    words = source_command[: source_command.index("-o")]
    # The last word is the source, which the unit includes.
    options = ["-fsyntax-only" if word == "-c" else word for word in words[:-1]]
    return (*options, "-w", CHECK)


def extract_findings(log: str) -> list[str]:
    """Return the lines of the unit's log that `find_declaration_problem` reads."""
    return [match[0] for match in _DIFFERENCE.finditer(log)]


def find_declaration_problem(recipe: Recipe, log: str) -> str | None:
    """Return the difference that the unit's log reports, as a compiler's error line; None for no
    difference."""
    differences = {
        (kind, int(number)): (actual, expected)
        for kind, number, actual, expected in _DIFFERENCE.findall(log)
    }
    if not differences:
        return None
    line = _find_function_line(recipe)
    position = f"source.cu:{line}: error: " if line else ""
    arguments = recipe.signature.value_arguments
    count_difference = differences.get(("count", 0))  # `tl_count<0, 3, 2>` in the unit
    if count_difference is not None:
        actual_count, expected_count = count_difference
        names = ", ".join(argument.name for argument in arguments)
        stream = " and the stream" if recipe.pipeline.launcher.passes_stream else ""
        return (
            f'{position}"{recipe.symbol}" takes {actual_count} parameters; it is called with '
            f"{expected_count}: the arguments {names}{stream}"
        )
    number = min(number for _, number in differences)  # parameters count from 1
    actual_type, _ = differences["parameter", number]
    difference = f'{position}parameter {number} of "{recipe.symbol}" is {actual_type}'
    if number > len(arguments):
        return f"{difference}; it gets the stream"
    argument = arguments[number - 1]
    return (
        f'{difference}; "{argument.name}" is declared {argument.format_type()}, which is '
        f"{_format_c_type(argument)}"
    )


def _format_c_parameters(recipe: Recipe) -> str | None:
    """Return the function's parameter list in C++, such as "float *, int". Return None if a type is
    not one of C's own, or the source declares the function with several lists or none."""
    parameter_lists = {
        tuple(_spell_parameter(parameter) for parameter in function.parameters)
        for function in _find_functions(recipe)
    }
    # Of several different lists, only the preprocessor knows which one is compiled.
    if len(parameter_lists) != 1:
        return None
    (types,) = parameter_lists
    return ", ".join(types) if all(types) else None


def _spell_parameter(parameter: KernelParameter) -> str:
    """Return the C++ type of a parameter; "" if that is not one of C's own types."""
    if parameter.text.startswith("cudaStream_t ") and parameter.is_plain:
        return "cudaStream_t"
    is_void = parameter.dtype == "void"
    element = "void" if is_void or not parameter.dtype else DTYPES[parameter.dtype].c
    if not parameter.dtype or (element == "void" and not is_void):
        return ""
    const = "const " if parameter.is_const else ""
    return f"{const}{element.replace('_Bool', 'bool')}{' *' if parameter.is_pointer else ''}"


def _find_functions(recipe: Recipe) -> list[DeclaredKernel]:
    """Return the function's declarations in the source."""
    functions = KernelSource(recipe.source, jinja=False).functions
    return [function for function in functions if function.plain == recipe.symbol]


def _find_function_line(recipe: Recipe) -> int | None:
    return next((function.line for function in reversed(_find_functions(recipe))), None)


def _list_parameter_types(recipe: Recipe) -> list[str]:
    """Return the C++ types by which a call passes the arguments, with the stream if it is
    passed."""
    types = [
        _format_c_type(argument)
        if argument.out or argument.dims is None
        else f"const {_format_c_type(argument)}"
        for argument in recipe.signature.value_arguments
    ]
    return [*types, "void *"] if recipe.pipeline.launcher.passes_stream else types


def _format_structs(recipe: Recipe) -> str:
    """Return C++ that defines a type of the size of each struct. `format_layout_asserts` checks
    their fields in the source."""
    sizes = {
        parse_struct(argument.dtype).size
        for argument in recipe.signature.value_arguments
        if is_struct(argument.dtype)
    }
    return "".join(f"\nstruct tl_struct_{n} {{ char bytes[{n}]; }};" for n in sorted(sizes))


def _format_c_type(argument: Argument) -> str:
    if is_struct(argument.dtype):
        return f"tl_struct_{parse_struct(argument.dtype).size}"
    element = get_scalar_type(argument.dtype).c.replace("_Bool", "bool")
    return element if argument.dims is None else f"{element} *"


# NVRTC has neither `offsetof` nor `__builtin_offsetof`. The type comes last: it may have commas.
_MEMBER_OFFSET = """
#ifdef __CUDACC_RTC__
#define TL_PLACE_OF(member, ...) __INTADDR__(&((__VA_ARGS__ *)0)->member)
#else
#define TL_PLACE_OF(member, ...) __builtin_offsetof(__VA_ARGS__, member)
#endif
"""


def format_layout_asserts(kinds: Iterable[StructType]) -> str:
    """Return static_asserts on the layout of structs, for the end of a source; "" without
    structs."""
    lines = [line for kind in kinds for line in _format_struct_asserts(kind)]
    return _MEMBER_OFFSET + "\n".join(lines) + "\n" if lines else ""


def _format_struct_asserts(kind: StructType) -> Iterable[str]:
    """Yield static_asserts on the size of a struct, and on the offset and the size of each
    member."""
    name = kind.name
    message = f"{name} is declared with {kind.size} bytes"
    yield f'static_assert(sizeof({name}) == {kind.size}, "{message}");'
    for member in kind.members:
        offset, size = f"TL_PLACE_OF({member.name}, {name})", f"sizeof({name}::{member.name})"
        message = f"{name} is declared with {member.format_member()} at byte {member.offset}"
        yield f'static_assert({offset} == {member.offset} && {size} == {member.size}, "{message}");'
