"""Retries, and the circuit breaker: what keeps a remote in trouble from being worse than none.

A request that fails in a way that may pass is tried again after a pause that grows and is partly
random, so that many clients do not come back at once. One that fails for good, or too often, breaks
the circuit: every request after it fails at once, until the build ends.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from tilusbuild.remote.backend import RemoteTroubleError

_ATTEMPTS = 3
_PAUSE = 0.1
"""Seconds before the second attempt; four times as many before the third."""

Answer = TypeVar("Answer")


class BrokenError(Exception):
    """The circuit is broken: nothing is asked any more."""


class Guard:
    """One way that a remote is used: asking, or sending. May be used from several threads."""

    def __init__(self, broke: Callable[[str], None]) -> None:
        """`broke` is called once, with the reason."""
        self._broke = broke
        self._broken = threading.Event()
        self._lock = threading.Lock()

    @property
    def broken(self) -> bool:
        return self._broken.is_set()

    def call(self, request: Callable[[], Answer]) -> Answer:
        """Return the answer to a request. Raises `BrokenError`."""
        for attempt in range(_ATTEMPTS):
            if self._broken.is_set():
                raise BrokenError
            try:
                return request()
            except RemoteTroubleError as error:
                if not error.retry or attempt == _ATTEMPTS - 1:
                    self.open(str(error))
                    raise BrokenError from None
            pause = _PAUSE * 4**attempt * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            self._broken.wait(pause)
        raise BrokenError

    def open(self, why: str | None) -> None:
        """Break the circuit; without a reason, quietly."""
        with self._lock:
            first = not self._broken.is_set()
            self._broken.set()
        if first and why is not None:
            self._broke(why)
