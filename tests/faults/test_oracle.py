"""The oracle sees each kind of wrong: whatever is planted shows in its column, and nothing else
does."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable

import pytest

from support.faults.commands import Ended
from support.faults.groups.clocks import CLOCKS
from support.faults.laboratory import try_one
from support.faults.measured import measured_problem
from support.faults.oracle import Scenario, judge, of_command
from support.faults.world import FIRST, HOST, World, entries

WELL = Ended(0, "", "")
CANNOT_BEGIN = """\
Python path configuration:
  PYTHONHOME = (not set)
Fatal Python error: init_fs_encoding: failed to get the Python codec
Python runtime state: core initialized
ModuleNotFoundError: No module named 'encodings'

Current thread 0x00007ffa7bbddb80 (most recent call first):
  <no Python frame>
"""
BUILD = Scenario("test", ("build",))
CANNOT_FIND_ITSELF = """\
Exception ignored error evaluating path:
Traceback (most recent call last):
  File "<frozen getpath>", line 353, in <module>
OSError: [Errno 24] Too many open files
Fatal Python error: error evaluating path
Python runtime state: core initialized

Current thread 0x00007f19491efb80 (most recent call first):
  <no Python frame>
"""
CANNOT_IMPORT = """\
Could not import runpy module
Traceback (most recent call last):
  File "<frozen importlib._bootstrap>", line 1176, in _find_and_load
  File "<frozen importlib._bootstrap_external>", line 1659, in _fill_cache
OSError: [Errno 12] Cannot allocate memory: '/room/project'
"""
CANNOT_READ = f"""\
Could not import runpy module
Traceback (most recent call last):
  File "<frozen importlib._bootstrap>", line 1176, in _find_and_load
  File "<frozen importlib.util>", line 14, in <module>
  File "{contextlib.__file__}", line 6, in <module>
OSError: [Errno 5] Input/output error
"""
INTERRUPTED = """\
Traceback (most recent call last):
  File "<frozen runpy>", line 189, in _run_module_as_main
  File "<frozen importlib._bootstrap_external>", line 147, in _path_stat
KeyboardInterrupt
"""
NO_SITE = """\
Fatal Python error: init_import_site: Failed to import the site module
Python runtime state: initialized
Traceback (most recent call last):
  File "<frozen site>", line 186, in addpackage
  File "<string>", line 1, in <module>
  File "<frozen importlib._bootstrap>", line 1176, in _find_and_load
