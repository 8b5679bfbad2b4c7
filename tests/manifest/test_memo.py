"""A remembered manifest is the loaded one, or is not there."""

import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from support.hostile import manifests
from support.paths import ROOT
from tilusbuild.errors import InputError
from tilusbuild.manifest import memo
from tilusbuild.manifest.loading import load_manifest
from tilusbuild.manifest.model import Manifest

Loader = Callable[[str], Manifest]
EXAMPLE = (ROOT / "tilus.toml.example").read_text(encoding="utf-8")


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory; our own code counts as old, though it may have been edited just now."""
    monkeypatch.setattr(memo, "A_MINUTE", -(10**19))
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def environment(home: Path) -> Mapping[str, str]:
    return {"HOME": str(home)}


def everything(manifest: Manifest) -> list[object]:
    """All that the rest of tilusbuild asks of a manifest, as text."""
    directories = sorted(manifest.searched_directories)
    values: list[object] = [manifest, manifest.path, manifest.root, directories]
    for name, script in manifest.scripts.items():
        for target in manifest.list_script_targets(name):
            values += [
                script.form,
                script.list_constants(target),
                script.list_tuning_parameters(target),
            ]
            values += [script.parse_derived_values(target), script.parse_rules(target)]
            values += [script.merge_launch(target), script.merge_default(target)]
            values += [manifest.merge_flags(name, target), manifest.merge_defines(name, target)]
            values += [manifest.targets[target].is_cpu, manifest.find_std(name, target)]
            values += [manifest.list_include_dirs(name), manifest.list_header_patterns(name)]
            values.append(manifest.locate_value(*manifest.resolve_override(name, target, "flags")))
        values += [table.given for table in (script, script.launch, script.tune) if table]
    values += [table.given for table in (manifest.build, manifest.toolchain, manifest.remote)]
    return [repr(value) for value in values]


@pytest.mark.parametrize("seed", range(60))
def test_what_is_remembered_is_what_is_loaded(seed, load_example, environment) -> None:
    """A manifest that was changed at random says in located errors what is wrong with it, or it
    loads, and fails in no view; then it is remembered as it is."""
    try:
        loaded = load_example(manifests.text(manifests.mutated(random.Random(seed))))
    except InputError as error:
        loaded, locations = (
            None,
            {diagnostic.location and diagnostic.location.path for diagnostic in error.diagnostics},
        )
    assert memo.recall_manifest("tilus.toml", environment) is None
    if loaded is None:
        assert locations == {"tilus.toml"}
        return
    memo.remember_manifest(loaded, environment)
    recalled = memo.recall_manifest("tilus.toml", environment)
    assert recalled is not None
    assert everything(recalled) == everything(loaded)
    assert list(recalled) == list(loaded)


def test_one_that_was_remembered_is_frozen(load_example, environment) -> None:
    loaded = load_example(EXAMPLE)
    memo.remember_manifest(loaded, environment)
    recalled = memo.recall_manifest("tilus.toml", environment)
    assert recalled is not None
    assert everything(recalled) == everything(loaded)
    with pytest.raises(AttributeError):
        recalled.build.jobs = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        recalled.scripts["x"] = recalled.scripts["matmul"]  # type: ignore[index]


def test_another_text_another_place_and_other_code_are_not_it(
    load_script: Loader, project: Path, environment: Mapping[str, str], tmp_path: Path
) -> None:
    memo.remember_manifest(load_script("space.a = [1, 2]\n"), environment)
    manifest = project / "tilus.toml"
    text = manifest.read_text()
    os.utime(manifest, (1, 1))
    # By content, not by its stamp.
    assert memo.recall_manifest("tilus.toml", environment) is not None
    manifest.write_text(text + "# a comment\n")
    assert memo.recall_manifest("tilus.toml", environment) is None
    manifest.write_text(text)
    changes: list[tuple[object, str, object]] = [
        (sys, "version", "4.0"),
        (memo, "_PACKAGE", "/elsewhere/tilusbuild"),
        (memo, "read_stamp", lambda file: (0, 0, 0, 0)),
    ]
    for owner, name, value in changes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, value)
            assert memo.recall_manifest("tilus.toml", environment) is None
    assert memo.recall_manifest("tilus.toml", environment) is not None


def test_what_others_may_write_is_not_read(load_script, home, environment) -> None:
    memo.remember_manifest(load_script(""), environment)
    next(home.rglob("manifests/*")).chmod(0o666)
    assert memo.recall_manifest("tilus.toml", environment) is None


def test_code_that_changed_lately_is_not_vouched_for(
    load_script: Loader, home: Path, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo, "A_MINUTE", 10**19)
    memo.remember_manifest(load_script(""), environment)
    assert not (home / ".cache").exists()


def test_files_are_looked_for_each_time(load_script, project, environment) -> None:
    memo.remember_manifest(load_script('include-dirs = ["include"]\n'), environment)
    (project / "include").rmdir()
    assert memo.recall_manifest("tilus.toml", environment) is None
    with pytest.raises(InputError, match="include"):
        load_manifest("tilus.toml")
    (project / "include").mkdir()
    assert memo.recall_manifest("tilus.toml", environment) is not None
    (project / "m.cu.j2").unlink()
    assert memo.recall_manifest("tilus.toml", environment) is None


def test_a_library_takes_a_new_source(load_script, project, environment) -> None:
    (project / "src").mkdir()
    (project / "src/a.cu").write_text("")
    memo.remember_manifest(load_script('[library.l]\nsources = ["src/*.cu"]\n'), environment)
    (project / "src/b.cu").write_text("")
    recalled = memo.recall_manifest("tilus.toml", environment)
    assert recalled is not None
    assert recalled.scripts["l.sources"].files == ("src/a.cu", "src/b.cu")  # type: ignore[attr-defined]
    assert everything(recalled) == everything(load_manifest("tilus.toml"))
    (project / "src/c.cu").symlink_to("/etc/hostname")
    assert memo.recall_manifest("tilus.toml", environment) is None
