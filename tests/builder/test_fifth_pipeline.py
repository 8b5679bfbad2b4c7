"""A further pipeline is one file and the registry: the page's example, built end to end."""

import os
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from support.fake_engine import Listener
from support.processes import run_to_end
from support.project import head
from tilusbuild.builder import dump_ir
from tilusbuild.builder.build import build_project
from tilusbuild.builder.project import Project
from tilusbuild.compile import pipelines
from tilusbuild.engine.running import BuildConfig
from tilusbuild.plan.model import PlanSelection

PAGE = Path(__file__).parents[2] / "docs/adding-a-pipeline.md"

MANIFEST = (
    head()
    + """\
[script.scale]
template = "scale.cc.j2"
kernel = "scale"
targets = ["cpu"]
args = { by = "f32", x = { type = "f32*[n]", out = true }, n = "i32" }
"""
)

TEMPLATE = """\
extern "C" void scale(float by, float *x, int n) {
  for (int i = 0; i < n; i++) x[i] *= by;
}
"""


def built(directory: Path) -> tuple[str, Path]:
    """The hash and the directory of the one program."""
    options = {"cache-dir": str(directory / "cache")}
    with Project.open(str(directory), options, {"PATH": os.environ["PATH"]}) as project:
        result = build_project(
            project, PlanSelection(), BuildConfig(jobs=1), Listener(), dump_ir=True
        )
        ((program, status),) = result.statuses.items()
        assert status == "built"
        return program, Path(project.cache.program_path(program))


def test_a_fifth_pipeline_is_a_class_and_a_line(tmp_path, monkeypatch) -> None:
    (tmp_path / "tilus.toml").write_text(MANIFEST)
    (tmp_path / "scale.cc.j2").write_text(TEMPLATE)
    plain, _ = built(tmp_path)

    monkeypatch.setattr(pipelines, "PIPELINES", list(pipelines.PIPELINES))
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(example, {"__name__": "page"})  # the page's own words
    program, directory = built(tmp_path)

    assert program != plain
    options = (directory / "options.txt").read_text()
    assert "pipeline = cpu-debug\n" in options
    assert " -Og " in options
    assert " -g " in options
    assert (directory / "module/ir/host.s").is_file()
    done = run_to_end([directory / "module/compile.sh"], status=None)
    assert "unchanged" in done.stderr, "compile.sh makes other bytes than the build"


def test_a_dump_whose_instructions_cannot_be_written_fails(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(dump_ir, "extract_cubins", lambda _: [Mock(data=b"")])
    compiling = Mock(work=tmp_path)
    compiling.execute_step.return_value.status = 0
    compiling.scrub_log.return_value = "MOV R1, c[0x0][0x28]"
    with pytest.raises(FileNotFoundError):
        dump_ir.Dump(compiling, str(tmp_path / "gone"), "nvdisasm").disassemble(__file__)
