"""A server that lies to who waits for it: that takes no longer than the time-out and a second, nor
much memory."""

from __future__ import annotations

import os
import resource
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support.lying_server import KINDS, lying
from support.project import NewProject, Project
from tilusbuild.cli.main import main

TIMEOUT = 0.5
MAX_MEMORY = 150 << 10
"""KiB that a pull may add to this process, which is a server, too."""
SCHEMES = ("http", "https", "https, and no TLS", "grpc", "grpcs")
"""Only in the first two is what the server sends an answer to what was asked."""
Run = Callable[..., tuple[float, int, int]]
Server = AbstractContextManager[str]
Serve = Callable[[str, str], Server]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """run(user, address, cache, *words) returns seconds, the exit status and KiB of memory. It is
    run in this process: on a busy machine the start of another takes longer than all else."""

    def ran(user: Project, address: str, cache: Path, *words: str) -> tuple[float, int, int]:
        variables = {
            **user.environment,
            "TILUSBUILD_REMOTE_CACHE": address,
            "TILUSBUILD_REMOTE_TIMEOUT": f"{TIMEOUT}s",
            "TILUSBUILD_REMOTE_CONNECT_TIMEOUT": f"{TIMEOUT}s",
            "TILUSBUILD_REMOTE_PATIENCE": "100s",
            "TILUSBUILD_CACHE_DIR": str(cache),
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        status = main(["-C", str(user.directory), *words])
        seconds = time.monotonic() - began
        return seconds, status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    return ran


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Serve:
    """serve(kind, scheme) is a server, whose certificate is accepted."""

    def start(kind: str, scheme: str) -> Server:
        if scheme not in ("https", "grpcs"):
            return lying(kind, scheme.split(",")[0])
        keys = request.getfixturevalue("keys")
        monkeypatch.setenv("TILUSBUILD_REMOTE_TLS_CA", str(keys / "ca.pem"))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(keys / "server.pem", keys / "server.key")
        tls.set_alpn_protocols(["h2" if scheme == "grpcs" else "http/1.1"])
        return lying(kind, scheme, tls)

    return start


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_lie_takes_no_longer_than_the_time_out(
    scheme: str, serve: Serve, run: Run, new_user: NewProject, tmp_path: Path
) -> None:
    user = new_user("off")
    # A pull without a remote does not work, and takes as a plan.
    alone = min(run(user, "off", tmp_path / f"alone-{n}", "plan")[0] for n in range(2))
    for kind in KINDS if scheme == "http" else list(KINDS)[:1]:
        with serve(kind, scheme) as address:
            seconds, status, memory = run(user, address, tmp_path / kind, "cache", "pull")
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        # A busy machine takes longer for all.
        assert seconds - alone - TIMEOUT <= 1.0 + alone * load, kind
        assert memory < MAX_MEMORY, kind
        assert status in (0, 1), kind
