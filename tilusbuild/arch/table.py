"""The limits of every GPU architecture that CUDA 11 to 13 compiles for, and occupancy by them.

Sources. Threads, blocks and shared memory per SM, shared memory per block, its granularity and the
part that the driver reserves: `cuda_occupancy.h` of CUDA 13.0, and NVIDIA's CUDA C++ Programming
Guide, "Technical Specifications per Compute Capability" (12.x for sm_50 to sm_72, which 13.0 no
longer lists). ptxas knows the same numbers: it ignores a `__launch_bounds__(threads, blocks)` that
asks for more blocks than fit, and a test compares the table with it and with the header's own
calculator. The toolkit that first knew a name and the first that no longer does: PTX ISA release
notes (a PTX version belongs to one CUDA release). Sizes are bytes; registers are 32-bit ones.

`regs_per_thread` is what ptxas may give to a thread. `smem_per_block` is the opt-in maximum that a
launch may ask for, static and dynamic together; without the opt-in it is `smem_per_block_default`.

`occupancy` is the calculator of `cuda_occupancy.h` (CUDA 13.0) with its defaults: all shared memory
available, dynamic shared memory opted in, no partitioned global caching. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

Version = tuple[int, int]

_KB = 1024
_NO_LIMIT = 2**31 - 1
_REGS_GRANULARITY = 256  # registers that a warp takes are a multiple of it


class Arch(Struct, frozen=True):
    """An architecture to compile for: of a GPU, or `cpu`.

    `name` is nvcc's spelling ("sm_90a"), `number` its digits (90). `suffix` is "", "a" (features of
    exactly this architecture: the code runs on no other) or "f" (features of its family). `since`
    is the first CUDA release that knows the name, `until` the first that does not any more.
    """

    name: str
    number: int
    suffix: str
    threads_per_sm: int
    blocks_per_sm: int
    smem_per_sm: int
    smem_per_block: int
    since: Version
    until: Version | None = None
    regs_per_block: int = 65536
    sub_partitions: int = 4
    barriers_per_block: int = 2
    """Named barriers that an SM has for each block that it can hold."""
    smem_per_block_default: int = 48 * _KB
    regs_per_sm: int = 65536
    regs_per_thread: int = 255
    threads_per_block: int = 1024
    warp_size: int = 32
    """32 for `cpu` too, so that `threads = warps * arch.warp_size` has a value there."""

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"

    @property
    def has_limits(self) -> bool:
        """Whether all `LIMITS` are known: an architecture outside of the table may have none."""
        return self.is_cpu or all(getattr(self, name) != _NO_LIMIT for name in LIMITS)

    @property
    def major(self) -> int:
        return self.number // 10

    @property
    def minor(self) -> int:
        return self.number % 10

    @property
    def warps_per_sm(self) -> int:
        return self.threads_per_sm // self.warp_size

    @property
    def smem_granularity(self) -> int:
        return 1 if self.is_cpu else 128 if self.number >= 80 else 256

    @property
    def smem_reserved(self) -> int:
        return _KB if self.number >= 80 else 0

    @property
    def virtual(self) -> str:
        """The PTX architecture of the same name: "compute_90a"."""
        return self.name.replace("sm_", "compute_", 1)

    def list_attributes(self) -> Mapping[str, int]:
        """Return the values that expressions know as `arch.<key>`: the known limits, and
        `number`."""
        unknown = {name for name in LIMITS if getattr(self, name) == _NO_LIMIT and not self.is_cpu}
        if "threads_per_sm" in unknown:
            unknown.add("warps_per_sm")
        return {key: getattr(self, key) for key in ATTRIBUTES if key not in unknown}


LIMITS = ("threads_per_sm", "blocks_per_sm", "smem_per_sm", "smem_per_block")
"""The limits in which architectures differ. The rest has been the same since sm_70."""


ATTRIBUTES = (
    "number",
    "threads_per_sm",
    "warps_per_sm",
    "blocks_per_sm",
    "threads_per_block",
    "warp_size",
    "smem_per_sm",
    "smem_per_block",
    "smem_per_block_default",
    "smem_granularity",
    "smem_reserved",
    "regs_per_sm",
    "regs_per_block",
    "regs_per_thread",
)
"""The keys of `Arch.list_attributes`, for `cpu` and for every architecture in the table."""


def _make_variants(
    number: int,
    limits: tuple[int, int, int, int],
    since: Version,
    until: Version | None = None,
    a: Version | None = None,
    f: Version | None = None,
    *,
    regs: int = 65536,
    partitions: int = 4,
    barriers: int = 2,
) -> Iterator[Arch]:
    """Yield an architecture, and its variants with the suffixes `a` and `f`.

    `a` and `f` are the first CUDA releases with that suffix. `limits` are threads and blocks of an
    SM, and KB of shared memory of an SM and of a block.
    """
    threads, blocks, smem_sm, smem_block = limits
    for suffix, first_release in (("", since), ("a", a), ("f", f)):
        if first_release is None:
            continue
        yield Arch(
            name=f"sm_{number}{suffix}",
            number=number,
            suffix=suffix,
            threads_per_sm=threads,
            blocks_per_sm=blocks,
            smem_per_sm=smem_sm * _KB,
            smem_per_block=smem_block * _KB,
            since=first_release,
            until=until,
            regs_per_block=regs,
            sub_partitions=partitions,
            barriers_per_block=barriers,
        )


_13 = (13, 0)

ARCHS: Mapping[str, Arch] = {
    arch.name: arch
    for arch in (
        *_make_variants(50, (2048, 32, 64, 48), (6, 0), _13),
        *_make_variants(52, (2048, 32, 96, 48), (6, 5), _13),
        *_make_variants(53, (2048, 32, 64, 48), (7, 0), _13, regs=32768),
        *_make_variants(60, (2048, 32, 64, 48), (8, 0), _13, partitions=2),
        *_make_variants(61, (2048, 32, 96, 48), (8, 0), _13),
        *_make_variants(62, (2048, 32, 64, 48), (8, 0), _13, regs=32768),
        *_make_variants(70, (2048, 32, 96, 96), (9, 0), _13),
        *_make_variants(72, (2048, 32, 96, 96), (9, 1), _13),
        *_make_variants(75, (1024, 16, 64, 64), (10, 0)),
        *_make_variants(80, (2048, 32, 164, 163), (11, 0)),
        *_make_variants(86, (1536, 16, 100, 99), (11, 1), barriers=1),
        *_make_variants(87, (1536, 16, 164, 163), (11, 4), barriers=1),
        *_make_variants(88, (1536, 16, 100, 99), (13, 0), barriers=1),
        *_make_variants(89, (1536, 24, 100, 99), (11, 8), barriers=1),
        *_make_variants(90, (2048, 32, 228, 227), (11, 8), a=(12, 0)),
        *_make_variants(100, (2048, 32, 228, 227), (12, 8), a=(12, 8), f=(12, 9)),
        *_make_variants(101, (1536, 24, 228, 227), (12, 8), _13, (12, 8), (12, 9), barriers=1),
        *_make_variants(103, (2048, 32, 228, 227), (12, 9), a=(12, 9), f=(12, 9)),
        *_make_variants(110, (1536, 24, 228, 227), (13, 0), a=_13, f=_13, barriers=1),
        *_make_variants(120, (1536, 24, 100, 99), (12, 8), a=(12, 8), f=(12, 9), barriers=1),
        *_make_variants(121, (1536, 24, 100, 99), (12, 9), a=(12, 9), f=(12, 9), barriers=1),
    )
}
"""Every GPU architecture by name, in ascending order of number, then "", "a", "f"."""

CPU = Arch(
    "cpu",
    0,
    "",
    *(_NO_LIMIT, _NO_LIMIT, _NO_LIMIT, _NO_LIMIT),
    (0, 0),
    regs_per_block=_NO_LIMIT,
    smem_per_block_default=_NO_LIMIT,
    regs_per_sm=_NO_LIMIT,
    regs_per_thread=_NO_LIMIT,
    threads_per_block=_NO_LIMIT,
)
"""The host processor: no GPU limit restricts a schedule on it."""


class Occupancy(Struct, frozen=True):
    """Blocks and warps that one SM holds at once, the share of its warps, and what stops more.

    `limited_by` names every resource that allows no more blocks: "warps", "blocks", "registers",
    "shared memory", "barriers". With no block it names the ones that a single block exceeds.
    """

    blocks_per_sm: int
    warps_per_sm: int
    fraction: float
    limited_by: tuple[str, ...]


def compute_occupancy(
    arch: Arch,
    *,
    threads: int,
    registers: int,
    static_smem: int = 0,
    dynamic_smem: int = 0,
    barriers: int = 1,
) -> Occupancy:
    """Return the occupancy of a kernel with `threads` in a block and `registers` in a thread.

    Shared memory is in bytes a block, `static_smem` without the driver's part. Raises `ValueError`
    for `cpu`, without threads, and for negative numbers.
    """
    if arch.is_cpu:
        raise ValueError("occupancy is a GPU's")
    if threads < 1 or min(registers, static_smem, dynamic_smem, barriers) < 0:
        raise ValueError(
            "occupancy needs a positive block size and resources that are not negative"
        )
    warps = -(-threads // arch.warp_size)
    limits = {
        "warps": arch.warps_per_sm // warps if threads <= arch.threads_per_block else 0,
        "blocks": arch.blocks_per_sm,
        "registers": _limit_by_registers(arch, warps, registers),
        "shared memory": _limit_by_shared_memory(arch, static_smem + dynamic_smem),
    }
    # cuda_occupancy.h counts barriers from Hopper on.
    if arch.major >= 9 and barriers:
        limits["barriers"] = arch.blocks_per_sm * arch.barriers_per_block // barriers
    # A limit is None if the kernel uses nothing of the resource.
    bounds = {name: limit for name, limit in limits.items() if limit is not None}
    blocks = min(bounds.values())
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps,
        fraction=blocks * warps / arch.warps_per_sm,
        limited_by=tuple(name for name, limit in bounds.items() if limit == blocks),
    )


def _limit_by_registers(arch: Arch, warps: int, registers: int) -> int | None:
    """Return how many blocks fit into the registers of an SM; None for a kernel without registers.

    `warps` are those of a block, `registers` those of a thread.
    """
    if registers == 0:
        return None
    # The calculator lets sm_70 and later pass one register more than ptxas ever gives.
    if registers > (256 if arch.number >= 70 else arch.regs_per_thread):
        return 0
    # sm_60 has 2 partitions. To decide whether a block fits at all, the calculator takes 4, as for
    # the rest of the Pascal family.
    partitions = max(arch.sub_partitions, 4)
    warp_registers = _round_up(registers * arch.warp_size, _REGS_GRANULARITY)
    # The hardware's check assumes that a block takes from all partitions alike.
    if warp_registers * _round_up(warps, partitions) > arch.regs_per_block:
        return 0
    warps_that_fit = arch.regs_per_sm // partitions // warp_registers * partitions
    if warps_that_fit < warps:
        return 0
    warps_of_partition = arch.regs_per_sm // arch.sub_partitions // warp_registers
    return warps_of_partition * arch.sub_partitions // warps


def _limit_by_shared_memory(arch: Arch, used: int) -> int | None:
    """Return how many blocks that use so many bytes fit into the shared memory of an SM; None if a
    block takes none."""
    # The driver's part is in a block's allocation, and not in the limit of a block.
    allocated = _round_up(used + arch.smem_reserved, arch.smem_granularity)
    if allocated > arch.smem_per_block + arch.smem_reserved:
        return 0
    return arch.smem_per_sm // allocated if allocated else None


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
