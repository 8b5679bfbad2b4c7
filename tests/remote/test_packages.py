"""A package in a remote cache, named by the sha256 of its list: sent, installed, verified, loaded.

Three servers keep it: casd, nginx, which takes anything, and a directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.marks import Marks, built, copied
from support.project import Project
from support.stores import address
from support.trees import published

pytest.importorskip("google.protobuf", reason="needs tilusbuild[remote]")

__all__ = ["address", "built", "copied"]

LOAD = """\
import sys
import tilusbuild
kernel = tilusbuild.load("mark", where=sys.argv[1], target="cpu")
import numpy
y = numpy.zeros(5, numpy.float32)
kernel(numpy.ones(5, numpy.float32), y)
print(y[0])
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Project:
    """A directory with no project in it, of another user."""
    (tmp_path / "elsewhere").mkdir()
    home = str(tmp_path / "home")
    return Project(tmp_path / "elsewhere", {"HOME": home, "XDG_CACHE_HOME": f"{home}/.cache"})


def push(project: Project, address: str, *words: str) -> str:
    """Send the project's package; return its name."""
    words = ("--format", "dir,tar.zst", *words)
    ran = project.run("package", "--push", *words, TILUSBUILD_REMOTE_CACHE=address)
    name = ran.out.splitlines()[-1]
    assert name.startswith("sha256:")
    return name


def load(user: Project, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOAD, name],
        env={**os.environ, **user.environment, **environment},
        cwd=user.directory,
        text=True,
        capture_output=True,
        timeout=120,
    )


def test_what_one_packs_another_installs_and_loads(
    address: str, copied: Marks, elsewhere: Project
) -> None:
    name = push(copied, address)
    elsewhere.environment["TILUSBUILD_REMOTE_CACHE"] = address
    there = elsewhere.directory / "cache"
    ran = elsewhere.run("install", "--json", name, "--cache-dir", str(there))
    assert ran.events[-1]["digest"] == name.removeprefix("sha256:")
    assert ran.events[-1]["new"] == ran.events[-1]["programs"] == len(copied.programs)
    listing = json.loads((copied.directory / "dist/marks-0.1.0/tilus-package.json").read_bytes())
    found = published(there)
    for path, entry in listing["files"].items():
        assert len(found[path]) == entry["size"]
    elsewhere.run("verify", name)
    first = load(elsewhere, name)
    assert first.stdout == "11.0\n", first.stderr
    # The second time nobody is asked.
    again = load(elsewhere, name, TILUSBUILD_REMOTE_CACHE="off")
    assert again.stdout == "11.0\n", again.stderr


def test_most_of_a_package_is_there_already(address: str, copied: Marks) -> None:
    copied.run("cache", "push", TILUSBUILD_REMOTE_CACHE=address)
    copied.environment["TILUSBUILD_REMOTE_CACHE"] = address
    sent = copied.run("package", "--push", "--json").events
    (there,) = [each for each in sent if each.get("format") == "remote"]
    (package,) = [each for each in sent if each["event"] == "package"]
    libraries = sum(path.stat().st_size for path in copied.cache.glob("programs/*/module/lib.so"))
    assert there["size"] < package["size"] - libraries / 2
    again = copied.run("package", "--push", "--json").events
    assert [each["size"] for each in again if each.get("format") == "remote"] == [0]


def test_other_bytes_are_refused_by_name(copied: Marks, elsewhere: Project, store: Path) -> None:
    name = push(copied, f"file://{store}")
    elsewhere.environment["TILUSBUILD_REMOTE_CACHE"] = f"file://{store}"
    # A package has the programs, and not all that the cache has.
    libraries = (path.read_bytes() for path in copied.cache.glob("programs/*/module/lib.so"))
    digests = sorted(hashlib.sha256(each).hexdigest() for each in libraries)
    poisoned = next(path for each in digests if (path := store / "cas" / each).exists())
    whole = poisoned.read_bytes()
    poisoned.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    there = elsewhere.directory / "cache"
    ran = elsewhere.run("install", name, "--cache-dir", str(there), status=1)
    assert f"module/lib.so: file://{store} has other bytes under its sha256" in ran.err
    assert list(there.glob("programs/*")) == []
    failed = load(elsewhere, name)
    assert "has other bytes under its sha256" in failed.stderr
    assert not list((elsewhere.directory.parent / "home/.cache/tilusbuild/packages").glob("[!.]*"))
    poisoned.unlink()
    ran = elsewhere.run("install", name, "--cache-dir", str(there), status=1)
    assert "module/lib.so is listed, and missing" in ran.err


def test_a_list_of_another_package_is_refused(
    copied: Marks, elsewhere: Project, store: Path
) -> None:
    name = push(copied, f"file://{store}")
    listed = store / "cas" / name.removeprefix("sha256:")
    listed.write_bytes(listed.read_bytes().replace(b"0.1.0", b"0.1.1", 1))
    ran = elsewhere.run("install", name, TILUSBUILD_REMOTE_CACHE=f"file://{store}", status=1)
    assert "tilus-package.json" in ran.err
    assert "has other bytes" in ran.err


def test_a_name_that_nobody_sent(address: str, elsewhere: Project) -> None:
    name = "sha256:" + "0" * 64
    ran = elsewhere.run("install", name, TILUSBUILD_REMOTE_CACHE=address, status=1)
    assert f"{name}: {address} has no such package" in ran.err
    assert "tilusbuild package --push" in ran.err


def test_no_remote_and_one_that_is_gone(elsewhere: Project) -> None:
    name = "sha256:" + "0" * 64
    assert "there is no remote cache" in elsewhere.run("install", name, status=2).err
    gone = elsewhere.run("install", name, TILUSBUILD_REMOTE_CACHE="http://127.0.0.1:1", status=1)
    assert "Connection refused" in gone.err
    assert "Traceback" not in gone.err
    assert "there is no remote cache" in load(elsewhere, name).stderr


def test_signatures_come_along(
    copied: Marks, elsewhere: Project, store: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    key, public = tmp_path / "key.pem", tmp_path / "key.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    elsewhere.environment["TILUSBUILD_REMOTE_CACHE"] = f"file://{store}"
    name = push(copied, f"file://{store}")
    there = ("--cache-dir", str(elsewhere.directory / "cache"))
    ran = elsewhere.run("install", name, "--key", str(public), *there, status=1)
    assert "the package is not signed" in ran.err
    assert push(copied, f"file://{store}", "--sign", str(key)) == name
    elsewhere.run("install", name, "--key", str(public), *there)
    assert load(elsewhere, name, TILUSBUILD_REQUIRE_SIGNED=str(public)).stdout == "11.0\n"
