"""Where the projects come from: their published packages, in an environment of their own.

Everything lies below `build/real`, is made once, and may be deleted. Nothing of a project is run to
unpack it: source packages are fetched as files. What is installed are NVIDIA's cuBLAS and cuRAND,
PyTorch for its headers (TORCH names another build of it, as for `make peers`), the projects that
are headers, and what the projects' own builds are started with.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from _bench import ROOT, WorkNotDoneError, nvcc

WORK = Path(os.environ.get("REAL", ROOT / "build/real")).resolve()
PORTS = Path(__file__).resolve().parent / "ports"

_TOOLS = ("unearth>=0.18", "cmake>=3.24", "ninja>=1.13", "setuptools>=77", "packaging")
_WITHOUT_NEEDS = (os.environ.get("TORCH", "torch"), "nvidia-cublas>=13.0,<13.2")
_TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions")


def python() -> str:
    """Return the interpreter of the environment, which has tilusbuild as well; made if missing."""
    home = WORK / "venv"
    program = str(home / "bin/python")
    if not (home / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        _pip(program, "-e", str(ROOT), *_TOOLS, *_TORCH_NEEDS)
        _pip(program, "--no-deps", *_WITHOUT_NEEDS)
        (home / ".ready").touch()
    return program


def install(*requirements: str, alone: bool = False) -> None:
    """Install packages; `alone`: those that ship sources, without what they need to run."""
    mark = WORK / "venv" / f".has-{'-'.join(requirements)}".replace("/", "_")
    if not mark.exists():
        _pip(python(), *(["--no-deps"] if alone else []), *requirements)
        mark.touch()


def _pip(program: str, *words: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([program, "-m", "pip", "install", *quiet, *words], check=True)


def site(package: str) -> Path:
    """Return an installed package's directory."""
    (directory,) = (WORK / "venv/lib").glob(f"python3*/site-packages/{package}")
    return directory


def source(requirement: str) -> Path:
    """Return the unpacked source package that a requirement names exactly (`name==version`)."""
    directory = WORK / "sources" / requirement.replace("==", "-")
    if not directory.exists():
        archives = WORK / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        fresh = archives / directory.name
        shutil.rmtree(fresh, ignore_errors=True)
        words = ["-m", "unearth", "--no-binary", "--download", str(fresh), requirement]
        subprocess.run([python(), *words], check=True, stdout=subprocess.DEVNULL)
        (archive,) = fresh.iterdir()
        unpacked = Path(f"{directory}.new")
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(archive) as file:
            file.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.4 on
            file.extractall(unpacked)
        (inside,) = unpacked.iterdir()
        inside.rename(directory)
        shutil.rmtree(unpacked)
        shutil.rmtree(fresh)
    return directory


def port(name: str, tree: Path) -> None:
    """Lay a port over a project's tree, as its maintainers would commit it."""
    shutil.copytree(PORTS / name, tree, dirs_exist_ok=True)


def environment() -> dict[str, str]:
    """Return what both builds are started with."""
    path = f"{WORK / 'venv/bin'}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "XDG_CACHE_HOME": str(WORK / "xdg"), "PYTHONSAFEPATH": "1"}


def toolkit() -> str:
    """Return the directory of the toolkit that the benchmarks' nvcc belongs to."""
    words = [nvcc(), "--dryrun", "-x", "cu", os.devnull]
    stderr = subprocess.run(words, capture_output=True, text=True, check=False).stderr
    top = re.search(r"^#\$ TOP=(.*)$", stderr, re.MULTILINE)
    if top is None:
        raise WorkNotDoneError(f"{words[0]} does not say where it is")
    return os.path.realpath(top[1].strip())


def driver_stub() -> Path:
    """Return a directory with a `libcuda.so` to link with, as complete toolkits have it."""
    directory = WORK / "stubs"
    if not (directory / "libcuda.so").exists():
        directory.mkdir(parents=True, exist_ok=True)
        words = ["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-x", "c", os.devnull, "-o"]
        subprocess.run([*words, str(directory / "libcuda.so")], check=True)
    return directory


def cublas(tree: Path) -> None:
    """Lay cuBLAS out in a tree as a toolkit has it: headers, and a library without a version."""
    shipped = site("nvidia/cu13")
    directory = tree / "cublas"
    if not directory.exists():
        shutil.copytree(shipped / "include", directory / "include")
        (directory / "lib").mkdir()
        (directory / "lib/libcublas.so").symlink_to(shipped / "lib/libcublas.so.13")
