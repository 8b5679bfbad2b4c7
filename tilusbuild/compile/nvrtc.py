"""The kernel pipeline's device code through NVRTC: which commands, and which flags it knows.

The commands are those of `toolchain/nvrtc_command.py`, of which `compile.sh` runs a copy. A compile
sees the program's headers as nvcc does, below /proc/self/cwd/include, and the toolkit's below
/proc/self/cwd/cuda; there is no other folder that NVRTC looks in by itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from tilusbuild.render.lexing import TOKENS

NVRTC_COMMAND = "nvrtc_command.py"
"""The name of the copy in the tree."""

CUDA_HEADERS = "cuda"
"""The link to the toolkit's headers in the private folder."""

STANDARDS = ("c++14", "c++17", "c++20")

_WITH_VALUE = """
    -dopt --dopt -Ofc --Ofast-compile -Xptxas --ptxas-options -maxrregcount --maxrregcount
    -ftz --ftz -prec-sqrt --prec-sqrt -prec-div --prec-div -fmad --fmad -modify-stack-limit
    --modify-stack-limit -jtd --jump-table-density -device-stack-protector --device-stack-protector
    -frandom-seed --frandom-seed -D --define-macro -U --undefine-macro -builtin-move-forward
    --builtin-move-forward -builtin-initializer-list --builtin-initializer-list -opt-info
    --optimization-info -diag-error --diag-error -diag-suppress --diag-suppress -diag-warn
    --diag-warn -brief-diag --brief-diagnostics -split-compile --split-compile -Xcudafe
"""
_WITHOUT = """
    -G --device-debug -lineinfo --generate-line-info -use_fast_math --use_fast_math
    -extra-device-vectorization --extra-device-vectorization -w --disable-warnings -restrict
    --restrict -default-device --device-as-default-execution-space -device-int128 --device-int128
    -device-float128 --device-float128 -err-no --display-error-number -no-err-no
    --no-display-error-number -minimal --minimal
"""
VALUED, BARE = frozenset(_WITH_VALUE.split()), frozenset(_WITHOUT.split())
"""Options of NVRTC 13.0: those with a value, after "=" or as the next word, and those without."""

_HOST_LEVEL = re.compile(r"-O[0-3]?|--optimize=[0-3]")
"""How far nvcc optimises host code: NVRTC compiles none, and device code fully."""

_HINTS = {
    "-Xcompiler": "NVRTC has no host compiler: leave it out",
    "--compiler-options": "NVRTC has no host compiler: leave it out",
    "--expt-relaxed-constexpr": "say __device__ of those functions, or give -default-device",
    "-expt-relaxed-constexpr": "say __device__ of those functions, or give -default-device",
    "--extended-lambda": "in NVRTC a lambda of a kernel is the device's: leave out its __device__",
    "-extended-lambda": "in NVRTC a lambda of a kernel is the device's: leave out its __device__",
    "-rdc": "a program is whole: relocatable code is not linked",
    "-dlto": "a program is whole: relocatable code is not linked",
    "-time": "`-v` and the record of a build tell times",
}
_TAKES_NEXT = frozenset({"-Xcompiler", "--compiler-options", "-Xlinker", "-Xfatbin", "-Xnvlink"})


@dataclass(frozen=True, slots=True)
class Refused:
    """A flag that NVRTC does not know: its place among the flags, and what to do."""

    index: int
    flag: str
    hint: str


def refused(flags: Iterable[str]) -> Iterator[Refused]:
    """The flags that NVRTC does not know."""
    words = iter(enumerate(flags))
    for index, flag in words:
        name, equals, _ = flag.partition("=")
        if name in VALUED or flag[:2] in ("-D", "-U"):
            if not equals and name in VALUED:
                next(words, None)
        elif flag not in BARE and not _HOST_LEVEL.fullmatch(flag):
            hint = _HINTS.get(name, "leave it out, or compile this project with nvcc")
            yield Refused(index, flag, hint)
            if name in _TAKES_NEXT and not equals:
                next(words, None)


def own_flags(flags: Iterable[str]) -> tuple[str, ...]:
    """The flags as NVRTC gets them: without those that only nvcc's host compiler heeds."""
    return tuple(flag for flag in flags if not _HOST_LEVEL.fullmatch(flag))


_DATED = re.compile(r"\b__(?:DATE|TIME)__\b")


def dated(source: str, headers: str | None) -> str | None:
    """An error, as a compiler words it, for the first use of the date: NVRTC puts in the real one,
    and a program must not depend on when it was compiled. `headers` is the folder of the copy."""
    line = _dated_line(source)
    if line:
        return f"source.cu({line}): error: {_NO_DATE}"
    return _dated_header(headers) if headers else None


_NO_DATE = "NVRTC compiles the present time into __DATE__ and __TIME__: leave them out, or use nvcc"


@lru_cache(maxsize=64)
def _dated_header(folder: str) -> str | None:
    """The same for the headers, which are read once for all programs that have them."""
    for where, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            path = os.path.join(where, name)
            with open(path, encoding="utf-8", errors="replace") as file:
                line = _dated_line(file.read())
            if line:
                return f"include/{os.path.relpath(path, folder)}({line}): error: {_NO_DATE}"
    return None


def _dated_line(text: str) -> int | None:
    """The line of the first use outside comments and strings, from 1."""
    if "__DATE__" not in text and "__TIME__" not in text:
        return None
    blank = TOKENS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), "\n" + text)
    found = _DATED.search(blank)
    return blank.count("\n", 0, found.start()) if found else None
