"""Compile programs again, and compare the libraries byte for byte.

A program is compiled as a build compiles it: by this machine's pipeline (`plan/recorded.py`), in
the sandbox, from `options.txt` and the sources. Nothing that came with it is run: `compile.sh` is
for people. The sample is chosen by hash, so that everybody who asks for 5 % checks the same
programs. Nothing is kept.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.cache import layout
from tilusbuild.cache.entries import lookup, product_of
from tilusbuild.cache.index import programs
from tilusbuild.cache.tree import Tree
from tilusbuild.compile.model import OBJECT
from tilusbuild.compile.program import compile_program
from tilusbuild.compile.steps import LAUNCHER, launcher_in
from tilusbuild.errors import InputError
from tilusbuild.package import names
from tilusbuild.package.errors import missing
from tilusbuild.package.extract import Limits
from tilusbuild.package.listing import FileList
from tilusbuild.package.read import is_cache, unpacked
from tilusbuild.plan.identity import section_of
from tilusbuild.plan.recorded import UnlikeOursError, recorded
from tilusbuild.process.local import LocalRunner
from tilusbuild.process.machine import usable_cores
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.envelope import StepStore
from tilusbuild.state.files import sha256_file
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.status import Status
from tilusbuild.toolchain import DigestMemory, Toolchain, ToolchainRequest, discover


class RebuildResult(Struct, frozen=True):
    """A program that was compiled again. `error` is why it could not be."""

    program: str
    recorded_sha256: str
    rebuilt_sha256: str | None
    error: str = ""
    wanted: str = ""
    """The tool that made the recorded one, where it is not found here."""

    @property
    def same(self) -> bool:
        """Whether the same bytes came out."""
        return self.rebuilt_sha256 == self.recorded_sha256

    def __str__(self) -> str:
        where = f"{layout.PROGRAMS}/{self.program}"
        if self.rebuilt_sha256 is None:
            return f"{where} does not compile here: {self.error}"
        if self.same:
            return f"{where} is reproduced"
        made = f"{where}: made sha256 {self.rebuilt_sha256}, recorded {self.recorded_sha256}"
        if not self.wanted:
            return made
        return f"{made}; that needs {self.wanted}, which was not found: set NVCC or CXX"


def rebuild(path: str, share: float, limits: Limits) -> Iterator[RebuildResult]:
    """Compile a share (0 to 1) of the programs of a package or a cache again, at least one.

    Raises `PackageError`, also for a package without sources.
    """
    if is_cache(path):
        cache = Tree(path)
        yield from _compiled(cache.root, _recorded(cache, share))
        return
    with unpacked(path, lambda each: _needed(each, share), limits) as (listing, root):
        recorded = {
            program: listing.files[f"{layout.PROGRAMS}/{program}/{layout.LIBRARY}"].sha256
            for program in sample(listing.programs, share)
        }
        yield from _compiled(root, recorded)


def sample(found: Iterable[str], share: float) -> set[str]:
    """Return the programs whose hashes are in the lowest share of all; at least one."""
    ordered = sorted(found)
    chosen = {each for each in ordered if int(each[:15], 16) < share * (1 << 60)}
    return chosen or set(ordered[:1])


def _recorded(cache: Tree, share: float) -> dict[str, str]:
    entries = (lookup(cache, program) for program in programs(cache))
    built = {entry.hash: entry for entry in entries if entry and entry.status == Status.BUILT}
    return {
        program: product_of(built[program].meta).sha256 or "" for program in sample(built, share)
    }


def _needed(listing: FileList, share: float) -> set[str]:
    chosen = sample(listing.programs, share)
    for program in sorted(chosen):
        if f"{layout.PROGRAMS}/{program}/{layout.COMPILE_SH}" not in listing.files:
            raise missing(
                f"{layout.PROGRAMS}/{program}/{layout.COMPILE_SH} is not packed",
                hint="only a package that includes its sources can be built again",
            )
    return {
        path
        for path in listing.files
        if (root := names.root_of(path))[0] == layout.INCLUDE or root[2] in chosen
    }


def _compiled(root: str, wanted: Mapping[str, str]) -> Iterator[RebuildResult]:
    """Compile programs of a tree, whose products have these digests; as many at once as there are
    cores. Yields in the order of hashes."""
    with TemporaryDirectory("rebuild") as directory, ThreadPoolExecutor(usable_cores()) as pool:
        again = _Again(root, directory.path)
        try:
            yield from pool.map(again.compile, *zip(*sorted(wanted.items()), strict=True))
        finally:
            again.runner.close()  # first: the pool waits for its threads, and they for compilers


class _Again:
    """Compiles programs of a tree again."""

    def __init__(self, root: str, directory: str) -> None:
        self.runner = LocalRunner()
        self._root = root
        self._directory = directory
        self._launchers = StepStore()
        self._memory = DigestMemory()
        self._guard = threading.Lock()
        self._toolchains: dict[ToolchainRequest, Toolchain] = {}

    def compile(self, program: str, digest: str) -> RebuildResult:
        """Compile a program whose product has this digest."""
        try:
            made, wanted = self._compile(program)
        except (OSError, UnlikeOursError, InputError) as error:
            return RebuildResult(program, digest, None, str(error))
        return RebuildResult(program, digest, made, wanted=wanted)

    def _compile(self, program: str) -> tuple[str, str]:
        """Return the digest of what was made, and which tool that was to be made by is not here."""
        own = os.path.join(self._root, layout.PROGRAMS, program)
        program_txt, options_txt, compile_sh = (
            str(read_bytes(os.path.join(own, name)), "utf-8", "surrogateescape")
            for name in (layout.PROGRAM_TXT, layout.OPTIONS_TXT, layout.COMPILE_SH)
        )
        files = self._files(own, section_of(options_txt, "generated"), compile_sh)
        recipe = recorded(program_txt, options_txt, files, compile_sh)
        objects = [
            os.path.join(self._root, layout.PROGRAMS, each, "module", OBJECT)
            for each in recipe.objects
        ]
        if missing := sum(not os.path.isfile(path) for path in objects):
            raise UnlikeOursError(
                f"{missing} of the objects that it links are missing: a package holds none; verify"
                " the cache that built them"
            )
        toolchain = self._toolchain(options_txt)
        stage = os.path.join(self._directory, program)
        os.makedirs(os.path.join(stage, "module"))
        files |= {name: text.encode() for name, text in recipe.pipeline.fixed_files.items()}
        for name, data in files.items():
            with open(os.path.join(stage, "module", name), "wb") as file:
                file.write(data)
        include = recipe.includes.digest and os.path.join(
            self._root, layout.INCLUDE, recipe.includes.digest
        )
        done = compile_program(
            recipe, toolchain, stage, include, self.runner.scope(), self._launchers, objects=objects
        )
        if done.status != Status.BUILT:
            raise UnlikeOursError(done.reason)
        made = sha256_file(os.path.join(stage, "module", recipe.pipeline.product))
        shutil.rmtree(stage, ignore_errors=True)
        return made, _other_tool(options_txt, recipe.pipeline.fingerprint(recipe, toolchain))

    def _files(self, own: str, generated: Mapping[str, str], compile_sh: str) -> dict[str, bytes]:
        """Return the source and what was generated, by name."""
        include = os.path.join(self._root, layout.INCLUDE)
        shared = (
            os.path.join(include, each)
            for each in layout.mentioned_headers(compile_sh.encode("utf-8", "replace"))
        )
        paths = {name: os.path.join(own, "module", name) for name in (*generated, "source.cu")}
        paths |= {LAUNCHER: launcher_in(shared) or ""}
        return {
            name: read_bytes(path)
            for name, path in paths.items()
            if "/" not in name and os.path.isfile(path)
        }

    def _toolchain(self, options_txt: str) -> Toolchain:
        """Return the compilers of the recorded version, else those here. Raises `InputError`."""
        made = section_of(options_txt, "toolchain")
        tool = next((name for name in ("nvcc", "nvrtc") if name in made), None)
        nvcc = os.environ.get("NVCC")
        request = ToolchainRequest(
            (nvcc and shutil.which(nvcc)) or (tool and f"=={made[tool].split(' ')[0]}"),
            needs_cuda=tool == "nvcc",
            needs_nvrtc=tool == "nvrtc",
            cxx=os.environ.get("CXX"),
        )
        with self._guard:
            if request not in self._toolchains:
                self._toolchains[request] = self._found(request)
        return self._toolchains[request]

    def _found(self, request: ToolchainRequest) -> Toolchain:
        with suppress(InputError):
            return discover(request, os.environ, self.runner, self._memory)
        return discover(replace(request, nvcc=None), os.environ, self.runner, self._memory)


def _other_tool(options_txt: str, ours: Iterable[str]) -> str:
    """Return the first tool that a program was made by, if it is not the one that is here."""
    texts = (options_txt, "\n".join(("[toolchain]", *ours)))
    made, here = (section_of(text, "toolchain") for text in texts)
    other = (f"{name} {what}" for name, what in made.items() if here.get(name, what) != what)
    return " ".join(next(other, "").split(" ")[:2])
