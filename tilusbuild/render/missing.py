"""What to say when a compile did not find a header: how the headers that it sees are chosen.

A compile sees a copy of the headers that its source can reach as far as that can be read from the
text. A name that macros put together in a way that is not followed must be declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilusbuild.errors import Diagnostic

_MISSING = re.compile(
    r"fatal error: (?P<gcc>.+): No such file or directory|cannot open source file \"(?P<edg>.+)\""
)


_LIBRARY = frozenset(
    [
        *("algorithm", "array", "atomic", "bit", "cassert", "cfloat", "chrono", "climits", "cmath"),
        *(
            "complex",
            "concepts",
            "cstddef",
            "cstdint",
            "cstdio",
            "cstdlib",
            "cstring",
            "functional",
        ),
        *("initializer_list", "iostream", "iterator", "limits", "memory", "numeric", "optional"),
        *("ratio", "span", "stdexcept", "string", "tuple", "type_traits", "utility", "variant"),
        *("assert.h", "float.h", "limits.h", "math.h", "stddef.h", "stdint.h", "stdio.h"),
        *("stdlib.h", "string.h", "vector"),
    ]
)
"""Headers that device code takes from the host's library with nvcc."""


def misses_header(log: str) -> bool:
    """Return whether a compiler says that it did not find a header."""
    return _MISSING.search(log) is not None


def missing_header_help(log: str, notes: Iterable[Diagnostic], *, nvrtc: bool = False) -> str:
    """Return lines to follow a compiler's log: "" when it misses no header. `notes` are the
    closure's."""
    found = _MISSING.search(log)
    if found is None:
        return ""
    name = found["gcc"] or found["edg"]
    if nvrtc and name in _LIBRARY:
        return _of_the_library(name) + "\n"
    told = [note.render() for note in notes] or [_general(name)]
    return "\n".join(told) + "\n"


def _of_the_library(name: str) -> str:
    plain = name.removesuffix(".h")
    own = f"c{plain}" if name.endswith(".h") else plain
    return (
        f"{name}: NVRTC has no C and C++ library; if anything of it is needed,"
        f"\n  the toolkit's <cuda/std/{own}> may have it"
    )


def _general(name: str) -> str:
    return (
        f"{name}: a compile sees only those headers of include-dirs that it is seen to need;"
        f'\n  declare another one with headers = ["{name}"] in [build] or in the script'
    )
