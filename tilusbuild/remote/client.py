"""The remote cache of one build: `engine.inbox.Remote` over a back end.

Threads of its own ask, fetch and send; they hold no slot of the build and never make it wait: each
program that was asked for is answered once, whatever happens, and what is in trouble costs one
warning. What came from the remote is not sent back, and what was refused is sent again.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from tilusbuild.cache import layout
from tilusbuild.cache.entries import Entry, listed, lookup
from tilusbuild.cache.tree import Tree
from tilusbuild.engine import events
from tilusbuild.engine.inbox import RemoteAnswered, RemoteWithdrawn
from tilusbuild.engine.interfaces import Store
from tilusbuild.process.base import start_thread
from tilusbuild.remote.backend import Backend, BrokenError, Guard, open_backend
from tilusbuild.remote.fetch import Fetcher, Outcome
from tilusbuild.remote.origins import Origins
from tilusbuild.remote.record import (
    Blob,
    Describer,
    Record,
    RecordError,
    blob_for,
    content,
    encode,
    key,
)
from tilusbuild.remote.settings import RemoteSettings
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_text

_NAMED = 3
"""Programs that are refused by name; after so many nothing of that remote is used."""
_SENDERS = 2
_LAST_WORDS = 5.0
"""Seconds that the threads have to end."""
_COUNTED = ("hits", "misses", "refused", "verified", "wrong")


class RemoteCache:
    """Asked by the build's thread, answered by its own."""

    def __init__(
        self,
        settings: RemoteSettings,
        store: Store,
        cache: Tree,
        listen: Callable[[Any], None],
        origins: Origins | None = None,
    ) -> None:
        """`origins` are those of the cache, where another user writes there, too. Connects to
        nothing yet. Raises `RemoteTroubleError`, as `open_backend` does."""
        self._settings = settings
        self._cache = cache
        self._listen = listen
        self._lock = threading.Lock()
        self._asking = Guard(self._broke)
        self._backend = open_backend(settings)
        self._uploads = Uploads(
            settings,
            self._backend,
            cache,
            listen,
            lambda why: self._trouble(f"{why}; nothing more is sent to it"),
        )
        self._fetcher = Fetcher(self._backend, self._asking, store, cache)
        self._to_ask: SimpleQueue[list[tuple[str, str]] | None] = SimpleQueue()
        self._stopped = False
        self._troubled = False
        self._counts: dict[str, Any] = dict.fromkeys(_COUNTED, 0)
        self._saved = 0.0
        self._salt = secrets.token_hex(8)
        self._sample: dict[str, tuple[str, Record]] = {}
        """Labels and records of the programs to be compared."""
        self._origins = origins or Origins(cache)
        self._fetched: set[str] = set()
        self._withdrawn = False
        self._askers: list[threading.Thread] = []

    # On the build's thread.

    def ask(self, labels: Mapping[str, str]) -> Collection[str]:
        """Begin to ask for programs, by their hashes; return those that will be answered."""
        if self._asking.broken:
            return ()
        named = list(labels.items())
        # All threads have a part of few programs: what one has on its way, a fault takes along.
        size = max(1, min(self._backend.batch, math.ceil(len(named) / self._backend.width)))
        batches = [named[at : at + size] for at in range(0, len(named), size)]
        try:
            while len(self._askers) < min(self._backend.width, len(batches)):
                self._askers.append(start_thread(self._ask_all))
        except OSError:
            if not self._askers:
                return ()
        for batch in batches:
            self._to_ask.put(batch)
        return labels.keys()

    def measures(self, program: str) -> bool:
        """Return whether a program is compiled to be compared with the remote's."""
        return program in self._sample

    def built(self, program: str, seconds: float, /) -> None:
        self._compare(program)
        if self._settings.write:
            self._uploads.add(program, seconds)

    def busy(self) -> bool:
        return self._uploads.busy()

    def stop(self) -> None:
        self._stopped = True
        self._asking.open(None)
        self._uploads.stop()
        self._backend.close()
        for _ in self._askers:
            self._to_ask.put(None)

    def close(self) -> None:
        """Wait until the threads leave the store alone, for as long as a rename may take."""
        self.stop()
        until = time.monotonic() + _LAST_WORDS
        for thread in (*self._askers, *self._uploads.threads):
            thread.join(max(0.0, until - time.monotonic()))
        self._fetcher.close()
        with self._lock:
            self._origins.fetched(self._fetched, self._settings.address)
        self._origins.save()

    def summary(self) -> events.RemoteSummary:
        return events.RemoteSummary(
            address=self._settings.address,
            sent=self._uploads.sent,
            unsent=self._uploads.unsent,
            fetched_bytes=self._fetcher.fetched_bytes,
            sent_bytes=self._uploads.sent_bytes,
            saved_seconds=self._saved,
            **self._counts,
        )

    def _compare(self, program: str) -> None:
        """Compare a program that was compiled here with the remote's, if it is of the sample."""
        if program not in self._sample or (entry := lookup(self._cache, program)) is None:
            return
        label, record = self._sample.pop(program)
        try:
            differing = differences(record, entry)
        except OSError:
            return
        self._counts["wrong" if differing else "verified"] += 1
        if differing:
            self._withdraw(f"{label} ({program[:12]})", differing)

    def _withdraw(self, program: str, differing: Sequence[str]) -> None:
        """Use nothing of this remote any more, and take back what came from it."""
        address = self._settings.address
        self._listen(
            events.Warned(
                f"remote cache: {program} of {address} is not what this machine"
                f" compiles: {', '.join(differing[:_NAMED])}; nothing of it is used, and what came"
                " from it is compiled here"
            )
        )
        self._asking.open(None)
        self._uploads.guard.open(None)
        with self._lock:
            first, self._withdrawn = not self._withdrawn, True
            self._origins.fetched(self._fetched, address)
            self._fetched.clear()
        with suppress(OSError):
            self._origins.take_back(address)
        if first:
            self._listen(RemoteWithdrawn())

    # On threads of its own.

    def _ask_all(self) -> None:
        while (batch := self._to_ask.get()) is not None:
            unanswered = dict(batch)
            try:
                self._ask_batch(unanswered)
            except BrokenError:
                pass
            except Exception as error:
                # Whatever is wrong with us, or with the disk: the build has compilers.
                # A library's text is not shown: it may have the headers in it.
                more = f": {error}" if isinstance(error, OSError) else ""
                self._asking.open(f"{type(error).__name__}{more}")
            for program in unanswered:
                self._listen(RemoteAnswered(program, None))

    def _ask_batch(self, unanswered: dict[str, str]) -> None:
        known = []
        for each in self._fetcher.records(list(unanswered)):
            if isinstance(each, tuple) and sampled(each[0], self._settings.verify, self._salt):
                self._sample[each[0]] = unanswered.pop(each[0]), each[1]
                self._listen(RemoteAnswered(each[0], None))
            elif isinstance(each, tuple):
                known.append(each)
            else:
                self._answered(each, unanswered)
        for outcome in self._fetcher.fetch(known):
            self._answered(outcome, unanswered)

    def _answered(self, outcome: Outcome, unanswered: dict[str, str]) -> None:
        label = unanswered.pop(outcome.program)
        if outcome.answer is not None:
            if self._takes(outcome):
                return
            with suppress(OSError):
                self._origins.remove(outcome.program)
        elif outcome.refused is not None:
            self._refuse(outcome.program, label, outcome.refused)
        else:
            with self._lock:
                self._counts["misses"] += 1
        self._listen(RemoteAnswered(outcome.program, None))

    def _takes(self, hit: Outcome) -> bool:
        """Report a hit; return False when what comes from the remote is not used any more."""
        with self._lock:
            if not self._withdrawn:
                self._counts["hits"] += 1
                self._saved += hit.seconds
                self._fetched.add(hit.program)
                # Not later: what is taken back from now on has been reported.
                self._listen(RemoteAnswered(hit.program, hit.answer))
            return not self._withdrawn

    def _refuse(self, program: str, label: str, what: str) -> None:
        with self._lock:
            self._counts["refused"] += 1
            number = self._counts["refused"]
        self._uploads.replace(program)
        if number <= _NAMED:
            self._warn(f"refused {label} ({program[:12]}): {what}")
        if number == _NAMED:
            self._asking.open(f"{number} programs were refused")

    def _broke(self, why: str) -> None:
        self._uploads.guard.open(None)
        self._trouble(f"{why}; the rest of this build does not use it")

    def _trouble(self, message: str) -> None:
        """Warn, unless its other use has failed before: once is enough of one server."""
        with self._lock:
            first, self._troubled = not self._troubled, True
        if first:
            self._warn(message)

    def _warn(self, message: str) -> None:
        if not self._stopped:
            self._listen(events.Warned(f"remote cache: {message}"))


