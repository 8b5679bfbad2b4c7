"""The headers that a remote gets with each request: the user's own, and a credential helper's.

A helper speaks Bazel's protocol: `HELPER get` reads `{"uri": …}` and prints `{"headers": {NAME:
[VALUE, …]}, "expires": …}`. Its answer is kept until a minute before it expires. No message says
what is in a header.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from datetime import datetime
from typing import Any

from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.settings import RemoteSettings

_PATIENCE = 30.0
"""Seconds that a helper may take: some ask a server of their own."""
_EARLY = 60.0


class Credentials:
    """May be used from several threads."""

    def __init__(self, settings: RemoteSettings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._of_helper: dict[str, str] = {}
        self._until: float | None = 0.0
        """By `time.time`; None: for ever."""

    def headers(self) -> dict[str, str]:
        """Return the headers. Raises `RemoteTroubleError` without the helper's answer."""
        helper = self._settings.credential_helper
        if helper is None:
            return dict(self._settings.headers)
        with self._guard:
            if self._until is not None and time.time() >= self._until - _EARLY:
                self._of_helper, self._until = _ask(helper, self._settings.address)
            return {**self._settings.headers, **self._of_helper}


def _ask(helper: str, address: str) -> tuple[dict[str, str], float | None]:
    try:
        ended = subprocess.run(
            [os.path.expanduser(helper), "get"],
            input=json.dumps({"uri": address}).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or f"no answer in {_PATIENCE:g} s"
        raise _trouble(helper, why) from None
    if ended.returncode:
        raise _trouble(helper, f"it ended with status {ended.returncode}")
    try:
        return _parsed(json.loads(ended.stdout))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _trouble(helper, "its answer is not of the protocol") from None


def _parsed(answer: Any) -> tuple[dict[str, str], float | None]:
    headers = {name: ", ".join(values) for name, values in answer.get("headers", {}).items()}
    if any("\n" in text or "\r" in text for each in headers.items() for text in each):
        raise ValueError("a header of several lines")
    expires = answer.get("expires")
    if expires is None:
        return headers, None
    return headers, datetime.fromisoformat(expires.replace("Z", "+00:00")).timestamp()


def _trouble(helper: str, why: str) -> RemoteTroubleError:
    return RemoteTroubleError(f"credential helper {helper}: {why}", retry=False)
