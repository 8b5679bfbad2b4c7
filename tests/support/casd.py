"""buildbox-casd, a server of the Remote Execution API, on the loopback: killed, stopped and started
again with what it holds."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from support.processes import wait_until
from tilusbuild.rooms import find_contributions

SLOW = "#include <iostream>\n#include <map>\n"
"""What takes a compiler long enough for workers to be proved before all is compiled."""

_ROOT = Path(__file__).parents[2]
_PATH = f"{_ROOT}/.remote{os.pathsep}{os.environ['PATH']}"
CASD = shutil.which("buildbox-casd", path=_PATH)


def needs_casd() -> str:
    """The program; skip where there is none."""
    if CASD is None:
        pytest.skip("needs buildbox-casd: make remote")
    if not find_contributions("remote backend"):
        pytest.skip("needs tilusbuild/reapi")
    return CASD


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port of the loopback that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def worker(*, jobs: int = 4) -> tuple[str, ...]:
    """The words that make a server execute with this machine's tools; skip where it cannot."""
    run = shutil.which("buildbox-run", path=_PATH)
    bwrap = shutil.which("bwrap", path=_PATH)
    if run is None or bwrap is None:
        pytest.skip("needs buildbox-run and bubblewrap: make remote")
    if subprocess.run([bwrap, "--ro-bind", "/", "/", "true"], capture_output=True).returncode:
        pytest.skip("bubblewrap cannot make namespaces here")
    places = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives")
    mounts = (f"{os.path.realpath(path)}:{path}" for path in places if os.path.isdir(path))
    shown = (f"--runner-arg=--ro-bind-mount={mount}" for mount in mounts)
    return ("--buildbox-run", run, "--jobs", str(jobs), *shown)


class Casd:
    """A server that keeps its blobs in a directory. `before` are words in front of its command."""

    def __init__(self, directory: Path, *words: str, before: tuple[str, ...] = ()) -> None:
        self.port = free_port()
        self.directory = directory
        listen = ("--bind", f"127.0.0.1:{self.port}", "--quota-high", "4G")
        self._argv = (*before, needs_casd(), *listen, *words, str(directory))
        self.start()

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it listens."""
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(self._argv, stdout=null, stderr=null)
        wait_until(lambda: listens(self.port))

    def kill(self) -> None:
        """End it at once, stopped or not."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """End it at once, and start it with what it had."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Have it answer nothing until `go_on`."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
