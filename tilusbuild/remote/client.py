"""The remote cache of one build: `engine.inbox.Remote` over a back end.

Threads of its own ask, fetch and send; they hold no slot of the build and never make it wait: each
program that was asked for is answered once, whatever happens, and what is in trouble costs one
warning. What came from the remote is not sent back, and what was refused is sent again.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from tilusbuild.cache import layout
from tilusbuild.cache.checks import Origin, check_directory, check_entry
from tilusbuild.cache.entries import Entry, list_meta_files, lookup_entry
from tilusbuild.cache.garbage import read_header_digests
from tilusbuild.cache.tree import Tree
from tilusbuild.engine import events
from tilusbuild.engine.inbox import RemoteAnswered
from tilusbuild.engine.interfaces import Store
from tilusbuild.process.base import start_thread
from tilusbuild.remote.archive import Archive, ArchiveError, include_key, pack_entry, program_key
from tilusbuild.remote.backend import Backend, BrokenError, Guard, open_backend
from tilusbuild.remote.fetch import Fetcher, Outcome
from tilusbuild.remote.settings import RemoteSettings
from tilusbuild.runtime.regular import read_bytes

# Programs that are refused by name; after so many nothing of that remote is used.
_MAX_REFUSED = 3
_SENDERS = 2
# Seconds that the threads have to end; those that a server holds up are left behind.
_JOIN_SECONDS = 5.0
_COUNTER_NAMES = ("hits", "misses", "refused", "verified", "wrong")


class RemoteCache:
    """The remote cache, for the build's thread, which never waits: threads of this object do."""

    def __init__(
        self,
        settings: RemoteSettings,
        store: Store,
        cache: Tree,
        listen: Callable[[Any], None],
        verify: Callable[[str, Archive], str | None] | None = None,
    ) -> None:
        """`listen` gets events and answers; `verify` is the `Fetcher`'s. Connects to nothing yet.
        Raises `RemoteTroubleError`, as `open_backend` does."""
        self._settings = settings
        self._listen = listen
        self._lock = threading.Lock()
        self._asking = Guard(self._report_broken_circuit)
        self._backend = open_backend(settings)
        self._uploads = Uploads(
            settings,
            self._backend,
            cache,
            listen,
            lambda why: self._warn_once(f"{why}; nothing more is sent to it"),
        )
        self._fetcher = Fetcher(self._backend, self._asking, store, cache, verify, settings.verify)
        self._to_ask: SimpleQueue[list[tuple[str, str]] | None] = SimpleQueue()
        self._stopped = False
        self._troubled = False
        self._counts: dict[str, Any] = dict.fromkeys(_COUNTER_NAMES, 0)
        self._saved = 0.0
        self._askers: list[threading.Thread] = []

    # On the build's thread.

    def request_programs(self, labels: Mapping[str, str]) -> Collection[str]:
        """Queue programs to be fetched. `labels` has the label of each program by its hash.

        Return the hashes that get a `RemoteAnswered`: all, or none if the remote is broken or no
        thread can be started.
        """
        if self._asking.is_broken:
            return ()
        programs = list(labels.items())
        # Few programs are split over all threads: a batch that fails then loses few of them.
        programs_per_thread = math.ceil(len(programs) / self._backend.width)
        size = max(1, min(self._backend.batch, programs_per_thread))
        batches = [programs[start : start + size] for start in range(0, len(programs), size)]
        width = min(self._backend.width, len(batches))
        if not _start_threads(self._askers, width, self._answer_batches):
            return ()  # the build compiles all of them
        for batch in batches:
            self._to_ask.put(batch)
        return labels.keys()

    def record_built(self, program: str, seconds: float, /) -> None:
        if self._settings.write:
            self._uploads.add_program(program, seconds)

    def is_busy(self) -> bool:
        return self._uploads.is_busy()

    def stop_transfers(self) -> None:
        """End all fetches and uploads, and drop the connections; does not wait, and warns of
        nothing from now on."""
        self._stopped = True
        self._asking.break_circuit(None)
        self._uploads.stop_sending()
        self._backend.close()
        # None ends a thread that takes it: one for each.
        for _ in self._askers:
            self._to_ask.put(None)

    def close(self) -> None:
        """Stop, and wait until no thread uses the store, `_JOIN_SECONDS` at most."""
        self.stop_transfers()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in (*self._askers, *self._uploads.threads):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._fetcher.close()

    def make_summary(self) -> events.RemoteSummary:
        """Return the numbers of programs, bytes and seconds of this build."""
        return events.RemoteSummary(
            address=self._settings.address,
            sent=self._uploads.sent,
            unsent=self._uploads.unsent,
            fetched_bytes=self._fetcher.fetched_bytes,
            sent_bytes=self._uploads.sent_bytes,
            saved_seconds=self._saved,
            **self._counts,
        )

    # On threads of its own.

    def _answer_batches(self) -> None:
        """Fetch batches from the queue until None comes. Each program gets a `RemoteAnswered`, also
        when its fetch fails; an unexpected exception breaks the circuit."""
        while (batch := self._to_ask.get()) is not None:
            unanswered = dict(batch)
            try:
                for outcome in self._fetcher.fetch_programs(list(unanswered)):
                    self._report_outcome(outcome, unanswered.pop(outcome.program))
            except BrokenError:
                pass
            except Exception as error:
                # A defect of this code, or of the disk, must not end the build, which can compile
                # the programs. The text of a library's error may have headers, which are secrets:
                # only that of an `OSError` is shown.
                details = f": {error}" if isinstance(error, OSError) else ""
                self._asking.break_circuit(f"{type(error).__name__}{details}")
            for program in unanswered:
                self._listen(RemoteAnswered(program, None))

    def _report_outcome(self, outcome: Outcome, label: str) -> None:
        """Count how the fetch of a program ended, warn of a refused one, and report the answer.
        An outdated entry of the remote is marked, so that an upload replaces it."""
        with self._lock:
            self._counts["verified"] += int(outcome.verified)
            self._counts["wrong"] += int(outcome.wrong)
            if outcome.answer is not None:
                self._counts["hits"] += 1
                self._saved += outcome.seconds
            elif outcome.refused is None:
                self._counts["misses"] += 1
        if outcome.outdated:
            self._uploads.replace_program(outcome.program)
        if outcome.refused is not None:
            name = f"{label} ({outcome.program[:12]})"
            self._refuse_program(name, outcome.refused, wrong=outcome.wrong)
        self._listen(RemoteAnswered(outcome.program, outcome.answer))

    def _refuse_program(self, name: str, problem: str, *, wrong: bool) -> None:
        """Warn of a refused program, and count it unless it is `wrong`: such an entry passed all
        checks, but this machine compiles the program to other bytes. A wrong program, or
        `_MAX_REFUSED` others, end the use of the remote."""
        if wrong:
            self._emit_warning(
                f"{name} of {self._settings.address} is not what this machine compiles: {problem};"
                " nothing more of it is used. Programs fetched before may be wrong, too: clear the"
                " cache"
            )
            # Nothing is sent, either: it is not known which of the two machines compiles wrongly.
            self._asking.break_circuit(None)
            self._uploads.guard.break_circuit(None)
            return
        with self._lock:
            self._counts["refused"] += 1
            refused_count = self._counts["refused"]
        # Further ones can come: of fetches that were under way when the circuit broke.
        if refused_count <= _MAX_REFUSED:
            self._emit_warning(f"refused {name}: {problem}")
        if refused_count == _MAX_REFUSED:
            self._asking.break_circuit(f"{refused_count} programs were refused")

    def _report_broken_circuit(self, why: str) -> None:
        self._uploads.guard.break_circuit(None)
        self._warn_once(f"{why}; the rest of this build does not use it")

    def _warn_once(self, message: str) -> None:
        """Warn, unless this did so before: fetching and sending may fail for the same reason."""
        with self._lock:
            is_first = not self._troubled
            self._troubled = True
        if is_first:
            self._emit_warning(message)

    def _emit_warning(self, message: str) -> None:
        if not self._stopped:
            self._listen(events.Warned(f"remote cache: {message}"))


