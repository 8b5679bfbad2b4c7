"""The link of a library, or of a script with `entry`: the objects and libraries that it joins.

The identity of a library's link names the programs of its objects: a library is linked again if and
only if one of these, or a file of the link, changes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from msgspec.structs import replace

from tilusbuild.compile.model import Link
from tilusbuild.errors import input_error
from tilusbuild.manifest.library import SOURCE, LibrarySection, LinkScript
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.sections import ProductKeys
from tilusbuild.plan.instance import InstanceSpec, PlannedInstance, get_product_keys
from tilusbuild.plan.roots import PROJECT, find_torch_libraries
from tilusbuild.render.closure import Closure, Header, make_closure
from tilusbuild.runtime.naming import format_program_name
from tilusbuild.runtime.regular import open_file
from tilusbuild.space.model import Schedule
from tilusbuild.toolchain import DigestMemory


class LinkedFile(NamedTuple):
    """A file that a link reads: its name in the copy of the program's files, and its path."""

    name: str
    path: str


PlannedObjects = Mapping[tuple[str, str], Sequence[tuple[str, str]]]
"""What was planned of scripts of objects, by script and target: each one's name and hash."""


def list_linked_objects(
    manifest: Manifest, script: str, target: str, planned: PlannedObjects
) -> tuple[tuple[str, str], ...]:
    """Return the name and the hash of each program that a library links, in order."""
    scripts = manifest.list_library_objects(script)
    objects = [pair for name in scripts for pair in planned.get((name, target), ())]
    # Two sources that are the same program are one object: linked twice its symbols would clash.
    # Going backwards keeps the last one's place and the first one's name.
    name_by_program = {program: name for name, program in reversed(objects)}
    return tuple((name, program) for program, name in reversed(name_by_program.items()))


def get_library_section(spec: InstanceSpec) -> LibrarySection:
    """Return the library's table."""
    return cast("LinkScript", spec.owner).owner


def make_library_link(
    spec: InstanceSpec, memory: DigestMemory
) -> tuple[Link, Closure, tuple[str, ...]]:
    """Return a library's link, the closure of its files, and the paths that were probed for
    libraries. Raises `InputError`."""
    library_section = get_library_section(spec)
    root = spec.manifest.root
    # A link script's `libs` are the compiled objects that the library's `objects` names.
    object_files = [
        _read_linked_file(spec, memory, f"{PROJECT}/{name}", os.path.join(root, name), "objects")
        for name in cast("LinkScript", spec.owner).libs
    ]
    library_files, probed_paths = _read_link_libs(spec, memory)
    needed = library_section.needed
    if spec.torch_location is not None:
        sonames, torch_paths = find_torch_libraries(spec.torch_location)
        probed_paths = (*probed_paths, *torch_paths)
        needed = (*needed, *sonames)
    # What links to the output asks for it by the name of the file that it found, unless that is an
    # archive.
    output = "" if library_section.kind == "static" else library_section.output
    file_name = os.path.basename(f"lib{spec.script}.so" if output is None else output)
    link = replace(
        _make_link(library_section, library_files),
        soname=file_name.replace("{target}", spec.target.name),
        inputs=tuple(header.name for header in object_files),
        needed=needed,
        cudart=library_section.cudart,
        objects=tuple(program for _, program in spec.objects),
    )
    return link, make_closure([*object_files, *library_files]), probed_paths


def make_entry_link(
    spec: InstanceSpec, memory: DigestMemory
) -> tuple[Link | None, list[Header], tuple[str, ...]]:
    """Return the link of a program with an entry, the files of `link-libs`, and the paths that
    were probed for them; (None, [], ()) if the script links nothing. Raises `InputError`."""
    # Every program comes here, and most link nothing.
    if not spec.owner.links:
        return None, [], ()
    library_files, probed_paths = _read_link_libs(spec, memory)
    return _make_link(spec.owner, library_files), library_files, probed_paths


def _make_link(keys: ProductKeys, library_files: Sequence[Header]) -> Link:
    """Return the link that a table's keys describe; `library_files` are those of `link-libs`."""
    return Link(
        dirs=tuple(dict.fromkeys(os.path.dirname(header.name) for header in library_files)),
        libs=keys.link_libs,
        needed=keys.needed,
        rpath=keys.rpath,
        undefined=keys.undefined,
    )


def _read_link_libs(
    spec: InstanceSpec, memory: DigestMemory
) -> tuple[list[Header], tuple[str, ...]]:
    """Return the files of the libraries of `link-libs` that are in `link-dirs`, and the paths that
    were probed for them. Raises `InputError`."""
    located_libs, probed_paths = _locate_link_libs(spec)
    libraries = [library for _, library in located_libs if library is not None]
    files = [file for library in libraries for file in _read_library_files(spec, memory, library)]
    return files, probed_paths