KeyboardInterrupt
"""


def columns(world: World, plant: Callable[[], object], ended: Ended = WELL) -> set[str]:
    world.reset("built")
    before = entries(world.cache)
    plant()
    return {finding.column for finding in judge(world, BUILD, before, ended)}


def program(world: World) -> str:
    return min(world.programs_of(FIRST))


def test_nothing_is_found_where_nothing_is_wrong(world: World) -> None:
    assert columns(world, lambda: None) == set()


def test_a_program_that_is_gone(world: World) -> None:
    path = world.cache / "programs" / program(world)
    assert {"lost"} <= columns(world, lambda: shutil.rmtree(path))


@pytest.mark.parametrize("name", ["module/lib.so", "meta.json", "program.txt"])
def test_a_file_that_is_cut_or_other(world: World, name: str) -> None:
    path = world.cache / "programs" / program(world) / name
    assert "torn" in columns(world, lambda: os.truncate(path, 10))
    assert "torn" in columns(world, lambda: path.write_bytes(b"x" + path.read_bytes()[1:]))
    assert "torn" in columns(world, lambda: (path.parent / "stray").write_text(""))


def test_what_no_build_sees_is_stale_in_the_end(world: World) -> None:
    path = world.cache / "programs" / program(world) / "module/lib.so"
    data = path.read_bytes()
    assert "stale" in columns(world, lambda: path.write_bytes(data[:-1] + b"x"))


def test_a_program_that_was_compiled_though_it_was_there(world: World) -> None:
    key = world.key_of(program(world))
    journal = world.toolkit / "journal"
    assert columns(world, lambda: journal.write_text(f"cubin {key} well\n")) == {"twice"}


@pytest.mark.parametrize("name", ["tmp/x", "home/.tmp-1/y"])
def test_files_that_are_left_over(world: World, name: str) -> None:
    def plant() -> None:
        path = world.room / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")

    assert columns(world, plant) == {"left over"}


def test_processes_that_are_left_over(world: World) -> None:
    def plant() -> None:
        os.kill(world.start_sleeper(), 0)

    assert columns(world, plant) == {"left over"}


@pytest.mark.parametrize(
    ("ended", "column"),
    [
        (Ended(1, "", "Traceback (most recent call last):\n"), "traceback"),
        (Ended(70, "", "internal error: KeyError: 1\n"), "traceback"),
        (Ended(1, "", f'{CANNOT_IMPORT}  File "tilusbuild/x.py", line 1\n'), "traceback"),
        (Ended(-2, "", f'{INTERRUPTED}  File "tilusbuild/x.py", line 1\n'), "traceback"),
        (Ended(1, "", NO_SITE.partition("\n")[2]), "traceback"),
        (Ended(1, "", CANNOT_READ.partition("\n")[2]), "traceback"),
        (Ended(-9, "", "", hung=True), "stuck"),
        (Ended(3, "", "what?"), "status"),
        (Ended(-11, "", ""), "status"),
        (Ended(1, "", ""), "status"),
        (Ended(1, '{"event": "plan", "programs": 2}\n', ""), "status"),
        (Ended(1, '{"event": "error", "mess', ""), "status"),
        (Ended(1, '{"event": "summary", "exit_status": 1, "failures": []}\n', ""), "status"),
        (Ended(130, "", ""), "status"),
        (Ended(1, "", f"{CANNOT_BEGIN}\nTraceback (most recent call last):\n"), "traceback"),
    ],
)
def test_how_a_command_ends(world: World, ended: Ended, column: str) -> None:
    assert columns(world, lambda: None, ended) == {column}


@pytest.mark.parametrize(
    "ended",
    [
        Ended(1, '{"event": "error", "message": "no room"}\n', ""),
        Ended(1, '{"event": "summary", "exit_status": 1, "error": "no room"}\n', ""),
        Ended(1, "", CANNOT_BEGIN),
        Ended(1, "", CANNOT_FIND_ITSELF),
        Ended(1, "", CANNOT_IMPORT),
        Ended(1, "", CANNOT_READ),
        Ended(-2, "", INTERRUPTED),
        Ended(1, "", NO_SITE),
    ],
)
def test_a_command_that_says_why(ended: Ended) -> None:
    assert not [*of_command(ended, killed=False)]


def test_who_was_sent_a_signal_need_not_say_so() -> None:
    assert not [*of_command(Ended(130, "", ""), killed=False, stopped=True)]
    assert [*of_command(Ended(1, "", ""), killed=False, stopped=True)]


MEASURED = {
    "dispatch_table.json": b'{"tables": [{"entries": [[[128], 1, "measured", 0.5]]}]}',
    "dispatch_table.txt": b"128         1  measured  500.0\n",
    "latency/128/measured.json": b'{"key": [128], "measured": [{"seconds": {"0": 0.7, "1": 0.5}}]}',
    "dispatch/dispatch.json": b"",
    "dispatch/libscale.so": b"",
}


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("dispatch_table.json", b"1,", b"0,"),
        ("dispatch_table.json", b"0.5", b"0.6"),
        ("dispatch_table.json", b"]}]}", b""),
        ("dispatch_table.txt", b" 1 ", b" 0 "),
        ("dispatch_table.txt", b"128", b""),
        ("latency/128/measured.json", b"0.7", b"0.4"),
        ("latency/128/measured.json", b"128", b"64"),
    ],
)
def test_what_was_measured_and_what_says_so(name: str, old: bytes, new: bytes) -> None:
    assert measured_problem(MEASURED) is None
    data = MEASURED[name]
    assert old in data
    assert measured_problem({**MEASURED, name: data.replace(old, new)})
    assert measured_problem({key: value for key, value in MEASURED.items() if key != name})


def test_success_that_is_none(world: World) -> None:
    world.reset("seeded")
    found = judge(world, BUILD, {}, WELL)
    assert [finding.column for finding in found] == ["lost"]


def test_a_build_that_fails_after_the_fault(world: World) -> None:
    def plant() -> None:
        (world.project / "tilus.toml").write_text("")

    assert "stuck" in columns(world, plant, Ended(1, "", "said"))


def test_a_trial_is_the_same_after_one_of_another_edition(world: World) -> None:
    """An environment that was taken before `reset` was that of the trial before: its compilers."""
    world.reset("on-host", HOST)
    tried = try_one(world, CLOCKS, "+60 971805853", seed=13)
    assert tried is not None
    assert not tried.findings
