"""Caches that cannot be written, or not for long: what is there serves, the rest is said."""

import os

import pytest

from support import scale
from support.command_line import TILUSBUILD
from support.processes import run_to_end
from support.project import NewProject, Project
from support.trees import snapshot


@pytest.fixture
def in_mounts(mounts: None, project: Project):
    """in_mounts("mount …", *words) runs a command where these mounts hold; gives the process."""

    def run(preparation, *words):
        command = f'{preparation} && exec "$@"'
        return run_to_end(
            ["unshare", "-m", "sh", "-c", command, "sh", *TILUSBUILD, *words],
            status=None,
            cwd=project.directory,
            environment=project.environment,
        )

    return run


def read_only(*directories):
    return " && ".join(f'mount --bind -o ro "{path}" "{path}"' for path in directories)


@pytest.mark.parametrize("what", ["cache", "cache and home"])
def test_a_read_only_cache_serves(project: Project, in_mounts, what):
    project.build()
    directories = [project.cache] + ([os.environ["HOME"]] if what != "cache" else [])
    before = snapshot(project.directory)
    for words in (
        ("build", "--json"),
        ("build", "--json", "-j3", "-v"),
        ("plan",),
        ("run", "scale", "--size", "n=100"),
        ("cache", "verify"),
        ("explain",),
    )[: 2 if what == "cache" else None]:
        ran = in_mounts(read_only(*directories), *words)
        assert ran.returncode == 0, (words, ran.stderr)
        assert ran.stderr == "" or words[0] != "build" or "nothing to do" in ran.stderr
        assert snapshot(project.directory) == before


def test_no_home(new_project: NewProject):
    project = new_project(scale.manifest().replace('cache-dir = ".cache"', ""), HOME="/dev/null")
    (project.directory / ".git").mkdir()
    assert project.compiled() == 2, "the cache is the repository's"
    del project.environment["HOME"]
    project.before = ("env", "-u", "HOME")
    assert project.compiled() == 0


@pytest.mark.parametrize("words", [("plan",), ("build", "--json")])
def test_output_to_a_full_disk_is_an_error_and_no_traceback(project: Project, words):
    with open("/dev/full", "w") as full, project.start(*words, stdout=full) as process:
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr == "error: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(("words", "status"), [(("build",), 0), (("plan", "--target", "none"), 2)])
def test_messages_that_a_full_disk_does_not_take_change_no_exit_status(project, words, status):
    with open("/dev/full", "w") as full, project.start(*words, stderr=full) as process:
        process.communicate(timeout=60)
    assert process.returncode == status
