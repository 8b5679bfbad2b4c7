"""Which of nvcc's commands are told where to ask for leave, and how."""

import pytest

from support.fake_runner import FakeRunner, finished
from tilusbuild.compile.pipelines.nvcc import ThreadsRunner
from tilusbuild.process.base import Command

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


@pytest.mark.parametrize(
    "argv",
    [
        TWO,
        (*ONE, "--threads=2"),
        ("/usr/bin/ld", "-gencode", "-gencode", "-t"),
    ],
)
def test_what_has_no_use_for_threads_is_run_as_it_is(argv: tuple[str, ...]) -> None:
    assert asked(*argv) == (Command(argv, "/work", {"PATH": "/bin"}), 100)


@pytest.mark.parametrize("own", [("-t", "3"), ("--threads=3",), ("--threads", "3"), ("-t=3",)])
def test_threads_for_several_architectures_ask_for_tokens(own: tuple[str, ...]) -> None:
    command, peak = asked(*TWO, *own)
    assert command.argv == (*TWO, *own, "--jobserver")
    assert command.env == {"PATH": "/bin", "MAKEFLAGS": FLAGS}
    assert peak == 200
