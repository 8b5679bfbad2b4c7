"""`tilus-package.json`: what a package is. Everything else of it is a file that this list names.

The form is RFC 8785 canonical JSON: equal lists are equal bytes, and the sha256 of those bytes is
the package's name in every format. A list holds strings, whole numbers, true, false and null. It
says nothing of who packed it, when, or where.

`parse` takes bytes from anybody. It accepts exactly what `encode` makes of a list that agrees with
itself: every script and program that is named has its files, every file belongs to one, every name
is safe. Anything else is `MalformedListError`, or `UnsafeNameError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NoReturn, Protocol

import rfc8785
from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.package import names
from tilusbuild.package.errors import MalformedListError
from tilusbuild.package.model import (
    PROGRAM_FILES,
    SCRIPT_FILES,
    Field,
    Image,
    decode,
    plain,
    read_images,
)
from tilusbuild.report.text import counted
from tilusbuild.runtime.naming import snake_case
from tilusbuild.state.files import sha256_bytes, sha256_text

SCHEMA = 1
TOOL = "tilusbuild"
# The list is read whole and parsed before anything of it can be believed: its size, and the number
# of files that it names, bound the memory that this takes.
MAX_LIST_SIZE = 64 << 20
MAX_FILES = 1_000_000
MAX_FILE_SIZE = 1 << 40
_MAX_PARAM = 65536

ANY_MACHINE = "any"
"""`needs.machine` of a package of another kind without host code."""


class PackageTarget(Struct, frozen=True):
    """A target of the manifest. `toolkit` is the version of the newest CUDA toolkit that
    made code for it; None for the CPU."""

    kind: Literal["cuda", "cpu"]
    archs: tuple[str, ...]
    ptx: bool
    toolkit: str | None


class HostNeeds(Struct, frozen=True):
    """What the libraries need of a host. None: nothing of the kind.

    `machine` as `uname -m` says it, or "any" for a package of another kind without host code;
    `isa` an x86-64 level or what `-march` was; `glibc` the lowest version ("2.17"); `libraries` the
    names in DT_NEEDED, sorted; `tvm_ffi` the series of its ABI; `libstdcxx` the greatest GLIBCXX
    version ("3.4.30").
    """

    machine: str
    isa: str | None
    glibc: str | None
    libraries: tuple[str, ...]
    tvm_ffi: str | None
    libstdcxx: str | None = None


class ScriptEntry(Struct, frozen=True):
    """An instance of a script for a target. `params` are its constants, as script.txt writes them;
    `programs` those of its programs that are packed, in the order of the plan; `tables`: whether a
    dispatch table is packed."""

    script: str
    hash: str
    target: str
    params: Mapping[str, str]
    programs: tuple[str, ...]
    tables: bool

    @property
    def place(self) -> tuple[str, str]:
        """The name of the directory below `scripts`, and the hash below that."""
        return snake_case(self.script), self.hash

    @property
    def root(self) -> str:
        """The path of its directory."""
        return "/".join((layout.SCRIPTS, *self.place))


class ProgramEntry(Struct, frozen=True):
    """A program that is packed, and the first of the scripts and targets that have it."""

    script: str
    target: str
    images: tuple[Image, ...]


class FileEntry(Struct, frozen=True):
    """A file's size in bytes and its sha256."""

    size: int
    sha256: str


