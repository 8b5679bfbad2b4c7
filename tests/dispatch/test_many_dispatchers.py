"""Hundreds of C dispatchers in one process, loaded, unloaded, made again, or not loadable."""

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilusbuild
from support.marks import Marks
from tilusbuild.dispatch import tables
from tilusbuild.runtime.device import cpu
from tilusbuild.runtime.sealed import seal, unseal
from tilusbuild.runtime.tables import TableEntry


def ran(kernel: Any, n: int) -> int:
    """The variant of `mark` that served a size."""
    return round(float(kernel(np.zeros(n, "float32"))[-1]))


def test_one_made_again_at_its_path_is_not_taken_for_the_old_one(copied, refreshed) -> None:
    script = copied.script("mark")
    assert ran(tilusbuild.load("mark", where=copied.cache), 100) == 1
    tables.record(script, cpu().fingerprint(script.hash), [TableEntry((96,), 3, "measured", None)])
    refreshed()
    kernel = tilusbuild.load("mark", where=copied.cache)
    assert [ran(kernel, 96), ran(kernel, 96)] == [3, 3]


@pytest.mark.parametrize("damage", ["no library", "no symbol"])
def test_python_selects_where_it_cannot_be_loaded(copied: Marks, damage: str) -> None:
    directory = Path(copied.script("mark").path, "dispatch")
    library = directory / "libmark.so"
    if damage == "no library":
        library.write_bytes(b"a mount without leave to execute comes to the same")
    else:
        subprocess.run(
            ["gcc", "-shared", "-xc", "-", "-o", library], input=b"int nothing;", check=True
        )
    facts = unseal((directory / "dispatch.json").read_bytes())
    facts["library"]["sha256"] = hashlib.sha256(library.read_bytes()).hexdigest()
    (directory / "dispatch.json").write_bytes(seal(facts))
    kernel = tilusbuild.load("mark", where=copied.cache)
    assert [ran(kernel, n) for n in (4, 9, 4)] == [2, 1, 2]
