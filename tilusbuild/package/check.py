"""Check a package against its list, offline and without running anything of it.

Names, sizes and digests are compared as the files arrive; then each program and each script is
checked as soon as its files are complete. A program's texts hash to its name, its
`meta.json` is about it and the files that are packed, and its library holds the code that the list
and the target promise, and needs no more of a host than the list says. A script is read by the
runtime's own readers: `load` takes every script that passes. Memory is bounded: one program's
library and texts are held, or those of several where a container mixes them up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field

from tilusbuild.binary.elf import LibraryNeeds
from tilusbuild.cache import layout
from tilusbuild.cache.checks import FileFacts, Origin, check_entry
from tilusbuild.cache.entries import parse_meta
from tilusbuild.cache.includes import Problem, check_headers
from tilusbuild.manifest.table import format_toml
from tilusbuild.package.errors import PackageError, code_mismatch, inconsistent, over_limit
from tilusbuild.package.extract import (
    ErrorHandler,
    Limits,
    check_limits,
    check_members,
    raise_error,
    read_to_end,
    write_member,
)
from tilusbuild.package.listing import (
    FileEntry,
    FileList,
    HostNeeds,
    ScriptEntry,
    parse_list,
)
from tilusbuild.package.model import (
    MAX_LIBRARY_SIZE,
    PROGRAM_FILES,
    ContainerFile,
    Image,
    Reader,
    classify_script_file,
    format_code,
    parse_version,
    read_code,
)
from tilusbuild.plan.identity import parse_section
from tilusbuild.runtime import choose
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import Code, Script, read_script
from tilusbuild.runtime.sealed import CorruptFileError, unseal_json
from tilusbuild.runtime.tables import read_dispatch_table
from tilusbuild.state.files import sha256_file
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.status import Status

_MAX_TEXT_SIZE = 64 << 20
_MAX_WAITING = 512 << 20
"""Bytes that are held of programs with missing files."""
_MAX_PROBLEMS = 100
_CHECKED_NAMES = {layout.PROGRAMS: PROGRAM_FILES, layout.INCLUDE: (layout.MANIFEST,)}
"""The files whose content is checked, by the kind of their directory."""

Files = Mapping[str, FileEntry]
"""The packed files of a program or a header directory, by their names in it."""


def verify_package(reader: Reader, limits: Limits) -> tuple[FileList | None, list[PackageError]]:
    """Check all of a package. Return its list, None if it cannot be read, and the problems.

    A problem that ends the check is the last.
    """
    problems: list[PackageError] = []

    def add_problem(error: PackageError) -> None:
        # A report of a million lines would be an attack of its own.
        problems.append(error)
        if len(problems) >= _MAX_PROBLEMS:
            raise over_limit(f"more than {_MAX_PROBLEMS} things are wrong")

    listing = None
    try:
        listing = parse_list(reader.list_bytes())
        check_limits(listing, reader, limits)
        # Called for its checks of names and sizes: the attestations themselves are not needed.
        reader.attestations()
        with TemporaryDirectory("verify") as directory:
            checker = PackageChecker(listing, directory.path, add_problem)
            for member in check_members(reader, listing, refuse=add_problem):
                try:
                    checker.read_member(member, keep=member.path.startswith(layout.SCRIPTS))
                except PackageError as error:
                    add_problem(error)
            # A script with a wrong or missing file would only give problems that follow from it.
            if not problems:
                checker.check_scripts()
    except PackageError as error:
        problems.append(error)
    return listing, problems


class PackageChecker(Struct):
    """Checks the files of a package in the order of its container.

    Files to keep are written below `directory`. Each problem is passed to `refuse`, which raises it
    or collects it.
    """

    listing: FileList
    directory: str
    refuse: ErrorHandler = raise_error
    _contents: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Contents by name, of each program and header directory that is not complete yet."""
    _files: dict[str, dict[str, FileEntry]] = field(default_factory=dict)
    """The listed files by name, of each directory."""
    _waiting_bytes: int = 0
    """Bytes of all contents in `_contents`."""

    def __post_init__(self) -> None:
        for path, entry in self.listing.files.items():
            root, name = _split_path(path)
            self._files.setdefault(root, {})[name] = entry

    def read_member(self, member: ContainerFile, *, keep: bool) -> None:
        """Read a file to its end; with `keep`, also write it below `directory`.

        The content of a file of a program or of headers is held until its directory is complete,
        and then the directory is checked. Raises `PackageError` and the errors of the reader.
        """
        pieces = write_member(member, self.directory) if keep else member.pieces
        if self.listing.key is not None:
            check = self.listing.make_content_checker(member.path, member.size)
            if check is None:
                read_to_end(pieces)
            else:
                self._run_check(check, b"".join(pieces))
            return
        root, name = _split_path(member.path)
        kind, _, digest = root.partition("/")
        if name not in _CHECKED_NAMES.get(kind, ()):
            read_to_end(pieces)
            return
        self._reserve_memory(member, MAX_LIBRARY_SIZE if name == layout.LIBRARY else _MAX_TEXT_SIZE)
        contents = self._contents.setdefault(root, {})
        contents[name] = b"".join(pieces)
        if len(contents) == len(_CHECKED_NAMES[kind]):
            self._waiting_bytes -= sum(map(len, self._contents.pop(root).values()))
            if kind == layout.PROGRAMS:
                self._run_check(check_program, self.listing, digest, contents, self._files[root])
            else:
                self._run_check(check_include, digest, contents[name], self._files[root])

    def check_scripts(self) -> None:
        """Check the scripts that were written, each with all of its files."""
        for script in self.listing.scripts:
            if os.path.isdir(os.path.join(self.directory, script.root)):
                self._run_check(check_script, self.listing, script, self.directory)

    def _reserve_memory(self, member: ContainerFile, limit: int) -> None:
        """Add the size of a file to `_waiting_bytes`. Raises `PackageError` if the file has more
        than `limit` bytes, or `_waiting_bytes` exceeds `_MAX_WAITING`."""
        if member.size > limit:
            raise over_limit(f"{member.path} has more than {limit} bytes")
        # A container that leaves every program one file short would fill the memory.
        self._waiting_bytes += member.size
        if self._waiting_bytes > _MAX_WAITING:
            raise over_limit("the files of its programs are too far apart")

    def _run_check(self, check: Callable[..., None], *arguments: object) -> None:
        try:
            check(*arguments)
        except PackageError as error:
            self.refuse(error)


