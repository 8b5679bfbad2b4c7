"""What a verb was asked to write and could not: it says so, names it, and its status is not 0."""

import os

import pytest

from support import scale
from support.project import Project

FILES = (("build", "--junit"), ("compdb", "-o"), ("report", "--html"))
DIRECTORIES = (
    *(("render", "-o"), ("package", "--format", "dir", "-o"), ("package", "--format", "oci", "-o")),
    *(("cache", "export", "--layout", "tilus"), ("cache", "merge", ".cache", "--cache-dir")),
)
NO_FILES = ("", ".", "pipe", "no/such/file", "/dev/full", "tilus.toml/x", "loop")
NO_DIRECTORIES = ("tilus.toml", "pipe", "tilus.toml/x", "/dev/full", "loop")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    files = {"tilus.toml": scale.manifest(), "kernels/scale.cu.j2": scale.TEMPLATE}
    directory = tmp_path_factory.mktemp("unwritable")
    project = Project.built(directory, {**files, ".git/HEAD": ""})
    os.mkfifo(project.directory / "pipe")
    (project.directory / "loop").symlink_to("loop")
    return project


@pytest.mark.parametrize(
    ("words", "path"),
    [
        *((words, path) for words in FILES for path in NO_FILES),
        *((words, path) for words in DIRECTORIES for path in NO_DIRECTORIES),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_not_a_success(
    built: Project, words: tuple[str, ...], path: str
) -> None:
    ran = built.run(*words, path, status=None)
    assert ran.status in (1, 2), ran.err
    assert (path.split("/")[0] or path) in ran.err
    assert "bug of tilusbuild" not in ran.err
