"""Checks and samples, whatever a program does: the answer is always a value.

`Bench` is the seam: `DeviceBench` asks a worker process on a device, tests replay recordings. After
a program that did harm, or may have, the worker is replaced, so that none is judged by what another
one left behind; a crash in a worker that others had used before is confirmed in a fresh one.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tilusbuild.process.local import LocalRunner
from tilusbuild.tune.bench.conversation import (
    Conversation,
    WorkerDiedError,
    WorkerTimeoutError,
    WorkerUnusableError,
)
from tilusbuild.tune.bench.work import Candidate, Case

OK, INCORRECT, CRASH, TIMEOUT, LAUNCH_ERROR = "ok", "incorrect", "crash", "timeout", "launch error"
"""What can come of a program."""

_BY_OTHERS = (CRASH, LAUNCH_ERROR)
"""What a program may come to because of what another one left in its process. A wrong result may be
that too, and stays one: a second look would let a race between threads pass."""
WARMUP = 1
"""Calls before a sample. What a sample times is estimated by one call more."""
_THROTTLED = 5
"""How often a throttled sample is taken again before it is taken as it is."""
_COOLING = 2.0
_SETUP = 120.0
"""Seconds for a worker to take a case: files are read, and copied to the device."""
_TIMES_BEST = 10
_GRACE = 10.0
"""What a sample may take beyond its calls, on a machine that has much else to do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one check or one sample. `cost` is what it took, in seconds."""

    status: str
    cost: float
    seconds: float | None = None
    """Of a launch, for a sample that is ok."""
    why: str = ""
    dropped: int = 0
    """Samples that were thrown away because the device was throttled."""
    error: float = 0.0
    """The largest absolute error that a check found."""
    note: str = ""
    """What is odd about a sample: it is throttled, or its launch latency shows."""


class Bench(Protocol):
    """Where programs are tried."""

    def check(self, case: Case, program: Candidate, number: int) -> Answer:
        """Call once, and look at the outputs. `number` counts the checks of this program."""
        ...

    def sample(self, case: Case, program: Candidate, number: int, expected: float) -> Answer:
        """Time once. `expected` is about how many seconds all of it should take at most."""
        ...


class DeviceBench:
    """A device of this machine. `directories` gives the directory of a case by its digest; `warmup`
    is how many calls take precedence over each sample."""

    def __init__(
        self,
        runner: LocalRunner,
        kind: str,
        index: int,
        directories: dict[str, str],
        *,
        limit: float,
        warmup: int = WARMUP,
        grace: float = _GRACE,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._runner = runner
        self._kind = kind
        self._index = index
        self._directories = directories
        self._limit = limit
        self._warmup = warmup
        self._grace = grace
        self._now = now
        self._sleep = sleep
        self._worker: Conversation | None = None
        self._case: str | None = None
        self._used = False

    def describe(self) -> dict[str, Any]:
        """Return what the device says of itself. Raises `WorkerUnusableError`."""
        return _set_up(self._fresh(), {"do": "describe"})

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def check(self, case: Case, program: Candidate, number: int) -> Answer:
        return self._confirmed(case, {"do": "check", "library": program.library}, self._limit)

    def sample(self, case: Case, program: Candidate, number: int, expected: float) -> Answer:
        limit = min(self._limit, _TIMES_BEST * expected + self._grace) if expected else self._limit
        request = {"do": "time", "library": program.library, "warmup": self._warmup}
        cost, dropped = 0.0, 0
        while True:
            answer = self._confirmed(case, request, limit)
            cost += answer.cost
            throttled = answer.status == OK and answer.note.startswith("throttled")
            if not throttled or dropped == _THROTTLED:
                return replace(answer, cost=cost, dropped=dropped)
            dropped += 1
            self._sleep(_COOLING)
            cost += _COOLING

    def _confirmed(self, case: Case, request: dict[str, Any], limit: float) -> Answer:
        others = self._used and self._case == case.digest
        answer = self._asked(case, request, limit)
        if answer.status in _BY_OTHERS and others and self._worker is None:
            again = self._asked(case, request, limit)
            return replace(again, cost=answer.cost + again.cost)
        return answer

    def _asked(self, case: Case, request: dict[str, Any], limit: float) -> Answer:
        worker = self._with_case(case)
        self._used = True
        began = self._now()
        try:
            found = worker.ask(request, limit)
        except WorkerDiedError as died:
            found = {"status": CRASH, "why": str(died)}
        except WorkerTimeoutError:
            found = {"status": TIMEOUT, "why": f"no answer in {limit:.3g} s"}
        cost = self._now() - began
        if found["status"] != OK and "harmless" not in found:
            self.close()
        note = found.get("latency", "") and "launch latency shows"
        if "throttled" in found:
            note = f"throttled: {found['throttled']}"
        return Answer(
            status=found["status"],
            cost=cost,
            seconds=found.get("seconds"),
            why=str(found.get("why", "")),
            error=found.get("error", 0.0),
            note=note,
        )

    def _with_case(self, case: Case) -> Conversation:
        if self._worker is None or self._case != case.digest:
            worker = self._fresh()
            _set_up(worker, {"do": "case", "folder": self._directories[case.digest]})
            self._case, self._used = case.digest, False
            return worker
        return self._worker

    def _fresh(self) -> Conversation:
        self.close()
        self._worker = Conversation(self._runner, self._kind, self._index)
        self._case, self._used = None, False
        return self._worker


def _set_up(worker: Conversation, request: dict[str, Any]) -> dict[str, Any]:
    """Ask for what no program has a part in. Raises `WorkerUnusableError` when it does not come."""
    try:
        return worker.ask(request, _SETUP)
    except WorkerDiedError as died:
        raise WorkerUnusableError(f"the process that measures ended: {died}") from None
    except WorkerTimeoutError:
        raise WorkerUnusableError(
            f"the process that measures is not ready in {_SETUP:g} s"
        ) from None


@contextmanager
def device_lock(device: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a device (its id), so that one tuning at a time measures on it, whoever runs
    it; `waiting` is called once when it is taken. Raises `OSError`.

    The lock is a file in the machine's directory for temporary files, the same for every project
    and user; the system drops it however its holder ends. Containers that share a device but not
    that directory do not see each other.
    """
    name = "".join(c if c.isalnum() or c == "-" else "_" for c in device)
    path = os.path.join(tempfile.gettempdir(), f"tilusbuild-tune-{name}.lock")
    handle = _open_lock(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _open_lock(path: str) -> int:
    # First without O_CREAT, which a sticky directory refuses for another user's file.
    with suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    handle = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with suppress(OSError):
        os.fchmod(handle, 0o666)
    return handle
