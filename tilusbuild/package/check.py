"""Check that a package is what its list says, offline and without running anything of it.

Names, sizes and digests are compared as the files arrive; then each program and each script is
checked as soon as its files are complete. A program's texts hash to its name, its
`meta.json` is about it and the files that are packed, and its library holds the code that the list
and the target promise, and needs no more of a host than the list says. A script is read by the
runtime's own readers: what passes here is what `load` takes. What is held in memory is bounded: one
program's library and texts, or several where a container mixes them up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from tilusbuild.binary import BinaryError, LibraryNeeds, read_archs, read_needs
from tilusbuild.cache import layout
from tilusbuild.cache.checks import FileFacts, Origin, check_entry
from tilusbuild.cache.entries import parse_meta
from tilusbuild.cache.includes import Problem, check_headers
from tilusbuild.manifest.table import format_toml
from tilusbuild.package import names
from tilusbuild.package.errors import PackageError, code_mismatch, inconsistent, over_limit
from tilusbuild.package.extract import (
    ErrorHandler,
    Limits,
    check_limits,
    check_members,
    raise_error,
    write_member,
)
from tilusbuild.package.listing import (
    FileEntry,
    FileList,
    HostNeeds,
    PackageTarget,
    ProgramEntry,
    ScriptEntry,
    parse_list,
)
from tilusbuild.package.model import (
    MAX_LIBRARY_SIZE,
    PROGRAM_FILES,
    ContainerFile,
    Reader,
    classify_script_file,
    format_images,
    parse_version,
)
from tilusbuild.plan.identity import parse_section
from tilusbuild.runtime import choose
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import Code, Script, read_script
from tilusbuild.runtime.sealed import CorruptFileError, unseal_json
from tilusbuild.runtime.tables import read_serving_tables
from tilusbuild.state.files import sha256_file
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.status import Status

_MAX_TEXT_SIZE = 64 << 20
_MAX_WAITING = 512 << 20
"""Bytes that are held of programs with missing files."""
_MAX_PROBLEMS = 100

Files = Mapping[str, FileEntry]
"""The packed files of a program or a header directory, by their names in it."""


class VerifyResult(Struct, frozen=True):
    """The list of a package, None if it cannot be read, and the problems."""

    listing: FileList | None
    problems: tuple[PackageError, ...]


def verify_package(reader: Reader, limits: Limits) -> VerifyResult:
    """Check all of a package and return its problems; one that ends the check is the last."""
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
        reader.attestations()
        with TemporaryDirectory("verify") as directory:
            checker = PackageChecker(listing, directory.path, add_problem)
            for member in check_members(reader, listing, refuse=add_problem):
                try:
                    checker.read_member(member, keep=member.path.startswith(layout.SCRIPTS))
                except PackageError as error:
                    add_problem(error)
            checker.check_scripts()
    except PackageError as error:
        problems.append(error)
    return VerifyResult(listing, tuple(problems))


class PackageChecker(Struct):
    """Checks the files of a package in the order of its container.

    Files to keep are written below `directory`. Each problem is passed to `refuse`, which raises it
    or collects it.
    """

    listing: FileList
    directory: str
    refuse: ErrorHandler = raise_error
    _data: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """The contents of programs and header directories of which files are missing."""
    _files: dict[str, dict[str, FileEntry]] = field(default_factory=dict)
    _missing_count: dict[str, int] = field(default_factory=dict)
    """The number of files of each script that were not written yet."""
    _waiting_bytes: int = 0

    def __post_init__(self) -> None:
        for path, entry in self.listing.files.items():
            kind, _, digest = names.split_root(path)
            if kind == layout.SCRIPTS:
                self._missing_count[digest] = self._missing_count.get(digest, 0) + 1
            else:
                self._files.setdefault(f"{kind}/{digest}", {})[_name_in_root(path)] = entry

    def read_member(self, member: ContainerFile, *, keep: bool) -> None:
        """Read a file to its end, and check the program that it completes. With `keep` the file is
        written, too. Raises `PackageError` and the errors of the reader."""
        pieces = write_member(member, self.directory) if keep else member.pieces
        if self.listing.key is not None:
            check = self.listing.check_content(member.path, member.size)
            content = b"".join(piece if check else b"" for piece in pieces)
            if check is not None:
                self._run_check(check, content)
            return
        kind, _, digest = names.split_root(member.path)
        name = _name_in_root(member.path)
        checked_names = {layout.PROGRAMS: PROGRAM_FILES, layout.INCLUDE: (layout.MANIFEST,)}.get(
            kind, ()
        )
        if name not in checked_names:
            for _ in pieces:
                pass
            if keep and kind == layout.SCRIPTS:
                self._missing_count[digest] -= 1
            return
        self._add_waiting(member, MAX_LIBRARY_SIZE if name == layout.LIBRARY else _MAX_TEXT_SIZE)
        root = f"{kind}/{digest}"
        data = self._data.setdefault(root, {})
        data[name] = b"".join(pieces)
        if len(data) == len(checked_names):
            self._waiting_bytes -= sum(map(len, self._data.pop(root).values()))
            if kind == layout.PROGRAMS:
                self._run_check(check_program, self.listing, digest, data, self._files[root])
            else:
                self._run_check(check_include, digest, data[name], self._files[root])

    def check_scripts(self) -> None:
        """Check the scripts of which all files were written."""
        for script in self.listing.scripts:
            if not self._missing_count[script.hash]:
                self._run_check(check_script, self.listing, script, self.directory)

    def _add_waiting(self, member: ContainerFile, limit: int) -> None:
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


def _name_in_root(path: str) -> str:
    """Return a file's name within its program or header directory."""
    return path.split("/", 2)[2]


