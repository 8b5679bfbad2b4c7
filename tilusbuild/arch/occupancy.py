"""How many blocks of a kernel fit on one multiprocessor, as the CUDA occupancy calculator says.

The model is the one in `cuda_occupancy.h` (CUDA 13.0) with its defaults: all shared memory to be
had, dynamic shared memory opted in, no partitioned global caching. A test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilusbuild.arch.table import Arch


@dataclass(frozen=True, slots=True)
class Occupancy:
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
