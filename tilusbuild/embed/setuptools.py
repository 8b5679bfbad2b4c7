"""The step of setuptools: `[tool.tilusbuild]` of `pyproject.toml`.

setuptools calls `finalize` for every project that is built beside tilusbuild. Without the table it
reads one file and changes nothing. The subclasses of setuptools' classes are made by `type`, so
that this module does not import setuptools.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from tilusbuild.runtime.regular import try_read_text
from tilusbuild.runtime.search_roots import KERNELS

T = TypeVar("T")
_COMMAND = "build_tilusbuild"


def finalize(dist: Any) -> None:
    """Replace the commands `build` and `bdist_wheel` of a distribution by some that build the
    kernels and tag the wheel with their platform. Does nothing without a table for tilusbuild in
    `pyproject.toml`. setuptools calls this for every project."""
    # The table is searched as text, so that other projects do not pay for a parser.
    has_table = "[tool.tilusbuild" in (try_read_text("pyproject.toml") or "")
    if _COMMAND in dist.cmdclass or not has_table:
        return
    from setuptools import Command

    build, wheel = dist.get_command_class("build"), dist.get_command_class("bdist_wheel")
    steps = [*build.sub_commands, (_COMMAND, None)]
    dist.cmdclass |= {
        "build": type("build", (build,), {"sub_commands": steps}),
        "bdist_wheel": type("bdist_wheel", (_TaggedWheel, wheel), {}),
        _COMMAND: type(_COMMAND, (_BuildKernels, Command), {}),
    }
    # Else pip would install the wheel into the directory of pure Python, for every platform.
    dist.has_ext_modules = lambda: True
    dist.platform_of_kernels = None


class _BuildKernels:
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
        """Build the kernels into `build_lib`. An editable install gets no files. Ends the process
        with the exit status of an error."""
        _call_or_exit(self._build_kernels)

    def _build_kernels(self) -> None:
        """Copy the built package into `build_lib`, in place of an earlier one, and set the
        distribution's platform. Raises `TilusbuildError`."""
        from tilusbuild.embed import kernels
        from tilusbuild.state.temporary import TemporaryDirectory

        embed_table = kernels.read_embed_table(os.getcwd(), self.distribution.get_name())
        if embed_table is None:
            return
        with TemporaryDirectory("wheel") as directory:
            path = None if self.editable_mode else directory.path
            package = kernels.embed_for_python(embed_table, path)
            if package is not None:
                into = os.path.join(self.build_lib or "", *embed_table.into.split("."), KERNELS)
                # `build_lib` stays between builds, and may have the package of an earlier one.
                shutil.rmtree(into, ignore_errors=True)
                shutil.copytree(package.path, into)
                self.distribution.platform_of_kernels = package.platform

    def get_source_files(self) -> list[str]:
        """Return the files that an sdist must contain, and note the cache for builds of it. End the
        process with the exit status of an error."""
        from tilusbuild.embed import kernels

        name = self.distribution.get_name()
        return _call_or_exit(lambda: kernels.list_sdist_files(os.getcwd(), name))

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class _TaggedWheel:
    """A wheel with the platform of the kernels as its tag, and with a Python tag only if it has
    modules in C."""

    distribution: Any

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, ABI and platform."""
        if self.distribution.ext_modules:
            tag: tuple[str, str, str] = super().get_tag()  # type: ignore[misc]
            return tag
        return "py3", "none", self.distribution.platform_of_kernels or "any"


def _call_or_exit(call: Callable[[], T]) -> T:
    """Return the result of a call. Print a `TilusbuildError` and end the process with its exit
    status."""
    from tilusbuild.errors import TilusbuildError

    try:
        return call()
    except TilusbuildError as error:
        sys.stderr.write(error.render() + "\n")
        raise SystemExit(error.exit_status) from None
