"""What is added to nvcc's commands so that its threads ask for leave, and to which."""

from __future__ import annotations

import pytest

from tilusbuild.compile.threads import ThreadsRunner
from tilusbuild.process.base import Command
from tilusbuild.process.fake import FakeRunner, finished

FLAGS = " -j4 --jobserver-auth=fifo:/proc/7/fd/3"
ONE = ("/cuda/bin/nvcc", "-cubin", "-gencode", "arch=compute_80,code=sm_80", "source.cu")
TWO = ("/cuda/bin/nvcc", "-fatbin", *("-gencode", "arch=compute_80,code=sm_80") * 2, "source.cu")


def asked(*argv: str) -> tuple[Command, int]:
    """The command that is run in place of one with these words, and the peak that is told."""
    inner = FakeRunner()
    inner.on(lambda command: True, finished(peak_rss=100))
    runner = ThreadsRunner("/cuda/bin/nvcc", FLAGS, inner)
    told = runner.run(Command(argv, "/work", {"PATH": "/bin"}))
    return inner.journal[0], told.peak_rss


@pytest.mark.parametrize("argv", [ONE, ("/usr/bin/ld", "-gencode", "-gencode")])
def test_what_has_no_use_for_threads_is_run_as_it_is(argv: tuple[str, ...]) -> None:
    assert asked(*argv) == (Command(argv, "/work", {"PATH": "/bin"}), 100)


def test_several_architectures_are_compiled_on_the_threads_that_there_is_leave_for() -> None:
    command, peak = asked(*TWO)
    assert command.argv == (*TWO, "--jobserver", "--threads=0")
    assert command.env == {"PATH": "/bin", "MAKEFLAGS": FLAGS}
    assert peak == 200


@pytest.mark.parametrize("own", [("-t", "3"), ("--threads=3",), ("--threads", "3"), ("-t=3",)])
def test_a_number_of_threads_that_the_user_wrote_is_kept(own: tuple[str, ...]) -> None:
    command, _ = asked(*TWO, *own)
    assert command.argv == (*TWO, *own, "--jobserver")
