"""`cache export --layout cubin`: the GPU code alone, and what a launch needs."""

import hashlib
import json

import pytest

from support.project import NewProject
from tilusbuild.binary import read_cubin

MANIFEST = """\
edition = 1
[project]
name = "p"
version = "0.1.0"
[build]
cache-dir = ".cache"
[target.gpu]
arch = {arch}
[script.copy]
template = "copy.cu.j2"
kernel = "{kernel}"
params = {{ type = ["float"] }}
space = {{ threads = [64, 128] }}
derived = {{ tile = "threads * 2" }}
args = {{ x = "f32*[n]", y = {{ type = "f32*[n]", out = true }}, n = "i32" }}
launch = {{ grid = ["cdiv(n, tile)"], block = ["threads"], smem = "4 * threads" }}
"""
TEMPLATE = """\
template <typename T> __global__ void any(const T *x, T *y, int n) {
  for (int i = blockIdx.x * {{ tile }} + threadIdx.x; i < n; i += {{ threads }}) y[i] = x[i];
}
extern "C" __global__ void copy(const float *x, float *y, int n) { y[0] = x[n - {{ tile }}]; }
"""


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("kernel", "archs", "symbol"),
    [("copy", ["sm_80", "sm_90a"], "copy"), ("any<{{ type }}>", ["sm_90a"], "_Z3anyIfEvPKT_PS0_i")],
)
def test_what_a_launch_needs(new_project, kernel, archs, symbol) -> None:
    text = MANIFEST.format(arch=json.dumps(archs), kernel=kernel)
    project = new_project(text, {"copy.cu.j2": TEMPLATE})
    project.build()
    project.run("cache", "export", "--layout", "cubin", "out")
    (listing,) = project.directory.glob("out/copy/float-*/kernels.json")
    found = json.loads(listing.read_text())
    assert [each["name"] for each in found["args"]] == ["x", "y", "n"]
    assert found["launch"] == {"grid": "cdiv(n, tile)", "block": "threads", "smem": "(4 * threads)"}
    assert found["constants"] == {"type": "float"}
    for program, threads in zip(found["programs"], (64, 128), strict=True):
        assert (program["schedule"], program["derived"]) == (
            {"threads": threads},
            {"tile": 2 * threads},
        )
        assert program["dynamic_smem"] == 4 * threads
        assert sorted(image["arch"] for image in program["images"]) == archs
        library = project.libraries[program["hash"]]
        for image in program["images"]:
            assert symbol in image["kernels"]
            data = (listing.parent / image["file"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == image["sha256"]
            assert symbol in [each.name for each in read_cubin(data)]
            assert len(archs) > 1 or data in library
    assert {path.name for path in listing.parent.iterdir()} == {
        "kernels.json",
        *(image["file"] for each in found["programs"] for image in each["images"]),
    }


def test_host_code_is_no_cubin(new_project: NewProject) -> None:
    text = MANIFEST.format(arch='"cpu"', kernel="copy")
    template = (
        'extern "C" void copy(const float *x, float *y, int n) { y[0] = x[n - {{ tile }}]; }\n'
    )
    project = new_project(text, {"copy.cu.j2": template})
    project.build()
    found = project.run("cache", "export", "--layout", "cubin", "out", status=2).err
    assert "nothing that was built here has GPU code" in found
    assert not (project.directory / "out").exists()
