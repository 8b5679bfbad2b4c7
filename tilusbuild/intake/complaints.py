"""What compilers say of a source: the headers that they do not find, the flags that they ask for.

The preprocessor is the one judge of which includes count: it knows the conditions around them. It
compiles nothing and runs nothing of the project. What ends it is one line of gcc's: a header that
it did not find, or an `#error`. Of what it leaves, each line says which file it is from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from tilusbuild.expr import Value
from tilusbuild.manifest.check_targets import flag_problems
from tilusbuild.process.base import Command, Runner
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.toolchain import Toolchain

_TIMEOUT = 120.0
_ERROR = re.compile(
    rb"(?m)^(?P<file>[^\n:]+):(?P<line>\d+):\d+: (?:fatal )?error: (?P<text>.+)$", re.MULTILINE
)
_ASKED = re.compile(r"--[a-z]+(?:-[a-z]+)+")
_MISSING = re.compile(r"(.+): No such file or directory")
_MARKER = re.compile(rb'# \d+ "((?:[^"\\]|\\.)*)"')


class Complaint(Struct, frozen=True):
    """Why a source cannot be preprocessed."""

    file: str
    line: int
    text: str
    missing: str = ""
    """The header that was not found."""


class Preprocessed(Struct, frozen=True):
    """What became of a source."""

    complaint: Complaint | None = None
    """Why there is nothing; None too where no line of the output says why."""
    left: frozenset[str] | None = None
    """The files of which text is left, as they are named there; None where that is not known."""


Preprocess = Callable[[str, Sequence[str]], Preprocessed]
"""Preprocess a source with include directories, all absolute."""


def preprocessor(
    toolchain: Toolchain, runner: Runner, arch: str, std: str, defines: Mapping[str, Value]
) -> Preprocess | None:
    """Return what preprocesses CUDA sources with some macros; None without a toolkit."""
    if toolchain.cuda is None:
        return None
    nvcc, cxx = toolchain.cuda.nvcc, toolchain.cxx.path
    number = arch.removeprefix("sm_")
    words = (
        *(nvcc, "-E", f"-std={std}", "-ccbin", cxx, "--expt-relaxed-constexpr"),
        *("-gencode", f"arch=compute_{number},code=sm_{number}"),
        *(f"-D{name}={1 if value is True else value}" for name, value in defines.items()),
    )

    def run(source: str, include_dirs: Sequence[str]) -> Preprocessed:
        with TemporaryDirectory("import") as made:
            includes = (f"-I{path}" for path in include_dirs)
            env = {**toolchain.environment(), "TMPDIR": made.path}
            text = os.path.join(made.path, "text.ii")
            argv = (*words, *includes, source, "-o", text)
            ended = runner.run(Command(argv, made.path, env, timeout=_TIMEOUT))
            if not ended.ok:
                return Preprocessed(_complaint(ended.output))
            return Preprocessed(left=files_left(read_bytes(text)))

    return run


def files_left(text: bytes) -> frozenset[str]:
    """Return the files of which a preprocessed text has more than white space and directives."""
    found: set[bytes] = set()
    file = b""
    for line in text.splitlines():
        if marker := _MARKER.match(line):
            file = marker[1]
        elif file not in found and line.strip() and not line.startswith(b"#"):
            found.add(file)
    return frozenset(re.sub(rb"\\(.)", rb"\1", each).decode(errors="replace") for each in found)


def _complaint(output: bytes) -> Complaint | None:
    match = _ERROR.search(output)
    if match is None:
        return None
    text = match["text"].decode(errors="replace").strip()
    missing = _MISSING.fullmatch(text)
    file = match["file"].decode(errors="replace")
    return Complaint(file, int(match["line"]), text, missing[1] if missing else "")


def asked_flags(log: str) -> list[str]:
    """Return the flags that errors of nvcc name, if they are known to be pure."""
    lines = (line for line in log.splitlines() if "error" in line or "warning" not in line)
    named = dict.fromkeys(flag for line in lines for flag in _ASKED.findall(line))
    return [flag for flag in named if not any(flag_problems([flag], unsafe=False, cpu=False))]
