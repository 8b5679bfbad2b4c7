"""One attempt at one program (lock, look up again, render, compile, publish), and the workers.

Under the program's lock the store is asked once more, so that what another builder published since
the plan was made is found and not compiled twice. Nothing is published unless the texts that the
job renders now are those that its hash was made of. A stage is published or discarded, whatever is
raised.

Rendering again costs 0.2 ms a compile, and saves that a plan holds every source
(docs/design-notes.md).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.engine.interfaces import Compiler, Job, Store
from tilusbuild.engine.states import Ticket
from tilusbuild.errors import TilusbuildError
from tilusbuild.process.base import CancelledError, start_thread
from tilusbuild.state.files import sha256_text
from tilusbuild.status import RECORDED, Cause, Compiled, Status

if TYPE_CHECKING:
    from tilusbuild.cache.entries import Entry

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)


class ProgramAnswer(Struct, frozen=True):
    """The answer of a program: built, failed, crashed, …"""

    compiled: Compiled
    cached: bool = False
    """Found in the store: made before this build, or by another one meanwhile."""
    remote: bool = False
    """Another machine made it."""


class NoAnswer(Enum):
    """Why an attempt came to none, or has none yet."""

    STARTED = "started"
    """A compiler is about to run."""
    ENDED = "ended"
    """The compiler has ended, and its output is published now."""

    LOCKED = "locked"
    """Another builder has the program's lock."""
    ABORTED = "aborted"
    """Nothing was done, or the compiler was killed by us."""


AttemptResult: TypeAlias = ProgramAnswer | NoAnswer | BaseException
"""An error says that something other than the program is wrong: the disk, the machine, our code."""


class WorkerSaid(Struct, frozen=True):
    """Message of a worker: how far its attempt is; or what came of it, and it is idle again."""

    ticket: Ticket
    what: AttemptResult


class Workers:
    """The threads of a build that make attempts. `start` and `end` are called by the build loop.

    They share nothing with the loop but two queues: tickets go in, messages come out.
    """

    def __init__(
        self,
        store: Store,
        compiler: Compiler,
        inbox: SimpleQueue[Any],
        stopped: Callable[[], bool],
    ) -> None:
        self._store = store
        self._compiler = compiler
        self._inbox = inbox
        self._stopped = stopped
        self._tickets: SimpleQueue[Ticket | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def start(self, ticket: Ticket, running: int) -> None:
        """Have a worker attempt this ticket; `running` is how many have one then.

        Where no further thread can be started, those that are there take it when they are idle.
        Raises `OSError` when there is none.
        """
        if len(self._threads) < running:
            try:
                self._threads.append(start_thread(self._work))
            except OSError:
                if not self._threads:
                    raise
        self._tickets.put(ticket)

    def end(self) -> None:
        """Return when no worker is left."""
        for _ in self._threads:
            self._tickets.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (ticket := self._tickets.get()) is not None:
            result: AttemptResult
            try:
                result = self._attempt(ticket)
            except BaseException as error:  # without memory, say: who waits for the answer gets one
                result = error
            self._inbox.put(WorkerSaid(ticket, result))

    def _attempt(self, ticket: Ticket) -> AttemptResult:
        return attempt(
            ticket.attempted or ticket.job,
            self._store,
            self._compiler,
            started=partial(self._inbox.put, WorkerSaid(ticket, NoAnswer.STARTED)),
            ended=partial(self._inbox.put, WorkerSaid(ticket, NoAnswer.ENDED)),
            stopped=self._stopped,
        )


def found(entry: Entry) -> ProgramAnswer:
    """Return the answer that an entry of the store is."""
    return ProgramAnswer(
        Compiled(entry.status, reason=str(entry.meta.get("reason") or "")), cached=True
    )


def attempt(
    job: Job,
    store: Store,
    compiler: Compiler,
    *,
    started: Callable[[], None],
    ended: Callable[[], None],
    stopped: Callable[[], bool],
) -> AttemptResult:
    """Try once; never raises. `started` is called when a compiler is about to run, `ended` when it
    has ended with an answer that is about to be published."""
    try:
        if stopped():
            return NoAnswer.ABORTED
        # Not waiting for the lock: a thread that does cannot be stopped by Ctrl-C, and compiles
        # nothing meanwhile. The loop tries again later.
        with store.locked(job.hash, wait=False) as ours:
            if not ours:
                return NoAnswer.LOCKED
            entry = store.lookup(job.hash)
            if entry is not None and entry.status in RECORDED:
                return found(entry)
            if stopped():
                return NoAnswer.ABORTED
            started()
            return ProgramAnswer(_compile(job, store, compiler, ended))
    except CancelledError:
        return NoAnswer.ABORTED
    except BaseException as error:
        return error


def _compile(job: Job, store: Store, compiler: Compiler, ended: Callable[[], None]) -> Compiled:
    rendered = job.render()
    # The plan was made some time ago: an edit since then would be published under the hash of the
    # texts before it. An edit after this is not seen: a compile has its own copy of the source, and
    # headers by their digest.
    if sha256_text(rendered.program_txt + rendered.options_txt) != job.hash:
        return Compiled(Status.CHANGED, reason="an input changed while it was built; build again")
    stage = store.stage()
    published = False
    try:
        compiled = judged(compiler.compile(job, rendered, stage))
        if compiled.status in RECORDED:
            ended()
            stage.publish_program(
                job.hash, rendered.program_txt, rendered.options_txt, compiled.meta
            )
            published = True
        return replace(compiled, reason=placed(job, compiled.reason))
    except OSError as error:
        if error.errno in _NOT_THERE and not os.path.isdir(stage.path):
            raise TilusbuildError(
                f"{stage.path} is gone: the cache was deleted, moved or unmounted meanwhile\n"
                "  build again"
            ) from error
        # Writing to an open file does not say which disk is full.
        if error.strerror is not None:
            # Of a link or a rename, the second name is what is made.
            error.filename = error.filename2 or error.filename or stage.path
        raise
    finally:
        if not published:
            with suppress(OSError):
                stage.discard()


def placed(job: Job, reason: str) -> str:
    """Return the reason with the template's place; as it is when that is unknown."""
    try:
        return job.readable(reason).partition("\n")[0] if reason else reason
    except (OSError, TilusbuildError):
        return reason


def judged(compiled: Compiled) -> Compiled:
    """Return a compile with the status that the engine decides by: out of memory is "killed".

    Raises `OSError` when a tool met a full or broken disk: no program is to blame, and every
    other compile would meet it too.
    """
    if compiled.cause is Cause.DISK:
        raise OSError(f"the compiler could not write: {compiled.reason}")
    if compiled.cause in (Cause.KILLED, Cause.MEMORY):
        return replace(compiled, status=Status.KILLED)
    return compiled
