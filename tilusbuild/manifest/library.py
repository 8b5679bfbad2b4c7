"""`[library.NAME]`: one product of many programs, and the two scripts that it stands for.

The rest of the builder knows scripts only. A library is two of them: `NAME.sources`, whose tuning
space is the list of its source files, each an object; and `NAME`, whose one program links them with
the objects of the scripts that say `library = "NAME"`. Places of both lead to the library's table.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tilusbuild.manifest.methods import LinkMethods, SourcesMethods
from tilusbuild.manifest.script import ScriptSection
from tilusbuild.manifest.sections import IncludeDir
from tilusbuild.manifest.table import AnyValue, Entries, ManifestTable, Text, entries


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
    toolchain: Text | None = Field(
        None,
        description="The `[toolchain.named.NAME]` that compiles the sources and links the library, "
        "in place of `[toolchain]`; and compiles the objects of scripts that name none themselves.",
        examples=["cuda12"],
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
    needed: tuple[Text, ...] = Field(
        (),
        description="Libraries that the loading process has, by their sonames: the library asks "
        "for them, and what they define is not looked for at the link.",
        examples=[["libfarm.so.2"]],
    )
    torch: bool = Field(
        False,
        description="PyTorch's headers, its C++ ABI, and its libraries as `needed`: for operators "
        "of `torch.ops`. They are those of the Python environment of the build.",
    )
    undefined: bool = Field(
        False,
        description="Allow symbols that nothing linked defines: the process that loads the library "
        "has them.",
    )


class SourcesScript(SourcesMethods, ScriptSection):
    """The script of a library's sources; its template is the first of them."""

    files: tuple[str, ...]
    rdc: bool


class LinkScript(LinkMethods, ScriptSection):
    """The script of a library itself: one program, and no template."""

    owner: LibrarySection
    libs: tuple[str, ...]
    """The objects and archives that `objects` matches."""
