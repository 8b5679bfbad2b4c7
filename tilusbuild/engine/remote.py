"""The engine's seam for programs that another machine compiled: who is asked, and what comes back.

A remote is asked for what the store has not, and answers by messages in the build's inbox, each
program once: it is in the store now, or it is to be compiled here. Nothing here waits for a
network. While cores have nothing to do and no answer has come for the remote's `patience`, a
program that was asked for is compiled all the same; an answer that comes after that is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from msgspec import Struct

from tilusbuild.engine.attempt import ProgramAnswer
from tilusbuild.engine.events import RemoteSummary
from tilusbuild.engine.interfaces import Job
from tilusbuild.engine.states import BuildState, Ticket
from tilusbuild.status import Compiled


class RemoteAnswered(Struct, frozen=True):
    """Message of a remote: a program is in the store now; without an answer, compile it here."""

    program: str
    answer: ProgramAnswer | None


class RemoteWithdrawn(Struct, frozen=True):
    """Message of a remote that turned out to be wrong: what came from it is not in the store any
    more, and is to be compiled here."""


class Remote(Protocol):
    """Where programs may be had, and where those that were compiled here are sent. The methods are
    called on the build's thread, do not wait, and raise nothing."""

    @property
    def patience(self) -> float:
        """Seconds without an answer after which cores that are idle do not wait any longer."""
        ...

    @property
    def doubted(self) -> bool:
        """Whether a `RemoteWithdrawn` may come."""
        ...

    def ask(self, jobs: Sequence[Job], listen: Callable[[Any], None], /) -> Collection[str]:
        """Begin to ask for programs, if there are any; return the hashes of those that `listen`
        will get a `RemoteAnswered` for. It gets events and wake-ups, too."""
        ...

    def built(self, job: Job, compiled: Compiled, /) -> None:
        """Take note of a program that was compiled for this build and is in the store."""
        ...

    def busy(self) -> bool:
        """Return whether something is still on its way there that is worth waiting for."""
        ...

    def stop(self) -> None:
        """Ask and send nothing more."""
        ...

    def summary(self) -> RemoteSummary | None:
        """Return what it came to; None when it was not needed."""
        ...


class NoRemote:
    """Every program is made here."""

    patience = 0.0
    doubted = False

    def ask(self, jobs: Sequence[Job], listen: Callable[[Any], None], /) -> Collection[str]:
        return ()

    def built(self, job: Job, compiled: Compiled, /) -> None: ...

    def busy(self) -> bool:
        return False

    def stop(self) -> None: ...

    def summary(self) -> RemoteSummary | None:
        return None


class AskedTickets:
    """The tickets that a remote has not answered yet: those that are ASKED."""

    def __init__(
        self, remote: Remote, listen: Callable[[Any], None], clock: Callable[[], float]
    ) -> None:
        self._remote = remote
        self._listen = listen
        self._clock = clock
        self._by_hash: dict[str, Ticket] = {}
        self._heard = 0.0

    def __len__(self) -> int:
        return len(self._by_hash)

    @property
    def tickets(self) -> Collection[Ticket]:
        return self._by_hash.values()

    def keep(self, wanted: Collection[str]) -> None:
        """Forget those of which the program is wanted no more."""
        self._by_hash = {key: value for key, value in self._by_hash.items() if key in wanted}

    def ask(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Ask for those that are READY and never were asked for; return the others."""
        new = [
            each
            for each in tickets
            if each.state is BuildState.READY and not (each.asked or each.job.kept_here)
        ]
        asked = self._remote.ask([each.job for each in new], self._listen)
        self._heard = self._clock()
        for ticket in new:
            if ticket.job.hash in asked:
                ticket.asked = True
                ticket.move(BuildState.ASKED)
                self._by_hash[ticket.job.hash] = ticket
        return [each for each in tickets if each.state is not BuildState.ASKED]

    def take(self, program: str) -> Ticket | None:
        """Take out the ticket that was answered; None for one that is not waited for any more."""
        self._heard = self._clock()
        return self._by_hash.pop(program, None)

    def overdue(self) -> Ticket | None:
        """Take out one to compile here, when nothing was heard for long: the one asked for last."""
        if not self._by_hash or self._clock() - self._heard < self._remote.patience:
            return None
        return self._by_hash.popitem()[1]

    def drain(self) -> list[Ticket]:
        """Take all out."""
        tickets = list(self._by_hash.values())
        self._by_hash.clear()
        return tickets
