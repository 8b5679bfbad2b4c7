"""The size of an `entry` library, beside the same source linked without the CUDA runtime."""

from __future__ import annotations

from pathlib import Path

from _bench import nvcc, process

from _real import world
from _real.project import tilusbuild

_MANIFEST = """\
edition = 1
[project]
name = "entry-size"
version = "0.1.0"
[build]
cache-dir = ".cache"
[toolchain]
cudart = "shared"
[target.gpu]
arch = "sm_80"
[script.scale]
template = "scale.cu"
render = false
entry = "scale"
args = { x = "f32*[n]", n = "i32", by = "f32" }
"""
_SOURCE = """\
__global__ void kernel(float *x, int n, float by) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) x[i] *= by;
}
extern "C" int scale(float *x, int n, float by, cudaStream_t stream) {
  kernel<<<(n + 255) / 256, 256, 0, stream>>>(x, n, by);
  return cudaGetLastError();
}
"""


def report() -> None:
    """Print the row."""
    tree = world.WORK / "entry-size"
    tree.mkdir(parents=True, exist_ok=True)
    (tree / "tilus.toml").write_text(_MANIFEST)
    (tree / "scale.cu").write_text(_SOURCE)
    process(tilusbuild("build", "--cache-dir", str(tree / ".cache")), tree, world.environment())
    bare = tree / "bare.so"
    words = [nvcc(), "-shared", "-cudart", "none", "-Xcompiler", "-fPIC", "-Xlinker", "-s"]
    process([*words, "-gencode", "arch=compute_80,code=sm_80", "scale.cu", "-o", str(bare)], tree)
    own = _newest(tree / ".cache").stat().st_size
    print("\nAn entry library, and its source linked without the CUDA runtime")
    print(
        f"  {'size':38}{own / bare.stat().st_size:.2f} ({own:,} and {bare.stat().st_size:,} bytes)"
    )


def _newest(cache: Path) -> Path:
    libraries = cache.rglob("programs/**/module/lib.so")
    return max(libraries, key=lambda path: path.stat().st_mtime)
