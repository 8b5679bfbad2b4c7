"""The three pipelines with real compilers: what they make, what it needs, that it loads."""

import ctypes
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from support.recipes import make_recipe, make_toolchain, write_module
from tilusbuild.binary.elf import read_needs
from tilusbuild.compile.module import format_options
from tilusbuild.compile.pipelines import select_pipeline
from tilusbuild.compile.program import compile_program
from tilusbuild.compile.reads import INCLUDED, CompileReads
from tilusbuild.state.envelope import StepStore

np = pytest.importorskip("numpy")
tvm_ffi = pytest.importorskip("tvm_ffi")


def launch_of(stage):
    return tvm_ffi.load_module(str(stage / "module/lib.so"))["launch"]


EXPORTS = {"__tvm_ffi_launch", "launch", "launch_error"}


@pytest.fixture(scope="module")
def cpu_stage(tmp_path_factory, runner):
    stage = tmp_path_factory.mktemp("cpu") / "stage"
    write_module(make_recipe("cpu"), make_toolchain(), stage / "module")
    where = (str(stage), None, runner, StepStore())
    outcome = compile_program(make_recipe("cpu"), make_toolchain(), *where)
    assert outcome.status == "built", outcome.log
    return stage


class TestCpu:
    @pytest.fixture
    def launch(self, cpu_stage):
        return launch_of(cpu_stage)

    def test_computes_on_numpy_arrays(self, launch):
        x, y = np.arange(5, dtype=np.float32), np.ones(5, np.float32)
        launch(2.0, x, y)
        assert y.tolist() == [1, 3, 5, 7, 9]

    def test_the_plain_function_takes_the_dimension(self, cpu_stage):
        library = ctypes.CDLL(str(cpu_stage / "module/lib.so"))
        x, y = (ctypes.c_float * 3)(1, 2, 3), (ctypes.c_float * 3)()
        assert library.launch(ctypes.c_float(2), x, y, 3, None) == 0
        assert list(y) == [2, 4, 6]

    def test_it_needs_only_the_c_library(self, cpu_stage):
        needs = read_needs((cpu_stage / "module/lib.so").read_bytes())
        loader = "ld-linux-x86-64.so.2"  # thread-local storage
        assert set(needs.libraries) <= {"libc.so.6", "libm.so.6", loader}
        assert needs.exports == EXPORTS

    @pytest.mark.parametrize(
        ("change", "kind", "text"),
        [
            (lambda a, x, y: (a, x), TypeError, "expected 3 arguments (a, x, y), got 2"),
            (
                lambda a, x, y: (a, x.astype(np.float64), y),
                TypeError,
                'argument "x" (2nd): expected f32*[n], got f64 tensor of shape (4,) on cpu',
            ),
            (
                lambda a, x, y: (a, x, y[:3]),
                ValueError,
                (
                    'argument "y" (3rd): expected f32*[n] with n = 4 (from "x"), '
                    "got f32 tensor of shape (3,) on cpu"
                ),
            ),
            (
                lambda a, x, y: (a, x, np.zeros(8, np.float32)[::2]),
                ValueError,
                "with strides (2,): it must be contiguous (row-major)",
            ),
            (
                lambda a, x, y: (a, np.zeros(17, np.uint8)[1:].view(np.float32), y),
                ValueError,
                "at an address that is not a multiple of 4 bytes",
            ),
            (lambda a, x, y: ("1", x, y), TypeError, 'argument "a" (1st): expected f32, got str'),
            (lambda a, x, y: (a, [1.0], y), TypeError, "expected f32*[n], got a list"),
            (lambda a, x, y: (1e300, x, y), ValueError, "got float 1e+300, which f32 cannot hold"),
        ],
    )
    def test_what_is_wrong_is_said_of_the_argument(self, launch, change, kind, text):
        good = (1.0, np.zeros(4, np.float32), np.zeros(4, np.float32))
        with pytest.raises(kind) as caught:
            launch(*change(*good))
        assert str(caught.value).startswith("saxpy: ")
        assert text in str(caught.value)


def test_shapes_ranges_and_integers(compile_in, tmp_path):
    """Literal and computed dimensions, a range, bool and integer scalars, a tensor of rank 0."""
    source = """
    extern "C" void fill(float *out, const short *half, const double *one, int m, int n, bool on,
                         unsigned char add) {
      for (int i = 0; i < m * n; i++) out[i] = on ? half[i / 2] + add + *one : 0;
    }"""
    recipe = make_recipe(
        "cpu",
        source=source,
        symbol="fill",
        out=("out",),
        arguments={
            "out": "f32*[m, n, 1]",
            "half": "i16*[m * n // 2]",
            "one": "f64*[]",
            "m": ("i32", {"low": 1, "high": 8}),
            "n": "i32",
            "on": "bool",
            "add": "u8",
        },
    )
    outcome = compile_in(recipe, make_toolchain(), tmp_path / "stage")
    assert outcome.status == "built", outcome.log
    fill = launch_of(tmp_path / "stage")

    def call(m=2, n=3, half=3, on=True, add=7):
        out = np.zeros((m, n, 1), np.float32)
        fill(out, np.arange(half, dtype=np.int16), np.array(0.5), on, add)
        return out.ravel().tolist()

    assert call() == [7.5, 7.5, 8.5, 8.5, 9.5, 9.5]
    assert call(on=False) == [0] * 6
    assert call(on=0) == [0] * 6
    wrong: list[tuple[dict[str, Any], str, type[Exception]]] = [
        ({"half": 4}, "(m * n) // 2) is 3", ValueError),
        ({"m": 9, "half": 13}, 'dimension m is 9 (axis 0 of "out"), outside 1..8', ValueError),
        ({"add": 256}, "got int 256, which is outside 0..255", ValueError),
        ({"add": 1.5}, "expected u8, got float 1.5", TypeError),
        ({"on": 2}, "got int 2, which is outside 0..1", ValueError),
    ]
    for change, text, kind in wrong:
        with pytest.raises(kind) as caught:
            call(**change)
        assert text in str(caught.value)


