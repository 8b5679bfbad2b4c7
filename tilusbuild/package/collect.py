"""From a cache to a package's contents: which files, with what digests, asking what of a host.

Every file is read and checked before anything is written: a program against its `meta.json`, a
script against its own hash, headers against their `MANIFEST`. What GPU code a library holds is read
from the library. A `meta.json` is sealed anew when not all of its files come along, so that it is
true of the package, too. Two caches that hold the same programs give the same contents.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilusbuild.binary import BinaryError, read_archs, read_needs
from tilusbuild.cache import layout, scripts
from tilusbuild.cache.cache import Cache
from tilusbuild.cache.entries import listed
from tilusbuild.cache.includes import include_problems
from tilusbuild.package.coherent import digest_of_inputs, is_table
from tilusbuild.package.contents import Contents, read_file
from tilusbuild.package.errors import CannotPack
from tilusbuild.package.listing import (
    FileEntry,
    FileList,
    Image,
    ProgramEntry,
    ScriptEntry,
    Target,
)
from tilusbuild.package.needs import Together
from tilusbuild.package.purpose import Purpose, of_program, of_script
from tilusbuild.package.reach import reachable
from tilusbuild.package.restrict import MENTION
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.sealed import CorruptFileError, seal
from tilusbuild.runtime.tables import FILE as TABLE
from tilusbuild.state.hashing import sha256_bytes
from tilusbuild.status import Status

_AGAIN = "`tilusbuild cache verify --repair` removes what is damaged, `tilusbuild build` makes it"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to collect. `scripts` are (folder, hash) of instances that are whole in the cache."""

    name: str
    version: str
    project: str
    tool: str
    scripts: tuple[tuple[str, str], ...]
    purposes: frozenset[Purpose]
    dispatched: bool = False
    """Only the programs that dispatch can choose."""


@dataclass(slots=True)
class _Collected:
    """What was found so far."""

    origins: dict[str, bytes | str] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)
    programs: dict[str, ProgramEntry] = field(default_factory=dict)
    needs: Together = field(default_factory=Together)

    def add(self, path: str, data: bytes, origin: bytes | str) -> None:
        self.files[path] = FileEntry(len(data), sha256_bytes(data))
        self.origins[path] = origin


def collect(cache: Cache, wanted: Wanted) -> Contents:
    """Read all that the package is to have. Raises `CannotPack`, `UnsafeName`, `ListMalformed`."""
    found = _Collected()
    entries: list[ScriptEntry] = []
    targets: dict[str, Target] = {}
    for script, params in sorted(_read(cache, wanted), key=lambda pair: _order(pair[0])):
        entries.append(_collect_script(cache, script, params, wanted, found))
        cuda = script.kind == "cuda"
        targets[script.target] = Target(
            "cuda" if cuda else "cpu", script.archs, script.ptx, script.toolkit if cuda else None
        )
    if not entries:
        raise CannotPack("there is no script to pack")
    tables = {path: file.sha256 for path, file in found.files.items() if is_table(path)}
    package = FileList(
        name=wanted.name,
        version=wanted.version,
        project=wanted.project,
        tool=wanted.tool,
        inputs=digest_of_inputs([e.hash for e in entries], found.programs, tables),
        targets=targets,
        needs=found.needs.needs(),
        scripts=tuple(entries),
        programs=found.programs,
        files=found.files,
    )
    return Contents(package, package.encode(), found.origins, {})


def _order(script: Script) -> tuple[str, str, str]:
    return script.name, script.target, script.hash


def _read(cache: Cache, wanted: Wanted) -> Iterable[tuple[Script, Mapping[str, str]]]:
    for folder, digest in wanted.scripts:
        path = cache.tree.script_path(folder, digest)
        try:
            text = scripts.read_script(path, digest)
            yield read_script(path), dict(_param(line) for line in text.params)
        except (LoadError, CorruptFileError, OSError) as error:
            raise CannotPack(str(error), hint=_AGAIN) from None


