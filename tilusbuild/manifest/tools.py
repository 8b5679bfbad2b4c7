"""What a manifest answers about compilers: which toolchain a script is compiled with, and what is
declared of it.

`[toolchain]` is the toolchain without a name, which in code is ""; `[toolchain.named.NAME]` is laid
over it, key by key. A script's own choice is taken, else its library's, else the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilusbuild.manifest.library import LibrarySection
    from tilusbuild.manifest.script import ScriptSection
    from tilusbuild.manifest.sections import TargetSection, ToolchainSection


class ToolchainMethods:
    """Of the whole manifest."""

    if TYPE_CHECKING:
        toolchain: ToolchainSection
        targets: Mapping[str, TargetSection]
        scripts: Mapping[str, ScriptSection]
        libraries: Mapping[str, LibrarySection]

    def library_of(self, script: str) -> str | None:
        """The library that a script is, or is an object of."""
        return script if script in self.libraries else self.scripts[script].library

    def toolchain_of(self, script: str, target: str) -> str:
        """The name of what a script is compiled with for a target; "" is `[toolchain]`."""
        library = self.library_of(script)
        return (
            self.scripts[script].toolchain
            or (None if library is None else self.libraries[library].toolchain)
            or self.targets[target].toolchain
            or ""
        )

    def key_of_toolchain(self, name: str, key: str) -> tuple[str, ...]:
        """The path of what is declared of the toolchain of this name: its own, else that of
        `[toolchain]`, where it is written or not."""
        own = bool(name) and key.replace("-", "_") in self.toolchain.named[name].given
        return ("toolchain", "named", name, key) if own else ("toolchain", key)

    def toolchain_named(self, name: str) -> ToolchainSection:
        """`[toolchain]`, with what the toolchain of this name says laid over it."""
        if not name:
            return self.toolchain
        return self.toolchain.replaced(**self.toolchain.named[name].given)

    def toolchain_for(self, script: str, target: str) -> ToolchainSection:
        """What is declared of what a script is compiled with for a target."""
        return self.toolchain_named(self.toolchain_of(script, target))

    def device_compiler_for(self, script: str, target: str) -> str | None:
        """What compiles a script's kernels for a target, where that is said of the script or of
        its toolchain by name."""
        own = self.scripts[script].device_compiler
        name = self.toolchain_of(script, target)
        return own or (self.toolchain.named[name].device_compiler if name else None)

    def std_for(self, script: str, target: str) -> str:
        """The language standard of a script."""
        return self.scripts[script].std or self.toolchain_for(script, target).std

    def cudart_for(self, script: str, target: str) -> str:
        """How a script's host code gets the CUDA runtime: "static" or "shared"."""
        return self.scripts[script].cudart or self.toolchain_for(script, target).cudart
