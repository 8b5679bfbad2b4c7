"""nvcc's own threads, where the user wrote `--threads`: they ask our jobserver for leave.

nvcc compiles for several architectures one after the other, unless it is given `--threads`; which
changes no byte of what it makes, but the order of what it prints. From CUDA 13.0 on it asks a
jobserver before each thread that it starts. A program's identity and its `compile.sh` say of
threads what the user wrote and no more.
"""

from __future__ import annotations

from dataclasses import replace

from tilusbuild.process.base import Command, CompletedCommand, Runner

FIRST_RELEASE = (13, 0)
"""The first CUDA release whose nvcc has `--jobserver`."""
_THREADS = ("-t", "--threads", "-threads")


class ThreadsRunner:
    """Has nvcc take tokens for its threads, in its commands on `runner`."""

    def __init__(self, nvcc: str, makeflags: str, runner: Runner) -> None:
        self._nvcc = nvcc
        self._makeflags = makeflags
        self._runner = runner

    def run(self, command: Command) -> CompletedCommand:
        images = sum(word == "-gencode" for word in command.argv)
        threads = any(word.split("=")[0] in _THREADS for word in command.argv)
        if command.argv[0] != self._nvcc or images < 2 or not threads:
            return self._runner.run(command)
        finished = self._runner.run(
            replace(
                command,
                argv=(*command.argv, "--jobserver"),
                env={**command.env, "MAKEFLAGS": self._makeflags},
            )
        )
        # Each thread is a process with memory of its own, and the largest is all that is known.
        return replace(finished, peak_rss=images * finished.peak_rss)

    def cancel(self) -> None:
        self._runner.cancel()

    def close(self) -> None:
        self._runner.close()
