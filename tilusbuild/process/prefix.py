"""A runner that starts every command through another one: `srun -n1`, `nice`, a compiler cache."""

from __future__ import annotations

from dataclasses import replace

from tilusbuild.process.base import Command, Finished, Runner


class PrefixRunner:
    """Runs `prefix` followed by each command, on `runner`. `prefix[0]` is a path."""

    def __init__(self, prefix: tuple[str, ...], runner: Runner) -> None:
        self._prefix = prefix
        self._runner = runner

    def run(self, command: Command) -> Finished:
        return self._runner.run(replace(command, argv=(*self._prefix, *command.argv)))

    def cancel(self) -> None:
        self._runner.cancel()

    def close(self) -> None:
        self._runner.close()
