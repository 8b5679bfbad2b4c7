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

from collections.abc import Mapping

from msgspec import Struct

Version = tuple[int, int]

_KB = 1024
_NO_LIMIT = 2**31 - 1


class Arch(Struct, frozen=True):
    """What code is compiled for: a GPU architecture, or `cpu`.

    `name` is as nvcc spells it ("sm_90a"), `number` the digits (90), `suffix` "", "a" (features of
    this very architecture, code runs nowhere else) or "f" (features of its family). `since` is the
    first CUDA release that knows the name, `until` the first that no longer does.
    """

    name: str
    number: int
    suffix: str
    threads_per_sm: int
    blocks_per_sm: int
    smem_per_sm: int
    smem_per_block: int
    smem_per_block_default: int
    smem_granularity: int
    smem_reserved: int
    regs_per_sm: int
    regs_per_block: int
    regs_per_thread: int
    regs_granularity: int
    sub_partitions: int
    barriers_per_sm: int
    threads_per_block: int
    warp_size: int
    since: Version
    until: Version | None

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"

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
    def virtual(self) -> str:
        """The PTX architecture of the same name: "compute_90a"."""
        return self.name.replace("sm_", "compute_", 1)

    def attributes(self) -> Mapping[str, int]:
        """Return what an expression sees as `arch.<key>`: the limits, and `number`."""
        return {key: getattr(self, key) for key in ATTRIBUTES}


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
"""The names that `Arch.attributes` gives, the same for every architecture and for `cpu`."""


class _Row(Struct, frozen=True):
    threads: int
    blocks: int
    smem_sm_kb: int
    smem_block_kb: int
    since: Version
    until: Version | None = None
    a_since: Version | None = None
    f_since: Version | None = None
    regs_block: int = 65536
    barriers: int = 2  # named barriers an SM has for each block that it can hold
    sub_partitions: int = 4


_13 = (13, 0)

_ROWS: Mapping[int, _Row] = {
    50: _Row(2048, 32, 64, 48, (6, 0), _13),
    52: _Row(2048, 32, 96, 48, (6, 5), _13),
    53: _Row(2048, 32, 64, 48, (7, 0), _13, regs_block=32768),
    60: _Row(2048, 32, 64, 48, (8, 0), _13, sub_partitions=2),
    61: _Row(2048, 32, 96, 48, (8, 0), _13),
    62: _Row(2048, 32, 64, 48, (8, 0), _13, regs_block=32768),
    70: _Row(2048, 32, 96, 96, (9, 0), _13),
    72: _Row(2048, 32, 96, 96, (9, 1), _13),
    75: _Row(1024, 16, 64, 64, (10, 0)),
    80: _Row(2048, 32, 164, 163, (11, 0)),
    86: _Row(1536, 16, 100, 99, (11, 1), barriers=1),
    87: _Row(1536, 16, 164, 163, (11, 4), barriers=1),
    88: _Row(1536, 16, 100, 99, (13, 0), barriers=1),
    89: _Row(1536, 24, 100, 99, (11, 8), barriers=1),
    90: _Row(2048, 32, 228, 227, (11, 8), a_since=(12, 0)),
    100: _Row(2048, 32, 228, 227, (12, 8), a_since=(12, 8), f_since=(12, 9)),
    101: _Row(1536, 24, 228, 227, (12, 8), _13, (12, 8), (12, 9), barriers=1),
    103: _Row(2048, 32, 228, 227, (12, 9), a_since=(12, 9), f_since=(12, 9)),
    110: _Row(1536, 24, 228, 227, (13, 0), a_since=_13, f_since=_13, barriers=1),
    120: _Row(1536, 24, 100, 99, (12, 8), a_since=(12, 8), f_since=(12, 9), barriers=1),
    121: _Row(1536, 24, 100, 99, (12, 9), a_since=(12, 9), f_since=(12, 9), barriers=1),
}


