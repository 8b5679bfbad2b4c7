"""The build hook of hatchling: `[tool.hatch.build.hooks.tilusbuild]`."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from tilusbuild.builder.project import Project
from tilusbuild.embed import kernels
from tilusbuild.errors import TilusbuildError
from tilusbuild.runtime.search_roots import KERNELS
from tilusbuild.state.temporary import TemporaryDirectory

_HATCH_KEYS = ("dependencies", "enable-by-default", "require-runtime-dependencies", "path")


class KernelsHook(BuildHookInterface[Any]):
    """The build hook: it builds the kernels of a wheel, and adds them to its package."""

    PLUGIN_NAME = "tilusbuild"
    _package_directory: TemporaryDirectory | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the kernels of a wheel, and add their files and its tag to `build_data`. An
        editable install gets no files; for an sdist, only note the cache. End the process with the
        exit status of an error."""
        if self.target_name not in ("wheel", "sdist"):
            return
        table = {key: value for key, value in self.config.items() if key not in _HATCH_KEYS}
        try:
            embed_table = kernels.read_embed_table(self.root, self.metadata.name, table)
            if embed_table is None:
                return
            # An sdist has no kernels; a later build of it finds this cache by the note.
            if self.target_name == "sdist":
                with Project.open(os.path.dirname(embed_table.manifest), {}, os.environ) as project:
                    kernels.note_cache(project)
                return
            if version != "editable":
                self._package_directory = TemporaryDirectory("wheel")
            directory = self._package_directory.path if self._package_directory else None
            package = kernels.embed_for_python(embed_table, directory)
        except TilusbuildError as error:
            self.app.abort(error.render(), error.exit_status)
            return
        if package is not None:
            build_data["pure_python"] = False
            # The hook of an extension in C may have set a tag, which is kept.
            if not (build_data.get("infer_tag") or build_data.get("tag")):
                build_data["tag"] = f"py3-none-{package.platform}"
            path_in_wheel = f"{embed_table.into.replace('.', '/')}/{KERNELS}"
            build_data["force_include"][package.path] = path_in_wheel

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary directory with the package."""
        if self._package_directory is not None:
            self._package_directory.close()


@hookimpl
def hatch_register_build_hook() -> type[KernelsHook]:
    """Return the class of the hook; hatchling calls this."""
    return KernelsHook
