"""Make the device kit: one archive to carry to a machine with a GPU. `make device-kit`.

It needs nvcc, a C++ compiler and PyPI. `--examples quickstart --host` makes a small kit of what
runs without a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 60_000_000
EXAMPLES = ("quickstart", "gemm", "attention", "hopper", "marlin")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
RUNTIME = ("apache-tvm-ffi", "typing-extensions")
BUILDER_PYTHON = "3.12"
"""Tests that build need all requirements, whose wheels for one Python are as large as the rest."""
SIZES = {"marlin": "\n[script.gemm.tune]\nsizes = [{ m = 16, n = 4096, k = 4096, groups = 32 }]\n"}
"""Sizes for examples that have none, and no reference: random weights are timed, and nothing is
compared."""
RUN = '#!/bin/sh\ncd "$(dirname "$0")" && exec "${PYTHON:-python3}" kit.py "$@"\n'


def tilusbuild(project: Path, *words: str) -> None:
    """Run a command in a project of the kit. Its cache stays for the next kit."""
    cache = project.parents[1] / "device-kit-cache" / project.name
    command = [sys.executable, "-m", "tilusbuild", *words, "--cache-dir", str(cache)]
    subprocess.run(command, cwd=project, check=True)


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *words], check=True)


def wheels(into: Path, *, host: bool) -> None:
    """The runtime's wheels for each Python, and the builder's for one."""
    pip("wheel", "--no-deps", "-w", str(into), str(ROOT))
    only = ["download", "--only-binary", ":all:", "-d", str(into)]
    python_version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for version in (python_version,) if host else PYTHONS:
        pip(*only, "--no-deps", "--python-version", version, *RUNTIME)
    if not host:
        wanted = ["msgspec", "pydantic", "jinja2", "filelock", "rfc8785", "packaging", "pytest"]
        wanted += ["ml_dtypes", "zstandard", "urllib3", "rich", "shtab", "watchdog", "hypothesis"]
        pip(*only, "--python-version", BUILDER_PYTHON, *wanted)
        for numpy in into.glob("numpy-*"):  # who has torch has it
            numpy.unlink()


def package(example: str, work: Path, kit: Path, *, level: int, host: bool) -> None:
    """Build an example, and put its package with tests into the kit."""
    project = work / example
    ignored = shutil.ignore_patterns(".cache", "dist", "build")
    shutil.copytree(ROOT / "examples" / example, project, ignore=ignored)
    manifest = project / "tilus.toml"
    text = manifest.read_text()
    if "ptx = true" not in text:
        text = text.replace('arch = "sm_80"\n', 'arch = "sm_80"\nptx = true\n')
    text += SIZES.get(example, "")
    manifest.write_text(text)
    chosen = ["-t", "cpu"] if host else []
    tilusbuild(project, "build", "--level", str(level), *chosen)
    if host:
        manifest.write_text(f'{text}\n[package.{example}]\ntargets = ["cpu"]\n')
    arguments = ["package", "--with-tests", "--level", str(level), "--format", "dir", "-o", "dist"]
    tilusbuild(project, *arguments)
    (directory,) = (project / "dist").iterdir()
    shutil.copytree(directory, kit / "packages" / example)


def share(kit: Path) -> None:
    """Make files of equal content links to one: expected outputs are those of every target."""
    known: dict[str, Path] = {}
    for path in sorted(kit.rglob("*.want")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        first = known.setdefault(digest, path)
        if first is not path:
            path.unlink()
            path.hardlink_to(first)


def sources(kit: Path) -> None:
    """The repository's tests of a device, with the examples that they build."""
    ignored = shutil.ignore_patterns("__pycache__", ".cache", "dist", "build")
    for name in ("examples", "templates", "tests/gpu", "tests/support"):
        shutil.copytree(ROOT / name, kit / "source" / name, ignore=ignored)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, kit / "source" / name)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build")
    parser.add_argument("--examples", default=",".join(EXAMPLES))
    parser.add_argument("--level", type=int, default=1, help="of the spaces (1)")
    parser.add_argument("--host", action="store_true", help="only what runs without a GPU")
    options = parser.parse_args(words)
    work, kit = options.output / "device-kit-work", options.output / "device-kit"
    for directory in (work, kit):
        shutil.rmtree(directory, ignore_errors=True)
    for name in ("wheels", "packages", "measure"):
        (kit / name).mkdir(parents=True)
    wheels(kit / "wheels", host=options.host)
    for example in options.examples.split(","):
        package(example, work, kit, level=options.level, host=options.host)
    source_directory = ROOT / "scripts" / "device_kit"
    shutil.copy(source_directory / "kit.py", kit)
    for path in (
        source_directory / "on_device.py",
        source_directory / "sample.py",
        *(ROOT / "benchmarks").glob("_[dt]*.py"),
    ):
        shutil.copy(path, kit / "measure")
    if not options.host:
        sources(kit)
    (kit / "run.sh").write_text(RUN)
    share(kit)
    archive = options.output / "device-kit.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(kit, "device-kit")
    shutil.rmtree(work)
    size = archive.stat().st_size
    print(f"{archive}: {size:,} bytes")
    return 0 if size <= MOST_BYTES else f"more than {MOST_BYTES:,} bytes"  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
