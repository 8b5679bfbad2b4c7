"""A build that is stopped, however rudely, leaves no process, no torn entry, and nothing undone."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.processes import Watched, kill_group, wait_until
from support.project import NewProject, Project

SCHEDULES = 24


@pytest.fixture
def slow(new_project: NewProject, fake_cuda: FakeCuda, watched: Watched):
    """Twenty-four programs of some 50 ms, and a journal of their compiles."""
    template = scale.TEMPLATE.replace("{% else %}", "{% else %}\n// fake: slow 0.05\n")
    return new_project(
        scale.manifest(scale.script(target="gpu", schedules=SCHEDULES)),
        {"kernels/scale.cu.j2": template},
        **watched.environment,
        **fake_cuda.environment,
    )


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


def keys_of_programs(project, fake_cuda, tmp_path):
    """The journal's key of each program, learnt from a build elsewhere, one program at a time."""
    began = fake_cuda.compiles
    ran = project.run("build", "--json", "-j1", "--cache-dir", str(tmp_path / "reference"))
    hashes = [event["hash"] for event in ran.events if event["event"] == "started"]
    keys = [key for _, key, _ in fake_cuda.journal][sum(began.values()) :]
    assert len(set(keys)) == len(keys) == len(hashes) == SCHEDULES
    return dict(zip(hashes, keys, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("whom", "kills"), [("group", 50), ("parent", 10)])
def test_killed_at_any_instant(
    slow, fake_cuda: FakeCuda, watched: Watched, tmp_path: Path, whom, kills
):
    """SIGKILL to the whole group, or to the main process alone. The instants are random from the
    start on, most of them while compilers run; a build that ends too early is killed in vain, and
    the next one begins with an empty cache."""
    keys = keys_of_programs(slow, fake_cuda, tmp_path)
    chance = random.Random(whom)
    interrupted = 0
    for number in itertools.count():
        if interrupted >= kills:
            break
        assert number < 3 * kills
        before, tried = published(slow), fake_cuda.compiles
        process = slow.start("build", "--json", "-j3", stderr=subprocess.DEVNULL)
        if chance.random() < 0.8:
            for line in process.stdout:
                if '"event": "started"' in line:
                    break
            time.sleep(chance.uniform(0, 0.15))
        else:
            time.sleep(chance.uniform(0, 1))
        if whom == "group":
            kill_group(process)
        else:
            process.kill()
        with process:
            process.stdout.read()
        interrupted += process.returncode == -signal.SIGKILL
        watched.assert_none()
        assert before <= published(slow), "what was published stays"
        repeated = {keys[program] for program in before} & set(fake_cuda.compiles - tried)
        assert not repeated, "nothing that was published is compiled again"
        if len(published(slow)) == SCHEDULES:
            slow.run("build")
            assert slow.run("cache", "verify").status == 0
            slow.run("cache", "clear")

    left = SCHEDULES - len(published(slow))
    assert slow.compiled() == left
    assert len(published(slow)) == SCHEDULES
    assert slow.run("cache", "verify").out.strip() == "no problems found"
    assert not list(slow.cache.glob("staging/*")), "what was left half-done is gone"


@pytest.mark.slow
def test_eight_builds_at_once(slow, fake_cuda: FakeCuda):
    builds = [slow.start("build", "--json", "-j2") for _ in range(8)]
    said = [build.communicate(timeout=120) for build in builds]
    assert [build.returncode for build in builds] == [0] * 8, said
    assert sorted(fake_cuda.compiles.values()) == [1] * SCHEDULES
    assert len(published(slow)) == SCHEDULES
    assert slow.run("cache", "verify").out.strip() == "no problems found"
    assert slow.compiled() == 0


@pytest.mark.parametrize(
    ("number", "status", "whom"),
    [
        (signal.SIGINT, 130, "group"),  # Ctrl-C
        (signal.SIGINT, 130, "parent"),
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


def test_the_second_interrupt_ends_at_once(endless, fake_cuda: FakeCuda, watched: Watched):
    process = endless.start("build", "-j4")
    wait_until(lambda: in_journal(fake_cuda, "hang") == 2)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in err
    watched.assert_none()


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