# Programs and headers.


def check_program(listing: FileList, digest: str, data: Mapping[str, bytes], files: Files) -> None:
    """Check a program, of which `data` has `PROGRAM_FILES`. Raises `PackageError`."""
    where = f"{layout.PROGRAMS}/{digest}"
    contents = {name: FileFacts(entry.size, entry.sha256) for name, entry in files.items()}
    if problems := check_entry(digest, {**contents, **data}, origin=Origin.PACKAGE):
        raise _make_problem_error(where, problems[0])
    if parse_meta(data[layout.META], digest)["status"] != Status.BUILT:
        raise inconsistent(f"{where}/{layout.META} is not the metadata of a program that was built")
    library = f"{where}/{layout.LIBRARY}"
    images = _check_code(library, listing.programs[digest], data[layout.LIBRARY], listing.needs)
    promised = _list_target_images(listing.targets[listing.programs[digest].target])
    # A library of objects has what these have: none of them may be device code.
    linked = "library" in parse_section(data[layout.PROGRAM_TXT].decode("utf-8", "replace"), "")
    if images != promised and not linked:
        raise code_mismatch(
            f"{library} holds code for {format_images(images)};"
            f" target {listing.programs[digest].target} is {format_images(promised)}"
        )


def _make_problem_error(where: str, problem: Problem) -> PackageError:
    """Return the error for a problem of the entry or the header directory `where`."""
    name, what = problem
    return inconsistent(f"{where}/{name}: {what}" if name else f"{where}: {what}")


def _check_code(
    where: str, program: ProgramEntry, data: bytes, host: HostNeeds
) -> set[tuple[str, str]]:
    """Return (kind, architecture) of the GPU code in a library. Raises `PackageError` for code or
    host requirements that are not listed."""
    try:
        images: set[tuple[str, str]] = {(image.kind, image.arch) for image in read_archs(data)}
        needs = read_needs(data)
    except BinaryError as error:
        raise code_mismatch(f"{where} is not a library: {error}") from None
    listed_images: set[tuple[str, str]] = {(image.kind, image.arch) for image in program.images}
    if images != listed_images:
        raise code_mismatch(
            f"{where} holds code for {format_images(images)};"
            f" listed is {format_images(listed_images)}"
        )
    if problem := find_host_problem(host, needs):
        raise inconsistent(f"{where} {problem}; the list says otherwise")
    return images


