"""Which accidents are tried once more: alone, so that nothing of ours was beside it when it is
reported."""

from __future__ import annotations

from tilusbuild.engine.states import ReadyQueue, Ticket
from tilusbuild.status import Compiled, Status

_RETRIED = (Status.KILLED, Status.CRASHED, Status.NO_OUTPUT)
"""Not `TIMED_OUT`, which would take as long again."""
_MAX_IN_VAIN = 8
"""After so many retries in a row that were accidents again, those that wait for theirs are reported
as they are, but for those killed for want of memory: one at a time, hundreds of crashes would take
hours."""


class Retries:
    """Counts what retries came to. Used by the build's thread."""

    def __init__(self) -> None:
        self._in_vain = 0

    def wants(self, ticket: Ticket, compiled: Compiled) -> bool:
        """Return whether a compile that ended so is tried once more. Called once for each end."""
        accident = compiled.status in _RETRIED
        if ticket.alone:
            self._in_vain = self._in_vain + 1 if accident else 0
            return False
        return accident and (compiled.status == Status.KILLED or not self._are_useless())

    def given_up(self, ready: ReadyQueue) -> list[tuple[Ticket, Compiled]]:
        """Take out those that are not tried once more after all, with how they ended."""
        return ready.take_isolated(_RETRIED[1:]) if self._are_useless() else []

    def _are_useless(self) -> bool:
        return self._in_vain >= _MAX_IN_VAIN