class FileList(Struct, frozen=True):
    """The whole list. `tool` is the version of tilusbuild that made it; `inputs` is
    `digest_of_inputs`; `scripts` are sorted by script, target and hash. A list of another kind has
    a `part`, and neither targets, scripts nor programs."""

    name: str
    version: str
    project: str
    tool: str
    inputs: str
    targets: Mapping[str, PackageTarget]
    needs: HostNeeds
    scripts: tuple[ScriptEntry, ...]
    programs: Mapping[str, ProgramEntry]
    files: Mapping[str, FileEntry]
    part: ListPart | None = None

    def encode(self) -> bytes:
        """Return the one text of the list. Raises `MalformedListError` for one that `parse` would
        refuse."""
        value = _value(self)
        _list(Field("", value))
        check(self)
        data = rfc8785.dumps(value)
        if len(data) > MAX_LIST_SIZE:
            raise MalformedListError(
                f"the list would have {len(data)} bytes, more than {MAX_LIST_SIZE}"
            )
        return data

    @property
    def digest(self) -> str:
        """The sha256 of the list: the package's own name."""
        return sha256_bytes(self.encode())

    @property
    def title(self) -> str:
        """What the package is called among those of other projects."""
        return title_of(self.project, self.name)

    @property
    def summary(self) -> str:
        """A few words on what the package holds."""
        if self.part is not None:
            return self.part.summary
        scripts, programs = len(self.scripts), len(self.programs)
        return f"{counted(scripts, 'script')}, {counted(programs, 'program')}"

    @property
    def size(self) -> int:
        """Bytes of all files, the list not counted."""
        return sum(file.size for file in self.files.values())


# Other kinds of packages.


class ContentChecker(Protocol):
    """Check the content of files as they arrive, one by one."""

    def wants(self, path: str, size: int) -> bool:
        """Return whether a file's content is checked, not its digest alone."""

    def check(self, path: str, data: bytes) -> None:
        """Raise a `PackageError` for content that is not what the list says."""


class ListPart(Protocol):
    """What the list says under the kind's key; `key` is that key and `summary` a few words."""

    @property
    def key(self) -> str: ...
    @property
    def summary(self) -> str: ...
    def value(self) -> dict[str, Any]: ...
    def check(self, listing: FileList) -> None: ...

    def inputs(self) -> Iterable[str]:
        """Return the names that the digest of the package's inputs covers."""

    def unit_digests(self, listing: FileList) -> Mapping[str, str]:
        """Return a digest of each thing that `diff` compares as one."""


class Kind(names.PathRule, Protocol):
    """A kind of package: the paths that its files may have, its part of the list, its checks."""

    def read(self, field: Field) -> ListPart: ...
    def checker(self, listing: FileList) -> ContentChecker: ...


def title_of(project: str, name: str) -> str:
    """Return the package's name, with the project's where it does not begin with that."""
    return name if name == project or name.startswith(f"{project}-") else f"{project}-{name}"


# The text.


def parse(data: bytes) -> FileList:
    """Return the list that these bytes are. Raises `MalformedListError` and `UnsafeNameError`, and
    nothing else."""
    if len(data) > MAX_LIST_SIZE:
        raise MalformedListError(
            f"the list has {len(data)} bytes; at most {MAX_LIST_SIZE} are read"
        )
    value = decode(data)
    found = _list(Field("", value))
    check(found)
    # The package is named by the sha256 of these bytes: two texts of one list would be two names.
    if rfc8785.dumps(value) != data:
        raise MalformedListError("the list is not in its canonical form (RFC 8785)")
    return found


def _value(found: FileList) -> dict[str, Any]:
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "tool": {"name": TOOL, "version": found.tool},
        **{key: plain(getattr(found, key)) for key in _PLAIN},
    }
    return value if found.part is None else {found.part.key: found.part.value(), **value}


_PLAIN = (
    *("name", "version", "project", "inputs"),
    *("targets", "needs", "scripts", "programs", "files"),
)
"""The keys whose values are the fields of `FileList`."""


def _list(field: Field) -> FileList:
    keys = field.value if isinstance(field.value, dict) else {}
    kind_keys = [key for key in names.kind_keys() if key in keys]
    machines = ("x86_64", "aarch64", *([ANY_MACHINE] if kind_keys else []))

    def make(schema: int, **values: Any) -> FileList:
        part = values.pop(kind_keys[0]) if kind_keys else None
        return FileList(**values, part=part)

    return field.record(
        make,
        schema=_schema,
        name=Field.name,
        version=Field.name,
        project=Field.name,
        tool=_tool,
        inputs=Field.digest,
        targets=lambda each: each.mapping(_target),
        needs=lambda each: _needs(each, machines),
        scripts=lambda each: each.array(_script),
        programs=lambda each: each.mapping(_program),
        files=lambda each: each.mapping(_file, MAX_FILES),
        **{key: names.kind_with_key(key).read for key in kind_keys},
    )


