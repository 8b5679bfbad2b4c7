"""What a compile works in is no part of what it makes: what of it cannot be removed is not
published."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import scale
from support.fake_engine import Listener
from support.project import needs_cxx
from support.trees import published
from tilusbuild.builder.build import build
from tilusbuild.builder.project import Project
from tilusbuild.engine.events import Summary
from tilusbuild.engine.running import BuildConfig
from tilusbuild.plan.model import PlanSelection

Build = Callable[[], Summary]


@pytest.fixture
def built(tmp_path: Path) -> Build:
    """Builds one program into the cache `cache`."""
    needs_cxx()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "tilus.toml").write_text(scale.manifest(scale.script(schedules=1)))
    (tmp_path / "kernels/scale.cu.j2").write_text(scale.TEMPLATE)

    def build_it() -> Summary:
        options = {"cache-dir": str(tmp_path / "cache")}
        with Project.open(str(tmp_path), options, {"PATH": os.environ["PATH"]}) as project:
            return build(project, PlanSelection(), BuildConfig(jobs=1), Listener()).summary

    return build_it


class Removals:
    """Removals in `staging` fail: each, or the first; those of whole directories, or all."""

    def __init__(self, *, each: bool, of_directories: bool) -> None:
        self._each = each
        self._of_directories = of_directories
        self.failed = 0

    def watched(self, call: Callable[..., None]) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            place = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
            whole = os.path.join(place, os.fspath(path))
            fails = dir_fd is not None or not self._of_directories
            if "/staging/" in whole and fails and (self._each or not self.failed):
                self.failed += 1
                raise OSError(errno.EACCES, os.strerror(errno.EACCES), whole)
            call(path, dir_fd=dir_fd)

        return remove


def test_what_cannot_be_removed_of_a_compile_is_not_published(
    built: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"

    def compiled(removals: Removals) -> Summary:
        shutil.rmtree(cache / "programs")
        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", removals.watched(os.unlink))
            patched.setattr(os, "rmdir", removals.watched(os.rmdir))
            summary = built()
        assert removals.failed
        return summary

    assert built().exit_status == 0
    clean = published(cache)

    assert compiled(Removals(each=False, of_directories=True)).exit_status == 0
    assert published(cache) == clean

    assert compiled(Removals(each=True, of_directories=True)).exit_status == 0
    assert published(cache) == clean
    assert [*(cache / "staging").iterdir()]
    assert built().exit_status == 0
    assert not [*(cache / "staging").iterdir()]

    summary = compiled(Removals(each=True, of_directories=False))
    assert summary.exit_status == 1
    assert "Permission denied" in summary.failures[0].error
    assert not [*(cache / "programs").iterdir()]
