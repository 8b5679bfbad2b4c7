"""The whole manifest as one frozen value, which knows where each of its keys is written."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from tilusbuild.manifest.document import Document
from tilusbuild.manifest.library import LibrarySection
from tilusbuild.manifest.methods import ManifestMethods
from tilusbuild.manifest.remote_section import RemoteSection
from tilusbuild.manifest.script import ScriptSection
from tilusbuild.manifest.sections import (
    BuildSection,
    PackageSection,
    ProjectSection,
    TargetSection,
    ToolchainSection,
)
from tilusbuild.manifest.table import Entries, ManifestTable, entries, not_boolean


class Manifest(ManifestMethods, ManifestTable):
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