def _list_target_images(target: PackageTarget) -> set[tuple[str, str]]:
    if target.kind == "cpu":
        return set()
    return {(kind, arch) for arch, kind in choose.list_images(target.archs, target.ptx)}


def find_host_problem(host_needs: HostNeeds, needs: LibraryNeeds) -> str | None:
    """Return which host requirement of a library is not listed; None if all are."""
    if needs.machine != host_needs.machine:
        return f"is for {needs.machine}"
    if extra := set(needs.libraries) - set(host_needs.libraries):
        return f"needs {min(extra)}"
    if needs.glibc is not None and needs.glibc > parse_version(host_needs.glibc or "0"):
        return f"needs glibc {needs.glibc[0]}.{needs.glibc[1]}"
    return None


def check_include(digest: str, manifest: bytes, files: Files) -> None:
    """Check headers against the MANIFEST that names their directory. Raises `PackageError`."""
    digests = {name: entry.sha256 for name, entry in files.items()}
    if problems := check_headers(digest, manifest, digests):
        raise _make_problem_error(f"{layout.INCLUDE}/{digest}", problems[0])


# Scripts.


def check_script(listing: FileList, entry: ScriptEntry, root: str) -> None:
    """Check a script's directory below `root`. Raises `PackageError`."""
    where = entry.root
    path = os.path.join(root, where)
    for name in layout.list_files_below(path):
        if classify_script_file(name) is None:
            raise inconsistent(f"{where}/{name} is not a file that a script has")
    try:
        script = read_script(path)
        tables = read_serving_tables(script).tables
    except LoadError as error:
        raise inconsistent(str(error).replace(f"{root}/", "")) from None
    _check_description(where, listing, entry, script)
    packed = set(entry.programs)
    for row in (row for table in tables for row in table.entries):
        if script.programs[row.program] not in packed:
            raise inconsistent(
                f"{where}/{layout.TABLE_JSON} chooses program {row.program} at {list(row.key)},"
                " which is not packed"
            )
    _check_dispatcher(f"{where}/{layout.DISPATCH}", os.path.join(path, layout.DISPATCH))


def _check_description(where: str, listing: FileList, entry: ScriptEntry, script: Script) -> None:
    target, toolkit = listing.targets[entry.target], script.code.toolkit
    described = (script.name, script.target, script.kind, script.code)
    code = Code(target.archs, target.ptx, toolkit, listing.needs.machine)
    listed_values = (entry.script, entry.target, target.kind, code)
    if described != listed_values or not _is_no_newer(toolkit, target.toolkit):
        raise inconsistent(f"{where}/{layout.SCRIPT_JSON} and the list disagree on the target")
    if {name: format_toml(value) for name, value in script.params.items()} != dict(entry.params):
        raise inconsistent(f"{where}/{layout.SCRIPT_JSON} and the list disagree on the constants")
    packed = set(entry.programs)
    order = dict.fromkeys(program for program in script.programs.values() if program in packed)
    if tuple(order) != entry.programs:
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
        library = unseal_json(read_bytes(os.path.join(directory, layout.DISPATCH_JSON)))["library"]
        # The base name alone: a description could name any file of this machine.
        digest = sha256_file(os.path.join(directory, os.path.basename(library["name"])))
    except (OSError, CorruptFileError, KeyError, TypeError) as error:
        raise inconsistent(f"{where}/{layout.DISPATCH_JSON} is corrupt: {error}") from None
    if digest != library["sha256"]:
        raise inconsistent(f"{where}: the dispatcher is not what was built")
