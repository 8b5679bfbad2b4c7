"""`tilus-package.json`: the list of a package, which names all of its other files.

The form is RFC 8785 canonical JSON: equal lists are equal bytes, and the sha256 of those bytes is
the package's name in every format. A list holds strings, whole numbers, true, false and null. It
says nothing of who packed it, when, or where.

`parse_list` takes untrusted bytes. It accepts exactly the texts that `encode` writes for a
consistent list: every script and program has its files, every file belongs to one, every name is
safe. All other bytes raise `PackageError`.

The price of a list that comes first: a package cannot be written as a stream, since every digest is
needed before the first byte (docs/guarantees.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import rfc8785
from msgspec import Meta, Struct, convert, to_builtins
from msgspec.json import decode

from tilusbuild.cache import layout
from tilusbuild.package import names
from tilusbuild.package.errors import malformed
from tilusbuild.package.model import PROGRAM_FILES, SCRIPT_FILES, Digest, Image, Name, Version
from tilusbuild.report.text import format_count, to_one_line
from tilusbuild.runtime.naming import to_snake_case
from tilusbuild.state.files import sha256_bytes

SCHEMA = 1
# The list is read whole and parsed before anything of it can be believed: its size bounds the
# memory that this takes.
MAX_LIST_SIZE = 64 << 20
MAX_FILES = 1_000_000
"""Files in a container. A list names fewer: each takes more than 64 bytes of it."""
MAX_FILE_SIZE = 1 << 40

_MACHINES = ("x86_64", "aarch64")
ANY_MACHINE = "any"
"""`needs.machine` of a package of another kind without host code."""


class PackageTarget(Struct, frozen=True, forbid_unknown_fields=True):
    """A target of the manifest. `toolkit` is the version of the newest CUDA toolkit that
    made code for it; None for the CPU."""

    kind: Literal["cuda", "cpu"]
    archs: tuple[Name, ...]
    ptx: bool
    toolkit: Version | None


class HostNeeds(Struct, frozen=True, forbid_unknown_fields=True):
    """The requirements of the libraries on a host. None: no requirement.

    `machine` is that of `uname -m`, or "any" for a package of another kind without host code; `isa`
    an x86-64 level or the value of `-march`; `glibc` the lowest version ("2.17"); `libraries` the
    names in DT_NEEDED, sorted; `tvm_ffi` the oldest of its series; `libstdcxx` the greatest GLIBCXX
    version ("3.4.30").
    """

    machine: str
    isa: Name | None
    glibc: Version | None
    libraries: tuple[Annotated[str, Meta(max_length=255)], ...]
    tvm_ffi: Version | None
    libstdcxx: Version | None = None


class ScriptEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """An instance of a script for a target. `params` are its constants, as script.txt writes them;
    `programs` those of its programs that are packed, in the order of the plan."""

    script: Name
    hash: Digest
    target: Name
    params: Mapping[str, Annotated[str, Meta(max_length=65536)]]
    programs: tuple[Digest, ...]

    @property
    def pair(self) -> tuple[str, str]:
        """The name of the directory below `scripts`, and the hash below that."""
        return to_snake_case(self.script), self.hash

    @property
    def root(self) -> str:
        """The path of its directory."""
        return "/".join((layout.SCRIPTS, *self.pair))


class ProgramEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A program that is packed, and the first of the scripts and targets that have it."""

    script: Name
    target: Name
    images: tuple[Image, ...]


class FileEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A file's size in bytes and its sha256."""

    size: Annotated[int, Meta(ge=0, le=MAX_FILE_SIZE)]
    sha256: Digest


