"""A space of 10^12 points under one rule over all of them: what needs no count is there in seconds,
and what does can be stopped."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import run
from support.project import head

MANIFEST = (
    head()
    + """\
[script.scale]
template = "scale.cu.j2"
kernel = "scale"
args = { x = "f32*[n]", n = "i64" }
launch = { grid = ["cdiv(n, 256)"], block = [256] }
levels.sample = 4
[script.scale.space]
a = { range = [0, 999] }
b = { range = [0, 999] }
c = { range = [0, 999] }
d = { range = [0, 999] }
[script.scale.restrict]
r = "(a * 700001 + b * 110009 + c * 130003 + d * 170003) % 1000003 == 5"
"""
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tilus.toml").write_text(MANIFEST)
    text = 'extern "C" void scale(float *x, long long n) { x[0] = {{ a + b + c + d }}; }\n'
    (tmp_path / "scale.cu.j2").write_text(text)
    return tmp_path


@pytest.mark.parametrize(("level", "programs"), [("0", 1), ("1", 4)])
def test_the_default_and_a_sample_need_no_count(project: Path, level: str, programs: int) -> None:
    instance, summary = run(project, "plan", "--level", level, "--json").events
    assert (instance["valid"], instance["cartesian"]) == (None, 10**12)
    assert instance["programs"] == summary["programs"] == programs


@pytest.mark.parametrize("words", [["plan"], ["plan", "--space"]])
def test_a_count_is_stopped(project: Path, words: list[str]) -> None:
    code = (
        "import sys; from tilusbuild.space.join import Join; from tilusbuild.cli.main import main\n"
        "begin = Join._check_work\n"
        "Join._check_work = lambda *a: (print('counts', flush=True), begin(*a))[1]\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(
        command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert stderr == "interrupted\n"
    assert process.returncode == 130
    assert not (project / ".cache").exists()