def _split_path(path: str) -> tuple[str, str]:
    """Split `programs/HASH/NAME` or `include/DIGEST/NAME` into the directory and the name."""
    kind, digest, name = path.split("/", 2)
    return f"{kind}/{digest}", name


# Programs and headers.


def check_program(listing: FileList, digest: str, data: Mapping[str, bytes], files: Files) -> None:
    """Check a program's texts, metadata and library against its hash `digest`, the list and its
    target. `data` has the contents of `PROGRAM_FILES`. Raises `PackageError`."""
    where = f"{layout.PROGRAMS}/{digest}"
    contents = {name: FileFacts(entry.size, entry.sha256) for name, entry in files.items()}
    if problems := check_entry(digest, {**contents, **data}, origin=Origin.PACKAGE):
        raise _make_problem_error(where, problems[0])
    if parse_meta(data[layout.META], digest)["status"] != Status.BUILT:
        raise inconsistent(f"{where}/{layout.META} is not the metadata of a program that was built")
    library, program = f"{where}/{layout.LIBRARY}", listing.programs[digest]
    check_code(library, data[layout.LIBRARY], program.images, listing.needs.machine, listing.needs)
    target = listing.targets[program.target]
    images = {(image.arch, image.kind) for image in program.images}
    promised = set(choose.list_images(target.archs, target.ptx)) if target.kind == "cuda" else set()
    # A library that was linked has the code of its objects, which may be host code alone: its code
    # can differ from the target's.
    program_text = data[layout.PROGRAM_TXT].decode("utf-8", "replace")
    is_linked = "library" in parse_section(program_text, "")
    if images != promised and not is_linked:
        raise code_mismatch(
            f"{library} holds {format_code(images, None)};"
            f" target {program.target} is {format_code(promised, None)}"
        )


def _make_problem_error(where: str, problem: Problem) -> PackageError:
    """Return the error for a problem of the entry or the header directory `where`."""
    return inconsistent(f"{os.path.join(where, problem.name).rstrip('/')}: {problem.message}")


def check_code(
    where: str, data: bytes, images: Iterable[Image], machine: str | None, needs: HostNeeds
) -> None:
    """Raise `PackageError` unless the GPU code of a library is exactly `images`, and its host code
    is for `machine` (None: it has none) and needs no more of a host than `needs`."""
    code, library_needs = read_code(data)
    actual_machine = library_needs.machine if library_needs else None
    if set(code) != set(images) or actual_machine != machine:
        actual = format_code(((image.arch, image.kind) for image in code), actual_machine)
        listed = format_code(((image.arch, image.kind) for image in images), machine)
        raise code_mismatch(f"{where} holds {actual}; listed is {listed}")
    if library_needs and (problem := _find_host_problem(needs, library_needs)):
        raise inconsistent(f"{where} {problem}; the list says otherwise")


