"""A runner that starts every command in another way: through `srun -n1`, less urgently, or both."""

from __future__ import annotations

from dataclasses import replace

from tilusbuild.process.base import Command, CompletedCommand, Runner


class PrefixRunner:
    """Runs `prefix` followed by each command, on `runner`, with a niceness from 0 to 19.

    `prefix[0]` is a path.
    """

    def __init__(self, prefix: tuple[str, ...], runner: Runner, nice: int = 0) -> None:
        self._prefix = prefix
        self._runner = runner
        self._nice = nice

    def run(self, command: Command) -> CompletedCommand:
        argv = (*self._prefix, *command.argv)
        return self._runner.run(replace(command, argv=argv, nice=self._nice))

    def cancel(self) -> None:
        self._runner.cancel()

    def close(self) -> None:
        self._runner.close()
