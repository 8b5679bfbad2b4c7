"""Files of another user that nobody named: not believed, and it is said whose they are."""

import os
import re
from pathlib import Path

import pytest

from support.project import Project
from tilusbuild.errors import InputError
from tilusbuild.manifest import find_project_manifest
from tilusbuild.runtime import load, where
from tilusbuild.runtime.errors import LoadError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
STRANGER = 54321


@pytest.fixture(autouse=True)
def no_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)


def give(*paths: Path) -> None:
    for path in paths:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


OWNED = ("the manifest", "its directory", "a link to it", "what it links to")


def give_away(what: str, directory: Path) -> None:
    manifest = directory / "tilus.toml"
    if "link" in what:
        manifest.rename(directory / "real")
        manifest.symlink_to("real")
    places_of = {"its directory": directory, "what it links to": directory / "real"}
    give(places_of.get(what, manifest))


@pytest.mark.parametrize("what", OWNED)
def test_a_manifest_of_another_user(tmp_path, monkeypatch, what) -> None:
    directory, below = tmp_path / "shared", tmp_path / "shared/mine/deep"
    below.mkdir(parents=True)
    (directory / "tilus.toml").write_text('[build]\ncache-dir = "c"\n')
    assert find_project_manifest(str(below)) == str(directory / "tilus.toml")
    give_away(what, directory)
    for start in (directory, below):
        with pytest.raises(InputError, match=f"belongs to another user, uid {STRANGER}"):
            find_project_manifest(str(start))
        with pytest.raises(LoadError, match="TILUSBUILD_SAFE_DIRECTORIES"):
            where.check_trust(where.find_project_cache(str(start)))
    safe = (str(directory), f"/nowhere:{directory}", f"{tmp_path}/*", f"{directory}/*", "*")
    for word in safe:
        monkeypatch.setenv(where.SAFE_DIRECTORIES, word)
        assert find_project_manifest(str(below)) == str(directory / "tilus.toml")
        assert where.find_project_cache(str(below)).path == str(directory / "c")
    for word in (str(tmp_path), f"{directory}x", "", "shared", f"{directory}x/*", "/*/"):
        monkeypatch.setenv(where.SAFE_DIRECTORIES, word)
        with pytest.raises(InputError):
            find_project_manifest(str(below))


def test_who_called_sudo_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tilus.toml").write_text("")
    give(tmp_path / "tilus.toml")
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert find_project_manifest(str(tmp_path))


@pytest.mark.parametrize("what", [".git", ".cache"])
def test_a_repository_of_another_user(tmp_path, monkeypatch, what) -> None:
    for name in (".git", ".cache/scripts", "mine"):
        (tmp_path / "repository" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repository" / "mine")
    with pytest.raises(LoadError):
        load("nothing")
    give(tmp_path / "repository" / what)
    with pytest.raises(LoadError):
        load("nothing")
    with pytest.raises(LoadError):
        load("nothing", where=tmp_path / "repository" / ".cache")


def test_the_printed_remedy_serves_a_mounted_checkout(tmp_path, monkeypatch) -> None:
    """Given root and a user's repository, as in a container, when root sets what the one error
    says, then a build and a load trust it, and what was set before."""
    manifest = tmp_path / "checkout/kernels/tilus.toml"
    for directory in (tmp_path / "checkout/.git", manifest.parent):
        directory.mkdir(parents=True)
    manifest.write_text("")
    give(*tmp_path.rglob("*"), tmp_path / "checkout")
    monkeypatch.setenv(where.SAFE_DIRECTORIES, "/before")
    monkeypatch.chdir(manifest.parent)
    with pytest.raises(InputError) as refused:
        find_project_manifest(".")
    (remedy,) = re.findall(rf"{where.SAFE_DIRECTORIES}=(\S+)", refused.value.render())
    assert remedy == f"/before:{manifest.parent}:{tmp_path}/checkout"
    monkeypatch.setenv(where.SAFE_DIRECTORIES, remedy)
    assert find_project_manifest(".") == str(manifest)
    with pytest.raises(LoadError, match="nothing"):
        load("nothing")


def test_a_build_below_it_runs_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path / "shared")
    project.write_all({"tilus.toml": "not even read"})
    give(project.directory / "tilus.toml")
    ran = project.run("build", status=2)
    assert "belongs to another user" in ran.err
    assert "not even read" not in ran.err
