"""`[library.NAME]`: one product of many programs, and the two scripts that it stands for.

The rest of the builder knows scripts only. A library is two of them: `NAME.sources`, whose tuning
space is the list of its source files, each an object; and `NAME`, whose one program links them with
the objects of the scripts that say `library = "NAME"`. Places of both lead to the library's table.
Patterns are matched at each load of a manifest, also of a remembered one.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Literal

from tilusbuild.manifest.script import Form, ScriptSection
from tilusbuild.manifest.sections import ARCHS_SCHEMA, ProductKeys
from tilusbuild.manifest.table import Key, ValueFault
from tilusbuild.manifest.values import Text, spell_archs
from tilusbuild.space.model import Parameter
from tilusbuild.state.patterns import PatternTooWideError, find_matches

SOURCES = ".sources"
"""What the name of the script of a library's sources ends in."""
SOURCE = "source"
"""Its one parameter."""
LANGUAGES = {".cu": "cu", ".c": "c", **dict.fromkeys((".cc", ".cpp", ".cxx"), "c++")}
"""What a source is compiled as, by its suffix."""
LINKED = {"shared": (".o", ".a"), "static": (".o",)}
"""The suffixes of files in the manifest's `objects`, by `kind`: an archive holds no archives."""


def _check_output(output: str) -> str:
    """Return the path of an output. Raises `ValueFault`."""
    unknown = set(re.findall(r"\{[^{}]*\}", output)) - {"{target}"}
    if os.path.isabs(output) or os.pardir in output.split("/"):
        raise ValueFault("must be inside the project")
    if unknown:
        raise ValueFault(f"has no placeholder {min(unknown)}", "{target} is the target's name")
    if os.path.basename(output) in ("", "."):
        raise ValueFault("is a directory")
    return output


def _check_archs(archs: tuple[str, ...]) -> tuple[str, ...]:
    """Return architectures of GPUs. Raises `ValueFault`."""
    if "cpu" in archs:
        raise ValueFault("cannot be cpu", "a target for the CPU compiles all parts for it")
    return archs


class LibrarySection(ProductKeys, frozen=True, kw_only=True):
    """One library of many objects: plain sources, and the programs of scripts that name it."""

    description: Annotated[str | None, Key(examples=["The CUDA backend"])] = None
    """One line for people."""
    sources: Annotated[tuple[Text, ...], Key(examples=[["src/*.cu", "src/host/**/*.cpp"]])] = ()
    """Patterns of source files in the project (`.cu`, `.cpp`, `.cc`, `.cxx`, `.c`). Each becomes an
    object, without rendering."""
    objects: Annotated[tuple[Text, ...], Key(examples=[["vendor/*.o", "vendor/libblend.a"]])] = ()
    """Patterns of objects and archives to link. The hash has their content."""
    kind: Literal["shared", "static"] = "shared"
    """The result: `lib.so`, or the archive `lib.a`."""
    library: Annotated[Text | None, Key(examples=["backend"])] = None
    """The `[library.NAME]` that links these sources, in place of a library of their own. A library
    can so have sources with different flags, macros and toolchains."""
    output: Annotated[
        Text | None, Key(after=_check_output, examples=["build/{target}/libbackend.so"])
    ] = None
    """A file of the project that each build makes equal to the library. `{target}` stands for the
    name of the target."""
    rdc: bool | None = None
    """Relocatable device code: a device link joins device functions of several objects. Without it:
    that of the library for a part, else `false`."""
    arch: Annotated[
        tuple[Text, ...],
        Key(before=spell_archs, schema=ARCHS_SCHEMA, after=_check_archs, examples=["sm_90a"]),
    ] = ()
    """Of a part: the architectures of its objects, in place of those of a target for GPUs."""
    ptx: bool = False
    """With `arch`: as `ptx` of the target."""
    cudart: Literal["static", "shared", "none"] = "static"
    """How a shared library gets the CUDA runtime."""
    torch: bool = False
    """Compile for PyTorch, for operators of `torch.ops`: with its headers, its C++ ABI, and its
    libraries as `needed`. The build's Python environment has them."""


class SourcesScript(ScriptSection, frozen=True, kw_only=True):
    """The script of a library's sources; its template is the first of them."""

    owner: LibrarySection
    files: tuple[str, ...]

    @property
    def form(self) -> Form:
        return "object"

    def list_tuning_parameters(self, target: str) -> Mapping[str, Parameter]:
        rows = tuple((name,) for name in self.files)
        return {SOURCE: Parameter((SOURCE,), rows)}


class LinkScript(ScriptSection, frozen=True, kw_only=True):
    """The script of a library itself: one program, and no template."""

    owner: LibrarySection
    libs: tuple[str, ...]
    """The objects and archives that `objects` matches."""

    @property
    def form(self) -> Form:
        return self.owner.kind


def make_scripts(root: str, libraries: Mapping[str, LibrarySection]) -> dict[str, ScriptSection]:
    """Return the scripts that libraries stand for, by name, sources before their link.

    A library has a script for its sources, if it has any, and one for its link. A part of another
    library has sources only: the other library links them.
    """
    scripts: dict[str, ScriptSection] = {}
    for name, library in libraries.items():
        files = list_files(root, library.sources)
        owner_name = name if library.library is None else library.library
        if files:
            scripts[name + SOURCES] = SourcesScript(
                # A part has no targets of its own: they are those of the library that links it.
                targets=libraries.get(owner_name, library).targets,
                template=files[0],
                library=owner_name,
                toolchain=library.toolchain,
                include_dirs=library.include_dirs,
                headers=library.headers,
                flags=library.flags,
                unsafe_flags=library.unsafe_flags,
                defines=library.defines,
                owner=library,
                files=files,
            )
    # The links come after the sources of all parts, because a build takes scripts in this order.
    for name, library in libraries.items():
        if library.library is None:
            scripts[name] = LinkScript(
                targets=library.targets,
                template="",
                description=library.description,
                owner=library,
                libs=list_files(root, library.objects),
            )
    return scripts


def match_files(root: str, pattern: str) -> tuple[str, ...]:
    """Return the files that a pattern matches, sorted, relative to `root`.

    Raises `PatternTooWideError`.
    """
    names = find_matches(root, pattern).names
    # A pattern matches directories, too.
    return tuple(name for name in names if os.path.isfile(os.path.join(root, name)))


def list_files(root: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files that patterns match, each once, in the patterns' order."""
    names: dict[str, None] = {}
    for pattern in patterns:
        with suppress(PatternTooWideError):  # `check_libraries` reports it
            names |= dict.fromkeys(map(os.path.normpath, match_files(root, pattern)))
    return tuple(names)


def list_searched_directories(root: str, library: LibrarySection) -> Iterator[str]:
    """Yield the directories in which a new file could match a pattern, by path."""
    for pattern in (*library.sources, *library.objects):
        with suppress(PatternTooWideError):
            yield from find_matches(root, pattern).directories
