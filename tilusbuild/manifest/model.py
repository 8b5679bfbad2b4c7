"""The manifest as one frozen value that knows the position of each of its keys."""

import os
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import field

from tilusbuild.errors import Location
from tilusbuild.expr import Value
from tilusbuild.manifest.document import Document
from tilusbuild.manifest.library import (
    SOURCES,
    LibrarySection,
    list_searched_directories,
    make_scripts,
)
from tilusbuild.manifest.names import TableName
from tilusbuild.manifest.reading import TemplateReading
from tilusbuild.manifest.remote_section import RemoteSection
from tilusbuild.manifest.script import ScriptSection
from tilusbuild.manifest.sections import (
    BuildSection,
    Directory,
    PackageSection,
    ProjectSection,
    TargetSection,
    ToolchainSection,
)
from tilusbuild.manifest.table import NOTHING, Key, Table
from tilusbuild.manifest.values import reject_boolean

NO_DOCUMENT = Document("", "")


class Manifest(Table, frozen=True, kw_only=True):
    """A project of tuned CUDA kernels: its scripts, their tuning spaces, and what to build for."""

    # A boolean is refused first: `true` equals 1, and would pass.
    edition: Annotated[Literal[1], Key(before=reject_boolean, examples=[1])]
    """The version of this format: 1."""
    project: ProjectSection = ProjectSection(name="kernels", version="0.1.0")
    """The name and the version. Without it: the name of the directory, and 0.1.0."""
    build: BuildSection = BuildSection()
    """Settings of every program of the project."""
    toolchain: ToolchainSection = ToolchainSection()
    """The compilers."""
    remote: RemoteSection = RemoteSection()
    """A cache that other machines share."""
    targets: Mapping[TableName, TargetSection] = field(name="target", default=NOTHING)
    """The devices to compile for, by name. Without it: the GPUs of this machine, or `sm_80` with
    PTX if it has none; and `cpu` for scripts whose template asks for `target.kind`."""
    scripts: Mapping[TableName, ScriptSection] = field(name="script", default=NOTHING)
    """Kernel scripts, by name."""
    libraries: Mapping[TableName, LibrarySection] = field(name="library", default=NOTHING)
    """Libraries of many objects, by name."""
    packages: Mapping[TableName, PackageSection] = field(name="package", default=NOTHING)
    """Packages, by name."""

    _document: Document = NO_DOCUMENT
    """The file that the manifest was loaded from."""
    _last_flags: tuple[str, ...] = ()
    _reading: TemplateReading = TemplateReading()

    @property
    def reading(self) -> TemplateReading:
        """The values that the file omits and that were read from templates."""
        return self._reading

    @property
    def path(self) -> str:
        """The manifest's absolute path."""
        return self._document.path

    @property
    def root(self) -> str:
        """The project's absolute directory, which relative paths in the manifest refer to."""
        return os.path.dirname(self._document.path)

    def locate_key(self, *keys: str | int) -> Location:
        """Return the place of a key, as in `locate_key("script", "matmul", "space", "stages")`.

        The last key may be the index of an array's item. Of a path that is not in the file, the
        place of its longest prefix that is.
        """
        return self._document.locate_key(*self._redirect_library(keys))

    def locate_value(self, *keys: str | int) -> Location:
        """Return the place of a key's value."""
        return self._document.locate_value(*self._redirect_library(keys))

    def _redirect_library(self, keys: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """Return the path of a key in the file: a library's scripts are written in its table."""
        if len(keys) > 1 and keys[0] == "script" and isinstance(keys[1], str):
            library = keys[1].removesuffix(SOURCES)
            if library in self.libraries:
                return ("library", library, *keys[2:])
        return keys

    def add_library_scripts(self) -> "Manifest":
        """Return the manifest with the scripts of its libraries added to its own."""
        scripts = {**self.scripts, **make_scripts(self.root, self.libraries)}
        return self.replace_values(scripts=scripts) if self.libraries else self

    @property
    def searched_directories(self) -> set[str]:
        """The directories in which a new file may match a library's pattern."""
        return {
            path
            for library in self.libraries.values()
            for path in list_searched_directories(self.root, library)
        }

    def list_library_objects(self, library: str) -> tuple[str, ...]:
        """Return the scripts whose programs are objects of a library, in the manifest's order."""
        return tuple(
            name
            for name, script in self.scripts.items()
            if script.form == "object" and script.library == library
        )

    def list_sibling_kernels(self, script: str) -> tuple[str, ...]:
        """Return all scripts made of the same table `kernels` as this script; else ()."""
        # A name without "." ends here: `kernels` would compute the positions of all keys.
        if "." not in script or script not in self._document.kernels:
            return ()
        return self.list_script_kernels(self._document.kernels[script][0])

    def list_script_kernels(self, name: str) -> tuple[str, ...]:
        """Return the scripts made of the table `kernels` of the script `name`."""
        # A script that has kept its name has no kernels: each of them is a script in its place.
        tables = {} if name in self.scripts else self._document.kernels
        return tuple(script for script, (owner, _) in tables.items() if owner == name)

    def resolve_override(self, script: str, target: str, *keys: str | int) -> tuple[str | int, ...]:
        """Return the path of a script's entry for a target: the override's if it has the entry."""
        override_path = ("script", script, "override", target, *keys)
        if override_path in self._document.locations.keys:
            return override_path
        return ("script", script, *keys)

    def list_script_targets(self, script: str) -> tuple[str, ...]:
        """Return the names of the targets that a script is built for."""
        chosen = self.scripts[script].targets
        return tuple(self.targets) if chosen is None else chosen

    def merge_flags(self, script: str, target: str) -> tuple[str, ...]:
        """Return the compiler arguments of `[build]`, the target, and the script or its override.

        Flags of `[build]` and of the script are for the device compiler. So a cpu target has its
        own flags, and those of the script's override for it.
        """
        script_section, target_section = self.scripts[script], self.targets[target]
        # g++ knows few of nvcc's flags, so it gets only those that are written for a cpu target.
        if target_section.is_cpu:
            return (*target_section.flags, *(script_section.get_override(target).flags or ()))
        script_flags = script_section.merge_flags(target)
        return (*self.build.flags, *target_section.flags, *script_flags, *self._last_flags)

    def add_last_flags(self, flags: tuple[str, ...]) -> "Manifest":
        """Return the manifest with arguments that the device compiler gets after all others."""
        return self.replace_values(_last_flags=(*self._last_flags, *flags))

    def merge_defines(self, script: str, target: str) -> Mapping[str, str]:
        """Return the texts of macros by name, sorted. `true` is 1; `false` removes a macro."""
        merged: dict[str, Value] = {
            **self.build.defines,
            **self.targets[target].defines,
            **self.scripts[script].merge_defines(target),
        }
        # Sorted: the order must not change the hash.
        return {
            name: "1" if value is True else str(value)
            for name, value in sorted(merged.items())
            if value is not False
        }

    def locate_torch(self, script: str) -> Location | None:
        """Return the place of `torch = true` of the script's library, or None."""
        library = self.find_script_library(script)
        if library is None or not self.libraries[library].torch:
            return None
        return self.locate_key("library", library, "torch")

    def list_include_dirs(self, script: str) -> tuple[Directory, ...]:
        """Return the include directories in search order: the script's, then the project's."""
        return (*self.scripts[script].include_dirs, *self.build.include_dirs)

    def list_header_patterns(self, script: str) -> tuple[str, ...]:
        """Patterns of headers that programs include by computed names."""
        return (*self.scripts[script].headers, *self.build.headers)

    def list_data_files(self, script: str) -> list[str]:
        """Return the paths of a script's files with its space and its measurements."""
        owner = self.scripts[script]
        measured = None if owner.dispatch is None else owner.dispatch.measured
        names = (owner.space_file, measured)
        return [os.path.join(self.root, name) for name in names if name is not None]

    def find_script_library(self, script: str) -> str | None:
        """Return the library that a script links or makes objects for; None for neither."""
        return script if script in self.libraries else self.scripts[script].library

    def find_toolchain_name(self, script: str, target: str) -> str:
        """Return the name of the script's own toolchain, else its library's, else the target's; ""
        stands for `[toolchain]`."""
        library = self.find_script_library(script)
        library_toolchain = None if library is None else self.libraries[library].toolchain
        # All objects of a library are linked together: its toolchain goes before the target's.
        return (
            self.scripts[script].toolchain
            or library_toolchain
            or self.targets[target].toolchain
            or ""
        )

    def resolve_toolchain_key(self, name: str, key: str) -> tuple[str, ...]:
        """Return the path of a toolchain's key: its own if it has the key, else `[toolchain]`'s."""
        if name and key.replace("-", "_") in self.toolchain.named[name].given:
            return ("toolchain", "named", name, key)
        return ("toolchain", key)

    def get_named_toolchain(self, name: str) -> ToolchainSection:
        """Return `[toolchain]` with the keys of the toolchain `name` in place of its own."""
        if not name:
            return self.toolchain
        # `given` has only the keys that the manifest sets: for the others `[toolchain]` decides.
        return self.toolchain.replace_values(**self.toolchain.named[name].given)

    def find_script_toolchain(self, script: str, target: str) -> ToolchainSection:
        """Return the toolchain of a script for a target."""
        return self.get_named_toolchain(self.find_toolchain_name(script, target))

    def find_script_device_compiler(self, script: str, target: str) -> str | None:
        """Return the device compiler that a script, or its named toolchain, asks for; or None."""
        script_compiler = self.scripts[script].device_compiler
        if script_compiler:
            return script_compiler
        name = self.find_toolchain_name(script, target)
        return self.toolchain.named[name].device_compiler if name else None

    def find_std(self, script: str, target: str) -> str:
        """Return the language standard of a script for a target."""
        return self.scripts[script].std or self.find_script_toolchain(script, target).std

    def find_cudart(self, script: str, target: str) -> str:
        """Return the linkage of the CUDA runtime for a script's host code: "static" or "shared"."""
        return self.scripts[script].cudart or self.find_script_toolchain(script, target).cudart
