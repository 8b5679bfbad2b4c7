"""The build hook of hatchling: `[tool.hatch.build.hooks.tilusbuild]`."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from tilusbuild.builder.project import Project
from tilusbuild.embed import kernels
from tilusbuild.errors import TilusbuildError
from tilusbuild.runtime.places import KERNELS
from tilusbuild.state.temporary import TemporaryDirectory

_OF_HATCH = ("dependencies", "enable-by-default", "require-runtime-dependencies", "path")


class KernelsHook(BuildHookInterface[Any]):
    """Builds the kernels of a wheel, and adds them to its package."""

    PLUGIN_NAME = "tilusbuild"
    _made: TemporaryDirectory | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build; an editable install gets no files. Exits with an error's status."""
        if self.target_name not in ("wheel", "sdist"):
            return
        table = {key: value for key, value in self.config.items() if key not in _OF_HATCH}
        try:
            asked = kernels.wanted(self.root, self.metadata.name, table)
            if asked is None:
                return
            if self.target_name == "sdist":
                with Project.open(os.path.dirname(asked.manifest), {}, os.environ) as project:
                    kernels.note(project)
                return
            if version != "editable":
                self._made = TemporaryDirectory("wheel")
            made = kernels.embed_wanted(asked, self._made.path if self._made else None)
        except TilusbuildError as error:
            self.app.abort(error.render(), error.exit_status)
        else:
            if made is not None:
                build_data["pure_python"] = False
                if not (build_data.get("infer_tag") or build_data.get("tag")):
                    build_data["tag"] = f"py3-none-{made.platform}"
                inside = f"{asked.into.replace('.', '/')}/{KERNELS}"
                build_data["force_include"][made.path] = inside

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was packed for the wheel."""
        if self._made is not None:
            self._made.close()


@hookimpl
def hatch_register_build_hook() -> type[KernelsHook]:
    """Return the hook, for hatchling."""
    return KernelsHook