def _arch(number: int, row: _Row, suffix: str, since: Version) -> Arch:
    return Arch(
        name=f"sm_{number}{suffix}",
        number=number,
        suffix=suffix,
        threads_per_sm=row.threads,
        blocks_per_sm=row.blocks,
        smem_per_sm=row.smem_sm_kb * _KB,
        smem_per_block=row.smem_block_kb * _KB,
        smem_per_block_default=48 * _KB,
        smem_granularity=128 if number >= 80 else 256,
        smem_reserved=_KB if number >= 80 else 0,
        regs_per_sm=65536,
        regs_per_block=row.regs_block,
        regs_per_thread=255,
        regs_granularity=256,
        sub_partitions=row.sub_partitions,
        barriers_per_sm=row.blocks * row.barriers,
        threads_per_block=1024,
        warp_size=32,
        since=since,
        until=row.until,
    )


def _all() -> dict[str, Arch]:
    archs = {}
    for number, row in _ROWS.items():
        for suffix, since in (("", row.since), ("a", row.a_since), ("f", row.f_since)):
            if since is not None:
                arch = _arch(number, row, suffix, since)
                archs[arch.name] = arch
    return archs


ARCHS: Mapping[str, Arch] = _all()
"""Every GPU architecture by name, in ascending order of number, then "", "a", "f"."""

CPU = Arch(
    name="cpu",
    number=0,
    suffix="",
    threads_per_sm=_NO_LIMIT,
    blocks_per_sm=_NO_LIMIT,
    smem_per_sm=_NO_LIMIT,
    smem_per_block=_NO_LIMIT,
    smem_per_block_default=_NO_LIMIT,
    smem_granularity=1,
    smem_reserved=0,
    regs_per_sm=_NO_LIMIT,
    regs_per_block=_NO_LIMIT,
    regs_per_thread=_NO_LIMIT,
    regs_granularity=1,
    sub_partitions=1,
    barriers_per_sm=_NO_LIMIT,
    threads_per_block=_NO_LIMIT,
    # A shape and not a limit: a schedule's `threads = warps * arch.warp_size` stays what it was.
    warp_size=32,
    since=(0, 0),
    until=None,
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


def occupancy(
    arch: Arch,
    *,
    threads: int,
    registers: int,
    static_smem: int = 0,
    dynamic_smem: int = 0,
    barriers: int = 1,
) -> Occupancy:
    """Return the occupancy of a kernel: `threads` a block, `registers` a thread, shared memory in
    bytes.

    `static_smem` is without the part that the driver reserves. Raises `ValueError` for `cpu`, for
    no threads, and for negative numbers.
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
        "registers": _by_registers(arch, warps, registers),
        "shared memory": _by_shared_memory(arch, static_smem + dynamic_smem),
    }
    if arch.major >= 9 and barriers:
        limits["barriers"] = arch.barriers_per_sm // barriers
    bounds = {name: limit for name, limit in limits.items() if limit is not None}
    blocks = min(bounds.values())
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps,
        fraction=blocks * warps / arch.warps_per_sm,
        limited_by=tuple(name for name, limit in bounds.items() if limit == blocks),
    )


def _by_registers(arch: Arch, warps: int, registers: int) -> int | None:
    if registers == 0:
        return None
    # The calculator lets sm_70 and later pass one register more than ptxas ever gives.
    if registers > (256 if arch.number >= 70 else arch.regs_per_thread):
        return 0
    # A kernel that the rest of the Pascal family cannot hold is refused on sm_60 too.
    partitions = max(arch.sub_partitions, 4)
    a_warp = _round_up(registers * arch.warp_size, arch.regs_granularity)
    # The hardware's check assumes that a block takes from all partitions alike.
    if a_warp * _round_up(warps, partitions) > arch.regs_per_block:
        return 0
    a_partition = arch.regs_per_sm // arch.sub_partitions
    if arch.regs_per_sm // partitions // a_warp * partitions < warps:
        return 0
    return a_partition // a_warp * arch.sub_partitions // warps


def _by_shared_memory(arch: Arch, used: int) -> int | None:
    allocated = _round_up(used + arch.smem_reserved, arch.smem_granularity)
    if allocated > arch.smem_per_block + arch.smem_reserved:
        return 0
    return arch.smem_per_sm // allocated if allocated else None


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
