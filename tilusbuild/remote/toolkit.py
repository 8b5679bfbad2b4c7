"""This machine's compilers as inputs of actions, for workers without: `toolchain = "inputs"`.

A tree of the tools, the libraries that they load, and every directory of headers that a compile
searches, each at its own path: on a worker whose sandbox has the inputs as its whole file system
the compilers are these, byte for byte. The probe's own commands are in it, so that a worker on
which they are not is found out as any other is.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tilusbuild.process.base import Command, Runner
from tilusbuild.remote import reapi_pb2 as reapi
from tilusbuild.remote.record import Blob, Sources, blob_for
from tilusbuild.state.files import sha256_file
from tilusbuild.toolchain import Toolchain
from tilusbuild.toolchain.nvrtc import PYTHON

COMMANDS = ("sh", "find", "sort", "xargs", "sha256sum")
"""What the probe runs; nvcc runs its parts through the first one."""
_LOADED = re.compile(rb"(/\S+) \(0x[0-9a-f]+\)")
_MAX_FILES = 200_000
_PATIENCE = 60.0
"""Seconds that the loader has to list what programs load."""


class ToolkitError(Exception):
    """The compilers cannot be sent. The text is for people."""


@dataclass(frozen=True, slots=True)
class _File:
    blob: Blob
    runs: bool


@dataclass(frozen=True, slots=True)
class _Link:
    target: str


_Tree: TypeAlias = "dict[str, _File | _Link | _Tree]"


@dataclass(slots=True)
class Toolkit:
    """The root of the file system on a worker, but for the command's own directory."""

    root: reapi.Directory = field(default_factory=reapi.Directory)
    sources: Sources = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    """The paths there of programs that commands name without."""


def toolkit(toolchain: Toolchain, runner: Runner) -> Toolkit:
    """Return the compilers of a toolchain, with all that they load and read. Raises `OSError`,
    `ToolkitError`, and what the runner raises."""
    files = _Files()
    programs = [*_programs(toolchain)]
    python = _python(toolchain, runner)
    for path in (*programs, *python, *_beside(toolchain)):
        files.add(path)
    binaries = [path for path in python if not path.endswith(".py")]
    for path in _loaded((*programs, *binaries), runner):
        files.add(path)
    for directory in toolchain.reach().headers:
        files.add(directory)
    made = Toolkit(sources=files.sources)
    if python:
        made.programs = {PYTHON: python[0]}
    made.root = _message(files.root, made.sources)
    return made


def _programs(toolchain: Toolchain) -> Iterator[str]:
    for name in COMMANDS:
        path = shutil.which(name, path=os.defpath)
        if path is None:
            raise ToolkitError(f"{name} is not installed here")
        yield path
    yield "/bin/sh"  # the name that C libraries have for it
    for tool in toolchain.tools():
        if tool.path and os.path.isfile(tool.path):
            yield tool.path


def _beside(toolchain: Toolchain) -> Iterator[str]:
    """Yield what nvcc finds by its own place."""
    if (cuda := toolchain.cuda) is not None:
        binaries = os.path.dirname(cuda.nvcc)
        yield from (os.path.join(binaries, "nvcc.profile"), os.path.join(binaries, "crt"))
        yield cuda.libdevice


_READ = """
import runpy, sys
script, *words = sys.argv[1:]
sys.argv = [script, *words]
try:
    runpy.run_path(script, run_name="__main__")
except SystemExit as end:
    if end.code: raise
files = (getattr(each, "__file__", None) for each in list(sys.modules.values()))
print(*filter(None, files), sep="\\0")
"""
"""For Python: run a script, then list the files of all that is imported."""


def _python(toolchain: Toolchain, runner: Runner) -> list[str]:
    """Return the files of NVRTC, and those of Python that its command imports, the interpreter
    first. Raises `ToolkitError`."""
    nvrtc = toolchain.nvrtc
    if nvrtc is None:
        return []
    interpreter, *flags, script, option, library = nvrtc.command
    argv = (interpreter, *flags, "-c", _READ, script, option, library, "identify")
    done = runner.run(Command(argv, "/", {"LC_ALL": "C"}, _PATIENCE))
    imported = done.output.decode("utf-8", "replace").splitlines()[-1:]
    if not done.ok or not imported:
        raise ToolkitError("NVRTC's command does not run here")
    return [os.path.realpath(interpreter), *imported[0].split("\0"), *nvrtc.files]


def _loaded(programs: Iterable[str], runner: Runner) -> Iterator[str]:
    """Yield the libraries that programs load, and the loader."""
    environment = {"PATH": os.defpath, "LC_ALL": "C"}
    listed = runner.run(Command(("ldd", *programs), "/", environment, _PATIENCE)).output
    yield from sorted({path.decode() for path in _LOADED.findall(listed)})


class _Files:
    """Files, directories and links at their own paths."""

    def __init__(self) -> None:
        self.root: _Tree = {}
        self.sources: Sources = {}
        self._whole: set[str] = set()
        self._count = 0

    def add(self, path: str) -> None:
        """Add what is at an absolute path, with each link on the way; of a directory all. What is
        not there is left out. Raises `OSError`, `ToolkitError`."""
        if not os.path.exists(path):
            return
        here, node = "", self.root
        names = path.split("/")[::-1]
        while names:
            name = names.pop()
            full = f"{here}/{name}"
            if name in ("", "."):
                continue
            if name == "..":
                here = os.path.dirname(here)
                node = self._directory(here)
            elif os.path.islink(full):
                target = os.readlink(full)
                shown = os.path.relpath(target, here or "/") if target[0] == "/" else target
                node[name] = _Link(shown)
                names += target.split("/")[::-1]
                if target[0] == "/":
                    here, node = "", self.root
            elif os.path.isdir(full):
                here, node = full, self._directory(full)
            else:
                self._file(node, name, full)
                return
        self._all(here, node)

    def _directory(self, path: str) -> _Tree:
        node: Any = self.root
        for name in filter(None, path.split("/")):
            node = node.setdefault(name, {})
        return node  # type: ignore[no-any-return]

    def _file(self, node: _Tree, name: str, path: str) -> None:
        if name in node:
            return
        self._count += 1
        if self._count > _MAX_FILES:
            raise ToolkitError(f"the compilers and headers are more than {_MAX_FILES} files")
        blob = Blob(sha256_file(path), os.stat(path).st_size)
        node[name] = _File(blob, os.access(path, os.X_OK))
        self.sources.setdefault(blob, path)

    def _all(self, path: str, node: _Tree) -> None:
        if path in self._whole:
            return
        self._whole.add(path)
        for entry in sorted(os.scandir(path), key=lambda each: each.name):
            if entry.is_symlink():
                self.add(entry.path)
            elif entry.is_dir():
                self._all(entry.path, self._directory(entry.path))
            elif entry.is_file():
                self._file(node, entry.name, entry.path)


def _message(tree: _Tree, sources: Sources) -> reapi.Directory:
    """Return the message of a directory; those of the directories below it are added to
    `sources`."""
    made = reapi.Directory()
    for name, node in sorted(tree.items()):
        if isinstance(node, _Link):
            made.symlinks.add(name=name, target=node.target)
        elif isinstance(node, _File):
            digest = reapi.Digest(hash=node.blob.digest, size_bytes=node.blob.size)
            made.files.add(name=name, digest=digest, is_executable=node.runs)
        else:
            data = _message(node, sources).SerializeToString(deterministic=True)
            blob = blob_for(data)
            sources[blob] = data
            digest = reapi.Digest(hash=blob.digest, size_bytes=blob.size)
            made.directories.add(name=name, digest=digest)
    return made
