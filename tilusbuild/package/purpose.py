"""What each file of a cache is for, and so whether a package carries it.

`runtime` is what a call needs, and what says what was compiled. `sources` let `compile.sh` make the
libraries again. `logs` are what compilers and measurements said. The rest of a script's folder
(links, locks) stays: a package names programs by their hashes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from tilusbuild.cache import layout
from tilusbuild.runtime import direct, tables

Purpose: TypeAlias = Literal["runtime", "sources", "logs"]

_PROGRAM = (layout.PROGRAM_TXT, layout.OPTIONS_TXT, layout.META, layout.LIBRARY)
_SCRIPT = (
    layout.SCRIPT_TXT,
    layout.SCRIPT_JSON,
    layout.SCHEDULE_TXT,
    tables.FILE,
    tables.FILE.replace(".json", ".txt"),
)
_LOGS = "latency/"


def of_program(name: str) -> Purpose:
    """The purpose of a file below a program's folder."""
    if name in _PROGRAM:
        return "runtime"
    return "logs" if name == layout.LOG else "sources"


def of_script(name: str) -> Purpose | None:
    """The purpose of a file below a script's folder; None: never carried."""
    if name in _SCRIPT:
        return "runtime"
    if name.startswith(f"{direct.FOLDER}/"):
        return "sources" if name.endswith(".c") else "runtime"
    return "logs" if name.startswith(_LOGS) and name.endswith((".json", ".txt")) else None


def is_executable(path: str) -> bool:
    """Whether a file is carried with mode 0755; all others have 0644."""
    return path.endswith((".so", ".sh"))