def _find_host_problem(host_needs: HostNeeds, needs: LibraryNeeds) -> str | None:
    """Return a requirement in `needs`, those of a library, that the list's `host_needs` do not
    have, as words of a message; None if they have all."""
    if extra := set(needs.libraries) - set(host_needs.libraries):
        return f"needs {min(extra)}"
    if needs.glibc is not None and needs.glibc > parse_version(host_needs.glibc or "0"):
        return f"needs glibc {needs.glibc[0]}.{needs.glibc[1]}"
    return None


def check_include(digest: str, manifest: bytes, files: Files) -> None:
    """Check that `manifest`, the content of MANIFEST, hashes to the name of the header directory,
    and that the listed files are its headers. Raises `PackageError`."""
    digests = {name: entry.sha256 for name, entry in files.items()}
    if problems := check_headers(digest, manifest, digests):
        raise _make_problem_error(f"{layout.INCLUDE}/{digest}", problems[0])


# Scripts.


def check_script(listing: FileList, entry: ScriptEntry, root: str) -> None:
    """Check the directory of a script below `root`: its names, description, dispatch tables and C
    dispatcher. Raises `PackageError`."""
    where = entry.root
    path = os.path.join(root, where)
    # The runtime reads files by their names: it would not notice another one.
    for name in layout.list_files_below(path):
        if classify_script_file(name) is None:
            raise inconsistent(f"{where}/{name} is not a file that a script has")
    try:
        script = read_script(path)
        tables = read_dispatch_table(script).tables
    except LoadError as error:
        # The directory is private, and gone when the message is read.
        raise inconsistent(str(error).replace(f"{root}/", "")) from None
    _check_description(where, listing, entry, script)
    packed_programs = set(entry.programs)
    for number in sorted(frozenset().union(*(table.programs for table in tables))):
        # A machine that has only the package could not serve the sizes for which it is chosen.
        if script.programs[number] not in packed_programs:
            raise inconsistent(
                f"{where}/{layout.TABLE_JSON} chooses program {number}, which is not packed"
            )
    _check_dispatcher(f"{where}/{layout.DISPATCH}", os.path.join(path, layout.DISPATCH))


def _check_description(where: str, listing: FileList, entry: ScriptEntry, script: Script) -> None:
    """Raise `PackageError` if a script's description and the list disagree."""
    target, toolkit = listing.targets[entry.target], script.code.toolkit
    described_values = (script.name, script.target, script.kind, script.code)
    code = (target.archs, target.ptx, toolkit, listing.needs.machine, script.code.isa)
    listed_values = (entry.script, entry.target, target.kind, Code(*code))
    if described_values != listed_values or not _is_no_newer(toolkit, target.toolkit):
        raise inconsistent(f"{where}/{layout.SCRIPT_JSON} and the list disagree on the target")
    if {name: format_toml(value) for name, value in script.params.items()} != dict(entry.params):
        raise inconsistent(f"{where}/{layout.SCRIPT_JSON} and the list disagree on the constants")
    listed_programs = set(entry.programs)
    # The list has the packed programs in the order of the script, each once.
    ordered_programs = dict.fromkeys(p for p in script.programs.values() if p in listed_programs)
    if tuple(ordered_programs) != entry.programs:
        raise inconsistent(f"{where}: the list names programs that are not of this script")


def _is_no_newer(toolkit: str | None, newest: str | None) -> bool:
    """Return whether a script's toolkit is not newer than `newest`, the newest of its target."""
    if toolkit is None or newest is None:
        return toolkit is newest
    return parse_version(toolkit) <= parse_version(newest)


def _check_dispatcher(where: str, directory: str) -> None:
    """Raise `PackageError` unless the C dispatcher has the digest of its own description."""
    if not os.path.isdir(directory):
        return
    try:
        description = unseal_json(read_bytes(os.path.join(directory, layout.DISPATCH_JSON)))
        library = description["library"]
        # Only the base name is taken, because a description could name any file of this machine.
        digest = sha256_file(os.path.join(directory, os.path.basename(library["name"])))
    except (OSError, CorruptFileError, KeyError, TypeError) as error:
        raise inconsistent(f"{where}/{layout.DISPATCH_JSON} is corrupt: {error}") from None
    if digest != library["sha256"]:
        raise inconsistent(f"{where}: the dispatcher is not what was built")
