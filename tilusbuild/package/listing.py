"""`tilus-package.json`: what a package is. Everything else of it is a file that this list names.

The form is RFC 8785 canonical JSON: equal lists are equal bytes, and the sha256 of those bytes is
the package's name in every carrier. A list holds strings, whole numbers, true, false and null. It
says nothing of who packed it, when, or where.

`parse` takes bytes from anybody. It accepts exactly what `encode` makes of a list that is coherent:
every script and program that is named has its files, every file belongs to one, every name is safe.
Anything else is `ListMalformed`, or `UnsafeName`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import rfc8785

from tilusbuild.package import images, kinds
from tilusbuild.package.coherent import check
from tilusbuild.package.errors import ListMalformed
from tilusbuild.package.images import Image as Image
from tilusbuild.package.kinds import Part
from tilusbuild.package.values import Field, decode
from tilusbuild.runtime.names import snake_case
from tilusbuild.state.hashing import sha256_bytes

SCHEMA = 1
TOOL = "tilusbuild"
MOST_BYTES = 64 << 20
MOST_FILES = 1_000_000
LARGEST_FILE = 1 << 40

ANY_MACHINE = "any"
"""`needs.machine` of a package of another kind without host code."""

_HEAD = ("schema", "name", "version", "project", "tool", "inputs")
_BODY = ("targets", "needs", "scripts", "programs", "files")


@dataclass(frozen=True, slots=True)
class Target:
    """A target of the manifest. `toolkit` is the CUDA toolkit's version; None for the CPU."""

    kind: Literal["cuda", "cpu"]
    archs: tuple[str, ...]
    ptx: bool
    toolkit: str | None


@dataclass(frozen=True, slots=True)
class Needs:
    """What the libraries ask of a host. None: they ask for nothing of the kind.

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


@dataclass(frozen=True, slots=True)
class ScriptEntry:
    """An instance of a script for a target. `params` are its constants, as script.txt writes them;
    `programs` those of its programs that are carried, in the order of the plan; `tables`: whether a
    dispatch table is carried."""

    script: str
    hash: str
    target: str
    params: Mapping[str, str]
    programs: tuple[str, ...]
    tables: bool

    @property
    def folder(self) -> str:
        """The folder below `scripts`."""
        return f"{snake_case(self.script)}/{self.hash}"


@dataclass(frozen=True, slots=True)
class ProgramEntry:
    """A program that is carried, and the first of the scripts and targets that have it."""

    script: str
    target: str
    images: tuple[Image, ...]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file's size in bytes and its sha256."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FileList:
    """The whole list. `tool` is the version of tilusbuild that made it; `inputs` is
    `coherent.digest_of_inputs`; `scripts` are sorted by script, target and hash. A list of
    another kind has a `part`, and neither targets, scripts nor programs."""

    name: str
    version: str
    project: str
    tool: str
    inputs: str
    targets: Mapping[str, Target]
    needs: Needs
    scripts: tuple[ScriptEntry, ...]
    programs: Mapping[str, ProgramEntry]
    files: Mapping[str, FileEntry]
    part: Part | None = None

    def encode(self) -> bytes:
        """The one text of the list. Raises `ListMalformed` for one that `parse` would refuse."""
        value = _value(self)
        _list(Field("", value))
        check(self)
        data = rfc8785.dumps(value)
        if len(data) > MOST_BYTES:
            raise ListMalformed(f"the list would have {len(data)} bytes, more than {MOST_BYTES}")
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
        """Say in a few words what the package holds."""
        if self.part is not None:
            return self.part.summary
        return f"{len(self.scripts)} scripts, {len(self.programs)} programs"

    @property
    def size(self) -> int:
        """Bytes of all files, the list not counted."""
        return sum(file.size for file in self.files.values())


def title_of(project: str, name: str) -> str:
    """The project and the package, where its name does not begin with the project's."""
    return name if name == project or name.startswith(f"{project}-") else f"{project}-{name}"


def parse(data: bytes) -> FileList:
    """The list that these bytes are. Raises `ListMalformed` and `UnsafeName`, and nothing else."""
    if len(data) > MOST_BYTES:
        raise ListMalformed(f"the list has {len(data)} bytes; at most {MOST_BYTES} are read")
    value = decode(data)
    found = _list(Field("", value))
    check(found)
    if rfc8785.dumps(value) != data:
        raise ListMalformed("the list is not in its canonical form (RFC 8785)")
    return found


