"""Is a struct that the manifest declares the one that the source has? Asked of the compiler.

A kernel's binary says how many bytes a parameter has, and nothing of what is in it. So the source
ends in assertions of the size and the members' places; a program whose struct is another does not
compile.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilusbuild.runtime.structs import Struct

# NVRTC has neither `offsetof` nor what other compilers make it of. The type may have commas.
_PLACE = """
#ifdef __CUDACC_RTC__
#define TL_PLACE_OF(member, ...) __INTADDR__(&((__VA_ARGS__ *)0)->member)
#else
#define TL_PLACE_OF(member, ...) __builtin_offsetof(__VA_ARGS__, member)
#endif
"""


def layout_asserts(kinds: Iterable[Struct]) -> str:
    """Return C++ to put at a source's end; nothing without structs."""
    lines = [line for kind in kinds for line in _asserts(kind)]
    return _PLACE + "\n".join(lines) + "\n" if lines else ""


def _asserts(kind: Struct) -> Iterable[str]:
    name = kind.name
    said = f"{name} is declared with {kind.size} bytes"
    yield f'static_assert(sizeof({name}) == {kind.size}, "{said}");'
    for member in kind.members:
        at, size = f"TL_PLACE_OF({member.name}, {name})", f"sizeof({name}::{member.name})"
        said = f"{name} is declared with {member.text()} at byte {member.offset}"
        yield f'static_assert({at} == {member.offset} && {size} == {member.size}, "{said}");'