class FileList(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole list. `scripts` are sorted by script, target and hash. The list of another kind is
    a subclass with a `key`, and neither targets, scripts nor programs."""

    schema: int = SCHEMA
    tool: Name
    """The version of tilusbuild that made it."""
    name: Name
    version: Name
    project: Name
    targets: Mapping[str, PackageTarget]
    needs: HostNeeds
    scripts: tuple[ScriptEntry, ...]
    programs: Mapping[Digest, ProgramEntry]
    files: Mapping[str, FileEntry]

    # What the list of another kind overrides.

    key: ClassVar[str | None] = None
    """The key by which lists of the kind are known."""

    @staticmethod
    def find_path_problem(below: Sequence[str]) -> str | None:
        """Return the reason why no file can have this path below the kind's root, else None."""

    def make_content_checker(self, path: str, size: int) -> Callable[[bytes], None] | None:
        """Return a function that raises `PackageError` for a wrong content of a file; None for a
        file of which only the digest is compared. Raises `PackageError` for a file too large."""

    def check_own_part(self) -> None:
        """Raise `PackageError` for the first inconsistency of the kind's own part."""

    def encode(self) -> bytes:
        """Return the text of the list, in canonical JSON. Raises `PackageError` for a list that
        `parse_list` would refuse."""
        check_list(self)
        try:
            value = to_builtins(self)
            # Patterns and ranges are checked by decoding alone, never as a Struct is made.
            convert(value, type(self))
            data = rfc8785.dumps(value)
        except ValueError as error:
            raise malformed(str(error)) from None
        if len(data) > MAX_LIST_SIZE:
            raise malformed(f"the list would have {len(data)} bytes, more than {MAX_LIST_SIZE}")
        return data

    @property
    def digest(self) -> str:
        """The sha256 of the list, which identifies the package."""
        return sha256_bytes(self.encode())

    @property
    def title(self) -> str:
        """The name of the package among those of all projects."""
        return make_title(self.project, self.name)

    @property
    def summary(self) -> str:
        """The number of scripts and programs, as words of a message."""
        scripts, programs = len(self.scripts), len(self.programs)
        return f"{format_count(scripts, 'script')}, {format_count(programs, 'program')}"

    @property
    def size(self) -> int:
        """Bytes of all files, the list not counted."""
        return sum(file.size for file in self.files.values())


def make_title(project: str, name: str) -> str:
    """Return "PROJECT-NAME", or the package's name alone if it begins with the project's."""
    return name if name == project or name.startswith(f"{project}-") else f"{project}-{name}"


# The text.


def parse_list(data: bytes) -> FileList:
    """Parse and check the text of a list. Raises `PackageError` for all other bytes."""
    if len(data) > MAX_LIST_SIZE:
        raise malformed(f"the list has {len(data)} bytes; at most {MAX_LIST_SIZE} are read")
    key = names.read_kind(data)
    try:
        listing = decode(data, type=FileList if key is None else names.load_list_class(key))
    except ValueError as error:
        raise malformed(to_one_line(str(error)[:500])) from None
    check_list(listing)
    # The package is named by the sha256 of these bytes: two texts of one list would be two names,
    # and of a key that appears twice, readers differ in which value they believe.
    if rfc8785.dumps(to_builtins(listing)) != data:
        raise malformed("the list is not in its canonical form (RFC 8785)")
    return listing


# The checks of a list, made before it is written and after it was read.


def check_list(listing: FileList) -> None:
    """Raise `PackageError` for the first inconsistency of a list."""
    if listing.schema != SCHEMA:
        raise malformed(f"a list of schema {listing.schema}; this version reads {SCHEMA}")
    # Checked first, because the checks below take the paths apart.
    names.check_paths(listing.files)
    if list(listing.needs.libraries) != sorted(set(listing.needs.libraries)):
        raise malformed("needs.libraries is not sorted")
    machines = _MACHINES if listing.key is None else (*_MACHINES, ANY_MACHINE)
    if listing.needs.machine not in machines:
        raise malformed(
            f"needs.machine is {listing.needs.machine!r:.60}, not one of {', '.join(machines)}"
        )
    if listing.key is not None and (listing.scripts or listing.programs or listing.targets):
        raise malformed(f"it lists both programs and {listing.summary}")
    listing.check_own_part()
    _check_scripts(listing)
    _check_programs(listing)
    _check_owners(listing)


def _check_scripts(listing: FileList) -> None:
    """Raise `PackageError` unless the scripts are sorted, and all that they name is listed."""
    keys = [(script.script, script.target, script.hash) for script in listing.scripts]
    distinct_hashes = {script.hash for script in listing.scripts}
    if keys != sorted(set(keys)) or len(distinct_hashes) != len(keys):
        raise malformed("the scripts are not sorted, or one appears twice")
    for script in listing.scripts:
        name = f"script {script.script}"
        if script.target not in listing.targets:
            raise malformed(f"{name} is for a target {script.target} that is not listed")
        for digest in script.programs:
            if digest not in listing.programs:
                raise malformed(f"{name} has a program {digest} that is not listed")
        _check_files_listed(listing, script.root, SCRIPT_FILES)
    if unused := listing.targets.keys() - {script.target for script in listing.scripts}:
        raise malformed(f"no script is for the target {min(unused)}")


def _check_programs(listing: FileList) -> None:
    """Raise `PackageError` unless each program has its files and names its first script."""
    first_script_by_program: dict[str, tuple[str, str]] = {}
    for script in listing.scripts:
        for digest in script.programs:
            first_script_by_program.setdefault(digest, (script.script, script.target))
    for digest, program in listing.programs.items():
        if first_script_by_program.get(digest) != (program.script, program.target):
            raise malformed(f"program {digest} does not name the first script that has it")
        _check_files_listed(listing, f"{layout.PROGRAMS}/{digest}", PROGRAM_FILES)


def _check_files_listed(listing: FileList, prefix: str, required: Iterable[str]) -> None:
    for name in required:
        if f"{prefix}/{name}" not in listing.files:
            raise malformed(f"{prefix}/{name} is not listed")


def _check_owners(listing: FileList) -> None:
    """Raise `PackageError` for a file that belongs to no listed program or script, or to another
    kind of package: it would not be checked."""
    script_pairs = {script.pair for script in listing.scripts}
    script_hashes = {digest for _, digest in script_pairs}
    for path in listing.files:
        kind, directory, digest = names.split_root(path)
        if kind == layout.PROGRAMS and digest not in listing.programs:
            raise malformed(f"{path} belongs to no listed program")
        is_stray_script = kind == layout.SCRIPTS and (directory, digest) not in script_pairs
        is_stray_test = kind == layout.TESTS and digest not in script_hashes
        if is_stray_script or is_stray_test:
            raise malformed(f"{path} belongs to no listed script")
        if listing.key is None and names.find_list_class(kind):
            raise malformed(f"{path} is below {kind}, which the list does not mention")


# Layers: one for each script and target. The files of one change together, and a registry is not
# sent the others again. They follow from the list alone: equal lists, equal layers.


def split_layers(listing: FileList) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the sorted paths of each layer, by (script, target).

    A program is in the layer of the script and target that its list entry names. The headers, which
    many programs share, are the last layer, ("", ""). In a package of another kind, a layer is
    (DIRECTORY, ""): a directory below the kind's root.
    """
    owner_by_hash = {script.hash: (script.script, script.target) for script in listing.scripts}
    paths_by_owner: dict[tuple[str, str], list[str]] = {}
    for path in sorted(listing.files):
        kind, _, digest = names.split_root(path)
        if kind in (layout.SCRIPTS, layout.TESTS):
            owner = owner_by_hash[digest]
        elif kind == layout.PROGRAMS:
            owner = (listing.programs[digest].script, listing.programs[digest].target)
        else:
            owner = ("", "") if kind == layout.INCLUDE else (digest, "")
        paths_by_owner.setdefault(owner, []).append(path)
    # False is sorted before true, so the layer of the headers is the last.
    ordered_owners = sorted(paths_by_owner, key=lambda owner: (owner == ("", ""), owner))
    return {owner: tuple(paths_by_owner[owner]) for owner in ordered_owners}
