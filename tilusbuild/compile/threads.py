"""nvcc's own threads: they ask our jobserver for leave, and there are some where that pays.

nvcc compiles for several architectures one after the other, unless it is given `--threads`; which
changes no byte of what it makes. From CUDA 13.0 on it asks a jobserver before each thread that it
starts. What a program's identity and its `compile.sh` say of threads stays as the user wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilusbuild.process.base import Command, Finished, Runner

FIRST_RELEASE = (13, 0)
"""The first CUDA release whose nvcc has `--jobserver`."""
_THREADS = ("-t", "--threads", "-threads")


class ThreadsRunner:
    """Adds what lets nvcc take tokens, where it can use them, to its commands on `runner`."""

    def __init__(self, nvcc: str, makeflags: str, runner: Runner) -> None:
        self._nvcc = nvcc
        self._makeflags = makeflags
        self._runner = runner

    def run(self, command: Command) -> Finished:
        images = _images(command.argv) if command.argv[0] == self._nvcc else 0
        if images < 2:
            return self._runner.run(command)
        told = any(word.split("=")[0] in _THREADS for word in command.argv)
        more = ("--jobserver",) if told else ("--jobserver", "--threads=0")
        finished = self._runner.run(
            replace(
                command,
                argv=(*command.argv, *more),
                env={**command.env, "MAKEFLAGS": self._makeflags},
            )
        )
        # Each thread is a process with memory of its own, and the largest is all that is known.
        return replace(finished, peak_rss=images * finished.peak_rss)

    def cancel(self) -> None:
        self._runner.cancel()

    def close(self) -> None:
        self._runner.close()


def _images(argv: Sequence[str]) -> int:
    """For how many architectures this command compiles: so many threads can work for it."""
    return sum(word == "-gencode" for word in argv)