def _schema(field: Field) -> int:
    found = field.integer(1 << 20)
    if found != SCHEMA:
        raise MalformedListError(f"a list of schema {found}; this version reads {SCHEMA}")
    return found


def _tool(field: Field) -> str:
    name, version = field.table("name", "version")
    name.one_of(TOOL)
    return version.name()


def _version(field: Field) -> str | None:
    return field.optional(Field.version)


def _needs(field: Field, machines: tuple[str, ...]) -> HostNeeds:
    return field.record(
        HostNeeds,
        machine=lambda each: each.one_of(*machines),
        isa=lambda each: each.optional(Field.name),
        glibc=_version,
        libraries=lambda each: each.array(lambda name: name.text(255)),
        tvm_ffi=_version,
        libstdcxx=_version,
    )


def _target(field: Field) -> PackageTarget:
    return field.record(
        PackageTarget,
        kind=lambda each: each.one_of("cuda", "cpu"),
        archs=lambda each: each.array(Field.name),
        ptx=Field.flag,
        toolkit=_version,
    )


def _script(field: Field) -> ScriptEntry:
    return field.record(
        ScriptEntry,
        script=Field.name,
        hash=Field.digest,
        target=Field.name,
        params=lambda each: each.mapping(lambda value: value.text(_MAX_PARAM)),
        programs=lambda each: each.array(Field.digest),
        tables=Field.flag,
    )


def _program(field: Field) -> ProgramEntry:
    return field.record(ProgramEntry, script=Field.name, target=Field.name, images=read_images)


def _file(field: Field) -> FileEntry:
    return field.record(
        FileEntry, size=lambda each: each.integer(MAX_FILE_SIZE), sha256=Field.digest
    )


# Whether a list agrees with itself. Asked before it is written and after it was read.


def check(found: FileList) -> None:
    """Raise `MalformedListError` for the first thing that is not as it must be, and
    `UnsafeNameError`."""
    names.check_paths(found.files)
    if list(found.needs.libraries) != sorted(set(found.needs.libraries)):
        _refuse("needs.libraries is not sorted")
    if found.part is not None:
        if found.scripts or found.programs or found.targets:
            _refuse(f"it lists both programs and {found.part.summary}")
        found.part.check(found)
    _check_scripts(found)
    _check_programs(found)
    _check_owners(found)
    entries = found.part.inputs() if found.part else ()
    hashes = [script.hash for script in found.scripts]
    if found.inputs != digest_of_inputs(hashes, found.programs, found.files, entries):
        _refuse("the digest of the inputs is another one")


def digest_of_inputs(
    scripts: Iterable[str],
    programs: Iterable[str],
    files: Mapping[str, FileEntry],
    entries: Iterable[str] = (),
) -> str:
    """Return one digest for what was packed: sha256 over a line each for the scripts' hashes, the
    programs', the dispatch tables' paths and digests, and what another kind names, all sorted."""
    lines = [f"script {each}" for each in sorted(scripts)]
    lines += [f"program {each}" for each in sorted(programs)]
    lines += [f"table {files[path].sha256} {path}" for path in sorted(files) if _is_table(path)]
    lines += [f"entry {path}" for path in sorted(entries)]
    return sha256_text("".join(f"{line}\n" for line in lines))


def _is_table(path: str) -> bool:
    return path.startswith(layout.SCRIPTS) and path.rpartition("/")[2] == layout.TABLE_JSON


