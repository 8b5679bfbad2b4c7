"""Programs of which NVRTC keeps variables that no kernel reaches: assembled without them."""

import os

import pytest
from msgspec.structs import replace

from support.recipes import make_recipe
from tilusbuild.binary.elf import Elf
from tilusbuild.compile.module import format_options
from tilusbuild.compile.pipelines.nvrtc import UNASSEMBLED, VALUED, select_assembler_flags

KERNEL = """\
#include <cuda_fp16.h>
#include <cuda/std/type_traits>
#include <cuda/std/limits>
template <int N> struct Size { static constexpr int value = N; };
__constant__ float table[4];
__device__ int never;
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i] + table[i & 3] + Size<8>::value;
}
"""
PLAIN = """\
#include <cuda_fp16.h>
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""


@pytest.fixture
def toolchain(nvrtc_toolchain):
    if not nvrtc_toolchain.fingerprint_assembler:
        pytest.skip("no ptxas of NVRTC's version")
    return nvrtc_toolchain


@pytest.fixture
def cubin(toolchain, device):
    """cubin(recipe) gives the cubin and the outcome."""

    def compiled(made):
        done = device(made)
        assert done.outcome.status == "built", done.outcome.log
        return done

    return compiled


def recipe(**changes):
    return make_recipe("kernel-nvrtc", **{"source": KERNEL, "assembled": True, **changes})


def code(cubin):
    """What a kernel runs and is launched with: its instructions, constants, shared memory."""
    elf = Elf(cubin)
    return {
        section.name: elf.read_section(section)
        for section in elf.sections
        if section.name.startswith((".text.", ".nv.constant0.", ".nv.constant3", ".nv.shared."))
    }


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("flags", [(), ("-maxrregcount", "24", "-use_fast_math"), ("-Xptxas=-O1",)])
def test_the_kernel_is_the_same_without_what_it_does_not_reach(cubin, arch, flags):
    lean = cubin(recipe(archs=(arch,), flags=flags))
    whole = cubin(recipe(archs=(arch,), flags=flags, assembled=False))
    assert b"never" in whole.image
    assert b"never" not in lean.image
    assert b"table" in lean.image
    assert len(lean.image) < len(whole.image) / 4
    assert code(lean.image) == code(whole.image)
    assert lean.outcome.ptxas == whole.outcome.ptxas


@pytest.mark.nvcc
def test_a_source_without_any_keeps_the_cubin_of_nvrtc(cubin):
    assert cubin(recipe(source=PLAIN)).image == cubin(recipe(source=PLAIN, assembled=False)).image


@pytest.mark.nvcc
def test_several_architectures_are_assembled_one_by_one(cubin):
    lean = cubin(recipe(archs=("sm_80", "sm_90a")))
    assert [image.arch for image in lean.outcome.images] == ["sm_80", "sm_90a"]
    assert b"never" not in lean.image


@pytest.mark.nvcc
def test_the_assembler_is_in_the_identity_of_what_it_makes_alone(toolchain):
    made = format_options(recipe(), toolchain)
    assert f"\nptxas {toolchain.nvrtc.version} " in made
    assert os.path.dirname(toolchain.nvrtc.assembler) not in made
    for other in (
        recipe(source=PLAIN.replace("#include <cuda_fp16.h>", "")),
        recipe(ptx=True, archs=("sm_90",)),
        recipe(flags=("-lineinfo",)),
    ):
        without = replace(other, options=replace(other.options, assembled=False))
        assert format_options(other, toolchain) == format_options(without, toolchain)


def test_what_is_asked_of_the_assembler_alone_keeps_the_cubin_of_nvrtc():
    assert select_assembler_flags(recipe(flags=("-Xptxas", "-v", "-O3", "-DX=-lineinfo"))) == ()
    assert select_assembler_flags(recipe(flags=("-D", "-lineinfo", "-Xptxas=-dlcm=cg"))) == (
        "-dlcm=cg",
    )
    for flag in UNASSEMBLED:
        words = (flag, "0") if flag in VALUED else (flag,)
        assert select_assembler_flags(recipe(flags=words)) is None
    assert select_assembler_flags(recipe(flags=("-Xptxas", "-O1,-v"))) is None
