"""Tables of other devices, edited and torn files, changed libraries: each its own error."""

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilusbuild
from support.marks import Marks
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import REBUILD, verify_cache
from tilusbuild.runtime.device import get_cpu
from tilusbuild.runtime.errors import CorruptCacheError, LoadError


def select(copied: Marks, n: int = 100) -> tuple[int, str]:
    program, source, *_ = tilusbuild.load("mark", where=copied.cache).select(n=n)
    return program, source


def write_table(
    built: Marks, entries: list[Any], fitted: Sequence[dict[str, Any]] = (), **fields: str
) -> Path:
    script = built.script("mark")
    fingerprint = {**get_cpu().make_fingerprint(script.hash), **fields}
    path = Path(script.path, "dispatch_table.json")
    table = {"fingerprint": fingerprint, "entries": entries, "fitted": fitted}
    path.write_text(json.dumps({"schema": 2, "keys": ["n"], "tables": [table]}))
    return path


def row(size: int, program: Any, seconds: Any = 1e-5) -> list[Any]:
    """An entry of a table."""
    return [[size], program, seconds, [size], None, False, []]


def test_a_table_of_this_device_decides(copied: Marks, caplog: pytest.LogCaptureFixture) -> None:
    write_table(copied, [row(128, 3), row(1024, 0)])
    kernel = tilusbuild.load("mark", where=copied.cache)
    assert kernel.select(n=100)[:2] == (3, "measured")
    assert kernel.select(n=1024)[:2] == (0, "measured")
    assert kernel.select(n=4)[:2] == (2, "table")
    assert caplog.messages == []
    assert kernel.select(n=150)[:2] == (3, "nearest")
    assert kernel.select(n=10**9)[:2] == (0, "nearest")
    assert len(caplog.messages) == 1
    assert "n = 150" in caplog.messages[0]


def test_what_a_repository_fitted_for_another_device_is_no_mistake(copied: Marks) -> None:
    cost = {"source": "tilus.toml", "cost": ["name", "n"], "program": 3}
    write_table(copied, [], [cost])
    assert select(copied)[0] == 3
    write_table(copied, [], [cost], device="H100")
    kernel = tilusbuild.load("mark", where=copied.cache, strict=True)
    assert kernel.select(n=100)[:2] == (1, "default")


def test_a_damaged_table_or_description_is_built_again(copied: Marks):
    table = write_table(copied, [row(128, 99)])
    table.write_text("{")
    (problem,) = verify_cache(Tree(str(copied.cache)))
    assert problem.name.endswith("dispatch_table.json")
    assert problem.advice == REBUILD
    table.unlink()
    (table.parent / "script.json").write_text("{")
    (problem,) = verify_cache(Tree(str(copied.cache)))
    assert problem.advice == REBUILD


@pytest.mark.parametrize(
    "field", [{"device": "H100"}, {"arch": "sm_90"}, {"script": "0" * 64}, {"driver": "12"}]
)
def test_a_table_of_another_device_is_never_used_silently(copied, field, caplog) -> None:
    write_table(copied, [row(128, 3)], **field)
    with pytest.raises(LoadError, match=f"{next(iter(field))} is"):
        tilusbuild.load("mark", where=copied.cache, strict=True).select(n=100)
    with caplog.at_level(logging.WARNING):
        kernel = tilusbuild.load("mark", where=copied.cache)
        assert kernel.select(n=100)[:2] == (1, "default")
        assert kernel.select(n=200)[:2] == (1, "default")
    assert len(caplog.messages) == 1
    assert "table refused" in kernel.explain(n=100)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        *(([row(128, program)], f"choose program {program}") for program in (4, -1, 10**12)),
        *(([row(128, program)], "no entry") for program in ("1", True)),
        *(([[key, *row(1, 1)[1:]]], "is not a key") for key in ([128, 3], ["128"], [1 << 63])),
        *(([row(128, 1, t)], "no time") for t in ("fast", True, -1e-6, math.nan, math.inf)),
        ([[*row(128, 1)[:4], 7, False, []]], "no entry"),
        ([row(128, 1), row(128, 2)], "appears twice"),
        *(
            (entries, "is not a dispatch table")
            for entries in ([[128, 1]], [[[128]]], {"128": 1}, 7, None)
        ),
    ],
)
def test_an_invalid_dispatch_table_is_an_error(copied: Marks, entries: Any, problem: str) -> None:
    write_table(copied, entries)
    with pytest.raises(CorruptCacheError, match=problem):
        select(copied)


def test_keys_of_another_manifest(copied: Marks) -> None:
    path = write_table(copied, [row(128, 3)])
    path.write_text(path.read_text().replace('["n"]', '["m"]'))
    with pytest.raises(CorruptCacheError, match="its keys are"):
        select(copied)


def test_a_library_that_was_changed_cut_short_or_removed(copied: Marks) -> None:
    path = Path(copied.script("mark").get_library_path(1))
    data = path.read_bytes()
    kernel = tilusbuild.load("mark", where=copied.cache)
    for damaged in (data[:-40] + bytes([data[-40] ^ 1]) + data[-39:], data[:1000], None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        problem = "No such file" if damaged is None else "is not what was built"
        for _ in range(2):
            with pytest.raises(CorruptCacheError, match=problem):
                kernel(np.zeros(9, "float32"))


def test_script_files_that_do_not_belong_together(copied: Marks) -> None:
    own, other = (Path(p, "script.json") for p in copied.paths("modelled"))
    own.write_bytes(other.read_bytes())
    with pytest.raises(CorruptCacheError, match="does not belong"):
        tilusbuild.load("modelled", where=copied.cache, real="f32")
    path = Path(copied.script("mark").path, "script.txt")
    path.write_bytes(path.read_bytes().replace(b"mark", b"mork"))
    with pytest.raises(CorruptCacheError, match="is not named by"):
        tilusbuild.load("mark", where=copied.cache)


def test_a_damaged_index_and_meta(copied: Marks) -> None:
    script = copied.script("mark")
    meta = copied.cache / "programs" / script.programs[1] / "meta.json"
    meta.write_bytes(meta.read_bytes()[:-5])
    with pytest.raises(CorruptCacheError, match=r"meta\.json is damaged"):
        tilusbuild.load("mark", where=copied.cache)(np.zeros(9, "float32"))
    index = copied.cache / "index.json"
    index.write_bytes(index.read_bytes()[:-5])
    with pytest.raises(CorruptCacheError, match=r"index\.json"):
        tilusbuild.load("mark", where=copied.cache)
