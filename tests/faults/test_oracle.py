"""The oracle sees each kind of wrong: whatever is planted shows in its column, and nothing else
does."""

import os
import shutil
from collections.abc import Callable

import pytest

from support.faults.commands import Ended
from support.faults.oracle import Scenario, judge, of_command
from support.faults.world import FIRST, World, entries

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
CANNOT_IMPORT = """\
Could not import runpy module
Traceback (most recent call last):
  File "<frozen importlib._bootstrap>", line 1176, in _find_and_load
  File "<frozen importlib._bootstrap_external>", line 1659, in _fill_cache
OSError: [Errno 12] Cannot allocate memory: '/room/project'
"""
INTERRUPTED = """\
Traceback (most recent call last):
  File "<frozen runpy>", line 189, in _run_module_as_main
  File "<frozen importlib._bootstrap_external>", line 147, in _path_stat
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
        (Ended(-9, "", "", hung=True), "stuck"),
        (Ended(3, "", "what?"), "status"),
        (Ended(-11, "", ""), "status"),
        (Ended(1, "", ""), "status"),
        (Ended(1, '{"event": "plan", "programs": 2}\n', ""), "status"),
        (Ended(1, '{"event": "error", "mess', ""), "status"),
        (Ended(1, '{"event": "summary", "exit_status": 1, "failures": []}\n', ""), "status"),
        (Ended(130, "", ""), "status"),
    ],
)
def test_how_a_command_ends(ended: Ended, column: str) -> None:
    assert {finding.column for finding in of_command(ended, killed=False)} == {column}


@pytest.mark.parametrize(
    "ended",
    [
        Ended(1, '{"event": "error", "message": "no room"}\n', ""),
        Ended(1, '{"event": "summary", "exit_status": 1, "error": "no room"}\n', ""),
        Ended(1, "", CANNOT_BEGIN),
        Ended(1, "", CANNOT_IMPORT),
        Ended(-2, "", INTERRUPTED),
    ],
)
def test_a_command_that_says_why(ended: Ended) -> None:
    assert not [*of_command(ended, killed=False)]


def test_who_was_sent_a_signal_need_not_say_so() -> None:
    assert not [*of_command(Ended(130, "", ""), killed=False, stopped=True)]
    assert [*of_command(Ended(1, "", ""), killed=False, stopped=True)]


def test_success_that_is_none(world: World) -> None:
    world.reset("seeded")
    findings = judge(world, BUILD, {}, WELL)
    assert [finding.column for finding in findings] == ["lost"]


def test_a_build_that_fails_after_the_fault(world: World) -> None:
    def plant() -> None:
        (world.project / "tilus.toml").write_text("")

    assert "stuck" in columns(world, plant, Ended(1, "", "said"))
