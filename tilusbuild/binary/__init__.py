"""What compiled code says of itself, read in pure Python: no toolkit, no driver, no execution.

Everything here takes untrusted bytes. A reader's work is bounded by the size of its
input, and `BinaryError` is the only exception that it lets out.
"""

from tilusbuild.binary.cubin import KernelUsage, PtxasUsage, parse_ptxas, read_cubin
from tilusbuild.binary.elf import BinaryError, LibraryNeeds, read_needs
from tilusbuild.binary.fatbin import CodeImage, extract_cubins, read_archs

__all__ = [
    "BinaryError",
    "CodeImage",
    "KernelUsage",
    "LibraryNeeds",
    "PtxasUsage",
    "extract_cubins",
    "parse_ptxas",
    "read_archs",
    "read_cubin",
    "read_needs",
]