def _param(line: str) -> tuple[str, str]:
    name, _, value = line.partition(" = ")
    return name, value


def _collect_script(
    cache: Cache, script: Script, params: Mapping[str, str], wanted: Wanted, found: _Collected
) -> ScriptEntry:
    numbers = _numbers(script, dispatched=wanted.dispatched)
    folder = f"{layout.SCRIPTS}/{os.path.basename(os.path.dirname(script.path))}/{script.hash}"
    for name in layout.files_below(script.path):
        if of_script(name) in wanted.purposes:
            path = os.path.join(script.path, name)
            data = read_file(path)
            found.add(f"{folder}/{name}", data, path)
            if name.endswith(".so"):
                found.needs.add(path, read_needs(data), "")
    programs = tuple(dict.fromkeys(script.programs[number] for number in numbers))
    for program in programs:
        if program not in found.programs:
            found.programs[program] = _collect_program(cache, script, program, wanted, found)
    tables = f"{folder}/{TABLE}" in found.files
    return ScriptEntry(script.name, script.hash, script.target, params, programs, tables)


def _numbers(script: Script, *, dispatched: bool) -> list[int]:
    """Which programs to carry, in the order of the plan."""
    try:
        built = set(range(len(script.programs))) - script.not_built.keys()
        numbers = sorted(reachable(script) if dispatched else built)
    except LoadError as error:
        raise CannotPack(str(error)) from None
    if not numbers:
        raise CannotPack(
            f"{script.label} has no program that was built",
            hint="leave it out with `scripts` or `targets`; `tilusbuild explain` says why",
        )
    return numbers


def _collect_program(
    cache: Cache, script: Script, program: str, wanted: Wanted, found: _Collected
) -> ProgramEntry:
    entry = cache.lookup(program)
    if entry is None or entry.status != Status.BUILT:
        raise CannotPack(f"program {program} of {script.label} is not whole", hint=_AGAIN)
    folder = f"{layout.PROGRAMS}/{program}"
    texts: dict[str, bytes] = {}
    for name, size, digest in listed(entry.meta):
        if of_program(name) not in wanted.purposes:
            continue
        path = os.path.join(entry.path, name)
        data = read_file(path)
        if FileEntry(len(data), sha256_bytes(data)) != FileEntry(size, digest):
            raise CannotPack(f"{path} is not what was built", hint=_AGAIN)
        found.add(f"{folder}/{name}", data, path)
        texts[name] = data
    kept = {name: facts for name, facts in entry.meta["files"].items() if name in texts}
    meta = seal({**entry.meta, "files": kept})
    found.add(f"{folder}/{layout.META}", meta, meta)
    for digest in sorted(set(MENTION.findall(texts.get("module/compile.sh", b"")))):
        _collect_headers(cache, digest.decode(), found)
    try:
        images = read_archs(texts[layout.LIBRARY])
        needs = read_needs(texts[layout.LIBRARY])
    except BinaryError as error:
        raise CannotPack(f"{folder}/{layout.LIBRARY}: {error}", hint=_AGAIN) from None
    found.needs.add(folder, needs, texts[layout.OPTIONS_TXT].decode("utf-8", "replace"))
    return ProgramEntry(
        script.name, script.target, tuple(dict.fromkeys(Image(i.kind, i.arch) for i in images))
    )


def _collect_headers(cache: Cache, digest: str, found: _Collected) -> None:
    folder = f"{layout.INCLUDE}/{digest}"
    if f"{folder}/{layout.MANIFEST}" in found.files:
        return
    path = cache.include_path(digest)
    try:
        problems = include_problems(path, digest)
        if problems:
            raise CannotPack(f"{folder}/{problems[0][0]} {problems[0][1]}", hint=_AGAIN)
        for name in layout.files_below(path):
            data = read_file(os.path.join(path, name))
            found.add(f"{folder}/{name}", data, os.path.join(path, name))
    except OSError as error:
        raise CannotPack(f"{folder} cannot be read: {error.strerror}", hint=_AGAIN) from None
