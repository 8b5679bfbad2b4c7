"""The preloaded seam sees what CPython calls, counts it, and fails the call that it is told to."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from support.faults import injector
from support.processes import run_python

CALLS = {
    "open": "open('new', 'w')",
    "write": "os.write(os.open('file', os.O_WRONLY), b'x')",
    "rename": "os.replace('file', 'other')",
    "link": "os.link('file', 'other')",
    "symlink": "os.symlink('file', 'other')",
    "unlink": "os.unlink('file')",
    "mkdir": "os.mkdir('other')",
    "rmdir": "os.rmdir('directory')",
    "truncate": "os.truncate('file', 0)",
    "sync": "os.fsync(os.open('file', os.O_RDONLY))",
    "chmod": "os.chmod('file', 0o600)",
    "utime": "os.utime('file')",
    "copy": "shutil.copyfile('file', 'other')",
    "lock": "fcntl.flock(os.open('file', os.O_RDONLY), fcntl.LOCK_EX)",
    "look": "open('file')",
    "opendir": "os.listdir('.')",
    "readdir": "list(os.scandir('directory'))",
    "read": "os.read(os.open('file', os.O_RDONLY), 1)",
    "stat": "os.lstat('file')",
    "map": "mmap.mmap(os.open('file', os.O_RDWR), 1)",
    "thread": "threading.Thread(target=print).start()",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "send": "a, b = socket.socketpair(); a.send(b'x')",
    "socket": "socket.socketpair()",
    "pipe": "os.pipe()",
    "poll": "select.poll().poll(0)",
}
HEAD = "import fcntl, mmap, os, select, shutil, socket, sys, threading\n"
JOIN = "import ctypes; ctypes.CDLL(None).faults_join()\n"


@pytest.fixture(scope="session")
def library(compilers: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    return injector.build(str(tmp_path_factory.mktemp("injector")))


class Place:
    """A directory with a few things in it, and a page."""

    def __init__(self, path: Path, library: str) -> None:
        self.path = path / "place"
        self.page = injector.Page(str(path / "page"))
        self._environment = {**os.environ, **injector.environment(library, self.page)}
        self.path.mkdir()

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        for name in ("full", "directory"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        for name in ("full/file", "file"):
            (self.path / name).write_text("content")
        return run_python(HEAD + JOIN + code, status=None, cwd=self.path, env=self._environment)


@pytest.fixture
def injector_site(library: str, tmp_path: Path) -> Place:
    return Place(tmp_path, library)


@pytest.mark.parametrize(("kind", "code"), CALLS.items())
def test_each_kind_of_call_is_counted_and_fails(injector_site: Place, kind: str, code: str) -> None:
    injector_site.page.arm([kind], [str(injector_site.path)])
    ran = injector_site.run(code)
    assert ran.returncode == 0, ran.stderr
    assert injector_site.page.log
    assert set(injector_site.page.log) == {kind}

    number = injector.ERRORS[kind][0]
    injector_site.page.arm(
        [kind], [str(injector_site.path)], call_number=1, error=number, forever=True
    )
    ran = injector_site.run(code)
    assert ran.returncode == 1, "copy falls back" if kind == "copy" else code
    assert os.strerror(number) in ran.stderr or kind == "thread"
    assert injector_site.page.fired.startswith(kind)


def test_only_below_the_roots_and_only_the_call_that_was_named(injector_site: Place) -> None:
    code = "for name in 'abc':\n  try: os.mkdir(name)\n  except OSError as e: print(e.errno)"
    injector_site.page.arm(["mkdir"], [str(injector_site.path)], call_number=2, error=errno.EDQUOT)
    assert injector_site.run(code).stdout == f"{errno.EDQUOT}\n"
    assert sorted(os.listdir(injector_site.path)) == ["a", "c", "directory", "file", "full"]
    injector_site.page.arm(
        ["mkdir"], [f"{injector_site.path}/directory"], call_number=1, error=errno.EIO
    )
    assert injector_site.run("os.mkdir('d'); os.mkdir('directory/e')").returncode == 1
    assert injector_site.page.log == ["mkdir"]


def test_half_a_write_and_then_the_end(injector_site: Place) -> None:
    injector_site.page.arm(["write"], [str(injector_site.path)], call_number=1, signal=9, half=True)
    assert injector_site.run("os.write(os.open('file', os.O_WRONLY), b'abcdef')").returncode == -9
    assert (injector_site.path / "file").read_text() == "abctent"


def test_a_clock_that_is_ahead_and_files_whose_times_are_right(injector_site: Place) -> None:
    code = """import time
open('file', 'w').close()
print(round(time.time() - os.stat('file').st_mtime), end=' ')
print(round(time.clock_gettime(time.CLOCK_REALTIME) - os.stat('file').st_mtime))"""
    injector_site.page.set_clock(3600)
    assert injector_site.run(code).stdout == "3600 3600\n"
    injector_site.page.set_clock(-60)
    assert injector_site.run(code).stdout == "-60 -60\n"
    injector_site.page.set_clock(0)
    assert injector_site.run(code).stdout == "0 0\n"


def test_who_did_not_join_is_not_harmed(injector_site: Place) -> None:
    injector_site.page.arm(
        injector.KINDS, [str(injector_site.path)], call_number=1, error=errno.EIO, forever=True
    )
    ran = injector_site.run("").returncode, injector_site.page.log
    assert ran == (0, [])
