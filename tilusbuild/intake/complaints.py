"""What compilers say of a source: the headers that they do not find, the flags that they ask for.

The preprocessor is the one judge of which includes count: it knows the conditions around them. It
compiles nothing and runs nothing of the project. What ends it is one line of gcc's: a header that
it did not find, or an `#error`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilusbuild.manifest.check_targets import flag_problems
from tilusbuild.process.base import Command, Runner
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.toolchain import Toolchain

_TIMEOUT = 120.0
_ERROR = re.compile(
    rb"(?m)^(?P<file>[^\n:]+):(?P<line>\d+):\d+: (?:fatal )?error: (?P<text>.+)$", re.MULTILINE
)
_ASKED = re.compile(r"--[a-z]+(?:-[a-z]+)+")
_MISSING = re.compile(r"(.+): No such file or directory")


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why a source cannot be preprocessed."""

    file: str
    line: int
    text: str
    missing: str = ""
    """The header that was not found."""


Preprocess = Callable[[str, Sequence[str]], Complaint | None]
"""Preprocess a source with include directories, all absolute."""


def preprocessor(toolchain: Toolchain, runner: Runner, arch: str, std: str) -> Preprocess | None:
    """Return what preprocesses CUDA sources; None without a toolkit."""
    if toolchain.cuda is None:
        return None
    nvcc, cxx = toolchain.cuda.nvcc, toolchain.cxx.path
    number = arch.removeprefix("sm_")
    words = (
        *(nvcc, "-E", f"-std={std}", "-ccbin", cxx, "--expt-relaxed-constexpr"),
        *("-gencode", f"arch=compute_{number},code=sm_{number}"),
    )

    def run(source: str, include_dirs: Sequence[str]) -> Complaint | None:
        with TemporaryDirectory("import") as made:
            includes = (f"-I{path}" for path in include_dirs)
            env = {**toolchain.environment(), "TMPDIR": made.path}
            argv = (*words, *includes, source, "-o", os.devnull)
            ended = runner.run(Command(argv, made.path, env, timeout=_TIMEOUT))
        return None if ended.ok else _complaint(ended.output)

    return run


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
