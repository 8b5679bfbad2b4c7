"""An exception that nobody thought of ends in a few lines and a documented status."""

import errno
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from support.command_line import run
from support.processes import run_python
from tilusbuild.cli import schema
from tilusbuild.cli.arguments import Common, Verb
from tilusbuild.cli.main import main
from tilusbuild.runtime.errors import CorruptCacheError
from tilusbuild.runtime.sealed import CorruptFileError


class Ended:
    """What a verb raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, arguments: Common) -> int:
        raise self.error


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """ends(error, *words): the status of a verb that raises it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def call(error: Exception, *words: str) -> int:
        monkeypatch.setattr(schema, "VERB", Verb(Common, Ended(error)))
        return main(["schema", *words])

    return call


def test_a_bug_is_said_to_be_one_and_its_traceback_is_in_a_file(ends, capsys, tmp_path) -> None:
    assert ends(ZeroDivisionError("odd \x1b")) == 70
    err = capsys.readouterr().err
    assert err.startswith("internal error: ZeroDivisionError: odd \\x1b\n")
    assert "issues" in err
    assert "Traceback" not in err
    (report,) = tmp_path.iterdir()
    assert str(report) in err
    assert "Traceback" in report.read_text()
    assert "schema" in report.read_text()
    assert report.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("module", ["rfc8785", "tvm_ffi.module", "jinja2"])
def test_a_dependency_that_is_not_installed_is_no_bug(ends: Any, capsys: Any, module: str) -> None:
    assert ends(ModuleNotFoundError(f"No module named '{module}'", name=module)) == 1
    err = capsys.readouterr().err
    assert err.startswith(("error: rfc8785", "error: apache-tvm-ffi", "error: jinja2"))
    assert "is not installed" in err
    assert "pip install" in err
    assert ends(ModuleNotFoundError("No module named 'tilusbuild.x'", name="tilusbuild.x")) == 70
    # Without a free descriptor importlib finds no module of Python's own.
    assert ends(ModuleNotFoundError("No module named 'email.parser'", name="email.parser")) == 1
    assert "its files cannot be read" in capsys.readouterr().err


def test_help_of_a_verb_imports_nothing_of_packages() -> None:
    run_python(
        "import sys\n"
        "from tilusbuild.cli.parser import make_full_parser\n"
        "make_full_parser().format_help()\n"
        "unwanted = ('tilusbuild.package', 'rfc8785', 'tilusbuild.tune.run')\n"
        "assert not [m for m in sys.modules if m.startswith(unwanted)]\n"
    )


def test_no_thread_is_no_bug(ends: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not by a limit of this process: a thread that does start and finds no memory is never seen to.
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    monkeypatch.setattr(threading, "_start_joinable_thread", refuse, raising=False)
    with pytest.raises(RuntimeError) as caught:
        threading.Thread(target=print).start()
    assert ends(caught.value) == 1
    assert "no further thread" in capsys.readouterr().err


def test_a_bug_is_a_line_of_json_and_its_traceback_is_printed_when_asked_for(
    ends, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("TILUSBUILD_DEBUG", "1")
    assert ends(KeyError("x"), "--json") == 70
    out, err = capsys.readouterr()
    assert "Traceback" in err
    line = json.loads(out)
    assert (line["event"], line["exit_status"]) == ("internal_error", 70)
    assert os.path.isfile(line["report"])


STANDS_FOR_IT = RuntimeError("make's jobserver cannot be opened")
STANDS_FOR_IT.__cause__ = OSError(errno.EMFILE, "Too many open files", "/proc/self/fd/6")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CorruptFileError("it is cut"), "error: it is cut\n"),
        (CorruptCacheError("it is cut"), "error: it is cut\n"),
        (STANDS_FOR_IT, "error: /proc/self/fd/6: Too many open files\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/x\x1b"), "/x\\x1b: Permission"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_a_damaged_cache_and_a_refusal_of_the_machine_are_no_bugs(
    ends, capsys, error, message, tmp_path
) -> None:
    assert ends(error) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


_STOPPED_AT_THE_END = """
import atexit, os, signal, sys
from tilusbuild.__main__ import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv = ["tilusbuild", "cache", "dir"]
sys.exit(main())
"""


def test_a_ctrl_c_after_the_work_prints_no_traceback(tmp_path: Path) -> None:
    ran = run_python(_STOPPED_AT_THE_END, status=None, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")


def test_a_working_directory_that_was_deleted(tmp_path: Path) -> None:
    gone = ("sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh")
    tmp_path.joinpath("gone").mkdir()
    err = run(tmp_path / "gone", "plan", status=2, before=gone).err
    assert "the working directory cannot be used" in err


def test_an_argument_of_blanks_is_only_unrecognized(tmp_path: Path) -> None:
    assert "unrecognized arguments" in run(tmp_path, "package", "one", "  ", status=2).err
