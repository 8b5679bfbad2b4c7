"""`tilusbuild import` of files of Triton, TileLang and Tilus (docs/moving-in.md)."""

from pathlib import Path
from textwrap import dedent

import pytest

from support.project import Project
from tilusbuild.manifest.scanner import import_toml

TRITON = """\
import torch, triton
import triton.language as tl
from mine import widths
DEVICE = triton.runtime.driver.active.get_active_torch_device()
raise SystemExit("an import runs the benchmark")
{head}
@triton.autotune({configs}, key=["M"])
@triton.jit
def _scale(x_ptr, y_ptr, M, stride, eps, BM: tl.constexpr, BN: tl.constexpr, E: tl.constexpr = 1):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    x_ptrs = x_ptr + rows[:, None] * stride
    tl.store(y_ptr + rows, helper(tl.load(x_ptrs, mask=rows < M)))
configs = torch.rand(3)
"""
TILELANG = """\
import itertools, torch, tilelang
import tilelang.language as T
def get_configs():
    values = dict(block_M=[64, 128], threads=[128])
    return [dict(zip(values, row)) for row in itertools.product(*values.values())]
@tilelang.autotune(configs=get_configs(), warmup=3)
@tilelang.jit(out_idx=[-1], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def copy(N, block_M, threads, dtype="float32"):
    m = T.dynamic("m")
    shape = [m, N]
    @T.prim_func
    def main(A: T.Tensor(shape, T.bfloat16), B: T.Tensor((m, N), dtype)):
        pass
    return main
@tilelang.autotune(configs=[dict(block_M=64)])
@tilelang.jit
def add(A, block_M):
    N = T.const("N")
    A: T.Tensor((N,), "int8")
    B = T.empty((N,), "int8")
    return B
"""


def import_file(project: Project, text: str) -> dict[str, dict[str, object]]:
    """Return the scripts of the manifest that an import of `kernels.py` writes."""
    project.write("kernels.py", text)
    project.run("import", "kernels.py")
    scripts = import_toml().loads((project.directory / "tilus.toml").read_text())["script"]
    assert isinstance(scripts, dict)
    return scripts


ONE = "[triton.Config({'BM': 64, 'BN': 8}, num_warps=2, num_stages=2, pre_hook=lambda args: 0)]"
LINKED = {"BM, num_warps": [[64, 4], [128, 8]], "BN": [8], "num_stages": [3]}

FILTERED = """
def is_cuda():
    return triton.runtime.driver.active.get_current_target().backend == "cuda"
SIZES = (64, 128) if is_cuda() else widths
configs = [triton.Config(dict(BM=m, BN=8), num_warps=w) for m in SIZES for w in (4, 8)]
def keep(config):
    return config.kwargs["BM"] // config.num_warps == 16
"""
APPENDED = """
from triton import Config
configs = []
for m in [64, 128]:
    if torch.cuda.get_device_capability()[0] < 9:
        configs.append(Config({"BM": m, "BN": 8}, num_warps=m // 16))
"""


@pytest.mark.parametrize(
    ("head", "configs", "space"),
    [
        ("", ONE, {"BM": [64], "BN": [8], "num_warps": [2], "num_stages": [2]}),
        (
            "",
            "[triton.Config({'BM': m, 'BN': 8}, num_warps=w) for m in (64, 128) for w in [4, 8]]",
            {"BM": [64, 128], "BN": [8], "num_warps": [4, 8], "num_stages": [3]},
        ),
        (FILTERED, "configs=list(filter(keep, configs))", LINKED),
        (APPENDED, "configs", LINKED),
    ],
)
def test_a_list_of_configurations_is_the_space(
    tmp_path: Path, head: str, configs: str, space: object
) -> None:
    scripts = import_file(Project(tmp_path), TRITON.format(head=head, configs=configs))
    assert scripts["scale"]["triton"] == "kernels.py:_scale"
    assert scripts["scale"]["space"] == space


def test_arguments_are_the_parameters_that_are_not_constants(tmp_path: Path) -> None:
    scripts = import_file(
        Project(tmp_path), TRITON.format(head="", configs=ONE.replace("'BN'", "'X'"))
    )
    assert scripts["scale"]["args"] == {
        "x_ptr": "f16*[1]",
        "y_ptr": {"type": "f16*[1]", "out": True},
        **dict.fromkeys(("M", "stride", "eps"), "i32"),
    }
    assert scripts["scale"]["params"] == {"BN": 1024}


def test_a_list_of_another_package_is_left_out(tmp_path: Path) -> None:
    project = Project(tmp_path)
    configs = "[triton.Config({'BM': m}) for m in widths]"
    project.write("kernels.py", TRITON.format(head="", configs=configs))
    shown = project.run("import", "kernels.py", status=2).err
    assert (
        "left out: kernels.py:9 _scale: its list cannot be read: it depends on mine.widths" in shown
    )


def test_tensors_of_tilelang_are_arguments(tmp_path: Path) -> None:
    scripts = import_file(Project(tmp_path), TILELANG)
    assert scripts["copy"] == {
        "tilelang": "kernels.py:copy",
        "flags": ["--use_fast_math"],
        "params": {"N": 1024},
        "args": {
            "A": {"type": "bf16*[m, N]", "align": 16},
            "B": {"type": "f32*[m, N]", "align": 16, "out": True},
            "m": "i32",
        },
        "space": {"block_M": [64, 128], "threads": [128]},
    }
    assert scripts["add"]["args"] == {
        "A": {"type": "i8*[N]", "align": 16},
        "B": {"type": "i8*[N]", "align": 16, "out": True},
    }


def test_a_function_without_a_list_is_a_kernel_unless_another_one_calls_it(tmp_path: Path) -> None:
    text = """
        import triton.language as tl
        @triton.jit
        def descend(x, size): return tl.make_tensor_descriptor(x, [size], [1], [8])
        @triton.jit
        def copy(x, y, size, BM: tl.constexpr):
            y = descend(size=size, x=y)
            y.store([0], descend(x, size).load([0]))
        """
    assert import_file(Project(tmp_path), dedent(text)) == {
        "copy": {
            "triton": "kernels.py:copy",
            "params": {"BM": 1024},
            "args": {"x": "f16*[1]", "y": {"type": "f16*[1]", "out": True}, "size": "i32"},
            "launch": {"grid": [1]},
        }
    }


def test_a_script_of_tilus_has_the_space_of_its_decorators(tmp_path: Path) -> None:
    text = """
        import tilus
        from tilus import float32, int64
        WARPS = [4, 8]
        @tilus.autotune("warps", WARPS)
        @tilus.autotune(arg_names="m, n", arg_values=[(8, 16), (16, 8)])
        class Copy(tilus.Script):
            def __init__(self, warps, m, n, stages, unroll=2): ...
            def __call__(self, rows: int64, columns: int, x_ptr: ~float32, y_ptr: ~float32):
                gx = self.global_view(x_ptr, dtype=float32, shape=[rows, columns])
                gy = self.global_view(y_ptr, dtype=float32, shape=[rows, columns])
                self.store_global(gy, self.load_global(gx, offsets=[0, 0]), offsets=[0, 0])
        """
    tensor = {"type": "f32*[rows, columns]", "align": 16}
    assert import_file(Project(tmp_path), dedent(text)) == {
        "copy": {
            "tilus": "kernels.py:Copy",
            "params": {"stages": 1024, "columns": 1024},
            "args": {"rows": "i64", "x_ptr": tensor, "y_ptr": {**tensor, "out": True}},
            "space": {"warps": [4, 8], "m, n": [[8, 16], [16, 8]]},
        }
    }
