"""One attempt at one program (lock, look up again, render, compile, publish), and the workers.

The store is asked again under the program's lock, so that no program is compiled twice that another
builder published since the plan. Nothing is published unless the texts that the job renders now
have the job's hash. Whatever is raised, a stage is either published or discarded.

Rendering again costs 0.2 ms a compile, and saves that a plan holds every source
(docs/design-notes.md).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
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

_MISSING_PATH_ERRNOS = (errno.ENOENT, errno.ENOTDIR)


class ProgramAnswer(Struct, frozen=True):
    """The answer of a program: built, failed, crashed, …"""

    compiled: Compiled
    cached: bool = False
    """The store had the program, from before this build or from another builder."""
    remote: bool = False
    """The program came from a remote cache."""


class AttemptState(Enum):
    """How far an attempt without an answer is, or why it ended without one."""

    STARTED = "started"
    """A compiler is about to run."""
    ENDED = "ended"
    """The compiler has ended, and its output is published now."""

    LOCKED = "locked"
    """Another builder has the program's lock."""
    ABORTED = "aborted"
    """The build stopped before the compile, or we killed the compiler."""


AttemptResult: TypeAlias = ProgramAnswer | AttemptState | BaseException
"""An exception is an error that the program did not cause: of the disk, the machine, our code."""


class WorkerMessage(Struct, frozen=True):
    """A worker's message. After STARTED and ENDED the attempt goes on; else the worker is idle."""

    ticket: Ticket
    result: AttemptResult


class Workers:
    """The threads of a build that make attempts.

    They share nothing with the build loop but two queues: tickets go in, messages come out. The
    loop calls `start_attempt` and `join_threads`.
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

    def start_attempt(self, ticket: Ticket, running: int) -> None:
        """Queue a ticket. Start another worker if there are fewer workers than tickets.

        `running` counts the tickets that workers have, with this one. When no further thread can be
        started, the existing workers take the ticket later. Raises `OSError` when there is no
        worker.
        """
        if len(self._threads) < running:
            try:
                self._threads.append(start_thread(self._run_attempts))
            except OSError:
                if not self._threads:
                    raise
        self._tickets.put(ticket)

    def join_threads(self) -> None:
        """End the workers after their current attempts; return when none is left."""
        for _ in self._threads:
            self._tickets.put(None)
        for thread in self._threads:
            thread.join()

    def _run_attempts(self) -> None:
        """Attempt each queued ticket, until None is queued. Put each result into the inbox, an
        exception, too: nothing is raised."""
        while (ticket := self._tickets.get()) is not None:
            result: AttemptResult
            try:
                result = self._attempt_program(ticket)
            except CancelledError:
                result = AttemptState.ABORTED
            # Every error becomes a message, even one such as `MemoryError`: without a message the
            # build loop would wait for this ticket for ever.
            except BaseException as error:
                result = error
            self._inbox.put(WorkerMessage(ticket, result))

    def _attempt_program(self, ticket: Ticket) -> AttemptResult:
        """Lock a program and look it up again; compile and publish it if it is missing.

        Return the answer, or LOCKED or ABORTED. Put STARTED into the inbox before a compile, and
        ENDED when its compiler has ended. Raises as `_compile_and_publish`.
        """
        # `attempted` is the copy of the job by which the build loop cancels this very attempt.
        job = ticket.attempted or ticket.job
        if self._stopped():
            return AttemptState.ABORTED
        # A thread that waits for the lock cannot be stopped by Ctrl-C, and compiles nothing
        # meanwhile. So it does not wait, and the build loop tries the program again later.
        with self._store.lock_program(job.hash, wait=False) as is_locked:
            if not is_locked:
                return AttemptState.LOCKED
            entry = self._store.find_entry(job.hash)
            if entry is not None and entry.status in RECORDED:
                return make_answer(entry)
            # Asked a second time, because a signal may have come while the store was read.
            if self._stopped():
                return AttemptState.ABORTED
            self._inbox.put(WorkerMessage(ticket, AttemptState.STARTED))
            on_compiled = partial(self._inbox.put, WorkerMessage(ticket, AttemptState.ENDED))
            return ProgramAnswer(
                _compile_and_publish(job, self._store, self._compiler, on_compiled)
            )


def make_answer(entry: Entry) -> ProgramAnswer:
    """Return an entry of the store as an answer."""
    return ProgramAnswer(
        Compiled(entry.status, reason=str(entry.meta.get("reason") or "")), cached=True
    )


def _compile_and_publish(
    job: Job, store: Store, compiler: Compiler, on_compiled: Callable[[], None]
) -> Compiled:
    """Render and compile a program; publish it if its status is in `RECORDED`.

    Return the result, whose reason names places in the template. If the program renders now to
    other texts than those of its hash, nothing is compiled, and the status is CHANGED.
    `on_compiled` is called when the compiler has ended and its output is about to be published.
    Raises `OSError`, `CancelledError` and `TilusbuildError`.
    """
    rendered = job.render()
    # After an edit since the plan, the new texts would be published under the hash of the old ones.
    # An edit from here on has no effect: the compile has a copy of the source, and reads headers
    # from directories that are named by their digest.
    if sha256_text(rendered.program_txt + rendered.options_txt) != job.hash:
        return Compiled(Status.CHANGED, reason="an input changed while it was built; build again")
    stage = store.open_stage()
    is_published = False
    try:
        compiled = normalize_status(compiler.compile(job, rendered, stage))
        if compiled.status in RECORDED:
            # The slot and the token are free from here on: publishing only waits for the disk.
            on_compiled()
            stage.publish_program(
                job.hash, rendered.program_txt, rendered.options_txt, compiled.meta
            )
            is_published = True
        return replace(compiled, reason=locate_reason(job, compiled.reason))
    except OSError as error:
        is_stage_gone = error.errno in _MISSING_PATH_ERRNOS and not os.path.isdir(stage.path)
        if is_stage_gone:
            raise TilusbuildError(
                f"{stage.path} is gone: the cache was deleted, moved or unmounted meanwhile\n"
                "  build again"
            ) from error
        # The message should say which disk is full, but a write to an open file names no file. Of
        # the two names of a link or a rename, the second is the one that could not be created.
        if error.strerror is not None:
            error.filename = error.filename2 or error.filename or stage.path
        raise
    finally:
        if not is_published:
            stage.discard()


def locate_reason(job: Job, reason: str) -> str:
    """Return the first line of a compiler's reason, with its places in the template; the reason as
    it is when the template cannot be read."""
    return reason and locate_message(job, reason).partition("\n")[0]


def locate_message(job: Job, message: str) -> str:
    """Return a compiler's message with its places in the template; when the template cannot be
    read, as it may be gone by now, the message keeps the source's places."""
    try:
        return job.translate_log(message)
    except (OSError, TilusbuildError):
        return message


def normalize_status(compiled: Compiled) -> Compiled:
    """Return the compile with status `killed` when it was killed or ran out of memory.

    Raises `OSError` for a full or broken disk, which fails every other compile, too.
    """
    if compiled.cause is Cause.DISK:
        raise OSError(f"the compiler could not write: {compiled.reason}")
    if compiled.cause in (Cause.KILLED, Cause.MEMORY):
        return replace(compiled, status=Status.KILLED)
    return compiled
