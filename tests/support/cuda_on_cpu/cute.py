"""CuTe on the emulated device: its headers are host C++ but for the inline assembly of a few."""

import glob
import importlib.util
import os
import shutil

from support.cuda_on_cpu.translate import assembly

ARCH_HEADERS = ("copy_sm75.hpp", "copy_sm80.hpp", "mma_sm80.hpp")
# The instructions of those headers that device.h has; the others fail when a kernel reaches them.
INSTRUCTIONS = frozenset(
    {
        "cp_async_cg_shared_global_L2_128B",
        "cp_async_commit_group",
        "cp_async_wait_all",
        "cp_async_wait_group",
        "ldmatrix_sync_aligned_x4_m8n8_shared_b16",
        "mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32",
        "mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32",
    }
)
SWITCHES = (
    "-DCUTE_ARCH_CP_ASYNC_SM80_ENABLED",
    "-DCUTE_ARCH_LDSM_SM75_ACTIVATED=1",
    "-DCUTE_ARCH_MMA_SM80_ENABLED",
    "-DCUTE_CVTA_GENERIC_TO_SHARED_ACTIVATED=1",
)


def cutlass_headers() -> str | None:
    """The include directory of the nvidia-cutlass wheel, or None when it is not installed."""
    spec = importlib.util.find_spec("cutlass_library")
    if spec is None or spec.origin is None:
        return None
    return os.path.join(os.path.dirname(spec.origin), "source", "include")


def cuda_headers() -> str | None:
    """The include directory of a CUDA toolkit, or None when there is none."""
    nvcc = shutil.which("nvcc")
    roots = [os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))] if nvcc else []
    for root in [*roots, *glob.glob("/usr/local/cuda*")]:
        if os.path.exists(os.path.join(root, "include", "cuda_fp16.h")):
            return os.path.join(root, "include")
    return None


def compiler_flags(directory: str, cutlass: str, cuda: str) -> list[str]:
    """Flags that compile a CuTe kernel for device.h; the translated headers go to `directory`."""
    translated = os.path.join(directory, "cute", "arch")
    os.makedirs(translated)
    for name in ARCH_HEADERS:
        with open(os.path.join(cutlass, "cute", "arch", name)) as file:
            text = assembly(file.read(), INSTRUCTIONS)
        with open(os.path.join(translated, name), "w") as file:
            file.write(text)
    system = [word for path in (cuda, f"{cuda}/cccl") for word in ("-isystem", path)]
    return [*SWITCHES, f"-I{directory}", f"-I{cutlass}", *system]
