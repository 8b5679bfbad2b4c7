"""Caches that the real systems write on the spot: listed, verified, and
carried to another place, where the real system finds them.

`make peers` installs the systems; without it these tests skip. TileLang and Triton compile for a
GPU that is not there, Hidet for the host. Tilus has to be told that there is a GPU.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support import command_line
from tilusbuild.interop.caches import read_foreign_cache
from tilusbuild.interop.caches.directory import ForeignCache

pytestmark = pytest.mark.slow

TILELANG = """
import tilelang, tilelang.language as T

@T.prim_func
def add(A: T.Tensor((1024,), "float32"), B: T.Tensor((1024,), "float32")):
    with T.Kernel(8, threads=128) as bx:
        for i in T.Parallel(128):
            B[bx * 128 + i] = A[bx * 128 + i] + 1.0

target = {"kind": "cuda", "arch": "sm_90a"}
tilelang.compile(add, target=target, execution_backend="tvm_ffi")
"""
HIDET = """
import hidet

hidet.option.cache_dir("cache")
x = hidet.symbol([16, 16], device="cpu")
hidet.graph.optimize(hidet.trace_from(hidet.ops.relu(x), inputs=[x])).build()
"""
TRITON = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def add(x, z, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(z + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)

signature = {"x": "*fp32", "z": "*fp32", "n": "i32", "B": "constexpr"}
source = ASTSource(fn=add, signature=signature, constexprs={"B": 128})
triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""
TILUS = """
import torch

torch.cuda.is_available = lambda: True
import tilus
from tilus import float32, int32
from tilus.target import nvgpu_sm90a, set_current_target

tilus.option.cache_dir("cache")
set_current_target(nvgpu_sm90a)


class Add(tilus.Script):
    def __call__(self, n: int32, a: ~float32, c: ~float32):
        self.attrs.blocks = [8]
        self.attrs.warps = 4
        offset = self.blockIdx.x * 128
        ga = self.global_view(a, dtype=float32, shape=[n])
        gc = self.global_view(c, dtype=float32, shape=[n])
        ra = self.load_global(ga, offsets=[offset], shape=[128])
        self.store_global(gc, ra, offsets=[offset])


try:
    Add()(1024, torch.empty(1024), torch.empty(1024))
except Exception as error:
    print(error)
"""
WITHOUT_COMPILER = """
from triton.backends.nvidia.compiler import CUDABackend

CUDABackend.make_ttir = CUDABackend.make_cubin = None
"""
"""Triton brings its own compiler, so it has to be taken away."""
Peer = Callable[..., subprocess.CompletedProcess[str]]


SCRIPTS = {"tilelang": TILELANG, "hidet": HIDET, "triton": TRITON, "tilus": TILUS}


def made_by(system: str, peer: Peer, directory: Path) -> ForeignCache:
    """The cache that a system writes; it reads a kernel's source back from its file."""
    (directory / f"with_{system}.py").write_text(SCRIPTS[system])
    cache = str(directory / "cache")
    peer(system, run_of(system), TILELANG_CACHE_DIR=cache, TRITON_CACHE_DIR=cache)
    return read_foreign_cache(cache)


def run_of(system: str) -> str:
    return f"import runpy\nrunpy.run_path('with_{system}.py', run_name='__main__')\n"


