"""With NVIDIA's own compiler: a mistake in a kernel's code is told with its place, and mended."""

import shutil
from typing import Any

import pytest

pytestmark = pytest.mark.nvcc


def test_an_error_and_its_fix(new_project: Any, watch: Any) -> None:
    project = new_project("scale", schedules=2)
    project.nvcc = shutil.which("nvcc")
    project.manifest("scale", schedules=2)
    watching = watch(project)
    watching.until("watching", ok=True)

    text = (project.directory / "kernels/scale.cu.j2").read_text()
    project.save("kernels/scale.cu.j2", text.replace("y[0] = a *", "y[0] = b *"))
    said = watching.rest()
    assert not said[-1]["ok"]
    reasons = {event["reason"] for event in said if event["event"] == "finished"}
    (reason,) = reasons
    assert "kernels/scale.cu.j2(5)" in reason
    assert '"b" is undefined' in reason
    (summary,) = [event for event in said if event["event"] == "summary"]
    assert (summary["failed"], summary["exit_status"]) == (2, 1)

    project.save("kernels/scale.cu.j2", text.replace("y[0] = a *", "y[0] = 2 * a *"))
    said = watching.until("watching", ok=True)
    (summary,) = [event for event in said if event["event"] == "summary"]
    assert (summary["compiled"], summary["failed"]) == (2, 0)
    assert watching.interrupt() == 130
    assert project.build(status=None)["cached"] == 2