class Uploads:
    """What is on its way to a remote, and the threads that bring it there: of each program the
    blobs, and only then the record that names them. What is read is compared with its digest; what
    is there already is not sent."""

    def __init__(
        self,
        settings: RemoteSettings,
        backend: Backend,
        cache: Tree,
        listen: Callable[[Any], None],
        broke: Callable[[str], None],
    ) -> None:
        """`broke` is called once, when nothing more is sent, with the reason."""
        self.guard = Guard(broke)
        self.threads: list[threading.Thread] = []
        self.sent = self.sent_bytes = 0
        self._patience = settings.send_timeout
        self._backend = backend
        self._cache = cache
        self._listen = listen
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[str, float] | None] = SimpleQueue()
        self._waiting = 0
        self._lost = 0
        self._idle_since: float | None = None
        self._stopped = False
        self._again: set[str] = set()
        self._describer = Describer(cache.include_path)
        self._there: set[Blob] = set()

    @property
    def unsent(self) -> int:
        return self._lost + self._waiting

    def add(self, program: str, seconds: float) -> None:
        """Begin to send a program, whose compile took so long."""
        if self._stopped or self.guard.broken:
            return
        with self._lock:
            self._waiting += 1
            self._idle_since = None
        try:
            while len(self.threads) < min(_SENDERS, self._waiting):
                self.threads.append(start_thread(self._send_all))
        except OSError:
            if not self.threads:
                self.guard.open("no thread can be started")
        self._queue.put((program, seconds))

    def replace(self, program: str) -> None:
        """Send all of a program when it is sent: what the remote has is wrong."""
        self._again.add(program)

    def busy(self) -> bool:
        """Return whether something is on its way that is worth waiting for."""
        with self._lock:
            if not self._waiting or self._stopped:
                return False
            now = time.monotonic()
            if self._idle_since is None:
                self._idle_since = now
            late = now - self._idle_since > self._patience
        if late:
            self.guard.open(f"not everything was sent in {self._patience:g} s")
        return not late

    def stop(self) -> None:
        """Send nothing more; does not wait."""
        self._stopped = True
        self.guard.open(None)
        for _ in self.threads:
            self._queue.put(None)

    def _send_all(self) -> None:
        while (next_one := self._queue.get()) is not None:
            size = 0
            with suppress(BrokenError, OSError, RecordError):  # the last two: it is not whole
                size = self._send(*next_one)
            with self._lock:
                self.sent += bool(size)
                self.sent_bytes += size
                self._lost += not size
                self._waiting -= 1
                done = not self._waiting
            if done:
                self._listen(None)

    def _send(self, program: str, seconds: float) -> int:
        """Send one program; return how many bytes, 0 when it is not there. Raises `BrokenError`,
        and `OSError` and `RecordError` for one that is not whole."""
        if (entry := lookup(self._cache, program)) is None:
            return 0
        record, sources = self._describer.describe(entry, seconds)
        wanted: Collection[Blob] = sources.keys()
        if program not in self._again and (wanted := sources.keys() - self._there):
            unknown = wanted
            wanted = self.guard.call(lambda: self._backend.missing(unknown))
        contents = {blob: content(sources[blob]) for blob in wanted}
        if any(blob_for(data) != blob for blob, data in contents.items()):
            raise RecordError("a file is damaged")
        if contents:
            self.guard.call(lambda: self._backend.send(contents))
        data = encode(record)
        self.guard.call(lambda: self._backend.send_result(key(program), data))
        self._there.update(sources)
        return sum(map(len, contents.values())) + len(data)


def sampled(program: str, share: float, salt: str) -> bool:
    """Return whether a program is of the share, 0 to 1, of the hits that are compiled here as well.

    That follows from its hash and a salt that each build draws: whoever changes an entry of the
    remote cannot know who will compile it. Such a program is not fetched. It is compiled as if it
    were missing, by this machine's own tools; then its record's digests are compared with the
    entry: a program's bytes follow from its inputs, so there is nothing to judge.
    """
    return int(sha256_text(salt + program)[:16], 16) < int(share * (1 << 64))


def differences(record: Record, entry: Entry) -> Sequence[str]:
    """Return a program's files that differ in its record and its entry. Raises `OSError`."""
    ours = {name: Blob(digest, size) for name, size, digest in listed(entry.meta)}
    ours[layout.META] = blob_for(read_bytes(f"{entry.path}/{layout.META}"))
    theirs = record.files
    names = sorted({*ours, *theirs}, key=lambda name: (name == layout.META, name))
    differing = (name for name in names if ours.get(name) != theirs.get(name))
    return [name if name.isprintable() else repr(name) for name in differing]
