"""The same bytes from any directory, with any toolkit's place and any file times; `compile.sh`
too."""

import hashlib
import json
import os
import shutil
from typing import Any

import pytest

from support import recipes
from support.processes import run_to_end
from support.recipes import make_recipe, make_toolchain
from tilusbuild.compile.model import Includes

HEADER = "#include <cassert>\n" + recipes.HEADER
KERNEL = """\
#include <cuda_fp16.h>
#include <cstdio>
#include "helper.cuh"
static __constant__ float table[4];
namespace { __device__ float own(float v) { return v + table[1]; } }
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  auto twice = [=](float v) { return 2 * v; };
  assert(n > 0);
  if (n < 0) printf("%s %s %s\\n", __FILE__, header(), __DATE__ __TIME__);
  if (i < n) y[i] = twice(own(helper(__half2float(__hadd(__float2half(a), __float2half(x[i]))))));
}
"""

NVRTC = (
    KERNEL.replace("#include <cstdio>\n", "")
    .replace("  assert(n > 0);\n", "")
    .replace("%s %s %s", "%s %s")
    .replace(", __DATE__ __TIME__", "")
)
"""It has none of the C library's headers, and refuses dates."""

HOST = (
    KERNEL.replace('extern "C" __global__ void saxpy', "static __global__ void kernel")
    + """
extern "C" int saxpy(float a, const float *x, float *y, int n, cudaStream_t stream) {
  kernel<<<(n + 255) / 256, 256, 0, stream>>>(a, x, y, n);
  return cudaGetLastError();
}
"""
)

CPU = """\
#include <cassert>
#include <cstdio>
namespace { int counter; }
static float helper(float v) { return v * ++counter; }
extern "C" void saxpy(float a, const float *x, float *y, int n) {
  assert(n >= 0);
  if (n < 0) std::printf("%s %s\\n", __FILE__, __DATE__ __TIME__);
  for (int i = 0; i < n; i++) y[i] = helper(a * x[i]);
}
"""

FAR = "much/deeper/a place with 'quotes', \"more\" and é"


@pytest.fixture
def build(tmp_path, compile_in):
    """build(recipe, toolchain, "a/b") compiles in a tree under that directory; gives the module."""

    def run(recipe, toolchain, name, time):
        tree = tmp_path / name
        include = tree / "include" / "digest"
        (include / "project").mkdir(parents=True)
        header = HEADER if recipe.pipeline.host_code else recipes.HEADER
        (include / "project/helper.cuh").write_text(header)
        os.utime(include / "project/helper.cuh", (time, time))
        stage = tree / "programs" / "hash"
        outcome = compile_in(recipe, toolchain, stage, include_dir=str(include))
        assert outcome.status == "built", outcome.log
        return stage / "module"

    return run


def digest(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def with_header(recipe, *arguments, **changes):
    changes.setdefault("includes", Includes("digest", (("project", False),)))
    if arguments == ("kernel-nvrtc",):
        changes["source"] = NVRTC
    return recipe(*arguments, **changes)


def run_script(module, *arguments, **environment):
    return run_to_end(
        ["bash", str(module / "compile.sh"), *arguments],
        status=None,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "CPATH": "/nowhere", "PTXAS_FLAGS": "-O0", **environment},
    )


FEW_TOOLS = "bash as ld env cp ln rm mkdir mktemp touch sha256sum cut sed tr cat"
"""The programs of `compile.sh` through NVRTC: no nvcc, no compiler."""

CASES: dict[str, Any] = {
    "cpu": ("cpu", {"source": CPU}),
    "kernel": ("kernel", {"source": KERNEL}),
    "fatbin": ("kernel", {"source": KERNEL, "archs": ("sm_80", "sm_90a"), "ptx": True}),
    "fatbin-lineinfo": (
        "kernel",
        {"source": KERNEL, "archs": ("sm_80", "sm_90a"), "ptx": True, "flags": ("-lineinfo",)},
    ),
    "debug": ("kernel", {"source": KERNEL, "flags": ("-G",)}),
    "host-lineinfo": ("host", {"source": HOST, "flags": ("-lineinfo",)}),
    "nvrtc": ("kernel-nvrtc", {}),
    "nvrtc-debug": ("kernel-nvrtc", {"archs": ("sm_90",), "ptx": True, "flags": ("-G",)}),
    "nvrtc-several": ("kernel-nvrtc", {"archs": ("sm_80", "sm_90a"), "flags": ("-lineinfo",)}),
}
_NVCC = [pytest.param(name, marks=pytest.mark.nvcc) for name in CASES if name != "cpu"]


