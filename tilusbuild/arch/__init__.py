"""GPU architectures: what each can hold, what the names mean, and which code runs on which device.

Everything here is a table and arithmetic: it needs no GPU, no toolkit and no file.
"""

from tilusbuild.arch.names import (
    ArchError,
    combine_limits,
    format_gencode,
    list_embedded_archs,
    list_known_names,
    parse_arch,
)
from tilusbuild.arch.table import CPU, LIMITS, Arch, Occupancy, compute_occupancy
from tilusbuild.runtime.device import can_run

__all__ = [
    "CPU",
    "LIMITS",
    "Arch",
    "ArchError",
    "Occupancy",
    "can_run",
    "combine_limits",
    "compute_occupancy",
    "format_gencode",
    "list_embedded_archs",
    "list_known_names",
    "parse_arch",
]
