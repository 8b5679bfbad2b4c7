"""A project of two scripts in every carrier, and a registry."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from support.packed import _built, packed, project

__all__ = ["_built", "packed", "project"]


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a registry of one's own on the loopback."""
    program = shutil.which("docker-registry")
    if program is None or shutil.which("skopeo") is None:
        pytest.skip("needs docker-registry and skopeo (Debian has both)")
    directory = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (directory / "config.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {directory}/data}}}}\n"
        f"http: {{addr: '{address}'}}\n"
    )
    with open(directory / "log", "w") as log:
        command = [program, "serve", str(directory / "config.yml")]
        running = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        host, _, port = address.partition(":")
        for _ in range(600):
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                break
            assert running.poll() is None, (directory / "log").read_text()
            time.sleep(0.1)
        yield address
    finally:
        running.terminate()
        running.wait()