def explain_not_shared(spec: InstanceSpec) -> str:
    """Return why a program is not shared with other machines; "" if it is shared.

    It is not shared if a name of `link-libs` is found in the system, because no hash covers that
    file. Names that a flag may have (the C and C++ libraries) are excepted: the fingerprint covers
    them by their headers.
    """
    # Every program of a plan comes here, and most have no `link-libs`.
    if not get_product_keys(spec.owner).link_libs:
        return ""
    from tilusbuild.manifest.denied_flags import find_denied_flags

    cpu = spec.target.kind == "cpu"
    uncovered_names = []
    located_libs, _ = _locate_link_libs(spec)
    for name, library in located_libs:
        is_denied = any(find_denied_flags([f"-l{name}"], cpu=cpu))
        if library is None and is_denied:
            uncovered_names.append(name)
    if not uncovered_names:
        return ""
    key = "link-libs" if len(uncovered_names) > 1 else "of link-libs"
    return f"{', '.join(uncovered_names)} {key} comes from the system, and no hash covers it"


def _read_library_files(
    spec: InstanceSpec, memory: DigestMemory, library: LinkedFile
) -> Iterator[Header]:
    """Yield the file of a library of `link-libs` and, if it is a linker's script, the files beside
    it that the script names. Raises `InputError`."""
    yield _read_linked_file(spec, memory, library.name, library.path, "link-libs")
    start = _read_start(library.path)
    if start.startswith(_BINARY_STARTS):
        return
    # A linker's script, as `libtbb.so` is: `INPUT ( libtbb.so.12 )`.
    for word in re.findall(r"[^\s(),;\"]+", start.decode("utf-8", "replace")):
        path = os.path.join(os.path.dirname(library.path), word)
        if "/" not in word and os.path.isfile(path):
            name = f"{os.path.dirname(library.name)}/{word}"
            yield _read_linked_file(spec, memory, name, path, "link-libs")


def _locate_link_libs(
    spec: InstanceSpec,
) -> tuple[list[tuple[str, LinkedFile | None]], tuple[str, ...]]:
    """Return each name of `link-libs` with its file in `link-dirs`, or None if no directory has it;
    and the paths that were probed."""
    located_libs = []
    probed_paths: list[str] = []
    for name in get_product_keys(spec.owner).link_libs:
        library = None
        for root in spec.link_roots:
            # Absent files are probed, too: ld takes the first directory that has one, so a file in
            # an earlier directory changes the link when it appears.
            probed_paths.append(root.path)
            file_names = name_library_files(name)
            probed_paths.extend(f"{root.path}/{file_name}" for file_name in file_names)
            existing_names = [f for f in file_names if os.path.isfile(f"{root.path}/{f}")]
            if existing_names:
                file_name = existing_names[0]
                library = LinkedFile(f"{root.name}/{file_name}", f"{root.path}/{file_name}")
                break
        located_libs.append((name, library))
    return located_libs, tuple(probed_paths)


def _read_linked_file(
    spec: InstanceSpec, memory: DigestMemory, name: str, path: str, key: str
) -> Header:
    """Return the file at `path`, `name` in the copy, with its digest. Raises `InputError`, at the
    script's key `key`, for a file that cannot be read and for a thin archive."""
    location = spec.manifest.locate_key("script", spec.script, key)
    try:
        header = Header(name, memory.digest_file(path), path)
        start = _read_start(path)
    except OSError as error:
        raise input_error(f"{path} cannot be read: {error.strerror}", location=location) from None
    if start.startswith(_THIN_ARCHIVE_START):
        message = f"{path} is a thin archive: it names objects, and holds none"
        raise input_error(message, location=location, hint="ar rcs, without T, makes one with them")
    return header


def make_log_readable(spec: InstanceSpec, log: str) -> str:
    """Return a linker's log with the objects' names in place of their numbers, and without
    private directories."""
    names = [name for name, _ in spec.objects]

    def name_object(match: re.Match[str]) -> str:
        # Objects lie in the private directory as `0.o`, `1.o`, … in the order of the link.
        if match["number"] is not None and int(match["number"]) < len(names):
            return names[int(match["number"])]
        return match["file"] or match[0]

    return _LINKED_FILE.sub(name_object, log)


_BINARY_STARTS = (b"\x7fELF", b"!<arch>\n")
_THIN_ARCHIVE_START = b"!<thin>\n"
_MAX_SCRIPT = 1 << 12
"""Bytes of a linker's script that are read: it is short, and begins with a comment at most."""
_LINKED_FILE = re.compile(
    rf"(?<![^\s'\"`(])(?:include/(?:{PROJECT}/)?(?P<file>[^\s:'\"`(]+)|(?P<number>\d+)\.o\b)"
)
"""A file in a linker's log, by its name in the private directory: `include/project/src/a.a` is the
file `src/a.a`, and `3.o` is object number 3."""


def name_library_files(lib: str) -> tuple[str, ...]:
    """Return the files that a linker looks for after `-l`, in its order."""
    return (lib[1:],) if lib.startswith(":") else (f"lib{lib}.so", f"lib{lib}.a")


def _read_start(path: str) -> bytes:
    """Return the first bytes of a file. Raises `OSError`."""
    with open_file(path) as file:
        return file.read(_MAX_SCRIPT)


def name_objects(instance: PlannedInstance, schedules: Sequence[Schedule]) -> list[str]:
    """Return a name for people for each object of an instance: its source's file or, of a kernel,
    its program's name."""
    if instance.parameters == (SOURCE,):
        return [str(schedule.values[SOURCE]) for schedule in schedules]
    return [
        format_program_name(instance.script, instance.params, number)
        for number in range(len(schedules))
    ]