@pytest.mark.nvcc
def test_tilus(peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tilus links against a driver's library, of which only the name matters here."""
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    gcc = shutil.which("gcc")
    assert gcc is not None
    os.spawnv(os.P_WAIT, gcc, [gcc, "-shared", "-xc", "/dev/null", "-o", f"{stubs}/libcuda.so"])
    monkeypatch.setenv("LIBRARY_PATH", str(stubs))
    cache = made_by("tilus", peer, tmp_path)
    (entry,) = cache.entries
    assert (cache.broken, entry.name, entry.declared_arch, entry.code_archs) == (
        (),
        "add",
        "sm_90a",
        ("sm_90a",),
    )

    command_line.run(tmp_path, "cache", "package", "cache")
    shutil.rmtree(tmp_path / "cache")
    command_line.run(tmp_path, "install", "dist/tilus-cache-0.tar.zst", "--into", "cache")
    before = _libraries(tmp_path / "cache")
    result = peer("tilus", run_of("tilus"), PATH=str(_tools(tmp_path)))
    assert "nvcc" not in result.stdout + result.stderr
    assert "driver" in result.stdout  # it came as far as the launch
    assert _libraries(tmp_path / "cache") == before


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("system", "into", "held", "kinds"),
    [
        ("tilelang", None, "sm_90a", {"kernel", "binary"}),
        ("hidet", "cache", os.uname().machine, {"op", "module", "op of a graph"}),
        ("triton", None, "sm_90a", {"kernel"}),
    ],
)
def test_made_packaged_installed_elsewhere_and_hit(
    system: str, into: str | None, held: str, kinds: set[str], peer: Peer, tmp_path: Path
) -> None:
    """Where nothing can be compiled, the system works with the cache that came, and not without."""
    home = {"HOME": str(tmp_path / "home")}
    cache = made_by(system, peer, tmp_path)
    assert (cache.system, cache.broken) == (system, ())
    assert {entry.kind for entry in cache.entries} == kinds
    assert all(entry.code_archs == (held,) for entry in cache.entries)
    command_line.run(
        tmp_path, "cache", "package", cache.root, "--name", "carried", environment=home
    )
    shutil.rmtree(cache.root)
    (package,) = (tmp_path / "dist").iterdir()
    command_line.run(tmp_path, "verify", str(package), environment=home)

    again = (WITHOUT_COMPILER if system == "triton" else "") + run_of(system)
    nothing = {"PATH": str(_tools(tmp_path)), "CUDA_HOME": "/nowhere", "CUDA_PATH": "/nowhere"}
    with pytest.raises(subprocess.CalledProcessError):
        peer(system, again, **home, **nothing)
    for name in ("home", "cache"):  # what the failed attempt left
        shutil.rmtree(tmp_path / name, ignore_errors=True)

    where = ("--into", into) if into else ()
    command_line.run(tmp_path, "install", str(package), *where, environment=home)
    directory = tmp_path / into if into else tmp_path / "home" / f".{system}" / "cache"
    before = _libraries(directory)
    assert before
    peer(system, again, **home, **nothing)
    assert _libraries(directory) == before
    assert read_foreign_cache(str(directory)).broken == ()


def _tools(directory: Path) -> Path:
    """A PATH with what the systems start besides compilers."""
    tools = directory / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "uname", "ldd", "git"):
        if path := shutil.which(name):
            (tools / name).symlink_to(path)
    return tools


def _libraries(root: Path) -> dict[str, int]:
    """When each library was written; of a graph, Hidet writes the rest again on every run."""
    paths = [path for suffix in ("*.so", "*.cubin") for path in root.rglob(suffix)]
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in paths}


LOAD = """
import sys

import torch
from tilus.runtime import compiled_program_exists, load_compiled_program

(directory,) = sys.argv[1:]
assert compiled_program_exists(directory)
axpby = load_compiled_program(directory)
x, y = torch.arange(8.0), torch.ones(8)
axpby(2.0, 3.0, x, y)
assert torch.equal(y, 2.0 * torch.arange(8.0) + 3.0), y
"""


def test_tilus_loads_and_calls_a_program_of_ours(peer: Peer, tmp_path: Path) -> None:
    """From the cache itself, and from a view of it as Tilus lays out its own."""
    for words in (
        ["init", "kernels"],
        ["-C", "kernels", "build", "-q", "--target", "cpu"],
        ["-C", "kernels", "cache", "export", "-q", "--layout", "tilus", "view"],
    ):
        command_line.run(tmp_path, "--cache-dir", "cache", *words)
    (program, *_) = (tmp_path / "kernels/cache/programs").iterdir()
    (link, *_) = (tmp_path / "kernels/view").glob("scripts/axpby/*/programs/*")
    for directory in (program, link):
        peer("tilus", f"import sys; sys.argv = ['', {str(directory)!r}]\n" + LOAD)
