"""A server that lies, under every verb that talks to a remote: none takes longer than it takes
without one, the time-out and a second, nor much memory. The slow test prints all of it."""

from __future__ import annotations

import os
import resource
import shutil
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
"""KiB that a verb may add to this process, which is a server, too."""
VERBS = {
    "plan": ("plan",),
    "build": ("build",),
    "pull": ("cache", "pull"),
    "push": ("cache", "push"),
    "doctor": ("doctor",),
    "explain": ("explain",),
}
SAMPLE = ("drips: trailers", "floods: interim answers", "a record of 4 GiB")
SCHEMES = ("http", "https", "https, and no TLS", "grpc", "grpcs")
"""Only in the first two is what the server sends an answer to what was asked."""
Run = Callable[[Project, str, str, Path], tuple[float, int, int]]
Server = AbstractContextManager[str]
Serve = Callable[[str, str], Server]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """run(user, verb, address, cache) returns seconds, the exit status and KiB of memory. It is run
    in this process: on a busy machine the start of another takes longer than all else."""

    def ran(user: Project, verb: str, address: str, cache: Path) -> tuple[float, int, int]:
        given = {
            **user.environment,
            "TILUSBUILD_REMOTE_CACHE": address,
            "TILUSBUILD_REMOTE_TIMEOUT": f"{TIMEOUT}s",
            "TILUSBUILD_REMOTE_CONNECT_TIMEOUT": f"{TIMEOUT}s",
            "TILUSBUILD_REMOTE_PATIENCE": "100s",
            "TILUSBUILD_CACHE_DIR": str(cache),
        }
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        status = main(["-C", str(user.directory), *VERBS[verb]])
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


def tried(
    run: Run,
    user: Project,
    verb: str,
    server: AbstractContextManager[str],
    root: Path,
    alone: float,
) -> str:
    """Run a verb against a server; return a row of the table."""
    cache = root / f"{verb}-cache"
    if verb in ("push", "explain"):
        shutil.copytree(user.cache, cache, symlinks=True)
    with server as address:
        seconds, status, memory = run(user, verb, address, cache)
    shutil.rmtree(cache, ignore_errors=True)
    over = seconds - alone - TIMEOUT
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    row = f"{seconds:6.2f} s ({over:+.2f}) {memory >> 10:+4} MiB  status {status}"
    # A busy machine takes longer for all.
    assert over <= 1.0 + alone * load, row
    assert memory < MAX_MEMORY, row
    assert status in ((0, 1) if verb in ("pull", "push") else (0,)), row
    return row


def alone(run: Run, user: Project, verb: str, root: Path) -> float:
    """Return the seconds of a verb without a remote; pull and push do not work, and take as
    plan."""
    same = "plan" if verb in ("pull", "push") else verb
    return min(run(user, same, "off", root / f"alone-{verb}-{n}")[0] for n in range(2))


ALL = "LIES" in os.environ
CASES = [(scheme, verb) for scheme in SCHEMES for verb in VERBS if ALL or verb == "pull"]


@pytest.mark.parametrize(("scheme", "verb"), CASES)
def test_a_lie_takes_no_longer_than_the_time_out(
    scheme: str, verb: str, serve: Serve, run: Run, new_user: NewProject, tmp_path: Path, capsys
) -> None:
    """A sample of them; with LIES=1 every lie under every verb, as a table."""
    user = new_user("off")
    if ALL:
        user.build()
    usual = alone(run, user, verb, tmp_path)
    kinds = KINDS if ALL else SAMPLE if scheme == "http" else SAMPLE[:1]
    rows = [tried(run, user, verb, serve(kind, scheme), tmp_path, usual) for kind in kinds]
    if ALL:
        with capsys.disabled():
            print(f"\n{scheme}: {verb} without a remote: {usual:.2f} s")
            print("\n".join(f"{kind:28} {row}" for kind, row in zip(kinds, rows, strict=True)))
