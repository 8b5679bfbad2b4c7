"""The sizes of `entry` libraries, beside the same sources linked without the CUDA runtime.

Files grow by pages, so one source alone says little: four are built, from a line to a kernel of
attention, and what their sections hold is printed beside the files' sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from _bench import nvcc, process

from _real import world
from _real.project import tilusbuild
from tilusbuild.binary.elf import Elf

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
"""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    args: str
    source: str

    @property
    def script(self) -> str:
        head = f'[script.{self.name}]\ntemplate = "{self.name}.cu"\nrender = false\n'
        return f'{head}entry = "{self.name}"\nargs = {{ {self.args} }}\n'


_ENTRIES = (
    _Entry(
        "scale",
        'x = "f32*[n]", n = "i32", by = "f32"',
        """\
__global__ void kernel(float *x, int n, float by) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) x[i] *= by;
}
extern "C" int scale(float *x, int n, float by, cudaStream_t stream) {
  kernel<<<(n + 255) / 256, 256, 0, stream>>>(x, n, by);
  return cudaGetLastError();
}
""",
    ),
    _Entry(
        "rms_norm",
        'x = "f32*[m, n]", w = { type = "f32*[n]", optional = true }, '
        'y = { type = "f32*[m, n]", out = true }, m = "i32", n = "i32", eps = "f32"',
        """\
__global__ void sums(const float *x, float *y, int n, float eps) {
  const float *row = x + (long)blockIdx.x * n;
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += 32) sum += row[i] * row[i];
  for (int k = 16; k; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
  if (!threadIdx.x) y[(long)blockIdx.x * n] = rsqrtf(sum / n + eps);
}
__global__ void apply(const float *x, const float *w, float *y, int n) {
  const long at = (long)blockIdx.x * n;
  const float by = y[at];
  __syncwarp();
  for (int i = threadIdx.x; i < n; i += 32) y[at + i] = x[at + i] * by * (w ? w[i] : 1);
}
extern "C" int rms_norm(const float *x, const float *w, float *y, int m, int n, float eps,
                    cudaStream_t stream) {
  sums<<<m, 32, 0, stream>>>(x, y, n, eps);
  apply<<<m, 32, 0, stream>>>(x, w, y, n);
  return cudaGetLastError();
}
""",
    ),
    _Entry(
        "unrolled",
        'x = "f32*[n]", n = "i32", by = "i32"',
        """\
template <int U> __global__ void kernel(float *x, int n) {
  for (int u = 0; u < U; u++) {
    const int i = (blockIdx.x * U + u) * 256 + threadIdx.x;
    if (i < n) x[i] = sinf(x[i]);
  }
}
template <int U> static int start(float *x, int n, cudaStream_t stream) {
  kernel<U><<<(n + 256 * U - 1) / (256 * U), 256, 0, stream>>>(x, n);
  return cudaGetLastError();
}
extern "C" int unrolled(float *x, int n, int by, cudaStream_t stream) {
  if (by == 2) return start<2>(x, n, stream);
  if (by == 4) return start<4>(x, n, stream);
  return by == 8 ? start<8>(x, n, stream) : start<1>(x, n, stream);
}
""",
    ),
    _Entry(
        "attention",
        'q = "f16*[h, n, 64]", k = "f16*[h, m, 64]", v = "f16*[h, m, 64]", '
        'o = { type = "f16*[h, n, 64]", out = true }, lse = "f32*[h, n + 1]", '
        'h = "i32", n = "i32", m = "i32", by = "f32", causal = "bool"',
        """\
#include <cuda_fp16.h>
__global__ void kernel(const __half *q, const __half *k, const __half *v, __half *o, float *lse,
                       int n, int m, float by, bool causal) {
  const int row = blockIdx.x, head = blockIdx.y;
  q += ((long)head * n + row) * 64, k += (long)head * m * 64, v += (long)head * m * 64;
  float most = -1e30f, sum = 0, result[64] = {};
  for (int j = 0; j < (causal ? row + 1 : m); j++) {
    float s = 0;
    for (int d = 0; d < 64; d++) s += __half2float(q[d]) * __half2float(k[j * 64 + d]);
    const float next = fmaxf(most, s * by), old = expf(most - next), now = expf(s * by - next);
    for (int d = 0; d < 64; d++) result[d] = result[d] * old + now * __half2float(v[j * 64 + d]);
    sum = sum * old + now, most = next;
  }
  for (int d = 0; d < 64; d++) o[((long)head * n + row) * 64 + d] = __float2half(result[d] / sum);
  lse[head * (n + 1) + row] = most + logf(sum);
}
extern "C" int attention(const void *q, const void *k, const void *v, void *o, const void *lse,
                         int h, int n, int m, float by, bool causal, cudaStream_t stream) {
  kernel<<<dim3(n, h), 1, 0, stream>>>((const __half *)q, (const __half *)k, (const __half *)v,
                                       (__half *)o, (float *)lse, n, m, by, causal);
  return cudaGetLastError();
}
""",
    ),
)


def report() -> None:
    """Print a row for each source."""
    tree = world.WORK / "entry-size"
    tree.mkdir(parents=True, exist_ok=True)
    (tree / "tilus.toml").write_text(_MANIFEST + "".join(entry.script for entry in _ENTRIES))
    for entry in _ENTRIES:
        (tree / f"{entry.name}.cu").write_text(entry.source)
    process(tilusbuild("build", "--cache-dir", str(tree / ".cache")), tree, world.environment())
    print("\nAn entry library, and its source linked without the CUDA runtime: files, and sections")
    for entry in _ENTRIES:
        own = _newest(tree / ".cache", entry.name).read_bytes()
        bare = _bare(tree, entry.name).read_bytes()
        files = f"{len(own) / len(bare):.2f} ({len(own):,} and {len(bare):,} bytes)"
        print(f"  {entry.name:38}{files}, {_held(own):,} and {_held(bare):,}")


def _bare(tree: Path, name: str) -> Path:
    library = tree / f"{name}.bare.so"
    words = [nvcc(), "-shared", "-cudart", "none", "-Xcompiler", "-fPIC", "-Xlinker", "-s"]
    code = ["-gencode", "arch=compute_80,code=sm_80"]
    process([*words, *code, f"{name}.cu", "-o", str(library)], tree)
    return library


def _newest(cache: Path, name: str) -> Path:
    texts = [path for path in cache.glob("programs/*/program.txt") if _is_of(path, name)]
    return max(texts, key=lambda path: path.stat().st_mtime).parent / "module" / "lib.so"


def _is_of(text: Path, name: str) -> bool:
    return text.read_text().splitlines()[1] == f'script = "{name}"'


def _held(library: bytes) -> int:
    """Return the bytes of a library's sections that are in the file."""
    nobits = 8
    return sum(part.size for part in Elf(library).sections if part.kind not in (0, nobits))
