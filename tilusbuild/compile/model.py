"""The input and the result of a compile, as values.

A `Recipe` holds everything that decides the bytes of a `lib.so` but the toolchain: equal recipes
and equal toolchains give equal libraries, wherever they are compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from tilusbuild.arch import Arch
from tilusbuild.expr import Expr, Value
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.process.base import Elsewhere
from tilusbuild.signature import Signature
from tilusbuild.status import RECORDED, Cause, Status

if TYPE_CHECKING:
    from tilusbuild.binary import CodeImage, KernelUsage, PtxasUsage
    from tilusbuild.compile.pipelines import Pipeline


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched: up to three expressions each, over constants and arguments."""

    grid: tuple[Expr, ...]
    block: tuple[Expr, ...]
    smem: Expr
    """Bytes of dynamic shared memory of a block."""
    cluster: tuple[Expr, ...] = ()
    """Blocks of a cluster; () for no clusters."""
    cooperative: Expr | None = None
    """Whether all blocks must be resident at once."""
    pdl: Expr | None = None
    """Whether it may start before the kernel ahead of it in the stream has ended."""
    carve_out: Expr | None = None
    """Percent of an SM's memory that should be shared memory."""

    @property
    def has_attributes(self) -> bool:
        """Whether it asks for more than a grid, a block and shared memory."""
        rest = (self.cooperative, self.pdl, self.carve_out)
        return bool(self.cluster) or any(each is not None for each in rest)

    @property
    def lines(self) -> tuple[tuple[str, tuple[Expr, ...]], ...]:
        """What it says, by the manifest's keys; what is left out is not there."""
        single = (
            ("cooperative", self.cooperative),
            ("pdl", self.pdl),
            ("carve-out", self.carve_out),
        )
        return (
            ("grid", self.grid),
            ("block", self.block),
            ("smem", (self.smem,)),
            *([("cluster", self.cluster)] if self.cluster else []),
            *((name, (value,)) for name, value in single if value is not None),
        )


@dataclass(frozen=True, slots=True)
class Prune:
    """Limits that a compiled kernel must keep to be linked. None: no limit."""

    max_registers: int | None = None
    max_spill_bytes: int | None = None
    """Bytes of spill stores and spill loads, together."""
    min_blocks_per_sm: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """How objects become one library."""

    soname: str
    inputs: tuple[str, ...] = ()
    """Objects and archives to link as they are: names below `include`."""
    dirs: tuple[str, ...] = ()
    """Directories below `include` that `libs` are looked for in first."""
    libs: tuple[str, ...] = ()
    """Libraries, as after `-l`: those that are in no directory are the toolkit's or the
    system's."""
    rpath: tuple[str, ...] = ()
    undefined: bool = False
    """Whether a symbol may be defined by nothing."""
    cudart: str = "static"
    needed: tuple[str, ...] = ()
    """Sonames that the library asks for; what they define is not looked for."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One program to compile."""

    pipeline: Pipeline
    archs: tuple[Arch, ...]
    ptx: bool
    source: str
    symbol: str
    """The kernel, the host function, or the cpu function: an `extern "C"` name; of a kernel also a
    C++ one."""
    signature: Signature
    """Resolved: no constant is left in it."""
    launch: Launch | None
    """Where the pipeline's launcher starts a kernel."""
    constants: Mapping[str, Value]
    """The names that the launch's expressions see: parameters, schedule, derived values."""
    include_digest: str | None = None
    include_roots: tuple[tuple[str, bool], ...] = ()
    """(directory in the include layout, found by #include "…" only), in order of search."""
    flags: tuple[str, ...] = ()
    """For nvcc, or for the host compiler on the cpu target."""
    defines: tuple[tuple[str, str], ...] = ()
    std: str = "c++17"
    host_march: str | None = None
    """None: x86-64-v2, or armv8-a."""
    cudart: str = "static"
    """How host code gets the CUDA runtime: "static" or "shared"."""
    prune: Prune | None = None
    unit: tuple[str, ...] = ()
    """The kernels of which the source is one translation unit, `symbol` among them; () for a
    program that is compiled alone."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that were rendered for the program, by the name that it includes them by."""
    assembled: bool = False
    """Whether there is a ptxas of NVRTC's version, for PTX less what no kernel reaches."""
    seeded: bool = False
    """Whether nvcc has `-frandom-seed`."""
    language: str = "cu"
    """Of an object's source: "cu", "c++" or "c"."""
    rdc: bool = False
    """Whether device code is relocatable, and is linked again with the library."""
    link: Link | None = None
    """Where the program is a library of objects."""
    objects: tuple[str, ...] = ()
    """The programs whose objects are linked, by hash; `object_name` is each one's file."""


@dataclass(frozen=True, slots=True)
class RefusedFlag:
    """A flag that a pipeline's compiler does not know: its index among the flags, and a hint."""

    index: int
    flag: str
    hint: str


@dataclass(slots=True)
class Findings:
    """What a pipeline's checks have found so far in what its steps made."""

    usages: list[tuple[Arch, KernelUsage]] = field(default_factory=list)
    """Of the kernel, for each architecture."""
    ptxas: tuple[PtxasUsage, ...] = ()
    images: tuple[CodeImage, ...] = ()


@dataclass(frozen=True, slots=True)
class CompileOutcome:
    """How a compile ended."""

    cause: Cause | None
    """None: the library was made."""
    log: str
    """What the compilers printed, free of times and temporary names."""
    usages: tuple[KernelUsage, ...] = ()
    ptxas: tuple[PtxasUsage, ...] = ()
    images: tuple[CodeImage, ...] = ()
    seconds: float = 0.0
    peak_rss: int = 0
    """Bytes: the largest of the compile's processes."""
    reason: str = ""
    """One line: why it is not built."""
    elsewhere: Elsewhere | None = None
    """Another machine that did a part."""
    files: tuple[str, ...] = ()
    """The files that the compile added, relative to the stage."""

    @property
    def status(self) -> Status:
        """The status of the program."""
        return Status.BUILT if self.cause is None else self.cause.status

    @property
    def recorded(self) -> bool:
        """Whether this is a result, which will be the same next time."""
        return self.status in RECORDED
