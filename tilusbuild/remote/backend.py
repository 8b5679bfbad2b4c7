"""The interface of remote caches, and the guard that keeps one in trouble from slowing a build.

A back end is a class with the methods of `Backend`, found by the scheme of an address. It keeps one
file for each key, is called from several threads, waits for its answers, and checks nothing: its
caller checks what came. It neither retries nor warns; `Guard` does, for all of them. A request that
fails in a way that may pass is tried again after a pause that grows and is partly random, so that
many clients do not come back at once. One that fails for good, or too often, breaks the circuit:
every request after it fails at once, until the build ends.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias, TypeVar

from msgspec import DecodeError, Struct, json

from tilusbuild.manifest.settings import REMOTE_PREFIX, WHERE_SECRETS_ARE
from tilusbuild.remote.settings import RemoteSettings, explain_missing_package
from tilusbuild.rooms import find_contribution, import_value

UNTRUSTED = "its certificate is of a CA that is not trusted here: name that as tls-ca"
UNKNOWN_CLIENT = "it may want a client's certificate: tls-certificate and tls-key"
_USER_SETTINGS = f"headers or credential-helper in [remote] of {WHERE_SECRETS_ARE}"
_ATTEMPTS = 3
# Seconds before the second attempt; four times as many before the third.
_PAUSE = 0.1
# Seconds that a helper may take: some ask a server of their own.
_HELPER_SECONDS = 30.0
# Seconds before the end of a token at which another one is asked for: a request may take long.
_RENEWAL_SECONDS = 60.0
# Headers are compared with these, since the message of a library that refuses a header shows it.
_HEADER_NAME, _HEADER_VALUE = re.compile(r"[A-Za-z0-9_.-]+"), re.compile("[ -~]*")

Answer = TypeVar("Answer")


class RemoteTroubleError(Exception):
    """The remote, or the way to it, failed, whichever program was asked for. The text is for people
    and holds no secret."""

    def __init__(self, message: str, *, retry: bool = True) -> None:
        super().__init__(message)
        self.retry = retry
        """Whether the same request may well succeed in a moment."""


def explain_credentials(settings: RemoteSettings) -> str:
    """Return a text on the credentials that a server may want."""
    if settings.withheld:
        return "headers are only for the server that the user's own settings name"
    if settings.headers or settings.credential_helper:
        return f"it does not take those of {_USER_SETTINGS}"
    return f"it wants credentials: {_USER_SETTINGS}, or {REMOTE_PREFIX}HEADERS"


TakeFile: TypeAlias = Callable[[str, Iterable[bytes]], None]
"""A function that gets a key and the content of its file, in pieces, and need not read all."""


class Backend(Protocol):
    """A remote cache. Every method but `close` raises `RemoteTroubleError`."""

    batch: int
    """Programs for which a thread asks at once."""
    width: int
    """Threads that ask at once."""

    def check_access(self, *, write: bool) -> str:
        """Ask the server for its abilities, and return them as a text for people."""

    def fetch_files(self, keys: Sequence[str], take: TakeFile) -> None:
        """Call `take` with the content of each key's file, unchecked. A key without a file is
        skipped.

        Raises also the exceptions of `take`.
        """

    def has_file(self, key: str) -> bool:
        """Return whether the remote has a file under this key, without fetching the file."""

    def send_file(self, key: str, data: bytes) -> None:
        """Write the file under this key, as a whole or not at all."""

    def close(self) -> None:
        """Drop the connections. Requests that still wait fail."""


def open_backend(settings: RemoteSettings) -> Backend:
    """Return the back end for an address. Connects to nothing yet. Raises `RemoteTroubleError`,
    also where a library is not installed."""
    class_path = find_contribution("remote backend", settings.scheme)
    if class_path is None:
        raise RemoteTroubleError(f"nothing here speaks {settings.scheme}://", retry=False)
    try:
        backend: Backend = import_value(class_path)(settings)
        return backend
    except ImportError as error:
        raise RemoteTroubleError(explain_missing_package(error), retry=False) from None


class BrokenError(Exception):
    """The circuit is broken: a `Guard` calls no request any more."""


class Guard:
    """Calls the requests of one use of a remote, asking or sending, until one fails for good: that
    breaks the circuit, which ends this use. May be used from several threads."""

    def __init__(self, report_break: Callable[[str], None]) -> None:
        """`report_break` is called once, with the reason."""
        self._report_break = report_break
        self._broken = threading.Event()
        self._lock = threading.Lock()

    @property
    def is_broken(self) -> bool:
        return self._broken.is_set()

    def call_request(self, request: Callable[[], Answer]) -> Answer:
        """Call `request` and return its answer.

        A request that raises `RemoteTroubleError` with `retry` is tried again, 3 times in all. The
        last failure breaks the circuit. Raises `BrokenError`, at once if the circuit is broken.
        """
        for attempt in range(_ATTEMPTS):
            if self._broken.is_set():
                raise BrokenError
            try:
                return request()
            except RemoteTroubleError as error:
                if not error.retry or attempt == _ATTEMPTS - 1:
                    self.break_circuit(str(error))
                    raise BrokenError from None
            pause = _PAUSE * 4**attempt * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            # Waits for the event, and does not sleep: the end of the build breaks the circuit, and
            # so ends the pause.
            self._broken.wait(pause)
        raise BrokenError

    def break_circuit(self, why: str | None) -> None:
        """Break the circuit, and wake the requests that pause. Report the reason `why` if this is
        the first break; None reports nothing."""
        # Several threads fail together when a server ends: one of them reports it.
        with self._lock:
            is_first = not self._broken.is_set()
            self._broken.set()
        if is_first and why is not None:
            self._report_break(why)


class _HelperAnswer(Struct):
    """The answer of a credential helper."""

    headers: dict[str, list[str]] = {}
    expires: datetime | None = None


class Credentials:
    """The headers of each request: those of the user's settings and those of a credential helper.

    May be used from several threads. A helper speaks Bazel's protocol: `HELPER get` reads `{"uri":
    …}` and prints `{"headers": {NAME: [VALUE, …]}, "expires": …}`. Its answer is used until a
    minute before it expires. No message contains a header's value.
    """

    def __init__(self, settings: RemoteSettings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._helper_headers: dict[str, str] = {}
        self._helper_expiry: float | None = 0.0
        """When the helper's headers expire, by `time.time`; None: never."""

    def collect_headers(self) -> dict[str, str]:
        """Return the headers, those of the helper over the user's. Run the helper first if its last
        answer expires within a minute.

        Raises `RemoteTroubleError` if the helper fails, or if a header has characters that HTTP
        does not allow.
        """
        headers = dict(self._settings.headers)
        helper = self._settings.credential_helper
        if helper is not None:
            with self._guard:
                expiry = self._helper_expiry
                if expiry is not None and time.time() >= expiry - _RENEWAL_SECONDS:
                    self._helper_headers, self._helper_expiry = _ask_helper(
                        helper, self._settings.address
                    )
                headers |= self._helper_headers
        for name, value in headers.items():
            if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
                why = f"{self._settings.address}: a header that cannot be sent"
                raise RemoteTroubleError(why, retry=False)
        return headers


def _ask_helper(helper: str, address: str) -> tuple[dict[str, str], float | None]:
    """Run the credential helper for an address. Return its headers, and when they expire: seconds
    since 1970, None for never. Raises `RemoteTroubleError`."""
    try:
        completed = subprocess.run(
            [os.path.expanduser(helper), "get"],
            input=b'{"uri": %s}' % json.encode(address),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it may print a token there
            timeout=_HELPER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or f"no answer in {_HELPER_SECONDS:g} s"
        raise _make_helper_error(why) from None
    if completed.returncode:
        raise _make_helper_error(f"it ended with status {completed.returncode}")
    try:
        answer = json.decode(completed.stdout, type=_HelperAnswer)
    except (DecodeError, RecursionError):
        raise _make_helper_error("its answer is not of the protocol") from None
    headers = {name: ", ".join(values) for name, values in answer.headers.items()}
    expiry = None if answer.expires is None else answer.expires.timestamp()
    return headers, expiry


def _make_helper_error(why: str) -> RemoteTroubleError:
    return RemoteTroubleError(f"the credential helper: {why}", retry=False)
