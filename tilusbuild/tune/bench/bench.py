"""Checks and samples, whatever a program does: the answer is always a value.

`DeviceBench` asks a worker process on a device; tests replay recordings in its place. After a
program that did harm, or may have, the worker is replaced, so that none is judged by what another
one left behind; a crash in a worker that others had used before is confirmed in a fresh one.

A worker is a resident process (`process/resident.py`). One that does not answer in time is killed
with all that it started; nothing of it survives `close`.

The price of a worker: a process start for each program that may have done harm and for each
`SAMPLES_PER_WORKER` samples, and a message for each sample.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import tilusbuild
from tilusbuild.errors import TilusbuildError
from tilusbuild.process.base import Command
from tilusbuild.process.local import LocalRunner, name_signal
from tilusbuild.process.resident import Resident
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.regular import open_regular, read_bytes
from tilusbuild.state.temporary import find_temporary_root
from tilusbuild.tune.bench.scores import SAMPLES_PER_WORKER
from tilusbuild.tune.bench.work import Candidate, Case

OK, INCORRECT, CRASH, TIMEOUT, LAUNCH_ERROR = "ok", "incorrect", "crash", "timeout", "launch error"
NOT_BUILT = "not built"
"""The statuses of an answer."""

# What a program may come to because of what another one left in its process. A wrong result may be
# that too, and stays one: a second look would let a race between threads pass.
_ASKED_AGAIN = (CRASH, LAUNCH_ERROR)
WARMUP = 1
"""Calls before a sample. What a sample times is estimated by one call more."""
# Seconds that the check of a winner may call it over and over.
_SOAK_SECONDS = 2.0
# Seconds for a worker to take a case: files are read, and copied to the device.
_SETUP_SECONDS = 120.0
_TIMES_BEST = 10
# What a sample may take beyond its calls, on a machine that has much else to do.
_GRACE_SECONDS = 10.0

# A disturbed sample is dropped, and the device gets a pause, which doubles: 1.5 seconds in all. The
# first is that of nvbench after a sample with throttled clocks.
_MAX_DROPPED = 5
_FIRST_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one check or one sample, which took `cost` seconds."""

    status: str
    cost: float
    seconds: float | None = None
    """Of a launch, for a sample that is ok."""
    why: str = ""
    error: float = 0.0
    """The largest absolute error that a check found."""
    note: str = ""
    """Why a sample may be too long: its launch latency shows, or the device was disturbed."""
    dropped: tuple[str, ...] = ()
    """The notes of the samples that were taken before this one and dropped."""
    faulted: bool = False
    """Whether a launch error came of what the kernel did: the call was not refused, it ran."""

    @property
    def is_refusal(self) -> bool:
        """Return whether a program that comes to this is chosen nowhere. A refused call and a time
        limit say nothing of other sizes; a wrong result and a crash do."""
        return self.status in (INCORRECT, CRASH) or self.faulted


class Bench(Protocol):
    """Calls programs on one device. One thread at a time uses it, but for `close`. Methods raise
    `CancelledError` when it is closed meanwhile, and `WorkerUnusableError`."""

    def describe_device(self) -> dict[str, Any]:
        """Return the facts of the device."""
        ...

    def check_program(self, case: Case, program: Candidate, number: int) -> Answer:
        """Call a program and compare its outputs; return the answer. `number` counts the checks of
        this program in this case: number 0 calls it once, later ones many times."""
        ...

    def time_program(self, case: Case, program: Candidate, number: int, expected: float) -> Answer:
        """Return the answer with one sample. `expected` is the seconds of the longest sample so
        far, from which the time limit follows; 0 without one."""
        ...

    def close(self) -> None:
        """End what runs on the device."""
        ...