def test_names_that_are_words_of_c(compile_in, tmp_path):
    source = 'extern "C" void double_it(float *x, int n) { while (n--) x[n] *= 2; }'
    arguments = {"arguments": {"int": "f32*[struct]", "struct": "i32"}, "out": ("int",)}
    recipe = make_recipe("cpu", source=source, symbol="double_it", **arguments)
    assert compile_in(recipe, make_toolchain(), tmp_path / "stage").status == "built"
    x = np.ones(2, np.float32)
    launch_of(tmp_path / "stage")(x)
    assert x.tolist() == [2, 2]


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("pipeline", "symbol", "message"),
    [
        ("kernel", "saxpy", r"no CUDA driver was found .*libcuda\.so\.1"),
        ("host", "saxpy", "no CUDA device can be used"),
        ("host", "launch", "no CUDA device can be used"),
    ],
)
def test_it_is_built_and_loads_without_driver_and_runtime(
    cuda_toolchain, compile_in, tmp_path, pipeline, symbol, message
):
    recipe = make_recipe(pipeline, smem="65536", symbol=symbol)
    recipe = replace(recipe, source=recipe.source.replace("saxpy", symbol))
    outcome = compile_in(recipe, cuda_toolchain, tmp_path / "stage")
    assert outcome.status == "built", outcome.log
    assert [(image.kind, image.arch) for image in outcome.images] == [("sass", "sm_90a")]
    needs = read_needs((tmp_path / "stage/module/lib.so").read_bytes())
    assert not [name for name in needs.libraries if "cuda" in name]
    assert needs.exports == EXPORTS
    if pipeline == "kernel":
        assert (needs.libraries, needs.glibc, outcome.ptxas[0].kernel) == ((), None, "saxpy")
        assert "Used" in outcome.log
        assert "Compile time" not in outcome.log
    launch = launch_of(tmp_path / "stage")
    x = np.zeros(4, np.float32)
    if not os.path.exists("/dev/nvidiactl"):
        with pytest.raises(RuntimeError, match=message):
            launch(1.0, x, x)


def test_options_say_everything_and_no_place(tmp_path):
    recipe = make_recipe(flags=("-O3", "-DX=a b\nc"))
    text = format_options(recipe, make_toolchain(str(tmp_path / "nvcc")))
    assert str(tmp_path) not in text
    assert "{nvcc} -cubin -gencode arch=compute_90a,code=sm_90a -ccbin {cxx}" in text
    assert "'-DX=a b'$'\\n''c'" in text
    assert text.endswith("[toolchain]\nnvcc 0 test\n")
    assert text == format_options(recipe, make_toolchain(str(tmp_path / "elsewhere/nvcc")))
    assert text != format_options(make_recipe(flags=("-O2",)), make_toolchain("/nvcc"))


def test_a_device_compiler_that_no_pipeline_knows_is_an_error():
    with pytest.raises(LookupError, match="no pipeline compiles a kernel for cuda with ptxjit"):
        select_pipeline("cuda", "kernel", "ptxjit")
    assert select_pipeline("cuda", "entry", "ptxjit").name == "host"


def test_only_what_reads_the_source_can_fail_by_it():
    recipe = make_recipe(symbol="scale<float>", flags=("-lineinfo",), archs=("sm_80", "sm_90a"))
    steps = select_pipeline("cuda", "kernel", "nvcc").list_commands(recipe)
    assert {step.name: step.of_program for step in steps} == {
        "ptx": True,
        "names": False,
        "symbol": False,
        "device": True,
        "fatbinary": False,
        "image": False,
        "link": False,
    }
    reads = CompileReads(cast(Any, SimpleNamespace(reach=object())), "/work", None)
    lists = {step.tool: reads.list_dependency_files(step) for step in steps}
    assert lists["nvcc"] == (INCLUDED,)
    assert lists["sed"] == lists["fatbinary"] == ()
    unlisted = CompileReads(cast(Any, SimpleNamespace(reach=None)), "/work", None)
    assert {unlisted.list_dependency_files(step) for step in steps} == {()}


@pytest.mark.parametrize(
    ("archs", "kept", "copied"),
    [
        (("sm_80",), ("source.ptx", "source.cpp4.ii"), ["host.ii", "sm_80.ptx"]),
        (
            ("sm_80", "sm_90a"),
            ("source.compute_80.ptx", "source.compute_90a.cpp1.ii", "source.ptx"),
            ["sm_80.ptx", "device.sm_90a.ii", "kernel.ptx"],
        ),
    ],
)
def test_a_dump_names_the_architecture(tmp_path, archs, kept, copied):
    def run(step):
        for name in kept:
            (tmp_path / step.argv[step.argv.index("-keep-dir") + 1] / name).touch()

    names = []
    dump = SimpleNamespace(work=str(tmp_path), run=run, copy=lambda _, name: names.append(name))
    pipeline = select_pipeline("cuda", "kernel", "nvcc")
    pipeline.dump_intermediates(make_recipe(archs=archs), dump)
    assert names == copied
