"""Nothing in a foreign cache leads gc or install out of it: links, FIFOs and mounts at every level.
The oracle: what lies outside is as it was, each inode, time and size of it."""

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.processes import run_mounted
from support.trees import THINGS, put, snapshot
from tilusbuild.errors import InputError, TilusbuildError
from tilusbuild.interop.caches import gc, read_foreign_cache

SYSTEMS = ["hidet", "tilelang", "tilus", "triton"]
MakeAt = Callable[[str, Path], Path]


def below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@settings(max_examples=int(os.environ.get("TREES", "60")))
@given(system=st.sampled_from(SYSTEMS), data=st.data())
def test_no_link_or_fifo_leads_outside(make_at: MakeAt, system: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        outside = Path(directory, "outside")
        outside.mkdir()
        root = make_at(system, Path(directory, "cache"))
        places = st.sampled_from(below(root))
        for number, path in enumerate(data.draw(st.lists(places, min_size=1, max_size=3))):
            thing = data.draw(st.sampled_from(THINGS))
            put(thing, str(root / path), str(outside), number)
        before = snapshot(outside)
        with suppress(TilusbuildError):
            cache = read_foreign_cache(str(root))
            removals = gc.choose_removals(cache, now=time.time() + 1e7, older_than=0, broken=True)
            list(gc.remove_unless_in_use(cache, removals))
        assert snapshot(outside) == before


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_directory_as_a_link_hides_what_is_behind_it(make_at, system, tmp_path) -> None:
    root = make_at(system, tmp_path / "cache")
    for number, first in enumerate(sorted(os.listdir(root))):
        put("link to a copy", str(root / first), str(tmp_path), number)
    before = snapshot(tmp_path)
    with pytest.raises(InputError, match="not a known cache"):
        read_foreign_cache(str(root))
    assert snapshot(tmp_path) == before


MOUNTED = """
import sys, time
from tilusbuild.interop.caches import gc, read_foreign_cache
cache = read_foreign_cache(sys.argv[1])
removals = gc.choose_removals(cache, now=time.time() + 1e7, older_than=0)
removed = gc.remove_unless_in_use(cache, removals)
print(sorted(removal.path for removal, gone in removed if not gone))
"""


def test_a_mount_in_an_entry_is_left(make_at: MakeAt, tmp_path: Path) -> None:
    root = make_at("tilus", tmp_path / "cache")
    entry = read_foreign_cache(str(root)).entries[0].path
    (root / entry / "mounted").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("mine")
    before = snapshot(tmp_path / "outside")
    where = {"outside": str(tmp_path / "outside"), "place": str(root / entry / "mounted")}
    done = run_mounted('mount --bind "$outside" "$place"', MOUNTED, root, **where)
    assert done.stdout == f"{[entry]}\n"
    assert snapshot(tmp_path / "outside") == before
