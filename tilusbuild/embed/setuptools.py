"""The step of setuptools: `[tool.tilusbuild]` of `pyproject.toml`.

`finalize` is called for every project that is built beside tilusbuild. Where that table is missing
it reads one file and changes nothing. What is made of setuptools' own classes is made there: this
module imports none of them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from tilusbuild.runtime.places import KERNELS
from tilusbuild.runtime.regular import try_read_text

T = TypeVar("T")
_COMMAND = "build_tilusbuild"


def finalize(dist: Any) -> None:
    """Have `build` build the kernels that the project in the working directory asks for, and the
    wheel have their platform."""
    if _COMMAND in dist.cmdclass or not _is_asked():
        return
    from setuptools import Command

    build, wheel = dist.get_command_class("build"), dist.get_command_class("bdist_wheel")
    steps = [*build.sub_commands, (_COMMAND, None)]
    dist.cmdclass |= {
        "build": type("build", (build,), {"sub_commands": steps}),
        "bdist_wheel": type("bdist_wheel", (_Tagged, wheel), {}),
        _COMMAND: type(_COMMAND, (_Kernels, Command), {}),
    }
    dist.has_ext_modules = lambda: True
    dist.platform_of_kernels = None


def _is_asked() -> bool:
    return "[tool.tilusbuild" in (try_read_text("pyproject.toml") or "")


class _Kernels:
    """A step of `build` (`setuptools.command.build.SubCommand`)."""

    description = "build the kernels of tilus.toml"
    user_options = ()
    editable_mode = False
    distribution: Any
    build_lib: str | None

    def initialize_options(self) -> None:
        self.build_lib = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))  # type: ignore[attr-defined]

    def run(self) -> None:
        """Build; an editable install gets no files. Exits with an error's status."""
        _or_exit(self._run)

    def _run(self) -> None:
        from tilusbuild.embed import kernels
        from tilusbuild.state.temporary import TemporaryDirectory

        asked = kernels.wanted(os.getcwd(), self.distribution.get_name())
        if asked is None:
            return
        with TemporaryDirectory("wheel") as made:
            packed = kernels.embed_wanted(asked, None if self.editable_mode else made.path)
            if packed is not None:
                place = os.path.join(self.build_lib or "", *asked.into.split("."), KERNELS)
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(packed.path, place)
                self.distribution.platform_of_kernels = packed.platform

    def get_source_files(self) -> list[str]:
        """Return what an sdist must contain."""
        from tilusbuild.embed import kernels

        return _or_exit(lambda: kernels.sources_of(os.getcwd(), self.distribution.get_name()))

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class _Tagged:
    """A wheel with the tag of the kernels' platform, and of no Python but for modules in C."""

    distribution: Any

    def get_tag(self) -> tuple[str, str, str]:
        if self.distribution.ext_modules:
            own: tuple[str, str, str] = super().get_tag()  # type: ignore[misc]
            return own
        return "py3", "none", self.distribution.platform_of_kernels or "any"


def _or_exit(call: Callable[[], T]) -> T:
    from tilusbuild.errors import TilusbuildError

    try:
        return call()
    except TilusbuildError as error:
        sys.stderr.write(error.render() + "\n")
        raise SystemExit(error.exit_status) from None
