"""Hundreds of C dispatchers in one process, loaded, unloaded, made again, or not loadable."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import sys
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


def test_five_hundred_are_open_at_once(copied: Marks, tmp_path: Path) -> None:
    library = Path(copied.script("mark").path, "dispatch", "libmark.so")
    opened = []
    for number in range(500):  # each a file of its own: the loader opens one path once
        path = tmp_path / f"lib{number}.so"
        shutil.copyfile(library, path)
        opened.append(ctypes.CDLL(str(path)))
    assert {(lib.mark_select(4), lib.mark_select(9)) for lib in opened} == {(2, 1)}


CYCLES = """\
import ctypes, resource, sys, threading
import _ctypes

def cycle():
    library = ctypes.CDLL(sys.argv[1])
    thread = threading.Thread(target=library.mark_select, args=(9,))
    thread.start()
    thread.join()
    _ctypes.dlclose(library._handle)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

libc = ctypes.CDLL(None)
for _ in range(200):
    cycle()
before = resident()
for _ in range(2000):
    cycle()
key = ctypes.c_uint()
print(resident() - before, libc.pthread_key_create(ctypes.byref(key), None))
"""


def test_loading_and_unloading_two_thousand_times_keeps_nothing(
    copied: Marks, tmp_path: Path
) -> None:
    library = Path(copied.script("mark").path, "dispatch", "libmark.so")
    done = subprocess.run(
        [sys.executable, "-c", CYCLES, str(library)],
        capture_output=True,
        text=True,
        check=True,
    )
    grown, no_key = map(int, done.stdout.split())
    assert grown < 2 << 20, "a cycle left about a kilobyte or more"
    assert not no_key, "the process has run out of thread-specific keys"


def test_one_made_again_at_its_path_is_not_taken_for_the_old_one(
    copied: Marks, refreshed: Any
) -> None:
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
