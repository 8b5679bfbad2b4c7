"""Compile programs again, each by its own `compile.sh`, and compare the libraries byte for byte.

This runs scripts of the package: use it on verified packages whose maker is trusted that far. The
sample is chosen by hash, so that everybody who asks for 5 % checks the same programs. Nothing is
kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.entries import lookup, product_of
from tilusbuild.cache.index import programs
from tilusbuild.cache.tree import Tree
from tilusbuild.compile.model import OBJECT
from tilusbuild.errors import InputError
from tilusbuild.package import names
from tilusbuild.package.errors import missing
from tilusbuild.package.extract import Limits
from tilusbuild.package.listing import FileList
from tilusbuild.package.read import is_cache, unpacked
from tilusbuild.plan.identity import section_of, sections
from tilusbuild.process.base import Command, Runner
from tilusbuild.process.local import LocalRunner
from tilusbuild.process.machine import usable_cores
from tilusbuild.runtime.regular import read_text
from tilusbuild.state.files import sha256_file
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.status import Status
from tilusbuild.toolchain import DigestMemory, ToolchainRequest
from tilusbuild.toolchain.discovery import find_cuda
from tilusbuild.toolchain.host import find_host
from tilusbuild.toolchain.probe import Probe


class RebuildResult(Struct, frozen=True):
    """A program that was compiled again. `error` is why it could not be."""

    program: str
    recorded_sha256: str
    rebuilt_sha256: str | None
    error: str = ""
    wanted: str = ""
    """The compiler that made the recorded one, where it is not found here."""

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
        return f"{made}; that was made by {self.wanted}, which is not found here: set NVCC"


def rebuild(path: str, share: float, limits: Limits) -> Iterator[RebuildResult]:
    """Compile a share (0 to 1) of the programs of a package or a cache again, at least one.

    Raises `PackageError`, also for a package without sources.
    """
    if is_cache(path):
        yield from compile_again(os.path.abspath(path), _recorded(Tree(path), share))
        return
    with unpacked(path, lambda each: _needed(each, share), limits) as (listing, root):
        recorded = {
            program: listing.files[f"{layout.PROGRAMS}/{program}/{layout.LIBRARY}"].sha256
            for program in sample(listing.programs, share)
        }
        yield from compile_again(root, recorded)


def sample(found: Iterable[str], share: float) -> set[str]:
    """Return the programs whose hashes are in the lowest share of all possible ones; at least
    one."""
    ordered = sorted(found)
    chosen = {each for each in ordered if int(each[:15], 16) < share * (1 << 60)}
    return chosen or set(ordered[:1])


def _recorded(cache: Tree, share: float) -> dict[str, str]:
    entries = (lookup(cache, program) for program in programs(cache))
    built = {entry.hash: entry for entry in entries if entry and entry.status == Status.BUILT}
    return {
        program: str(built[program].meta["files"][product_of(built[program].meta)]["sha256"])
        for program in sample(built, share)
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


def compile_again(root: str, recorded: Mapping[str, str]) -> Iterator[RebuildResult]:
    """Compile programs of a tree, whose products have these digests; as many at once as there are
    cores. Yields in the order of hashes."""
    runner = LocalRunner()
    releases = {program: _release(root, program) for program in recorded}
    compilers = _compilers(releases.values(), runner)
    with TemporaryDirectory("rebuild") as directory, ThreadPoolExecutor(usable_cores()) as pool:
        try:
            yield from pool.map(
                lambda item: _one(
                    root, directory.path, runner, compilers, releases[item[0]], *item
                ),
                sorted(recorded.items()),
            )
        finally:
            runner.close()  # first: the pool waits for its threads, and they for compilers


_VERSION = re.compile(r"\d+(?:\.\d+)+")


def _release(root: str, program: str) -> str | None:
    """Return the version of the nvcc that a program was compiled with; None of another compiler,
    and where that cannot be read."""
    path = os.path.join(root, layout.PROGRAMS, program, layout.OPTIONS_TXT)
    try:
        line = section_of(read_text(path, "replace"), "toolchain").get("nvcc")
    except OSError:
        return None
    version = (line or "").partition(" ")[0]
    return version if _VERSION.fullmatch(version) else None


def _compilers(used: Iterable[str | None], runner: Runner) -> dict[str, str | None]:
    """Return an nvcc of each version that is used, None where there is none here; empty where the
    user has said which one to take."""
    releases = set(filter(None, used))
    if os.environ.get("NVCC") or not releases:
        return {}
    probe = Probe(runner, os.environ, DigestMemory())
    found: dict[str, str | None] = {}
    # Where none can be looked for, compile.sh says what it misses.
    with suppress(InputError, OSError):
        host = find_host(probe)
        for release in sorted(releases):
            cuda, _ = find_cuda(ToolchainRequest(f"=={release}"), probe, host)
            found[release] = None if cuda is None else cuda.nvcc
    return found


def _objects_missing(root: str, program: str) -> int:
    """Return how many objects of a library are not there."""
    try:
        text = read_text(
            os.path.join(root, layout.PROGRAMS, program, layout.PROGRAM_TXT), "replace"
        )
    except OSError:
        return 0
    objects = sections(text).get("objects", {}).values()
    module = os.path.dirname(layout.SOURCE)
    places = (os.path.join(root, layout.PROGRAMS, each, module, OBJECT) for each in objects)
    return sum(not os.path.isfile(place) for place in places)


def _one(
    root: str,
    directory: str,
    runner: Runner,
    compilers: Mapping[str, str | None],
    release: str | None,
    program: str,
    recorded: str,
) -> RebuildResult:
    library = os.path.join(directory, program)
    if missing := _objects_missing(root, program):
        error = f"{missing} of the objects that it links are not here: a package holds none"
        return RebuildResult(program, recorded, None, f"{error}; verify the cache that built them")
    script = os.path.join(root, layout.PROGRAMS, program, layout.COMPILE_SH)
    # What a compiler leaves behind is removed with the directory.
    environment = {**os.environ, "TMPDIR": directory}
    nvcc = compilers.get(release) if release else None
    if nvcc is not None:
        environment["NVCC"] = nvcc
    wanted = f"nvcc {release}" if release in compilers and nvcc is None else ""
    try:
        finished = runner.run(Command(("bash", script, library), directory, environment))
    except OSError as error:
        return RebuildResult(program, recorded, None, str(error))
    if not finished.ok:
        lines = finished.output.decode(errors="replace").splitlines()
        reason = lines[-1] if lines else f"exit {finished.status}"
        return RebuildResult(program, recorded, None, reason)
    return RebuildResult(program, recorded, sha256_file(library), wanted=wanted)
