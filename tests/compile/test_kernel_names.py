"""Kernels by their C++ names: what is launched is what the compiler made of the name.

The oracle is the number of parameters: no two kernels of a source have the same, so the check of
the compiled kernel against the declared arguments fails for every kernel but the one asked for.
"""

import random
import subprocess
from typing import Any

import pytest
from msgspec.structs import replace

from support.recipes import make_recipe
from tilusbuild.compile.kernel_names import demangle_name, is_cpp_name, strip_template_arguments
from tilusbuild.compile.model import Recipe

PRELUDE = "enum class Mode { slow = -3, fast };\ntemplate <int N> struct Tile {};\n"
KINDS = {
    "": ("", [""]),
    "template <int A, bool B, Mode M> ": ("", ["<7, (3 > 4), Mode::fast>", "<-1, true, Mode(-3)>"]),
    "template <class T, template <int> class U> ": ("", ["<const int *, Tile>", "<Tile<4>, Tile>"]),
    "template <auto... V> ": ("", ["<1, Mode::slow, true>", "<>"]),
    "namespace { ": (" }", [""]),
}


def a_source(seed: int) -> tuple[str, list[tuple[str, int]]]:
    """Return a source with kernels of many kinds, and each one's C++ name and parameters."""
    draw = random.Random(seed)
    lines, names = [PRELUDE], []
    for count in range(1, 7):
        start, (end, arguments) = draw.choice([*KINDS.items()])
        spaces = draw.sample(["a", "blend", "v2", "detail"], draw.randint(0, 3))
        parameters = ", ".join(["float *x", *(f"int n{i}" for i in range(1, count))])
        kernel = f"{start}__global__ void k({parameters}) {{ x[threadIdx.x] = {count}; }}{end}"
        # Half of them have their names from the namespace alone, which is then one of their own.
        spaces += [f"own{count}"]
        opened = "".join(f"namespace {space} {{ " for space in spaces)
        lines.append(f"{opened}{kernel}{' }' * len(spaces)}")
        names.append((draw.choice(["", "::"]) + "::".join(spaces) + "::k", count))
        names[-1] = (names[-1][0] + draw.choice(arguments), count)
    return "\n".join(lines) + "\n", names


def recipe_of(pipeline: str, source: str, name: str, count: int = 2, **changes: Any) -> Recipe:
    arguments = {"x": "f32*[4]", **{f"n{i}": "i32" for i in range(1, count)}}
    more = {"arguments": arguments, "grid": ("1",), "out": ("x",), **changes}
    recipe = make_recipe(pipeline, symbol=name, **more)
    return replace(recipe, source=recipe.pipeline.derive_source(source, name))


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lines": {"flags": ("-lineinfo",)},
    "several": {"archs": ("sm_80", "sm_90"), "ptx": True},
}


@pytest.fixture(params=["kernel", "kernel-nvrtc"])
def pipeline(request):
    return request.param


@pytest.fixture
def toolchain(pipeline, request):
    name = "cuda_toolchain" if pipeline == "kernel" else "nvrtc_toolchain"
    return request.getfixturevalue(name)


@pytest.mark.parametrize("seed", range(3))
def test_the_kernel_that_is_named_is_launched(
    pipeline, toolchain, seed, compile_in, driver, tmp_path
):
    source, names = a_source(seed)
    name, count = random.Random(seed).choice(names)
    way = WAYS[[*WAYS][seed % len(WAYS)]]
    recipe = recipe_of(pipeline, source, name, count, **way)
    stage = tmp_path / "tree/programs/hash"
    outcome = compile_in(recipe, toolchain, stage)
    assert outcome.status == "built", outcome.log
    (kernel,) = {it.kernel for it in outcome.ptxas if f"own{count}" in it.kernel}
    assert kernel.startswith("_Z")
    library = stage / "module/lib.so"
    x = {"shape": [4], "dtype": "f32"}
    driver.call(
        library,
        {"packed": [x, *range(1, count)]},
        environment={"FAKE_CUDA_PARAMETERS": "ptr" + " i32" * (count - 1)},
    )
    assert driver.lines("cuLibraryGetKernel") == [f"cuLibraryGetKernel {kernel}"]
    # And compile.sh makes the same library elsewhere.
    remade = stage / "remade.so"
    tool = {"NVCC": toolchain.cuda.nvcc} if toolchain.cuda else {"NVRTC": toolchain.nvrtc.library}
    command = ["bash", str(stage / "module/compile.sh"), str(remade)]
    subprocess.run(command, env={"PATH": "/usr/bin:/bin", **tool}, check=True)
    assert remade.read_bytes() == library.read_bytes()


def test_names():
    assert not is_cpp_name("saxpy")
    for name, plain in (("saxpy", "saxpy"), ("::saxpy", "saxpy"), ("a::b<1, c<2>>", "a::b")):
        assert strip_template_arguments(name) == plain


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_Z5saxpyfPK6__halfi", "::saxpy"),
        ("_ZL5saxpyf", "::saxpy"),
        ("_ZN2v25blend5saxpyEPfi", "v2::blend::saxpy"),
        ("_ZN12_GLOBAL__N_15saxpyEv", "::saxpy"),
        ("saxpy", ""),
        ("_Zebra", ""),
    ],
)
def test_a_symbol_is_named_for_a_manifest(symbol: str, name: str) -> None:
    assert demangle_name(symbol) == name


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("namespace a { }", "a::none<4>", 'namespace "a" has no member "none"'),
        ("__global__ void k(float *x, float n) {}\n__device__ void k();", "::k", ""),
        ("__device__ void k(float *x, int n) {}", "::k", ""),
    ],
)
def test_a_name_that_is_no_kernel_fails(
    pipeline, toolchain, source, name, message, compile_in, tmp_path
):
    outcome = compile_in(recipe_of(pipeline, source, name), toolchain, tmp_path / "stage")
    assert outcome.status == "failed"
    assert message in outcome.reason
