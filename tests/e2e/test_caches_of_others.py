"""`tilusbuild cache …` at directories that are none, and at what is not ours in one that is."""

import os
import shutil
from pathlib import Path

import pytest

from support import scale
from support.command_line import run
from support.project import NewProject, Project, needs_cxx
from support.trees import snapshot

TAG = "Signature: 8a477f597d28d172789f06886806bc55\n"


@pytest.fixture
def built(project: Project) -> Project:
    """A project that was built."""
    project.build()
    return project


def test_a_directory_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "place"
    (directory / "v").mkdir(parents=True)
    (directory / "CACHEDIR.TAG").write_text(f"{TAG}# created by pytest\n")
    before = snapshot(tmp_path)
    words = ("cache", "export", "o", "--layout", "tilus", "--cache-dir")
    ran = run(tmp_path, *words, directory, status=2)
    assert "is not a cache of tilusbuild" in ran.err
    assert snapshot(tmp_path) == before


def test_an_export_makes_no_cache_where_none_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run(tmp_path, "cache", "export", "out", "--layout", "tilus", "--cache-dir", "empty")
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("verb", ["ls", "gc"])
@pytest.mark.parametrize("kind", [False, True])
def test_a_directory_that_is_named_must_be_one(tmp_path: Path, verb: str, kind: bool) -> None:
    if kind:
        (tmp_path / "nope").mkdir()
    before = snapshot(tmp_path)
    ran = run(tmp_path, "cache", verb, "./nope", status=2)
    assert f"./nope is not a cache: it {'is empty' if kind else 'does not exist'}" in ran.err
    assert snapshot(tmp_path) == before


def test_litter_is_said_and_what_is_not_ours_stays(built: Project) -> None:
    (built.cache / "notes").write_text("mine")
    stale = built.cache / "staging" / "0123456789abcdef0123"
    (stale / "module").mkdir(parents=True)
    ran = built.run("cache", "verify")
    assert f"staging/{stale.name}: a killed process left it: the next build or gc" in ran.err
    assert f"staging/{stale.name}" in built.run("cache", "gc", "--dry-run").out
    ran = built.run("cache", "gc")
    assert ran.out.startswith("removed 1 entry")
    assert not stale.exists()
    stale.mkdir()
    built.write("tilus.toml", (built.directory / "tilus.toml").read_text() + "\n")
    built.run("build")
    assert not stale.exists()
    built.run("cache", "clear")
    assert (built.cache / "notes").read_text() == "mine"


def test_a_project_that_is_not_known_cannot_be_forgotten(built: Project) -> None:
    ran = built.run("cache", "gc", "--forget", "nope", status=2)
    assert "--forget nope: no project of" in ran.err
    assert os.fspath(built.directory / "tilus.toml") in ran.err
    assert "removed 0" not in ran.out
    built.run("cache", "gc", "--forget", "tilus.toml")
    assert list((built.cache / "programs").iterdir()) == []


def test_a_shared_cache_forgets_deleted_checkouts(new_project: NewProject) -> None:
    """Given three checkouts with one cache, when two are deleted, then `--max-size` frees what they
    had, and says what else is needed."""
    needs_cxx()
    projects = []
    for number in range(3):
        files = {"kernels/scale.cu.j2": f"// {number}\n{scale.TEMPLATE}"}
        projects.append(new_project(scale.manifest(), files, f"checkout{number}"))
        projects[-1].run("build", "--cache-dir", projects[0].cache)
    for project in projects[1:]:
        shutil.rmtree(project.directory)
    words = ("cache", "gc", "--max-size", "1kB", "--cache-dir", projects[0].cache)
    first = projects[0].run(*words, "--dry-run")
    ran = projects[0].run(*words)
    assert ran.err == first.err
    assert f"note: {projects[1].directory}/tilus.toml is gone" in ran.err
    assert "more than 1kB: projects and packages need" in ran.err
    assert f"--forget lets what a project needs go: {projects[0].directory}/tilus.toml\n" in ran.err
    assert len(list((projects[0].cache / "programs").iterdir())) == 2
    projects[0].run("cache", "gc", "--max-size", "1kB", "--forget", "tilus.toml")
    assert list((projects[0].cache / "programs").iterdir()) == []
    assert projects[0].compiled() == 2


def test_a_build_keeps_a_cache_to_its_size(new_project: NewProject) -> None:
    """Given a size that no cache meets, when a template changes, then the build removes the earlier
    programs; a program that `run` compiles without publishing it still runs."""
    needs_cxx()
    tuned = scale.script(more='tune = { ref = "ref.py:scale", sizes = [{ n = 10 }] }')
    text = scale.manifest(tuned, build='cache-max-size = "1B"')
    project = new_project(text, {"kernels/scale.cu.j2": scale.TEMPLATE, "ref.py": scale.REFERENCE})
    assert "agrees with ref.py" in project.run("run", "scale/1").out
    for line, compiled in (("", 1), ("// edited\n", 2)):
        project.write("kernels/scale.cu.j2", line + scale.TEMPLATE)
        assert project.compiled() == compiled
        assert len(list((project.cache / "programs").iterdir())) == 2


def test_a_cache_beside_an_editors_index(new_project: NewProject) -> None:
    """Given `.cache/clangd`, when a project is built there, then its cache is beside it, `verify`
    says so once, and finds nothing wrong."""
    needs_cxx()
    project = new_project(scale.manifest(), {"kernels/scale.cu.j2": scale.TEMPLATE})
    index = project.write(".cache/clangd/index/a.idx", "")
    assert project.compiled() == 2
    for words in (("cache", "verify"), ("cache", "verify", "--repair"), ("verify", ".cache")):
        ran = project.run(*words)
        assert "no problems" in ran.out
        assert ran.err == "note: left alone, as tilusbuild did not write it: clangd\n"
    project.run("cache", "clear")
    assert index.exists()
    assert project.compiled() == 2
