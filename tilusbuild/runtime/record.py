"""Counts the sizes that a process calls, and appends the counts to a file as lines of JSON:

    {"script": "rms_norm", "params": {}, "target": "h100", "sizes": {"m": 1, "n": 512}, "calls": 9}

`tilusbuild.record` or TILUSBUILD_RECORD turns it on. Kernels then call a counter for each
combination of sizes; without it a call is as before. `tune` and `dispatch` read the file.

Counts are written every `_WRITE_SECONDS` seconds by a thread, and when the interpreter exits. A
process that is killed, or ends by `os._exit`, loses the counts since the last write. A forked
child counts only its own calls. Each write appends whole lines, so several processes may name one
file: a reader adds up the lines.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from tilusbuild.runtime.process import process
from tilusbuild.runtime.regular import append_bytes, read_bytes
from tilusbuild.runtime.script import Script

MAX_SIZES = 4096
"""Combinations of sizes of an instance that are counted apart: a server may be called with any."""
_WRITE_SECONDS = 10.0


class _Counter:
    """Counts calls. Threads may call `add` concurrently."""

    def __init__(self) -> None:
        # A step of C code: no other thread runs between the reading and the writing.
        self.add = itertools.count().__next__
        self._written = 0

    def take_calls(self) -> int:
        """Return the calls since the last `take_calls`."""
        total = self.add()
        # `+ 1` for the step above, which is not a call.
        calls, self._written = total - self._written, total + 1
        return calls

    def return_calls(self, calls: int) -> None:
        """Count calls again that were taken."""
        self._written -= calls


class Recorder:
    """Counts the calls of this process, and writes them to the file `path`."""

    def __init__(self, path: str) -> None:
        """Raise `OSError` for a file that cannot be written."""
        self.path = os.path.abspath(path)
        append_bytes(self.path, b"")
        self._counters: dict[str, dict[str, _Counter]] = {}
        """By instance, then by sizes, both as JSON. The sizes `null` stand for all others."""
        self._has_failed = False
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Make a new lock in a child. Forget the parent's counts, which the parent writes, and the
        thread, which does not exist in the child."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        for counters in self._counters.values():
            for counter in counters.values():
                counter.take_calls()

    def find_counter(self, script: Script, sizes: Mapping[str, int]) -> Callable[[], int]:
        """Return the function that counts a call of an instance with these sizes."""
        instance = {"script": script.name, "params": dict(script.params), "target": script.target}
        with self._lock:
            counters = self._counters.setdefault(json.dumps(instance), {})
            key = json.dumps(sizes)
            if key not in counters and len(counters) >= MAX_SIZES:
                key = "null"
            # Not when recording begins: a child of a fork needs a thread of its own.
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_repeatedly, daemon=True)
                with suppress(RuntimeError):  # the interpreter ends, and writes then
                    self._thread.start()
            return counters.setdefault(key, _Counter()).add

    def _write_repeatedly(self) -> None:
        while not self._stop.wait(_WRITE_SECONDS):
            self.write_counts()

    def write_counts(self) -> None:
        """Append the counts since the last write. Log a warning, once, if that fails."""
        with self._lock:
            records = [
                (f'{instance[:-1]}, "sizes": {sizes}, "calls": {calls}}}\n', counter, calls)
                for instance, counters in self._counters.items()
                for sizes, counter in counters.items()
                if (calls := counter.take_calls())
            ]
            try:
                if records:
                    append_bytes(self.path, "".join(line for line, _, _ in records).encode())
            except OSError as error:
                for _, counter, calls in records:
                    counter.return_calls(calls)
                if not self._has_failed:
                    _warn(f"calls are not recorded: {self.path}: {error.strerror}")
                self._has_failed = True

    def close(self) -> None:
        """Write the counts, and end the thread."""
        self._stop.set()
        self.write_counts()


def _warn(message: str) -> None:
    import logging  # only for a message: it takes milliseconds

    logging.getLogger("tilusbuild").warning("%s", message)


def record(path: str | os.PathLike[str] | None) -> None:
    """Count the sizes that this process calls from now on, and append the counts to the file
    `path`; with None write the last counts and stop. Kernels of `load` are counted, those of a
    `KernelCache` are not. Raises `OSError` for a file that cannot be written."""
    recorder = None if path is None else Recorder(os.fspath(path))
    if process.recorder is not None:
        process.recorder.close()
    elif recorder is not None:
        atexit.register(_close_recorder)
    process.recorder = recorder
    for kernel in list(process.kernels):
        kernel.forget_launchers()


def _close_recorder() -> None:
    if process.recorder is not None:
        process.recorder.close()


@cache
def record_once(path: str) -> None:
    """Begin to record to `path`, unless the process records already; a later call does nothing.
    Log a warning for a file that cannot be written."""
    if process.recorder is None:
        try:
            record(path)
        except OSError as error:
            _warn(f"calls are not recorded: {path}: {error.strerror}")


class RecordedCalls(NamedTuple):
    """The calls of an instance at some sizes; `sizes` of None are those beyond `MAX_SIZES`."""

    script: str
    params: Mapping[str, Any]
    sizes: Mapping[str, int] | None
    calls: int


def read_recorded_calls(path: str) -> Iterator[RecordedCalls]:
    """Yield the calls in each line of a file. Lines of another form, such as one that a full disk
    cut short, are skipped. Raises `OSError`."""
    for line in read_bytes(path).split(b"\n"):
        try:
            value = json.loads(line)
            calls = RecordedCalls(value["script"], value["params"], value["sizes"], value["calls"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        sizes = calls.sizes
        is_sizes = sizes is None or (
            isinstance(sizes, dict) and all(type(size) is int for size in sizes.values())
        )
        if is_sizes and isinstance(calls.params, dict) and type(calls.calls) is int:
            yield calls
