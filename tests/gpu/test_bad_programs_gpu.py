"""A program that harms a real GPU gets the blame, and the tuning goes on with the others."""

from pathlib import Path
from typing import Any

import pytest

from support import command_line
from support.project import Project, head
from tilusbuild.runtime.device import get_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

MODES = ("right", "wrong", "beside", "before", "input", "fault", "assert", "hang")
MANIFEST = """\
[script.scale]
template = "scale.cu.j2"
kernel = "scale"
args = { x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i32" }
launch = { grid = ["cdiv(n, 128)"], block = [128] }
[script.scale.space]
mode = [MODES]
[script.scale.tune]
ref = "ref.py:scale"
sizes = [{ n = 1000 }]
"""
SOURCE = """\
#include <cassert>
extern "C" __global__ void scale(float *x, float *y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
{% if mode == "wrong" %}
  if (i == 7) y[i] = 0;
{% elif mode == "beside" %}
  if (i >= n) y[i] = 0;
{% elif mode == "before" %}
  if (i < 4) y[-1 - i] = 0;
{% elif mode == "input" %}
  if (i == 3) x[i] = 0;
{% elif mode == "fault" %}
  if (i == 0) *(volatile int *)8 = 0;
{% elif mode == "assert" %}
  assert(i != 5);
{% elif mode == "hang" %}
  while (*(volatile float *)&y[0] == *(volatile float *)&y[0]) ;
{% endif %}
}
"""


def test_each_is_tuned_around(torch: Any, tmp_path: Path) -> None:
    modes = ", ".join(f'"{mode}"' for mode in MODES)
    project = Project(tmp_path).write_all(
        {
            "tilus.toml": head("gpu", get_gpu(0).arch) + MANIFEST.replace("MODES", modes),
            "scale.cu.j2": SOURCE,
            "ref.py": "def scale(x, y):\n    return 2 * x\n",
        }
    )
    words = ("tune", "scale", "--time-limit", "4", "--json")
    tuned, summary = command_line.run(project.directory, *words, timeout=600).events
    assert summary == {"event": "summary", "tuned": 1, "without": 0}
    assert tuned["schedule"] == {"mode": "right"}
    reason_by_mode = {MODES[int(number)]: why for number, why in tuned["refused"].items()}
    assert reason_by_mode.pop("wrong").startswith("incorrect: y[7] is 0, expected ")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in reason_by_mode.pop("fault")
    assert "CUDA_ERROR_ASSERT" in reason_by_mode.pop("assert")
    assert reason_by_mode == {
        "beside": "incorrect: it wrote after the tensor y",
        "before": "incorrect: it wrote before the tensor y",
        "input": "incorrect: it changed its input x",
        "hang": "timeout: no answer in 4 s",
    }
