"""What comes into the build's inbox from outside: plans, wishes of `watch`, tokens, signals.

The build loop takes its messages from a queue's inbox, a new plan being one of them, and asks the
queue two things: what it knows of a program from before, and whether the build may end. So there is
one loop for `build`, whose programs are fixed from the start, and for `watch`, whose programs
another thread changes as it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Any, Protocol

from msgspec import Struct

from tilusbuild.engine.attempt import ProgramAnswer
from tilusbuild.engine.interfaces import Job
from tilusbuild.status import Status


class NewPlan(Struct, frozen=True):
    """These programs, and no others."""

    jobs: Iterable[Job]


class WantProgram(Struct, frozen=True):
    """This program too, ahead of its plan; the one with the hash `instead` no more."""

    job: Job
    instead: str | None


class WakeUp(Struct, frozen=True):
    """Nothing new, but the loop may end now."""


class TokenAvailable(Struct, frozen=True):
    """There may be a token for one more compile."""


class Queue(Protocol):
    """Says which programs a build is to have. The methods are called on the build's thread."""

    @property
    def inbox(self) -> SimpleQueue[Any]:
        """Brings `NewPlan`, `WantProgram` and `WakeUp`; workers and signals put their own."""
        ...

    def known(self, job: Job, /) -> ProgramAnswer | None:
        """Return the answer that this build gave to a program of a plan before."""
        ...

    def answered(self, job: Job, answer: ProgramAnswer, /) -> None:
        """Take note of an answer."""
        ...

    def forget(self) -> None:
        """Know nothing of answers any more: ask the store again."""
        ...

    def end(self, *, now: bool) -> bool:
        """Return whether the build ends, asked when it has nothing to do. With `now` it does."""
        ...


class FixedQueue:
    """One plan. Its jobs are asked for when the build has begun."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.inbox.put(NewPlan(jobs))

    def known(self, job: Job, /) -> ProgramAnswer | None:
        return None

    def answered(self, job: Job, answer: ProgramAnswer, /) -> None: ...

    def forget(self) -> None: ...

    def end(self, *, now: bool) -> bool:
        return True


class ControlledQueue:
    """Plans that another thread exchanges while the build runs, as `watch` does.

    A compiler that works for a program that is still wanted is never disturbed; one whose program
    is not is killed, alone; what waits is sorted again. With nothing left to do the build waits for
    as long as the queue is open. `want`, `replace`, `close` and `stop` may be called from any
    thread; the first two return False when the build has ended: then it is for a new one.
    """

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self._guard = threading.Lock()
        self._open = True
        self._ended = False
        self._answers: dict[str, ProgramAnswer] = {}

    def want(self, job: Job, instead: str | None = None) -> bool:
        """Want this program too, ahead of a whole plan, and the one with the hash `instead` no
        more."""
        return self._send(WantProgram(job, instead))

    def replace(self, jobs: Iterable[Job], *, last: bool = True) -> bool:
        """Want these programs and no others. The build ends with them when they are the `last`."""
        return self._send(NewPlan(tuple(jobs)), keep_open=not last)

    def close(self) -> None:
        """End when all is done."""
        self._send(WakeUp(), keep_open=False)

    def stop(self, signal: int) -> None:
        """Kill what runs and end, as for this signal."""
        self.inbox.put(signal)

    def known(self, job: Job, /) -> ProgramAnswer | None:
        return self._answers.get(job.hash)

    def answered(self, job: Job, answer: ProgramAnswer, /) -> None:
        # A program whose input changed may well build under the next plan.
        if answer.compiled.status != Status.CHANGED:
            self._answers[job.hash] = answer

    def forget(self) -> None:
        self._answers.clear()

    def end(self, *, now: bool) -> bool:
        # The guard and the check of the inbox make `_send` and this exclude each other: a plan is
        # either taken by this build, or its sender learns that it is too late.
        with self._guard:
            self._ended = now or (not self._open and self.inbox.empty())
            return self._ended

    def _send(self, message: object, *, keep_open: bool = True) -> bool:
        with self._guard:
            if self._ended:
                return False
            self._open = keep_open
            self.inbox.put(message)
            return True
