"""A build that is stopped, however rudely, leaves no process, no torn entry, and nothing undone."""

import signal

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.processes import Watched, kill_group, wait_until
from support.project import NewProject, Project


@pytest.fixture
def endless(new_project: NewProject, fake_cuda: FakeCuda, watched: Watched):
    """Four programs, of which two never end."""
    template = scale.TEMPLATE.replace(
        "{% else %}", "{% else %}\n{% if unroll > 2 %}// fake: hang{% endif %}\n"
    )
    return new_project(
        scale.manifest(scale.script(target="gpu", schedules=4)),
        {"kernels/scale.cu.j2": template},
        **watched.environment,
        **fake_cuda.environment,
    )


def published(project):
    """The programs in the cache that say that they are whole."""
    return {name for name, path in project.programs.items() if (path / "meta.json").exists()}


def in_journal(fake_cuda, behaviour):
    return [what for _, _, what in fake_cuda.journal].count(behaviour)


@pytest.mark.parametrize(
    ("number", "status", "whom"),
    [
        (signal.SIGINT, 130, "group"),  # Ctrl-C
        (signal.SIGTERM, 143, "parent"),
        (signal.SIGHUP, 129, "group"),  # the terminal is closed
    ],
)
def test_interrupted(endless, fake_cuda: FakeCuda, watched: Watched, number, status, whom):
    process = endless.start("build", "--json", "-j4")
    wait_until(lambda: in_journal(fake_cuda, "hang") == 2 and len(published(endless)) == 2)
    if whom == "group":
        kill_group(process, number)
    else:
        process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert "Traceback" not in err
    watched.assert_none()
    summary = endless.run("build", "--dry-run", "--json").summary
    assert (summary["cached"], summary["skipped"]) == (2, 2)

    endless.edit("kernels/scale.cu.j2", "// fake: hang", "")
    assert endless.compiled() == 2
    assert endless.run("cache", "verify").status == 0


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
