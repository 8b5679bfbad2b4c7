"""GPU architectures: what each can hold, what the names mean, and which code runs on which device.

Everything here is a table and arithmetic: no GPU, no toolkit, no file is asked.
"""

from tilusbuild.arch.compat import Verdict, can_run
from tilusbuild.arch.names import (
    CPU,
    PtxNeedsBase,
    UnknownArch,
    combined,
    gencode,
    known_names,
    parse_arch,
)
from tilusbuild.arch.occupancy import Occupancy, occupancy
from tilusbuild.arch.table import Arch

__all__ = [
    "CPU",
    "Arch",
    "Occupancy",
    "PtxNeedsBase",
    "UnknownArch",
    "Verdict",
    "can_run",
    "combined",
    "gencode",
    "known_names",
    "occupancy",
    "parse_arch",
]