class Uploads:
    """The programs that are on their way to a remote, and the threads that send them.

    The include directories of a program are sent before its entry, which so never names one that
    the remote never had. Every file is compared with its digest. An entry that the remote has is
    not sent again.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        backend: Backend,
        cache: Tree,
        listen: Callable[[Any], None],
        report_break: Callable[[str], None],
    ) -> None:
        """`report_break` is called once, when nothing more is sent, with the reason."""
        self.guard = Guard(report_break)
        self.threads: list[threading.Thread] = []
        self.sent = self.sent_bytes = 0
        self._patience = settings.send_timeout
        self._backend = backend
        self._cache = cache
        self._listen = listen
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[str, float] | None] = SimpleQueue()
        self._waiting = 0  # programs in the queue or under way
        self._lost = 0
        self._idle_since: float | None = None
        self._stopped = False
        self._outdated: set[str] = set()
        self._sent_includes: set[str] = set()

    @property
    def unsent(self) -> int:
        """The number of programs that were not sent, or not yet."""
        return self._lost + self._waiting

    def add_program(self, program: str, seconds: float) -> None:
        """Queue a program to be sent; do nothing once nothing more is sent. Its compile took
        `seconds`. Starts a thread if fewer than `_SENDERS` run."""
        if self._stopped or self.guard.is_broken:
            return
        with self._lock:
            self._waiting += 1
            self._idle_since = None
        if not _start_threads(self.threads, min(_SENDERS, self._waiting), self._send_programs):
            self.guard.break_circuit("no thread can be started")
        self._queue.put((program, seconds))

    def replace_program(self, program: str) -> None:
        """Let a program be sent although the remote has an entry for it, which is not right."""
        self._outdated.add(program)

    def is_busy(self) -> bool:
        """Return whether something is on its way that is worth waiting for.

        The patience runs from the first call since a program was added. When it is over, this gives
        up sending, and returns False.
        """
        with self._lock:
            if not self._waiting or self._stopped:
                return False
            # The patience begins with the first question: before it, the build had work to do.
            now = time.monotonic()
            if self._idle_since is None:
                self._idle_since = now
            is_late = now - self._idle_since > self._patience
        if is_late:
            self.guard.break_circuit(f"not everything was sent in {self._patience:g} s")
        return not is_late

    def stop_sending(self) -> None:
        """Send nothing more; does not wait."""
        self._stopped = True
        self.guard.break_circuit(None)
        for _ in self.threads:
            self._queue.put(None)

    def _send_programs(self) -> None:
        """Send programs from the queue until None comes, and count them as sent or lost. Call
        `listen` with None, which wakes the build, when none wait any longer."""
        while (upload := self._queue.get()) is not None:
            size = None
            # OSError and ArchiveError: the entry is damaged here. It counts as unsent, and `verify`
            # names it.
            with suppress(BrokenError, OSError, ArchiveError):
                size = self._send_program(*upload)
            with self._lock:
                if size is None:
                    self._lost += 1
                else:
                    self.sent += 1
                    self.sent_bytes += size
                self._waiting -= 1
                is_last = not self._waiting
            if is_last:
                self._listen(None)

    def _send_program(self, program: str, seconds: float) -> int | None:
        """Send one program after its include directories. Directories and entries that the remote
        has are not sent.

        Return the number of bytes sent; None for a program that the cache does not have. Raises
        `BrokenError`, and for a damaged entry `OSError`, `ArchiveError`.
        """
        entry = lookup_entry(self._cache, program)
        if entry is None:
            return None
        size = 0
        for digest in read_header_digests(entry.path):
            if digest not in self._sent_includes:
                size += self._send_include(digest)
                self._sent_includes.add(digest)
        key = program_key(program)
        is_outdated = program in self._outdated
        if not is_outdated and self.guard.call_request(lambda: self._backend.has_file(key)):
            return size
        return size + self._send_file(key, pack_entry(_read_entry_files(entry), seconds))

    def _send_include(self, digest: str) -> int:
        """Send an include directory unless the remote has it. Return the number of bytes sent.
        Raises `BrokenError`, and for a damaged directory `OSError`, `ArchiveError`."""
        key = include_key(digest)
        if self.guard.call_request(lambda: self._backend.has_file(key)):
            return 0
        path = self._cache.include_path(digest)
        files = {
            name: read_bytes(os.path.join(path, name)) for name in layout.list_files_below(path)
        }
        if problems := check_directory(digest, files):
            raise ArchiveError(str(problems[0]))
        return self._send_file(key, pack_entry(files))

    def _send_file(self, key: str, data: bytes) -> int:
        self.guard.call_request(lambda: self._backend.send_file(key, data))
        return len(data)


def _start_threads(threads: list[threading.Thread], count: int, run: Callable[[], None]) -> bool:
    """Start threads until `threads` has `count`, or the system allows no more. Return whether it
    has any: one does the work of all, later."""
    with suppress(OSError):
        while len(threads) < count:
            threads.append(start_thread(run))
    return bool(threads)


def _read_entry_files(entry: Entry) -> dict[str, bytes]:
    """Return the files of an entry. Raises `OSError`, and `ArchiveError` for a damaged one."""
    names = [layout.META, *(name for name, _, _ in list_meta_files(entry.meta))]
    files = {name: read_bytes(os.path.join(entry.path, name)) for name in names}
    if problems := check_entry(entry.hash, files, origin=Origin.CACHE):
        raise ArchiveError(str(problems[0]))
    return files
