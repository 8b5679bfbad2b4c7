"""An entry that a record saw is not read again, as long as its library is the same file."""

import os
from pathlib import Path

import pytest

from tilusbuild.builder.resources import WATCHED, BuildStore
from tilusbuild.cache.entries import Stage
from tilusbuild.cache.tree import Tree
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import Stamp, stamp_of


@pytest.fixture
def cache(tmp_path: Path) -> Tree:
    return Tree(str(tmp_path / "cache"))


@pytest.fixture
def program(cache: Tree) -> str:
    """A published program."""
    cache.ensure()
    stage = Stage(cache)
    os.mkdir(os.path.join(stage.path, "module"))
    Path(stage.path, "module/lib.so").write_bytes(b"library")
    digest = sha256_text("program options")
    stage.publish_program(digest, "program ", "options", {"status": "built"})
    return digest


def looked_at(cache: Tree, program: str) -> tuple[Stamp, ...]:
    return tuple(stamp_of(cache.program_path(program) + part) for part in WATCHED)


def library(cache: Tree, program: str) -> Path:
    return Path(cache.program_path(program), "module/lib.so")


def test_an_entry_that_was_seen_is_not_read(cache: Tree, program: str) -> None:
    store = BuildStore(cache, {program: looked_at(cache, program)})
    entry = store.lookup(program)
    assert entry is not None
    assert (entry.status, entry.meta) == ("built", {})


def test_an_entry_that_was_not_seen_is_read(cache: Tree, program: str) -> None:
    entry = BuildStore(cache).lookup(program)
    assert entry is not None
    assert entry.meta["status"] == "built"


def test_an_entry_whose_library_is_another_file_is_read(cache: Tree, program: str) -> None:
    seen = {program: looked_at(cache, program)}
    library(cache, program).write_bytes(b"cut")
    assert BuildStore(cache, seen).lookup(program) is None


@pytest.mark.parametrize("name", ["meta.json", "module/lib.so", "program.txt", "options.txt"])
def test_an_entry_with_a_missing_part_is_not_seen(cache: Tree, program: str, name: str) -> None:
    seen = {program: looked_at(cache, program)}
    Path(cache.program_path(program), name).unlink()
    assert BuildStore(cache, seen).lookup(program) is None
