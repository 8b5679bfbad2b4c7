"""Fixtures: users of one project, each with a path and a cache of their own, and a server."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.casd import Casd, worker
from support.http_cache import HttpCache, http_cache
from support.project import Project, needs_cxx
from support.remote_client import Asked, ask_for
from support.scale import TEMPLATE, manifest, script

NewUser = Callable[..., Project]


@pytest.fixture
def server() -> Iterator[HttpCache]:
    with http_cache() as cache:
        yield cache


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Casd]:
    """A server that executes."""
    casd = Casd(tmp_path_factory.mktemp("farm"), *worker())
    yield casd
    casd.kill()


@pytest.fixture
def new_user(tmp_path: Path) -> NewUser:
    """new_user(address, NAME=VALUE) makes the project once more, for a user who has that remote."""
    needs_cxx()
    directories: list[Path] = []

    def make(address: str, **remote: str) -> Project:
        environment = {f"TILUSBUILD_REMOTE_{name}": value for name, value in remote.items()}
        directory = tmp_path / f"{'deep/' * len(directories)}user-{len(directories)}"
        home = tmp_path / f"home-{len(directories)}"
        directories.append(directory)
        # A machine that is very busy would compile what it could fetch.
        environment.setdefault("TILUSBUILD_REMOTE_PATIENCE", "100s")
        environment |= {"TILUSBUILD_REMOTE_CACHE": address, "HOME": str(home)}
        files = {"tilus.toml": manifest(), "kernels/scale.cu.j2": TEMPLATE}
        return Project(directory, environment).write_all(files)

    return make


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """The cache of a user who sent what was built, and what the server has then."""
    needs_cxx()
    directory = tmp_path_factory.mktemp("origin")
    with http_cache() as server:
        environment = {
            "TILUSBUILD_REMOTE_CACHE": server.address,
            "TILUSBUILD_REMOTE_WRITE": "1",
            "TILUSBUILD_REMOTE_SEND_TIMEOUT": "100s",
            "HOME": str(directory),
        }
        project = Project(directory / "project", environment)
        text = manifest(script(schedules=4))
        project.write_all({"tilus.toml": text, "kernels/scale.cu.j2": TEMPLATE})
        assert project.build()["remote"]["sent"] == 4
        return project.cache, dict(server.held)


Ask = Callable[..., Asked]


@pytest.fixture
def ask(origin: tuple[Path, dict[str, bytes]], tmp_path: Path) -> Ask:
    """ask(address, NAME=VALUE) fetches all programs into an empty cache."""
    programs = sorted(path.name for path in (origin[0] / "programs").iterdir())

    def asked(address: str, **settings: Any) -> Asked:
        root = tmp_path / f"cache-{len(list(tmp_path.iterdir()))}"
        return ask_for(programs, root, address, **settings)

    return asked


@pytest.fixture
def held(origin: tuple[Path, dict[str, bytes]], server: HttpCache) -> HttpCache:
    """A server that has all programs."""
    server.held.update(origin[1])
    return server


def openssl(root: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=root, check=True, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a CA, and a server's and a client's certificates of it."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    root = tmp_path_factory.mktemp("keys")
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    own = ("-x509", "-days", "2", "-subj", "/CN=a CA of tests")
    openssl(root, *new, *own, "-keyout", "ca.key", "-out", "ca.pem")
    (root / "names").write_text("subjectAltName = IP:127.0.0.1\n")
    for name in ("server", "client"):
        subject = ("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(root, *new, *subject)
        by = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        signed = ("-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", "names")
        openssl(root, "x509", "-req", *by, *signed)
    return root