@pytest.fixture
def chosen(request, tmp_path):
    """chosen(case) gives a toolchain, and the environment of `compile.sh`."""

    def choose(case):
        if case == "cpu":
            return make_toolchain(), {}
        if not case.startswith("nvrtc"):
            tools = request.getfixturevalue("cuda_toolchain")
            return tools, {"NVCC": tools.cuda.nvcc}
        tools = request.getfixturevalue("nvrtc_toolchain")
        few = tmp_path / "few"
        few.mkdir()
        for name in FEW_TOOLS.split():
            (few / name).symlink_to(shutil.which(name))
        nvrtc = tools.nvrtc
        return tools, {"PATH": str(few), "NVRTC": nvrtc.library, "PYTHON": nvrtc.command[0]}

    return choose


@pytest.mark.parametrize("case", ["cpu", *_NVCC])
def test_two_places_two_times_and_the_script(case, chosen, build, tmp_path):
    pipeline, changes = CASES[case]
    tools, environment = chosen(case)
    recipe = with_header(make_recipe, pipeline, **changes)
    near = build(recipe, tools, "a", 1_000_000_000)
    far = build(recipe, tools, FAR, 1_500_000_000)
    assert digest(near / "lib.so") == digest(far / "lib.so")
    assert (near / "nvcc_output.txt").read_bytes() == (far / "nvcc_output.txt").read_bytes()
    assert str(tmp_path).encode() not in (near / "lib.so").read_bytes()
    assert str(tmp_path) not in (near / "compile.sh").read_text()

    copied = tmp_path / "copy\nof it"
    shutil.copytree(tmp_path / "a", copied)
    module = copied / "programs/hash/module"
    expected = digest(module / "lib.so")
    (module / "lib.so").unlink()
    ran = run_script(module, **environment)
    assert ran.returncode == 0, ran.stderr
    assert digest(module / "lib.so") == expected


@pytest.mark.nvcc
@pytest.mark.parametrize("case", ["kernel", "fatbin-lineinfo", "host-lineinfo"])
def test_two_places_of_the_toolkit(case, cuda_toolchain, wheel_toolchain, build):
    if cuda_toolchain.cuda.version != wheel_toolchain.cuda.version:
        pytest.skip("the two toolkits are of two releases")
    pipeline, changes = CASES[case]
    recipe = with_header(make_recipe, pipeline, **changes)
    one = build(recipe, cuda_toolchain, "a", 1)
    other = build(recipe, wheel_toolchain, "b", 2)
    assert digest(one / "lib.so") == digest(other / "lib.so")


def test_compile_sh_writes_a_library_only_where_it_is_another_than_the_recorded_one(build):
    module = build(with_header(make_recipe, "cpu", source=CPU), make_toolchain(), "tree", 1)
    library, source = module / "lib.so", (module / "source.cu").read_text()
    good, before = library.read_bytes(), library.stat().st_mtime_ns
    meta = {"files": {"module/lib.so": {"size": 1, "sha256": digest(library)}}}
    (module.parent / "meta.json").write_text(json.dumps(meta, indent=2))
    files = sorted(os.listdir(module))

    ran = run_script(module)
    assert (ran.returncode, ran.stderr.split()[-1]) == (0, "unchanged")
    assert library.stat().st_mtime_ns == before

    library.write_bytes(b"torn")
    ran = run_script(module)
    assert (ran.returncode, ran.stderr.split()[-1]) == (0, "written")
    assert library.read_bytes() == good

    for text, expected in (
        (source.replace("++counter", "--counter"), "other bytes than the recorded lib.so"),
        ("#error no\n", "#error no"),
    ):
        (module / "source.cu").write_text(text)
        ran = run_script(module)
        assert ran.returncode != 0
        assert expected in ran.stderr
        assert library.read_bytes() == good
    assert sorted(os.listdir(module)) == files
