"""The whole manifest as one frozen value, which knows where each of its keys is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from tilusbuild.errors import Place
from tilusbuild.expr import Value
from tilusbuild.manifest.document import Document
from tilusbuild.manifest.library import SOURCES, LibrarySection, scripts_of, searched
from tilusbuild.manifest.remote_section import RemoteSection
from tilusbuild.manifest.script import ScriptSection
from tilusbuild.manifest.sections import (
    BuildSection,
    IncludeDir,
    PackageSection,
    ProjectSection,
    TargetSection,
    ToolchainSection,
)
from tilusbuild.manifest.table import Entries, ManifestTable, entries, not_boolean


class Manifest(ManifestTable):
    """A project of tuned CUDA kernels: its scripts, their tuning spaces, and what to build for."""

    edition: Annotated[Literal[1], BeforeValidator(not_boolean)] = Field(
        description="The format of this file; 1 is the only one so far."
    )
    project: ProjectSection = Field(description="What the project is.")
    build: BuildSection = Field(
        default_factory=BuildSection, description="What holds for every program of the project."
    )
    toolchain: ToolchainSection = Field(
        default_factory=ToolchainSection,
        description="Which compilers are used, and how they are started.",
    )
    remote: RemoteSection = Field(
        default_factory=RemoteSection, description="A cache that other machines share."
    )
    targets: Entries[TargetSection] = Field(
        default_factory=entries, alias="target", description="What to compile for, by name."
    )
    scripts: Entries[ScriptSection] = Field(
        default_factory=entries, alias="script", description="Kernel scripts, by name."
    )
    libraries: Entries[LibrarySection] = Field(
        default_factory=entries, alias="library", description="Libraries of many objects, by name."
    )
    packages: Entries[PackageSection] = Field(
        default_factory=entries, alias="package", description="What to package, by name."
    )

    _document: Document = PrivateAttr()
    _last_flags: tuple[str, ...] = PrivateAttr(())

    @property
    def path(self) -> str:
        """The manifest's absolute path."""
        return self._document.path

    @property
    def root(self) -> str:
        """The project's directory: absolute, and what relative paths of the manifest start from."""
        return os.path.dirname(self._document.path)

    def place(self, *keys: str | int) -> Place:
        """Return where a key is written, as in `place("script", "matmul", "space", "stages")`.

        For an item of an array, the item. Of a path that is not in the file, its longest part that
        is.
        """
        return self._document.key(*self._written(keys))

    def place_of_value(self, *keys: str | int) -> Place:
        """Return where a key's value is written."""
        return self._document.value(*self._written(keys))

    def place_inside(self, *keys: str | int, column: int | None, width: int = 1) -> Place:
        """Return a position in a string value, such as an expression; `column` counts from 1."""
        return self._document.inside(keys, column, width)

    def _written(self, keys: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """Return where keys are written of a script that a library stands for: in its table."""
        if len(keys) > 1 and keys[0] == "script" and isinstance(keys[1], str):
            library = keys[1].removesuffix(SOURCES)
            if library in self.libraries:
                return ("library", library, *keys[2:])
        return keys

    def with_libraries(self) -> Manifest:
        """Return the manifest with the scripts that its libraries stand for among its own."""
        if not self.libraries:
            return self
        return self.model_copy(
            update={"scripts": {**self.scripts, **scripts_of(self.root, self.libraries)}}
        )

    @property
    def searched(self) -> set[str]:
        """The directories in which a new file could match a pattern of a library."""
        return {path for each in self.libraries.values() for path in searched(self.root, each)}

    def objects_of(self, library: str) -> tuple[str, ...]:
        """Return the scripts whose programs are objects of a library, in the manifest's order."""
        return tuple(
            name
            for name, script in self.scripts.items()
            if script.form == "object" and script.library == library
        )

    def written(self, script: str, target: str, *keys: str | int) -> tuple[str | int, ...]:
        """Return the path of a script's entry as the target sees it: its override's, else its
        own."""
        own = ("script", script, "override", target, *keys)
        return own if own in self._document.locations.keys else ("script", script, *keys)

    def targets_of(self, script: str) -> tuple[str, ...]:
        """Return the names of the targets that a script is built for."""
        chosen = self.scripts[script].targets
        return tuple(self.targets) if chosen is None else chosen

    def flags_for(self, script: str, target: str) -> tuple[str, ...]:
        """Compiler arguments: of `[build]`, the target, and the script or its override.

        Those of `[build]` and of the script are the device compiler's, so a cpu target takes its
        own and those that the script's override for it has.
        """
        owner, chosen = self.scripts[script], self.targets[target]
        if chosen.is_cpu:
            return (*chosen.flags, *(owner.override_for(target).flags or ()))
        own = owner.flags_for(target)
        return (*self.build.flags, *chosen.flags, *own, *self._last_flags)

    @property
    def last_flags(self) -> tuple[str, ...]:
        """What the device compiler is given after all other arguments."""
        return self._last_flags

    def with_last_flags(self, flags: tuple[str, ...]) -> Manifest:
        """Return the same manifest, whose device compiler is given these after all other
        arguments."""
        changed = self.model_copy()
        changed._last_flags = flags
        return changed

    def defines_for(self, script: str, target: str) -> Mapping[str, str]:
        """Macros as `-DNAME=TEXT` spells them, sorted by name; `true` is 1, `false` leaves out."""
        merged: dict[str, Value] = {
            **self.build.defines,
            **self.targets[target].defines,
            **self.scripts[script].defines_for(target),
        }
        return {
            name: "1" if value is True else str(value)
            for name, value in sorted(merged.items())
            if value is not False
        }

    def std_for(self, script: str) -> str:
        """The language standard of a script."""
        return self.scripts[script].std or self.toolchain.std

    def include_dirs_for(self, script: str) -> tuple[IncludeDir, ...]:
        """Include directories in search order: the script's, then the project's."""
        return (*self.scripts[script].include_dirs, *self.build.include_dirs)

    def headers_for(self, script: str) -> tuple[str, ...]:
        """Patterns of headers that programs include by computed names."""
        return (*self.scripts[script].headers, *self.build.headers)
