"""What the machine is short of is said in words that help, wherever it is met."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from support.recipes import make_toolchain
from tilusbuild.cache.disk import CacheError, make_cache_error, wrap_oserror
from tilusbuild.compile.causes import find_step_error, make_start_error
from tilusbuild.embed.dispatcher import _compile_dispatcher
from tilusbuild.errors import TilusbuildError
from tilusbuild.process.base import Command, CompletedCommand
from tilusbuild.state.digests import DigestMemory
from tilusbuild.toolchain.probe import Probe


def failed(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EAGAIN, "no more processes and threads are allowed (`ulimit -u`"),
        (errno.ENOSPC, "or has no inodes left (`df -i`): make room"),
        (errno.EMFILE, "too many files are open: raise the limit (`ulimit -n`)"),
        (errno.EFBIG, "raise the limit (`ulimit -f`)"),
        (errno.EDQUOT, "the quota of the disk is used up: make room"),
        (errno.EIO, "the disk or the file system under the cache is in trouble"),
    ],
)
def test_a_cache_that_cannot_be_written_says_what_to_do(number: int, words: str) -> None:
    assert words in str(make_cache_error("/cache/index.json", failed(number, "/cache/index.json")))


def test_of_a_link_that_cannot_be_made_it_is_the_link_that_is_named(tmp_path: Path) -> None:
    """And not where it leads, which may be there and well."""
    link = str(tmp_path / "missing" / "0")
    with pytest.raises(CacheError) as caught, wrap_oserror(str(tmp_path)):
        os.symlink("../../programs/0123", link)
    assert caught.value.path == link


def test_no_process_can_be_started_by_us_or_by_a_tool() -> None:
    error = make_start_error("nvcc", failed(errno.EAGAIN, "/usr/local/cuda/bin/nvcc"))
    assert error.reason == (
        "nvcc cannot be started: /usr/local/cuda/bin/nvcc: Resource temporarily unavailable"
        ": no more processes and threads are allowed (`ulimit -u`; `pids.max` of a container)"
    )
    log = "g++: fatal error: cannot execute 'cc1plus': vfork: Resource temporarily unavailable\n"
    ended = find_step_error("g++", CompletedCommand(1, log.encode(), 0.1, 1), log, None)
    assert ended is not None
    assert ended.reason.startswith(log.strip() + ": no more processes and threads are allowed")


class FullDisk:
    """A runner of compilers that find the disk full."""

    def run(self, command: Command) -> CompletedCommand:
        output = b"/usr/bin/ld: final link failed: No space left on device\n"
        return CompletedCommand(1, output, 0.1, 1)


def test_a_full_disk_is_neither_the_tools_fault_nor_the_dispatchers(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    runner: Any = FullDisk()
    with pytest.raises(OSError, match="No space left") as caught:
        Probe(runner, {}, DigestMemory(None))._run_program("/usr/bin/g++", "--version")
    assert caught.value.filename == str(tmp_path)
    with pytest.raises(TilusbuildError) as raised:
        _compile_dispatcher(str(tmp_path), "libk.so", make_toolchain(), runner)
    assert str(raised.value) == (
        "the dispatcher libk.so cannot be written: "
        "/usr/bin/ld: final link failed: No space left on device"
    )
