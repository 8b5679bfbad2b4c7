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
from typing import TYPE_CHECKING

from tilusbuild.runtime.dtypes import get_scalar_type
from tilusbuild.runtime.structs import StructType, is_struct, parse_struct

if TYPE_CHECKING:
    from tilusbuild.compile.model import Recipe
    from tilusbuild.signature import Argument

CHECK = "declared.cc"

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PLAIN = re.compile(
    r"(?:\b(?:const|volatile|__restrict(?:__)?|unsigned|signed|long|int|short|char|float|double|void"
    r"|bool|(?:std::)?(?:u?int(?:8|16|32|64)_t|size_t|ptrdiff_t)|cudaStream_t)\b|[*&\s])+\w*\s*"
)
_FOUND = re.compile(r"tl_(parameter|count)<(\d+), ([^>]*?), ([^>]*?)>")

_UNIT = """\
#include <cstddef>
#include <cstdint>
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
template <int N, class... A> struct tl_at;
template <class A, class... B> struct tl_at<1, A, B...> {{ using type = A; }};
template <int N, class A, class... B> struct tl_at<N, A, B...> : tl_at<N - 1, B...> {{}};
template <class R, class... A> struct tl_got {{
  static constexpr int count = sizeof...(A);
  template <int N> using at = typename tl_at<N, A...>::type;
}};
template <class R, class... A> tl_got<R, A...> tl_takes(R (*)(A...));
using tl_it = decltype(tl_takes(&::{symbol}));
template struct tl_count <0, tl_it::count, {count}>;
{parameters}
}}
"""


def declaration_check(recipe: Recipe) -> tuple[str, bool] | None:
    """Return the unit that compares the function with the declared arguments, and whether it
    depends on nothing but the declaration; None for one whose
    source the host compiler cannot read, and which is not in C's own types."""
    written = _declaration(recipe)
    if written is None and recipe.pipeline.launcher.cuda:
        return None
    declaration = f'extern "C" void {recipe.symbol}({written});'
    wanted = _wanted(recipe)
    unit = _UNIT.format(
        declaration=('#include "source.cu"' if written is None else declaration) + _structs(recipe),
        symbol=recipe.symbol,
        count=len(wanted),
        # With a blank before its <, so that what a compiler quotes of the unit is not found.
        parameters="\n".join(
            f"template struct tl_parameter <{n}, tl_it::at<{n}>, {type_}>;"
            for n, type_ in enumerate(wanted, 1)
        ),
    )
    return unit, written is not None


def check_command(source_command: tuple[str, ...], *, shared: bool) -> tuple[str, ...]:
    """Return the command that compiles the unit, from the one that compiles the source."""
    if shared:
        return ("{cxx}", "-fsyntax-only", "-x", "c++", "-std=c++17", "-w", CHECK)
    words = source_command[: source_command.index("-o")]
    return (*("-fsyntax-only" if word == "-c" else word for word in words[:-1]), "-w", CHECK)


def findings(log: str) -> list[str]:
    """Return what the unit's compile says that is of use to `problem`."""
    return [match[0] for match in _FOUND.finditer(log)]


def problem(recipe: Recipe, log: str) -> str | None:
    """Return what the unit's compile says is wrong, worded as a compiler's error."""
    found = {(kind, int(number)): (got, want) for kind, number, got, want in _FOUND.findall(log)}
    line = _line(recipe)
    place = f"source.cu:{line}: error: " if line else ""
    arguments = recipe.signature.value_arguments
    if ("count", 0) in found:
        got, want = found["count", 0]
        names = ", ".join(argument.name for argument in arguments)
        stream = " and the stream" if recipe.pipeline.launcher.passes_stream else ""
        return (
            f'{place}"{recipe.symbol}" takes {got} parameters; it is called with {want}: '
            f"the arguments {names}{stream}"
        )
    wrong = sorted(number for kind, number in found if kind == "parameter")
    if not wrong:
        return None
    got, _ = found["parameter", wrong[0]]
    if wrong[0] > len(arguments):
        return f'{place}parameter {wrong[0]} of "{recipe.symbol}" is {got}; it gets the stream'
    argument = arguments[wrong[0] - 1]
    return (
        f'{place}parameter {wrong[0]} of "{recipe.symbol}" is {got}; "{argument.name}" is declared '
        f"{argument.format_type()}, which is {_c_type(argument)}"
    )


def _declaration(recipe: Recipe) -> str | None:
    """Return the parameters as they are written, when they are in C's own types."""
    found = {match[1].strip() for match in _heads(recipe)}
    if len(found) != 1:
        return None
    (written,) = found
    parameters = [] if written in ("", "void") else written.split(",")
    return written if all(_PLAIN.fullmatch(each) for each in parameters) else None


def without_comments(source: str) -> str:
    """Return C++ with blanks for its comments; each place stays as it is."""
    return _COMMENTS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def _heads(recipe: Recipe) -> list[re.Match[str]]:
    """Return where the function is declared or defined."""
    text = without_comments(recipe.source)
    head = rf"[\w*>&]\s+\**{re.escape(recipe.symbol)}\s*\(([^()]*)\)\s*(?:noexcept\s*)?[{{;]"
    return list(re.finditer(head, text))


def _line(recipe: Recipe) -> int | None:
    heads = _heads(recipe)
    if not heads:
        return None
    return recipe.source.count("\n", 0, heads[-1].start(1)) + 1


def _wanted(recipe: Recipe) -> list[str]:
    types = [
        _c_type(argument) if argument.out or argument.dims is None else f"const {_c_type(argument)}"
        for argument in recipe.signature.value_arguments
    ]
    return [*types, "void *"] if recipe.pipeline.launcher.passes_stream else types


def _structs(recipe: Recipe) -> str:
    """Return a type of the size of each struct: what it consists of is asserted in the source."""
    sizes = {
        parse_struct(argument.dtype).size
        for argument in recipe.signature.value_arguments
        if is_struct(argument.dtype)
    }
    return "".join(f"\nstruct tl_struct_{n} {{ char bytes[{n}]; }};" for n in sorted(sizes))


def _c_type(argument: Argument) -> str:
    if is_struct(argument.dtype):
        return f"tl_struct_{parse_struct(argument.dtype).size}"
    element = get_scalar_type(argument.dtype).c.replace("_Bool", "bool")
    return element if argument.dims is None else f"{element} *"


# NVRTC has neither `offsetof` nor what other compilers make it of. The type may have commas.
_PLACE = """
#ifdef __CUDACC_RTC__
#define TL_PLACE_OF(member, ...) __INTADDR__(&((__VA_ARGS__ *)0)->member)
#else
#define TL_PLACE_OF(member, ...) __builtin_offsetof(__VA_ARGS__, member)
#endif
"""


def layout_asserts(kinds: Iterable[StructType]) -> str:
    """Return C++ to put at a source's end; nothing without structs."""
    lines = [line for kind in kinds for line in _asserts(kind)]
    return _PLACE + "\n".join(lines) + "\n" if lines else ""


def _asserts(kind: StructType) -> Iterable[str]:
    name = kind.name
    said = f"{name} is declared with {kind.size} bytes"
    yield f'static_assert(sizeof({name}) == {kind.size}, "{said}");'
    for member in kind.members:
        at, size = f"TL_PLACE_OF({member.name}, {name})", f"sizeof({name}::{member.name})"
        said = f"{name} is declared with {member.format_member()} at byte {member.offset}"
        yield f'static_assert({at} == {member.offset} && {size} == {member.size}, "{said}");'
