"""The headers that a remote gets with each request: the user's own, and a credential helper's.

A helper speaks Bazel's protocol: `HELPER get` reads `{"uri": …}` and prints `{"headers": {NAME:
[VALUE, …]}, "expires": …}`. Its answer is kept until a minute before it expires. No message says
what is in a header.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from datetime import datetime

from msgspec import DecodeError, Struct, json

from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.settings import RemoteSettings

_PATIENCE = 30.0
"""Seconds that a helper may take: some ask a server of their own."""
_EARLY = 60.0
_NAME, _VALUE = re.compile(r"[A-Za-z0-9_.-]+"), re.compile("[ -~]*")
"""Of a header: what a library would refuse it would show."""


class _Answer(Struct):
    """Of a helper."""

    headers: dict[str, list[str]] = {}
    expires: datetime | None = None


class Credentials:
    """May be used from several threads."""

    def __init__(self, settings: RemoteSettings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._of_helper: dict[str, str] = {}
        self._until: float | None = 0.0
        """By `time.time`; None: for ever."""

    def headers(self) -> dict[str, str]:
        """Return the headers. Raises `RemoteTroubleError` without the helper's answer, and for what
        cannot be sent."""
        found = dict(self._settings.headers)
        if (helper := self._settings.credential_helper) is not None:
            with self._guard:
                if self._until is not None and time.time() >= self._until - _EARLY:
                    self._of_helper, self._until = _ask(helper, self._settings.address)
                found |= self._of_helper
        if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(found[name]) for name in found):
            why = f"{self._settings.address}: a header that cannot be sent"
            raise RemoteTroubleError(why, retry=False)
        return found


def _ask(helper: str, address: str) -> tuple[dict[str, str], float | None]:
    try:
        ended = subprocess.run(
            [os.path.expanduser(helper), "get"],
            input=b'{"uri": %s}' % json.encode(address),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or f"no answer in {_PATIENCE:g} s"
        raise _trouble(why) from None
    if ended.returncode:
        raise _trouble(f"it ended with status {ended.returncode}")
    try:
        answer = json.decode(ended.stdout, type=_Answer)
    except (DecodeError, RecursionError):
        raise _trouble("its answer is not of the protocol") from None
    headers = {name: ", ".join(values) for name, values in answer.headers.items()}
    return headers, answer.expires.timestamp() if answer.expires else None


def _trouble(why: str) -> RemoteTroubleError:
    return RemoteTroubleError(f"the credential helper: {why}", retry=False)
