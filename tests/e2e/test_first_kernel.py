"""A first kernel: a template and eight lines, then a call; and pointers of any shape."""

import re
from pathlib import Path

from support.processes import run_python
from support.project import Project

ROOT = Path(__file__).parents[2]
CALL = """\
import numpy as np, tilusbuild
saxpy = tilusbuild.load("saxpy")
x, y = (np.ones((3, 5), "float32") for _ in "xy")
saxpy(2.0, x, y, 15)
print(y.sum())
empty = np.ones((0, 4), "float32")
saxpy(2.0, empty, empty, 0)
for args in ((2.0, x, 15), (2.0, x.astype("float64"), y, 15), (2.0, x.T, y, 15)):
    try:
        saxpy(*args)
    except (TypeError, ValueError) as error:
        print(error)
"""


def test_from_nothing_to_a_call(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    ((manifest,), (template,)) = (
        re.findall(rf"```{of}\n(.*?)```", text, re.DOTALL) for of in ("toml", "cpp")
    )
    project = Project(tmp_path, {"TILUSBUILD_CACHE_DIR": str(tmp_path / ".cache")})
    assert 'args = { x = "[n]", y = { type = "[n]", inout = true } }' in manifest
    shapeless = "\n".join(line for line in manifest.splitlines() if not line.startswith("args"))
    project.write_all({"tilus.toml": shapeless, "kernels/saxpy.cu.j2": template})
    project.run("build", "--target", "cpu", "--level", "0")
    lines = run_python(CALL, cwd=tmp_path, environment=project.environment).stdout.splitlines()
    assert lines[0] == "45.0"
    assert 'output "y" (f32*[...])' in lines[1]
    assert "give the output" in lines[1]
    assert 'argument "x" (2nd): expected f32*[...], got' in lines[2]
    assert "contiguous" in lines[3]
    refused = project.run("run", "saxpy", "--target", "cpu", status=2).err
    assert 'the shape of "x" is not declared' in refused
    project.write("tilus.toml", manifest)
    ran = project.run("run", "saxpy", "--target", "cpu", "--size", "n=100")
    assert "not built yet: compiling it" in ran.err
    assert "100" in ran.out
