"""Schedules that do not compile are results; compilers that give no answer are asked again."""

import os

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.processes import run_to_end
from support.project import NewProject, Project

FAILING = "  {% if unroll == UNROLL %}not_declared = 1;{% endif %}\n"


@pytest.fixture
def ten(new_project: NewProject):
    """Ten schedules, of which the one with `unroll` 4 does not compile."""
    template = scale.TEMPLATE.replace("  for", FAILING.replace("UNROLL", "4") + "  for")
    return new_project(
        scale.manifest(scale.script(schedules=10)), {"kernels/scale.cu.j2": template}
    )


def test_one_schedule_of_ten_fails(ten):
    first = ten.run("build")
    assert len(ten.libraries) == 9
    assert "kernels/scale.cu.j2:5:" in first.err, "the template's own line"
    assert "not_declared" in first.err
    assert "10 programs: 9 compiled, 1 failed" in first.err
    (reproduce,) = [line for line in first.err.splitlines() if line.startswith("  reproduce: ")]
    again = run_to_end(
        ["sh", "-c", reproduce.removeprefix("  reproduce: ")], status=None, cwd=ten.directory
    )
    assert again.returncode != 0
    assert "not_declared" in again.stderr

    second = ten.build()
    assert (second["attempts"], second["cached"], second["failed"]) == (0, 9, 1)
    (group,) = second["failures"]
    assert (group["count"], group["labels"]) == (1, ["scale/3 cpu"])
    strict = ten.build("--strict", status=1)
    assert strict["attempts"] == 0

    (directory,) = ten.cache.glob("scripts/scale/*")
    assert os.listdir(directory / "failed") == ["3"]
    assert "not_declared" in (directory / "failed/3/module/nvcc_output.txt").read_text()
    assert sorted(os.listdir(directory / "programs")) == [str(i) for i in range(10) if i != 3]
    assert ten.run("cache", "verify").status == 0

    ten.edit("kernels/scale.cu.j2", "not_declared = 1;", "")
    mended = ten.build()
    assert (mended["compiled"], mended["failed"]) == (1, 0)


# ---- a compiler that gives no answer ------------------------------------------------------------


@pytest.fixture
def unreliable(new_project: NewProject, fake_cuda: FakeCuda):
    """A project of five schedules; with the third the compiler does what `behaviour` says."""

    def make(behaviour, build=""):
        template = scale.TEMPLATE.replace(
            "{% else %}", "{% else %}\n{% if unroll == 3 %}// fake: " + behaviour + "\n{% endif %}"
        )
        text = scale.manifest(scale.script(target="gpu", schedules=5), build=build)
        return new_project(text, {"kernels/scale.cu.j2": template}, **fake_cuda.environment)

    return make


@pytest.mark.parametrize(
    ("behaviour", "message"), [("crash", "SIGSEGV"), ("no-output", "made no program.cubin")]
)
def test_no_answer_is_asked_for_again(unreliable, fake_cuda, watched, behaviour, message):
    project = unreliable(behaviour)
    first = project.build("--strict", status=1)
    assert (first["compiled"], first["crashed"], first["failed"]) == (4, 1, 0)
    assert message in first["failures"][0]["error"] + first["failures"][0]["message"]
    watched.assert_none()
    assert len(project.programs) == 4, "what has no answer is not recorded"
    assert project.run("cache", "verify").status == 0

    tried = fake_cuda.compiles
    second = project.build("--strict", status=1)
    assert (second["compiled"], second["cached"], second["crashed"]) == (0, 4, 1)
    assert len(fake_cuda.compiles - tried) == 1
    project.edit("kernels/scale.cu.j2", f"// fake: {behaviour}", "")
    assert project.compiled("--strict") == 1


def test_nobody_reads_the_output(project: Project):
    """`tilusbuild build --json | head -1` builds all, or stops in good order; it never tears."""
    project.environment["PYTHONUNBUFFERED"] = "1"
    process = project.start("build", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert "Traceback" not in err
    assert process.wait(60) in (0, 1)
    assert project.run("cache", "verify").status == 0
    project.build()
    for words in (("plan",), ("cache", "ls", "scale"), ("schema",)):
        process = project.start(*words)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        assert (process.wait(60) in (0, 1), err) == (True, "")
