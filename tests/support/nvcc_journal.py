"""A CUDA toolkit to test with: laid out like NVIDIA's, answered for by `nvcc_journal.cc`.

    python tests/support/nvcc_journal.py FOLDER       makes one, and prints its nvcc

Its compiles take milliseconds, are journaled in `DIRECTORY/journal`, and can be told to fail,
crash, hang and more: see the C++ file."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

VERSION = "13.0.88"

UNHELD = {"TILUSBUILD_SANDBOX": "0"}
"""The environment of a build with such a toolkit: in a sandbox it could keep no journal."""

_HERE = os.path.dirname(os.path.abspath(__file__))
_NVCC = "bin/nvcc"
_PROGRAMS = ("bin/ptxas", "bin/fatbinary", "bin/nvlink", "bin/cudafe++", "nvvm/bin/cicc")
_FILES = (
    "bin/nvcc.profile",
    "bin/crt/link.stub",
    "nvvm/libdevice/libdevice.10.bc",
    "include/cuda.h",
    "include/cuda_runtime.h",
    "include/cuda_fp16.h",
    "include/crt/host_config.h",
    "include/cccl/nv/target",
    "lib64/libcudart_static.a",
    "lib64/libcudadevrt.a",
)


def make_toolkit(directory: str) -> str:
    """Make a toolkit in a directory; the path of its nvcc. Needs g++."""
    nvcc = os.path.join(directory, _NVCC)
    for name in (_NVCC, *_PROGRAMS, *_FILES):
        os.makedirs(os.path.join(directory, os.path.dirname(name)), exist_ok=True)
    shutil.copy(_compiled(), nvcc)
    for name in _PROGRAMS:
        shutil.copy2(nvcc, os.path.join(directory, name))
    for name in _FILES:
        with open(os.path.join(directory, name), "w") as file:
            file.write(f"// {name} {VERSION}\n")
    return nvcc


def _compiled() -> str:
    """The compiler, which is kept as bytecode is: to make it takes seconds, of many tests."""
    source = os.path.join(_HERE, "nvcc_journal.cc")
    with open(source, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    kept = os.path.join(_HERE, "__pycache__", f"nvcc_journal.{digest[:16]}")
    if not os.path.exists(kept):
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        staging_path = f"{kept}.{os.getpid()}"
        subprocess.run(["g++", "-O1", "-Wall", "-Wextra", "-o", staging_path, source], check=True)
        os.replace(staging_path, kept)
    return kept


def as_release(directory: str, version: str) -> str:
    """Have a toolkit in a directory say that it is of another release, such as "13.1.15"; the path
    of its nvcc."""
    assert len(version) == len(VERSION)
    old, new = (full_version.rpartition(".")[0].encode() for full_version in (VERSION, version))
    for where, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(where, name), "r+b") as file:
                data = file.read().replace(VERSION.encode(), version.encode()).replace(old, new)
                file.seek(0)
                file.write(data)
    return os.path.join(directory, _NVCC)


def make_host(directory: str) -> str:
    """Make g++, gcc, as and ld in a directory to put on PATH, which are quick to ask; returns it.

    They need the real ones in /usr/bin.
    """
    for name in ("own", "system", "kept", "misbehave"):
        os.makedirs(os.path.join(directory, name))
    for name in ("g++", "gcc", "as", "ld"):
        shutil.copy(os.path.join(_HERE, "host_tool.sh"), os.path.join(directory, name))
        os.chmod(os.path.join(directory, name), 0o755)
    for name in ("own/stddef.h", "system/features.h"):
        with open(os.path.join(directory, name), "w") as file:
            file.write(f"// {name}\n")
    return directory


def misbehave(nvcc: str, *faults: tuple[str, str]) -> None:
    """Have the next compiles go wrong, one each: names of faults, and what `say` prints."""
    directory = os.path.join(os.path.dirname(os.path.dirname(nvcc)), "misbehave")
    os.makedirs(directory, exist_ok=True)
    for number, (name, text) in enumerate(faults):
        with open(os.path.join(directory, f"{number:03}-{name}"), "w") as file:
            file.write(text)


def read_journal(nvcc: str) -> list[tuple[str, str, str]]:
    """(mode, key, how it went) of every compile that was started, in order."""
    return [(mode, key, what) for mode, key, what in _noted(nvcc, "journal")]


def spans(nvcc: str) -> list[list[str]]:
    """The words of each line that compiles noted when they began and ended, in order."""
    return _noted(nvcc, "spans")


def _noted(nvcc: str, name: str) -> list[list[str]]:
    """The words of each line of what compiles write; none before the first has begun."""
    try:
        with open(os.path.join(os.path.dirname(os.path.dirname(nvcc)), name)) as file:
            return [line.split() for line in file]
    except FileNotFoundError:
        return []


def most_at_once(nvcc: str) -> int:
    """How many compiles have run at the same time; those that were killed never ended."""
    running: set[str] = set()
    most = 0
    for word, pid, *_ in spans(nvcc):
        (running.add if word == "begin" else running.discard)(pid)
        most = max(most, len(running))
    return most


def compiles(nvcc: str) -> Counter[str]:
    """How often each program was compiled, by its key."""
    return Counter(key for _, key, _ in read_journal(nvcc))


@dataclass(frozen=True)
class FakeCuda:
    """A toolkit of one test, by its nvcc."""

    nvcc: str

    @property
    def environment(self) -> dict[str, str]:
        return {"CUDA_HOME": os.path.dirname(os.path.dirname(self.nvcc)), **UNHELD}

    def most_at_once(self) -> int:
        """How many compiles have run at the same time."""
        return most_at_once(self.nvcc)

    @property
    def compiles(self) -> Counter[str]:
        """How often each program was given to the compiler, by the journal's key."""
        return compiles(self.nvcc)

    @property
    def journal(self) -> list[tuple[str, str, str]]:
        return read_journal(self.nvcc)

    @property
    def spans(self) -> list[list[str]]:
        return spans(self.nvcc)


if __name__ == "__main__":
    print(make_toolkit(sys.argv[1]))