class DeviceBench:
    """Calls programs on a device of this machine, in a worker process. `warmup` is the number of
    calls before each sample. The processor's worker runs on `core` only, unless that is None."""

    def __init__(
        self,
        runner: LocalRunner,
        kind: str,
        index: int,
        *,
        limit: float,
        warmup: int = WARMUP,
        core: int | None = None,
    ) -> None:
        self._runner = runner
        self._limit = limit
        self._warmup = warmup
        # `-I` ignores PYTHONPATH, so the worker gets the path of this package by name.
        root = os.path.dirname(os.path.dirname(os.path.abspath(tilusbuild.__file__)))
        worker_code = _WORKER_CODE.format(root=root, kind=kind, index=index, core=core)
        self._command = Command((sys.executable, "-I", "-c", worker_code), "/", dict(os.environ))
        self._worker: Resident | None = None
        self._case_digest: str | None = None
        self._has_run_programs = False
        self._patience = _MAX_DROPPED
        """How many samples may be dropped before the next one that counts."""
        self._turn = "", 0
        """The case of the last sample, and how many workers its samples have used up."""

    def describe_device(self) -> dict[str, Any]:
        """Return the facts of the device."""
        return self._prepare_worker(self._start_worker(), {"do": "describe"})

    def close(self) -> None:
        """End the worker, if it runs."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.release()
            worker.ended.wait()

    def check_program(self, case: Case, program: Candidate, number: int) -> Answer:
        """Call a program, and compare its outputs."""
        seconds = min(_SOAK_SECONDS, self._limit / 4) if number else 0.0
        request = {"do": "check", "library": program.library, "soak": seconds}
        if case.find_mismatch is not None:
            request["outputs"] = case.directory
        return self._ask_and_confirm(case, request, self._limit)

    def time_program(self, case: Case, program: Candidate, number: int, expected: float) -> Answer:
        """Take one sample of a program, in a new worker after each `SAMPLES_PER_WORKER` of a case.
        `number` counts the program's samples in the case; for `expected` see `Bench`."""
        turn = case.digest, number // SAMPLES_PER_WORKER
        # The first sample of a case goes to the worker that checked the program.
        if turn != self._turn and case.digest == self._turn[0]:
            self.close()
        self._turn = turn
        # With the time of an earlier sample the limit is shorter, so that a hang ends sooner.
        limit = (
            min(self._limit, _TIMES_BEST * expected + _GRACE_SECONDS) if expected else self._limit
        )
        request = {"do": "time", "library": program.library, "warmup": self._warmup}
        return self._drop_disturbed(partial(self._ask_and_confirm, case, request, limit))

    def _drop_disturbed(self, take_sample: Callable[[], Answer]) -> Answer:
        """Return a sample without a note, else the last one that patience allows. The others are
        dropped, and each is followed by a pause."""
        answer, dropped = take_sample(), list[str]()
        cost = answer.cost
        while answer.note and len(dropped) < self._patience:
            pause = _FIRST_PAUSE_SECONDS * 2 ** len(dropped)
            dropped.append(answer.note)
            time.sleep(pause)
            answer = take_sample()
            cost += pause + answer.cost
        # What did not end in this time may be there for the whole tuning.
        self._patience = 0 if answer.note else _MAX_DROPPED
        return replace(answer, cost=cost, dropped=tuple(dropped))

    def _ask_and_confirm(self, case: Case, request: dict[str, Any], limit: float) -> Answer:
        """Ask about a program. A crash or launch error in a worker that other programs had used
        is asked again in a new one, whose answer counts."""
        # Looked up before the question, which may start a new worker.
        has_earlier_programs = self._has_run_programs and self._case_digest == case.digest
        answer = self._ask_about_case(case, request, limit)
        if answer.status in _ASKED_AGAIN and has_earlier_programs and self._worker is None:
            second_answer = self._ask_about_case(case, request, limit)
            return replace(second_answer, cost=answer.cost + second_answer.cost)
        return answer

    def _ask_about_case(self, case: Case, request: dict[str, Any], limit: float) -> Answer:
        """Ask about a program in a worker that holds the case. Return the answer; after a failure
        that may have harmed the worker, end it."""
        # The start of a worker is a cost, too.
        start = time.monotonic()
        worker = self._start_with_case(case)
        self._has_run_programs = True
        reply = self._ask_worker(worker, request, limit)
        cost = time.monotonic() - start
        if case.find_mismatch is not None and reply["status"] == OK and "outputs" in reply:
            why = case.explain_mismatch(self._read_outputs(case, reply["outputs"]))
            reply = reply if why is None else {"status": INCORRECT, "why": why}
        # The worker's memory, or the state of the GPU, may be damaged now: other programs get a new
        # worker.
        if reply["status"] != OK and "harmless" not in reply:
            self.close()
        return Answer(
            status=reply["status"],
            cost=cost,
            seconds=reply.get("seconds"),
            why=str(reply.get("why", "")),
            error=reply.get("error", 0.0),
            note=reply.get("note", ""),
            faulted=reply["status"] == LAUNCH_ERROR and "harmless" not in reply,
        )

    def _read_outputs(self, case: Case, count: int) -> Iterator[Mapping[str, bytes]]:
        """Yield the different outputs that the worker wrote, each by argument."""
        for number in range(count):
            yield {
                argument.name: read_bytes(f"{case.directory}/{argument.name}.{number}.output")
                for argument in case.arguments
                if argument.out
            }

    def _start_with_case(self, case: Case) -> Resident:
        """Return a worker that holds the case; start one unless the present one does."""
        if self._worker is None or self._case_digest != case.digest:
            worker = self._start_worker()
            self._prepare_worker(worker, {"do": "case", "folder": case.directory})
            self._case_digest, self._has_run_programs = case.digest, False
            return worker
        return self._worker

    def _start_worker(self) -> Resident:
        """Start a new worker, and end the old one."""
        self.close()
        self._worker = Resident(self._runner.open_scope(), self._command.argv, self._command)
        self._case_digest, self._has_run_programs = None, False
        return self._worker

    def _prepare_worker(self, worker: Resident, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request that calls no program. Raises `WorkerUnusableError` if it fails."""
        reply = self._ask_worker(worker, request, _SETUP_SECONDS)
        if reply["status"] != OK:
            raise WorkerUnusableError(f"the process that measures is not ready: {reply['why']}")
        return reply

    def _ask_worker(
        self, worker: Resident, request: dict[str, Any], limit: float
    ) -> dict[str, Any]:
        """Send a request; return the reply, or one that says how the worker ended. Raises
        `CancelledError`, and `WorkerUnusableError`."""
        command = replace(self._command, timeout=limit)
        try:
            answer, is_alive = worker.send_request(command, (json.dumps(request),))
        except OSError as error:
            raise WorkerUnusableError(
                f"the process that measures does not answer: {error.strerror}"
            ) from None
        if answer.timed_out:
            return {"status": TIMEOUT, "why": f"no answer in {limit:.3g} s"}
        if not is_alive:
            name = name_signal(answer.status)
            last_line = answer.output.decode(errors="replace").strip().splitlines()[-1:]
            cause = f"killed by {name}" if name else f"exit status {answer.status}"
            return {"status": CRASH, "why": ": ".join([cause, *last_line])}
        try:
            reply: dict[str, Any] = json.loads(answer.output)
            is_unusable = reply["status"] == "broken"
        except (ValueError, TypeError, KeyError):
            # The program wrote into the descriptor of the answers.
            return {"status": CRASH, "why": "its answer cannot be read"}
        if is_unusable:
            raise WorkerUnusableError(f"measuring is not possible: {reply.get('why')}")
        return reply


def to_device(facts: Mapping[str, Any], index: int) -> Device:
    """Return the device that a worker described."""
    kind = "cpu" if facts["kind"] == "cpu" else "cuda"
    return Device(kind, index, str(facts["name"]), str(facts["arch"]), int(facts["driver"]))


def ask_gpu(runner: LocalRunner, index: int) -> Device:
    """Return a GPU by its number. Raises `WorkerUnusableError`."""
    # In a process of its own, since a failing driver may end the process.
    with contextlib.closing(DeviceBench(runner, "cuda", index, limit=60.0)) as bench:
        return to_device(bench.describe_device(), index)


@contextmanager
def lock_device(device: str, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a device (its id), so that one tuning at a time measures on it; `on_wait` is
    called once if another process holds it. Raises `OSError`."""
    # In the machine's directory for temporary files, the same for every project and user. The
    # system drops the lock however its holder ends. Containers that share a device but not that
    # directory do not see each other.
    # The id may have characters that a file name cannot have.
    name = "".join(c if c.isalnum() or c == "-" else "_" for c in device)
    path = os.path.join(find_temporary_root(), f"tilusbuild-tune-{name}.lock")
    handle = _open_lock_file(path)
    try:
        try:
            # First without waiting, to report the wait before it begins.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _open_lock_file(path: str) -> int:
    """Return a lock file's descriptor, in a directory of all users. Raises `OSError`."""
    # Never through a link: another user could make us change the mode of a file of ours.
    with suppress(FileExistsError):
        handle = open_regular(path, os.O_CREAT | os.O_EXCL, follow=False)
        os.fchmod(handle, 0o666)  # whatever the umask: other users lock it, too
        return handle
    # Without O_CREAT, which a sticky directory refuses for another user's file.
    handle = open_regular(path, follow=False)
    # A second link, or content: it is another file, of the user or of another program.
    file_status = os.fstat(handle)
    if file_status.st_size or file_status.st_nlink != 1:
        os.close(handle)
        raise OSError(errno.EPERM, "it is not a lock of tilusbuild", path)
    return handle


_WORKER_CODE = """\
import sys
sys.path.insert(0, {root!r})
from tilusbuild.tune.bench.worker import main
main({kind!r}, {index}, {core}, sys.argv[-1])
"""


class WorkerUnusableError(TilusbuildError):
    """A worker cannot measure any program: a device, memory or a file is missing."""
