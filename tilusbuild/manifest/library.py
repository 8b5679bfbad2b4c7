"""`[library.NAME]`: one product of many programs, and the two scripts that it stands for.

The rest of the builder knows scripts only. A library is two of them: `NAME.sources`, whose tuning
space is the list of its source files, each an object; and `NAME`, whose one program links them with
the objects of the scripts that say `library = "NAME"`. Places of both lead to the library's table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from tilusbuild.manifest.script import Form, ScriptSection
from tilusbuild.manifest.sections import IncludeDir
from tilusbuild.manifest.table import AnyValue, Entries, ManifestTable, Text, entries
from tilusbuild.space.model import Parameter
from tilusbuild.state.patterns import PatternTooWideError, matching

SOURCES = ".sources"
"""What the name of the script of a library's sources ends in."""
SOURCE = "source"
"""Its one parameter."""
LANGUAGES = {".cu": "cu", ".c": "c", **dict.fromkeys((".cc", ".cpp", ".cxx"), "c++")}
"""What a source is compiled as, by its suffix."""
LINKED = {"shared": (".o", ".a"), "static": (".o",)}
"""What `objects` may hold, by kind: an archive of archives is none."""


class LinkDir(IncludeDir):
    """A directory with libraries to link: of the project, or of an installed Python package.

    Written like a directory of `include-dirs`."""


class LibrarySection(ManifestTable):
    """One library of many objects: plain sources, and the programs of scripts that name it.

    Each source is compiled by itself, is kept under its own hash, and is compiled again only when
    it or a header of it changes. Names keep their C++ linkage, and what is exported is what the
    sources make visible.
    """

    description: str | None = Field(
        None, description="One line for people.", examples=["The CUDA backend"]
    )
    sources: tuple[Text, ...] = Field(
        (),
        description="Patterns of source files inside the project (`.cu`, `.cpp`, `.cc`, `.cxx`, "
        "`.c`): each becomes an object. They are not rendered.",
        examples=[["src/*.cu", "src/host/**/*.cpp"]],
    )
    objects: tuple[Text, ...] = Field(
        (),
        description="Patterns of objects and archives to link as they are; their contents are in "
        "the hash.",
        examples=[["vendor/*.o", "vendor/libblend.a"]],
    )
    kind: Literal["shared", "static"] = Field(
        "shared", description="What is made: `lib.so`, or the archive `lib.a`."
    )
    targets: tuple[Text, ...] | None = Field(
        None,
        min_length=1,
        description="Names of `[target.NAME]` to build for; all without it.",
        examples=[["h100"]],
    )
    output: Text | None = Field(
        None,
        description="A file of the project that each build brings up to date with the library; "
        "`{target}` stands for the target's name.",
        examples=["build/{target}/libbackend.so"],
    )
    include_dirs: tuple[IncludeDir, ...] = Field(
        (),
        description="Directories that `#include` searches, before those of `[build]`.",
        examples=[["include"]],
    )
    headers: tuple[Text, ...] = Field(
        (),
        description="Patterns of headers for computed includes, besides those of `[build]`.",
        examples=[["tables/*.inc"]],
    )
    flags: tuple[Text, ...] = Field(
        (),
        description="Device compiler arguments for the sources, after those of `[build]` and of "
        "the target.",
        examples=[["-Xcompiler", "-fvisibility=hidden"]],
    )
    unsafe_flags: bool = Field(
        False, description="As `unsafe-flags` of `[build]`, for these sources."
    )
    defines: Entries[AnyValue] = Field(
        default_factory=entries,
        description="Preprocessor macros for the sources, over those of `[build]` and the target.",
        examples=[{"BACKEND_BUILD": 1}],
    )
    rdc: bool = Field(
        False,
        description="Relocatable device code: device functions may be defined in another object, "
        "and a device link joins them.",
    )
    cudart: Literal["static", "shared", "none"] = Field(
        "static", description="How the CUDA runtime is linked into a shared library."
    )
    link_libs: tuple[Text, ...] = Field(
        (),
        description="Libraries to link, as after `-l`. One that is in a directory of `link-dirs` "
        "is in the hash with its content; any other is the toolkit's or the system's.",
        examples=[["cublas", "dl"]],
    )
    link_dirs: tuple[LinkDir, ...] = Field(
        (),
        description="Directories in which `link-libs` are looked for first, in order.",
        examples=[["vendor/lib", {"package": "torch", "path": "lib"}]],
    )
    rpath: tuple[Text, ...] = Field(
        (),
        description="Where the library looks for those that it needs, when it is loaded. Nothing "
        "is added by itself.",
        examples=[["$ORIGIN", "$ORIGIN/../lib"]],
    )
    undefined: bool = Field(
        False,
        description="Allow symbols that nothing linked defines: the process that loads the library "
        "has them.",
    )


class SourcesScript(ScriptSection):
    """The script of a library's sources; its template is the first of them."""

    files: tuple[str, ...]
    rdc: bool

    @property
    def form(self) -> Form:
        return "object"

    def space_for(self, target: str) -> Mapping[str, Parameter]:
        rows = tuple((name,) for name in self.files)
        return MappingProxyType({SOURCE: Parameter((SOURCE,), rows, None, None, None)})


class LinkScript(ScriptSection):
    """The script of a library itself: one program, and no template."""

    owner: LibrarySection
    libs: tuple[str, ...]
    """The objects and archives that `objects` matches."""

    @property
    def form(self) -> Form:
        return self.owner.kind


def files_matching(root: str, pattern: str) -> tuple[str, ...]:
    """Return the files that a pattern matches, sorted, relative to `root`. Raises
    `PatternTooWideError`."""
    found = matching(root, pattern).names
    return tuple(name for name in found if os.path.isfile(os.path.join(root, name)))


def files_of(root: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files that patterns match, each once, in the patterns' order; none of one that is
    too wide, which is a mistake of its own (`check_libraries`)."""
    found: dict[str, None] = {}
    for pattern in patterns:
        with suppress(PatternTooWideError):
            found.update(dict.fromkeys(map(os.path.normpath, files_matching(root, pattern))))
    return tuple(found)


def searched(root: str, library: LibrarySection) -> Iterator[str]:
    """Yield the directories in which a new file could match a pattern, by path."""
    for pattern in (*library.sources, *library.objects):
        with suppress(PatternTooWideError):
            yield from matching(root, pattern).directories


def scripts_of(root: str, libraries: Mapping[str, LibrarySection]) -> dict[str, ScriptSection]:
    """Return the scripts that libraries stand for, by name; sources before what links them."""
    found: dict[str, ScriptSection] = {}
    for name, library in libraries.items():
        files = files_of(root, library.sources)
        if files:
            found[name + SOURCES] = SourcesScript.model_construct(
                targets=library.targets,
                template=files[0],
                library=name,
                include_dirs=library.include_dirs,
                headers=library.headers,
                flags=library.flags,
                unsafe_flags=library.unsafe_flags,
                defines=library.defines,
                files=files,
                rdc=library.rdc,
            )
        found[name] = LinkScript.model_construct(
            targets=library.targets,
            template="",
            description=library.description,
            owner=library,
            libs=files_of(root, library.objects),
        )
    return found
