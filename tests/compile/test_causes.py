"""One classifier of what ended a step: facts before words, and the machine's faults are its own."""

from __future__ import annotations

import errno
import os

import pytest

from tilusbuild.compile.causes import failure, not_started
from tilusbuild.process.base import CompletedCommand
from tilusbuild.status import Cause, Status


def ended(status: int, log: str = "", timed_out: bool = False) -> Cause | None:
    finished = CompletedCommand(status, log.encode(), 1.0, 0, timed_out)
    error = failure("nvcc", finished, log)
    return error.cause if error else None


@pytest.mark.parametrize(
    ("status", "log", "cause"),
    [
        (2, 'source.cu(3): error: identifier "foo" is undefined', Cause.SOURCE),
        (2, 'source.cu(3): error: #error "a tile this large is out of memory"', Cause.SOURCE),
        (255, "nvcc fatal   : Unknown option", Cause.SOURCE),
        (1, "nvlink fatal: could not write: No space left on device", Cause.DISK),
        (1, "ld: x.o: Disk quota exceeded", Cause.DISK),
        (1, "/tmp/x.ptx: Input/output error\n1 error", Cause.DISK),
        (-6, "cicc: No space left on device", Cause.DISK),
        (1, "g++: internal compiler error: no space left on device", Cause.DISK),
        (1, "as: Cannot allocate memory", Cause.MEMORY),
        (1, "ptxas fatal   : Memory allocation failure: out of memory", Cause.MEMORY),
        (1, "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes", Cause.MEMORY),
        (1, "virtual memory exhausted: whatever", Cause.MEMORY),
        (1, "nvrtc: fatal: out of memory", Cause.MEMORY),
        (134, "terminate called after throwing an instance of 'std::bad_alloc'", Cause.MEMORY),
        (1, "terminate called after throwing an instance of 'std::bad_alloc'", Cause.MEMORY),
        (-9, "", Cause.KILLED),
        (137, "source.cu(3): error: half a line", Cause.KILLED),
        (9, "nvcc error   : 'cicc' died due to signal 9 (Kill signal)", Cause.KILLED),
        (1, "g++: fatal error: Killed signal terminated program cc1plus", Cause.KILLED),
        (9, "nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", Cause.CRASH),
        (1, "g++: internal compiler error: Segmentation fault", Cause.CRASH),
        (1, "nvrtc: fatal: it does not answer", Cause.CRASH),
        (-11, "", Cause.CRASH),
        (0, "warning: No space left on device", None),
    ],
)
def test_what_ended_a_step(status: int, log: str, cause: Cause | None) -> None:
    assert ended(status, log) == cause


def test_the_time_limit_is_known_better_than_the_signal_that_enforced_it() -> None:
    assert ended(-9, "error: half a line", timed_out=True) == Cause.TIME


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.ENOENT, Cause.TOOL),
        (errno.EACCES, Cause.TOOL),
        (errno.ENOMEM, Cause.MEMORY),
        (errno.ENOSPC, Cause.DISK),
    ],
)
def test_a_tool_that_cannot_be_started(number: int, cause: Cause) -> None:
    error = not_started("ld", OSError(number, os.strerror(number), "/usr/bin/ld"))
    assert (error.cause, error.reason[:21]) == (cause, "ld cannot be started:")


def test_only_the_source_and_the_limits_make_a_result() -> None:
    results = {cause for cause in Cause if cause.status in (Status.FAILED, Status.PRUNED)}
    assert results == {Cause.SOURCE, Cause.LIMIT}