def _check_scripts(found: FileList) -> None:
    keys = [(each.script, each.target, each.hash) for each in found.scripts]
    if keys != sorted(set(keys)) or len({each.hash for each in found.scripts}) != len(keys):
        _refuse("the scripts are not sorted, or one is there twice")
    for script in found.scripts:
        if script.target not in found.targets:
            _refuse(f"script {script.script} is for a target {script.target} that is not listed")
        for digest in script.programs:
            if digest not in found.programs:
                _refuse(f"script {script.script} has a program {digest} that is not listed")
        _check_listed(found, script.root, SCRIPT_FILES)
        if script.tables != (f"{script.root}/{layout.TABLE_JSON}" in found.files):
            _refuse(f"script {script.script} and the files disagree on its dispatch tables")
    if used := found.targets.keys() - {script.target for script in found.scripts}:
        _refuse(f"no script is for the target {min(used)}")


def _check_programs(found: FileList) -> None:
    owners: dict[str, tuple[str, str]] = {}
    for script in found.scripts:
        for each in script.programs:
            owners.setdefault(each, (script.script, script.target))
    for digest, program in found.programs.items():
        if not layout.is_hash(digest):
            _refuse(f"{digest!r:.80} is not a program's hash")
        if owners.get(digest) != (program.script, program.target):
            _refuse(f"program {digest} is not that of the first script and target that have it")
        _check_listed(found, f"{layout.PROGRAMS}/{digest}", PROGRAM_FILES)


def _check_listed(found: FileList, prefix: str, wanted: Iterable[str]) -> None:
    for name in wanted:
        if f"{prefix}/{name}" not in found.files:
            _refuse(f"{prefix}/{name} is not listed")


def _check_owners(found: FileList) -> None:
    """Refuse a file that belongs to nothing: it would be installed without being checked."""
    places = {script.place for script in found.scripts}
    for path in found.files:
        kind, directory, digest = names.root_of(path)
        if kind == layout.PROGRAMS and digest not in found.programs:
            _refuse(f"{path} belongs to no listed program")
        if kind == layout.SCRIPTS and (directory, digest) not in places:
            _refuse(f"{path} belongs to no listed script")
        if found.part is None and names.kind_at(kind):
            _refuse(f"{path} is below {kind}, of which the list says nothing")


def _refuse(problem: str) -> NoReturn:
    raise MalformedListError(problem)


# Layers: one for each script and target, so that what changes together travels together, and what
# did not change is not sent again. The list alone decides.


class Layer(Struct, frozen=True):
    """Some of a package's files, sorted. A program belongs to the script and target that the list
    gives it. `script` and `target` are "" for the layer of headers, which many programs share; for
    one of another kind `script` is the directory below the kind's root."""

    script: str
    target: str
    paths: tuple[str, ...]

    @property
    def label(self) -> str:
        """What a person calls it."""
        return f"{self.script} {self.target}".rstrip() if self.script else "headers"


def named_layers(found: FileList) -> tuple[Layer, ...]:
    """Return the layers, by script and target."""
    owners = {script.hash: (script.script, script.target) for script in found.scripts}
    parts: dict[tuple[str, str], list[str]] = {}
    headers: list[str] = []
    for path in sorted(found.files):
        kind, _, digest = names.root_of(path)
        if kind == layout.INCLUDE:
            headers.append(path)
            continue
        if kind == layout.SCRIPTS:
            owner = owners[digest]
        elif kind == layout.PROGRAMS:
            owner = (found.programs[digest].script, found.programs[digest].target)
        else:
            owner = (digest, "")
        parts.setdefault(owner, []).append(path)
    owned = [
        Layer(script, target, tuple(parts[script, target])) for script, target in sorted(parts)
    ]
    return (*owned, Layer("", "", tuple(headers))) if headers else tuple(owned)


def layers(found: FileList) -> tuple[tuple[str, ...], ...]:
    """Return the paths of each layer."""
    return tuple(layer.paths for layer in named_layers(found))
