"""A build that compiles nothing holds no lock; what is removed beside it is published again."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import scale
from support.fake_engine import Listener
from support.project import needs_cxx
from tilusbuild.builder import publish
from tilusbuild.builder.build import build
from tilusbuild.builder.project import Project
from tilusbuild.cache import index
from tilusbuild.cache.garbage import clear_cache, collect_garbage
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import TilusbuildError
from tilusbuild.plan.model import PlanSelection

Built = Callable[..., None]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """Builds a project of one script, in the directory `.cache`."""
    needs_cxx()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/scale.cu.j2").write_text(scale.TEMPLATE)

    def build_it(schedules: int = 1) -> None:
        (tmp_path / "tilus.toml").write_text(scale.manifest(scale.script(schedules=schedules)))
        with Project.open(str(tmp_path), {}, {"PATH": os.environ["PATH"]}) as project:
            build(project, PlanSelection(), BuildConfig(jobs=1), Listener())

    return build_it


@pytest.mark.parametrize("who", ["clear", "somebody"])
def test_a_script_that_goes_while_its_tables_are_looked_at(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """The second time `cache clear` is kept out; who asks no lock takes away what he likes."""
    cache = tmp_path / ".cache"
    built()
    (cache / "state/published").unlink(missing_ok=True)
    after = publish._Dispatch.after
    looks: list[str] = []

    def removed_first(self: Any, path: str, instance: Any) -> None:
        looks.append(path)
        if who == "somebody":
            shutil.rmtree(path)
        elif len(looks) == 1:
            clear_cache(Tree(str(cache)))
        else:
            with pytest.raises(TilusbuildError, match="a build is using"):
                clear_cache(Tree(str(cache)))
        after(self, path, instance)

    monkeypatch.setattr(publish._Dispatch, "after", removed_first)
    if who == "somebody":
        with pytest.raises(TilusbuildError, match="build the project again"):
            built()
    else:
        built()
        assert [*cache.glob("scripts/scale/*/script.json")]
    assert len(looks) == 2


def test_a_script_that_is_collected_before_the_index_names_it(built, tmp_path, monkeypatch) -> None:
    cache = Tree(str(tmp_path / ".cache"))
    built(1)
    built(2)
    record = index.record_build
    removed: list[str] = []

    def collected_first(*words: Any, **more: Any) -> None:
        removed.extend(each.name for each in collect_garbage(cache).removed)
        record(*words, **more)

    monkeypatch.setattr(publish, "record_build", collected_first)
    built(1)
    assert any(name.startswith("scripts/") for name in removed)
    collect_garbage(cache)  # which refuses while the index names what is not there


def test_programs_that_are_cleared_after_they_were_found(built, tmp_path, monkeypatch) -> None:
    """A script's directory names no program that is not there."""
    cache = Tree(str(tmp_path / ".cache"))
    built()
    shutil.rmtree(tmp_path / ".cache/scripts/scale")
    record = publish.script_record
    looks: list[object] = []

    def cleared_after_it(*words: Any, **more: Any) -> Any:
        found = record(*words, **more)
        looks.append(found)
        if len(looks) == 1:
            clear_cache(cache)
        return found

    monkeypatch.setattr(publish, "script_record", cleared_after_it)
    built()
    assert looks
    assert verify_cache(cache) == []
