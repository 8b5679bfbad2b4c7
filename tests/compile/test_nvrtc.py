"""Programs whose device code NVRTC compiles: the same bytes, the same checks, the same messages."""

import hashlib
import os
import struct

import pytest

from support.recipes import HEADER, make_recipe, make_toolchain
from support.recipes import KERNEL_SOURCE as PLAIN
from tilusbuild.compile.model import Includes
from tilusbuild.compile.module import format_options
from tilusbuild.compile.pipelines.nvrtc import (
    BARE,
    KERNEL_NVRTC,
    VALUED,
    drop_host_flags,
    find_date_macro,
)
from tilusbuild.process.base import Command
from tilusbuild.process.local import LocalRunner
from tilusbuild.process.resident import ResidentPool, ResidentRunner
from tilusbuild.toolchain.nvrtc_library import clear_times

KERNEL = """\
#include <cuda_fp16.h>
#include "helper.cuh"
static __constant__ float table[4];
namespace { __device__ float own(float v) { return v + table[1]; } }
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  auto twice = [=](float v) { return 2 * v; };
  if (n < 0) printf("%s %s\\n", __FILE__, header());
  if (i < n) y[i] = twice(own(helper(__half2float(__hadd(__float2half(a), __float2half(x[i]))))));
}
"""

SPILLING = """\
extern "C" __global__ void __launch_bounds__(1024)
saxpy(float a, const float *x, float *y, int n) {
  float v[96];
#pragma unroll
  for (int i = 0; i < 96; i++) v[i] = x[i * n + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 96; i++) y[i * n] = v[i] * v[(i * 7 + 3) % 96] + a;
}
"""


@pytest.fixture
def through():
    return lambda **changes: make_recipe("kernel-nvrtc", **{"source": PLAIN, **changes})


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.nvcc
def test_a_header_beside_the_template_is_found_by_its_quotes_alone(through, device, tmp_path):
    (tmp_path / "headers/project/kernels").mkdir(parents=True)
    (tmp_path / "headers/project/kernels/helper.cuh").write_text(HEADER)
    includes = Includes("digest", (("project/kernels", True), ("project/include", False)))
    quoted = through(source=KERNEL, includes=includes)
    assert device(quoted, str(tmp_path / "headers")).outcome.status == "built"
    angled = through(source=KERNEL.replace('"helper.cuh"', "<helper.cuh>"), includes=includes)
    assert "cannot open source file" in device(angled, str(tmp_path / "headers")).outcome.reason


@pytest.mark.nvcc
def test_nothing_is_seen_but_the_copy_and_the_toolkit(through, device, tmp_path):
    (tmp_path / "near.h").write_text("")
    for name in ("near.h", "stdio.h", "zlib.h"):
        result = device(through(source=f'#include "{name}"\n{PLAIN}'))
        assert result.outcome.status == "failed"
        assert result.outcome.reason.startswith("source.cu(1): catastrophic error: cannot open")


@pytest.mark.nvcc
def test_what_was_compiled_before_changes_nothing(through, nvrtc_toolchain, tmp_path):
    """Given one process that compiles one source after the other, each gives the bytes that it
    gives to a process of its own."""
    sources = [PLAIN, SPILLING, KERNEL.replace('#include "helper.cuh"', HEADER), "int x = y;"]
    command = nvrtc_toolchain.nvrtc.command
    includes = f"-I{nvrtc_toolchain.nvrtc.include_dir}"
    options = ("--gpu-architecture=sm_90a", includes, f"{includes}/cccl", "-lineinfo")

    def compile_source(run, number, name):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "source.cu").write_text(sources[number])
        argv = (*command, "cubin", "source.cu", "/proc/self/cwd/source.cu", "out", *options)
        ended = run(Command(argv, str(directory), {"PWD": "/proc/self/cwd"}))
        return (ended.output, digest(directory / "out")) if ended.ok else ended.output

    with LocalRunner() as runner:
        alone = [
            compile_source(runner.run, number, f"alone{number}") for number in range(len(sources))
        ]
        pool = ResidentPool(runner, command)
        warm = ResidentRunner(pool, runner.open_scope())
        order = [2, 0, 3, 0, 1, 2, 1]
        again = [
            compile_source(warm.run, number, f"again{index}") for index, number in enumerate(order)
        ]
        pool.close()
        assert runner.command_count == len(sources) + 1
    assert again == [alone[number] for number in order]