def _value(found: FileList) -> dict[str, Any]:
    more = {} if found.part is None else {found.part.key: found.part.value()}
    return {
        **more,
        "schema": SCHEMA,
        "name": found.name,
        "version": found.version,
        "project": found.project,
        "tool": {"name": TOOL, "version": found.tool},
        "inputs": found.inputs,
        "targets": {
            name: {"kind": t.kind, "archs": list(t.archs), "ptx": t.ptx, "toolkit": t.toolkit}
            for name, t in found.targets.items()
        },
        "needs": {
            "machine": found.needs.machine,
            "isa": found.needs.isa,
            "glibc": found.needs.glibc,
            "libraries": list(found.needs.libraries),
            "tvm_ffi": found.needs.tvm_ffi,
            "libstdcxx": found.needs.libstdcxx,
        },
        "scripts": [
            {
                "script": s.script,
                "hash": s.hash,
                "target": s.target,
                "params": dict(s.params),
                "programs": list(s.programs),
                "tables": s.tables,
            }
            for s in found.scripts
        ],
        "programs": {
            digest: {
                "script": p.script,
                "target": p.target,
                "images": images.values(p.images),
            }
            for digest, p in found.programs.items()
        },
        "files": {
            path: {"size": file.size, "sha256": file.sha256} for path, file in found.files.items()
        },
    }


def _list(field: Field) -> FileList:
    there = field.value if isinstance(field.value, dict) else {}
    more = [key for key in kinds.OTHERS if key in there]
    schema, name, version, project, tool, inputs, *rest = field.table(*_HEAD, *_BODY, *more)
    targets, needs, scripts, programs, files, *others = rest
    if schema.integer(1 << 20) != SCHEMA:
        raise ListMalformed(f"a list of schema {schema.value}; this version reads {SCHEMA}")
    tool_name, tool_version = tool.table("name", "version")
    tool_name.one_of(TOOL)
    machine, isa, glibc, libraries, tvm_ffi, libstdcxx = needs.table(
        "machine", "isa", "glibc", "libraries", "tvm_ffi", "libstdcxx"
    )
    return FileList(
        name=name.name(),
        version=version.name(),
        project=project.name(),
        tool=tool_version.name(),
        inputs=inputs.digest(),
        targets={key: _target(value) for key, value in targets.mapping()},
        needs=Needs(
            machine=machine.one_of("x86_64", "aarch64", *([ANY_MACHINE] if more else [])),
            isa=isa.optional(Field.name),
            glibc=glibc.optional(Field.version),
            libraries=tuple(each.text(255) for each in libraries.items()),
            tvm_ffi=tvm_ffi.optional(Field.version),
            libstdcxx=libstdcxx.optional(Field.version),
        ),
        scripts=tuple(_script(each) for each in scripts.items()),
        programs={key: _program(value) for key, value in programs.mapping()},
        files={key: _file(value) for key, value in files.mapping(MOST_FILES)},
        part=kinds.kind_with_key(more[0]).read(others[0]) if others else None,
    )


def _target(field: Field) -> Target:
    kind, archs, ptx, toolkit = field.table("kind", "archs", "ptx", "toolkit")
    return Target(
        kind=kind.one_of("cuda", "cpu"),
        archs=tuple(each.name() for each in archs.items()),
        ptx=ptx.flag(),
        toolkit=toolkit.optional(Field.version),
    )


def _script(field: Field) -> ScriptEntry:
    script, digest, target, params, programs, tables = field.table(
        "script", "hash", "target", "params", "programs", "tables"
    )
    return ScriptEntry(
        script=script.name(),
        hash=digest.digest(),
        target=target.name(),
        params={key: value.text(65536) for key, value in params.mapping()},
        programs=tuple(each.digest() for each in programs.items()),
        tables=tables.flag(),
    )


def _program(field: Field) -> ProgramEntry:
    script, target, held = field.table("script", "target", "images")
    return ProgramEntry(script.name(), target.name(), images.read(held))


def _file(field: Field) -> FileEntry:
    size, digest = field.table("size", "sha256")
    return FileEntry(size.integer(LARGEST_FILE), digest.digest())
