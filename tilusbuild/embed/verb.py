"""`tilusbuild cmake`, which `find_package(tilusbuild)` of a CMake project calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tilusbuild.cli.arguments import Common, Verb, collect_settings, option, positional, repeated

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project
    from tilusbuild.package.collect import PackageOrder
    from tilusbuild.plan.model import PlanSelection


class DirArgs(Common, frozen=True, kw_only=True):
    """No arguments."""


class CMakeArgs(Common, frozen=True, kw_only=True):
    """The CMake target, and the directories of its files."""

    name: str = positional("NAME", help="the target")
    manifest: str = option("--manifest", metavar="FILE", default="tilus.toml", help="a tilus.toml")
    sources: str = option(
        "--sources", metavar="DIR", default=".", help="where the header and the source go"
    )
    beside: str = option(
        "--beside", metavar="DIR", default=".", help="where the library is, and the kernels go"
    )
    scripts: tuple[str, ...] = repeated("--script", metavar="NAME", help="build this script only")
    targets: tuple[str, ...] = repeated(
        *("-t", "--target"), metavar="NAME", help="build for this target only"
    )


def print_directory(arguments: DirArgs) -> int:
    """Print the directory of the CMake package configuration file. Return the exit status."""
    print(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cmake"))
    return 0


def build_target(arguments: CMakeArgs) -> int:
    """Build the kernels of a CMake target. Write its sources, its depfile and the package beside
    the library, each only if its content changed, and last the stamp. Return the exit status."""
    from tilusbuild.embed import functions, kernels
    from tilusbuild.errors import TilusbuildError
    from tilusbuild.manifest.sections import PackageSection
    from tilusbuild.package.collect import PackageOrder
    from tilusbuild.package.names import LIST
    from tilusbuild.runtime.regular import read_text
    from tilusbuild.state.files import replace_directory, sha256_file, write_atomic
    from tilusbuild.state.temporary import TemporaryDirectory

    sources = os.path.abspath(arguments.sources)
    stamp = os.path.join(sources, f"{arguments.name}.stamp")
    texts_by_name: dict[str, str] = {}

    def choose_package(project: Project) -> PackageOrder:
        section = PackageSection(scripts=arguments.scripts, targets=arguments.targets)
        return PackageOrder(arguments.name, section, project.manifest.project.name, "0")

    def write_sources(project: Project, selection: PlanSelection) -> None:
        """Build the dispatchers, and put the texts of the library and its depfile into
        `texts_by_name`."""
        plan = project.make_plan(selection)
        scripts = list(kernels.build_dispatchers(project, plan))
        if not scripts:
            raise TilusbuildError(f"no script of {arguments.manifest} can be called")
        sections = project.manifest.scripts
        descriptions = {name: section.description for name, section in sections.items()}
        texts_by_name.update(functions.write_library_sources(arguments.name, scripts, descriptions))
        inputs = kernels.list_inputs(project, plan)
        texts_by_name[f"{arguments.name}.d"] = _format_depfile(stamp, inputs)

    os.makedirs(sources, exist_ok=True)
    manifest, beside = os.path.abspath(arguments.manifest), os.path.abspath(arguments.beside)
    kernels_path = os.path.join(beside, f"{arguments.name}.tilus")
    os.makedirs(beside, exist_ok=True)
    with TemporaryDirectory("cmake", beside) as private:
        settings = collect_settings(arguments)
        package = kernels.build_and_pack(
            manifest, private.path, choose_package, settings=settings, after_build=write_sources
        )
        # With a directory a package is always written.
        package_path = package.path if package else ""
        new_list, old_list = os.path.join(package_path, LIST), os.path.join(kernels_path, LIST)
        # The list has the digests of all files, so the directory stays if the list is the same.
        if not os.path.exists(old_list) or sha256_file(new_list) != sha256_file(old_list):
            replace_directory(package_path, kernels_path, private.path)
    for name, text in texts_by_name.items():
        path = os.path.join(sources, name)
        # CMake compares times: an equal file must keep its time.
        if not os.path.isfile(path) or read_text(path) != text:
            write_atomic(path, text.encode())
    # The stamp comes last, because it says that everything else is written.
    write_atomic(stamp, b"")
    return 0


def _format_depfile(target: str, paths: set[str]) -> str:
    """Return the text of a depfile: the target depends on these paths."""

    def escape_path(path: str) -> str:
        return path.replace("$", "$$").replace(" ", "\\ ").replace("#", "\\#")

    return " \\\n  ".join([f"{escape_path(target)}:", *map(escape_path, sorted(paths))]) + "\n"


ACTIONS = {
    "dir": Verb(
        DirArgs, print_directory, help="print the directory of the package configuration file"
    ),
    "build": Verb(CMakeArgs, build_target, help="build the kernels of a target"),
}
