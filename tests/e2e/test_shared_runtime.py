"""`cudart = "shared"`: the library of an `entry` script without a CUDA runtime of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.project import NewProject
from tilusbuild.binary import read_needs

MANIFEST = """\
edition = 1
[project]
name = "p"
version = "0.1.0"
[build]
cache-dir = ".cache"
[toolchain]
cudart = "shared"
[target.gpu]
arch = "sm_80"
[script.shared]
template = "scale.cu"
render = false
entry = "scale"
args = { x = "f32*[n]", n = "i32", by = "f32" }
[script.own]
template = "scale.cu"
render = false
entry = "scale"
cudart = "static"
args = { x = "f32*[n]", n = "i32", by = "f32" }
"""
SOURCE = """\
__global__ void kernel(float *x, int n, float by) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) x[i] *= by;
}
extern "C" int scale(float *x, int n, float by, cudaStream_t stream) {
  kernel<<<(n + 255) / 256, 256, 0, stream>>>(x, n, by);
  return cudaGetLastError();
}
"""
FIND = (
    "from pathlib import Path; import sys; from tilusbuild.runtime.library import open_launcher; "
)


@pytest.mark.nvcc
def test_a_shared_runtime(new_project: NewProject, tmp_path: Path) -> None:
    project = new_project(MANIFEST, {"scale.cu": SOURCE})
    project.build()
    made = {
        (path / "program.txt").read_text().split('"')[1]: path for path in project.programs.values()
    }
    shared = (made["shared"] / "module/lib.so").read_bytes()
    assert len(shared) < 21_000 < 500_000 < (made["own"] / "module/lib.so").stat().st_size
    (runtime,) = (name for name in read_needs(shared).libraries if name.startswith("libcudart"))
    assert runtime.removeprefix("libcudart.so.").isdigit()
    options = (made["shared"] / "options.txt").read_text()
    assert f"\n{runtime} - " in options
    assert runtime not in (made["own"] / "options.txt").read_text()

    subprocess.run([made["shared"] / "module/compile.sh", tmp_path / "again.so"], check=True)
    assert (tmp_path / "again.so").read_bytes() == shared

    # No toolkit is on the loader's path, so what opens it finds the runtime by itself.
    command = [sys.executable, "-c", f"{FIND}open_launcher(sys.argv[1])"]
    subprocess.run([*command, made["shared"] / "module/lib.so"], check=True)
