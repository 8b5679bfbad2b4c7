"""One try at one program, on a worker's thread: lock, look again, render, compile, publish.

Under the program's lock the store is asked once more, so that what another builder published since
the plan was made is found and not compiled twice. Nothing is published unless the texts that the
job renders now are those that its hash was made of, and the inputs are still what they were when
the compiler is through. A stage is published or discarded, whatever is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilusbuild.engine.base import Compiled, Compiler, Job, W
from tilusbuild.engine.store import Entry, Store
from tilusbuild.errors import TilusbuildError
from tilusbuild.process.base import Cancelled
from tilusbuild.state.hashing import sha256_text
from tilusbuild.status import RECORDED, Cause, Status


@dataclass(frozen=True, slots=True)
class Busy:
    """Another builder has the lock."""


@dataclass(frozen=True, slots=True)
class Found:
    """The store has it by now."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Done:
    """The compiler ran."""

    compiled: Compiled


@dataclass(frozen=True, slots=True)
class Changed:
    """An input is not what the plan read, so that the hash is no longer this program's."""

    name: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The build stops; nothing was done."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something other than the program is wrong: the disk, the machine, or our own code."""

    error: BaseException


Answer: TypeAlias = Busy | Found | Done | Changed | Gone | Trouble

_TRIES = 2


class DiskError(OSError):
    """A compiler could not write."""


def attempt(
    job: Job[W],
    store: Store,
    compiler: Compiler[W],
    *,
    began: Callable[[], None],
    through: Callable[[], None],
    stopped: Callable[[], bool],
) -> Answer:
    """Try once. `began` is called when a compiler is about to run, `through` when it has ended with
    an answer that is about to be published; never raises."""
    try:
        if stopped():
            return Gone()
        with store.locked(job.hash, wait=False) as ours:
            if not ours:
                return Busy()
            entry = store.lookup(job.hash)
            if entry is not None and entry.status in RECORDED:
                return Found(entry)
            if stopped():
                return Gone()
            began()
            return _compile(job, store, compiler, through)
    except Cancelled:
        return Gone()
    except BaseException as error:
        return Trouble(error)


def _compile(
    job: Job[W], store: Store, compiler: Compiler[W], through: Callable[[], None]
) -> Answer:
    changed = "an input"
    for _ in range(_TRIES):
        work = job.render()
        if sha256_text(work.program_txt + work.options_txt) != job.hash:
            return Changed(job.changed_input() or "an input")
        stage = store.stage()
        published = False
        try:
            compiled = judged(compiler.compile(job, work, stage))
            if compiled.status not in RECORDED:
                return Done(compiled)
            name = job.changed_input()
            if name is None:
                through()
                stage.publish_program(job.hash, work.program_txt, work.options_txt, compiled.meta)
                published = True
                return Done(replace(compiled, reason=_placed(job, compiled.reason)))
            changed = name
        except OSError as error:
            # Writing to an open file does not say which disk is full.
            if error.strerror is not None:
                error.filename = error.filename or stage.path
            raise
        finally:
            if not published:
                with suppress(OSError):
                    stage.discard()
    return Changed(changed)


def _placed(job: Job[W], reason: str) -> str:
    """The reason with the template's place; as it is when that cannot be told."""
    try:
        return job.readable(reason).partition("\n")[0] if reason else reason
    except (OSError, TilusbuildError):
        return reason


def judged(compiled: Compiled) -> Compiled:
    """Return what the engine makes of a compile: one that lacked memory is "killed", and retried.

    Raises `DiskError` when a tool met a full or broken disk: no program is to blame, and every
    other compile would meet it too.
    """
    if compiled.cause is Cause.DISK:
        raise DiskError(f"the compiler could not write: {compiled.reason}")
    if compiled.cause in (Cause.KILLED, Cause.MEMORY):
        return replace(compiled, status=Status.KILLED)
    return compiled