@pytest.mark.nvcc
def test_the_same_resources_are_told(through, device):
    outcome = device(through(source=SPILLING, archs=("sm_80", "sm_90a"))).outcome
    assert [usage.arch for usage in outcome.ptxas] == ["sm_80", "sm_90a"]
    for usage in outcome.ptxas:
        assert (usage.kernel, usage.registers) == ("saxpy", 64)
        assert min(usage.spill_stores, usage.spill_loads, usage.stack) > 0
    assert outcome.peak_rss > 30 << 20
    assert outcome.seconds > 0


@pytest.mark.nvcc
def test_macros_and_the_language_reach_the_compiler(through, device):
    source = '#line 7 "kernels/saxpy.cu.j2"\nstatic_assert(WIDTH == 3 && __cplusplus > 201703L);\n'
    defines = (("NAMED", ""), ("WIDTH", "1 + 2"))
    good = device(through(source=source + PLAIN, defines=defines, std="c++20"))
    assert good.outcome.status == "built", good.outcome.log
    bad = device(through(source=source + PLAIN, defines=(("WIDTH", "4"),), std="c++20"))
    assert bad.outcome.reason.startswith("kernels/saxpy.cu.j2(7): error: static assertion failed")


@pytest.mark.nvcc
def test_the_device_code_alone_takes_nothing_but_the_library(through, device, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    one = device(through())
    assert (one.outcome.status, one.image[:4]) == ("built", b"\x7fELF")
    assert [image.arch for image in one.outcome.images] == ["sm_90a"]
    two = device(through(archs=("sm_80", "sm_90a")))
    assert [image.arch for image in two.outcome.images] == ["sm_80", "sm_90a"]


@pytest.mark.parametrize(
    ("changes", "joined"),
    [({}, False), ({"ptx": True}, True), ({"archs": ("sm_80", "sm_90a")}, True)],
)
def test_the_joiner_is_in_the_fingerprint_of_code_that_it_joins(through, changes, joined):
    toolchain = make_toolchain()
    toolchain.fingerprint_joiner, toolchain.fingerprint_nvrtc = ("nvfatbin - 1",), ("nvrtc 13 2",)
    lines = KERNEL_NVRTC.select_fingerprint(through(**changes), toolchain)
    assert lines == (("nvfatbin - 1", "nvrtc 13 2") if joined else ("nvrtc 13 2",))


@pytest.mark.nvcc
def test_options_say_the_library_and_no_path(through, nvrtc_toolchain):
    """Several architectures are joined by another library, which then is in the text too."""
    one = format_options(through(), nvrtc_toolchain)
    nvrtc = nvrtc_toolchain.nvrtc
    assert f"\nnvrtc {nvrtc.version} " in one
    assert "\nnvrtc-builtins - " in one
    assert "nvfatbin" not in one
    assert "\nnvfatbin - " in format_options(through(archs=("sm_80", "sm_90a")), nvrtc_toolchain)
    for path in (os.path.dirname(nvrtc.library), nvrtc.include_dir or "none", "python"):
        assert path not in one
    assert "nvcc" not in "".join(one.split("\n[generated]")[0].split("\n[commands]")[1])


@pytest.mark.nvcc
def test_every_flag_that_is_let_through_is_known(nvrtc_toolchain, tmp_path, runner):
    values = {
        "-dopt": "on", "-Ofc": "0", "-Xptxas": "-O3", "-maxrregcount": "64", "-jtd": "0",
        "-frandom-seed": "1", "-opt-info": "inline", "-D": "X=1", "-U": "X",
        "-Xcudafe": "--display_error_number",
        "-diag-error": "177", "-diag-suppress": "177", "-diag-warn": "177", "-split-compile": "1",
    }  # fmt: skip
    long = {
        "--dopt": "-dopt", "--Ofast-compile": "-Ofc", "--ptxas-options": "-Xptxas",
        "--jump-table-density": "-jtd", "--optimization-info": "-opt-info",
        "--define-macro": "-D", "--undefine-macro": "-U",
    }  # fmt: skip
    (tmp_path / "source.cu").write_text(PLAIN)
    argv = (*nvrtc_toolchain.nvrtc.command, "cubin", "source.cu", "source.cu", "out")
    pool = ResidentPool(runner, nvrtc_toolchain.nvrtc.command)
    warm = ResidentRunner(pool, runner.open_scope())
    for flag in (*BARE, *VALUED):
        value = values.get(long.get(flag, flag.replace("--", "-")), "true")
        words = (flag,) if flag in BARE else (f"{flag}={value}",)
        ended = warm.run(
            Command((*argv, "-arch=sm_100a", "-fdevice-syntax-only", *words), str(tmp_path), {})
        )
        assert b"unrecognized" not in ended.output, words
        assert ended.ok, (words, ended.output)
    pool.close()


def test_flags_that_it_does_not_know_are_found_with_their_places():
    flags = ["-O3", "-lineinfo", "-Xcompiler", "-fopenmp", "-Xptxas", "-O2", "--maxrregcount=64"]
    flags += ["-DX=1", "--expt-relaxed-constexpr", "-use_fast_math", "--threads=4"]
    refusals = [(index, flag) for index, flag, _ in KERNEL_NVRTC.find_refused_flags(flags)]
    assert refusals == [(2, "-Xcompiler"), (8, "--expt-relaxed-constexpr"), (10, "--threads=4")]
    assert drop_host_flags(["-O3", "-lineinfo", "--optimize=2"]) == ("-lineinfo",)


@pytest.mark.parametrize(
    ("table", "count", "names_index"),
    [(1 << 20, 1, 0), (1 << 63, 1, 0), (64, 1, 7), (64, 9, 0)],
    ids=["beyond the end", "beyond any file", "no names", "more rows than there are"],
)
def test_a_cubin_with_a_damaged_section_table_stays_as_it_is(table, count, names_index):
    header = struct.pack("<5s35xQ10xHHH", b"\x7fELF\x02", table, 64, count, names_index)
    cubin = header + bytes(64) + b".debug_line\0"
    assert clear_times(cubin) == cubin


def test_a_program_cannot_hold_the_time_of_its_compile(tmp_path):
    text = 'int a;\n// __DATE__\nconst char *s = "__TIME__";\n'
    assert find_date_macro({"source.cu": text}, None) is None
    texts = {"source.cu": text, "made.inc": "int a;\nauto s = __TIME__;\n"}
    assert (find_date_macro(texts, None) or "").startswith("made.inc(2): error: ")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/when.h").write_text("\n\n#define WHEN __DATE__\n")
    message = find_date_macro({"source.cu": "int a;"}, str(tmp_path)) or ""
    assert message.startswith("include/project/when.h(3): error: NVRTC compiles the present time")
    for changes, expected in (
        ({"flags": ("-DWHEN=__TIME__",)}, "error: -DWHEN=__TIME__: NVRTC compiles the present"),
        ({"defines": (("WHEN", "__TIME__"),)}, "error: -DWHEN=__TIME__: NVRTC compiles the"),
        ({"defines": (("WHEN", '"__TIME__"'),)}, "None"),
    ):
        recipe = make_recipe("kernel-nvrtc", **changes)
        assert str(recipe.pipeline.find_source_problem(recipe, None)).startswith(expected)
