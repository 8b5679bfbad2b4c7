"""`tilusbuild cmake`: what `find_package(tilusbuild)` of a CMake project calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tilusbuild.cli.arguments import Common, Verb, collect_settings, option, positional, repeated

if TYPE_CHECKING:
    from tilusbuild.builder.project import Project
    from tilusbuild.package.collect import PackageOrder
    from tilusbuild.plan.model import PlanSelection


class DirArgs(Common, frozen=True, kw_only=True):
    """Nothing."""


class CMakeArgs(Common, frozen=True, kw_only=True):
    """What a target of CMake has, and where it goes."""

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


def directory(arguments: DirArgs) -> int:
    """Print where the package configuration file is."""
    print(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cmake"))
    return 0


def build(arguments: CMakeArgs) -> int:
    """Build the kernels, write the files of a target as far as they changed, its depfile, and its
    stamp."""
    from tilusbuild.embed import functions, kernels
    from tilusbuild.errors import TilusbuildError
    from tilusbuild.manifest.sections import PackageSection
    from tilusbuild.package.collect import PackageOrder
    from tilusbuild.package.names import LIST
    from tilusbuild.runtime.regular import read_text
    from tilusbuild.state.files import replace_directory, sha256_file, write_atomic
    from tilusbuild.state.temporary import TemporaryDirectory

    written: dict[str, str] = {}

    def order(project: Project) -> PackageOrder:
        section = PackageSection(scripts=arguments.scripts, targets=arguments.targets)
        return PackageOrder(arguments.name, section, project.manifest.project.name, "0")

    def built(project: Project, selection: PlanSelection) -> None:
        plan = project.make_plan(selection)
        scripts = list(kernels.with_dispatchers(project, plan))
        if not scripts:
            raise TilusbuildError(f"no script of {arguments.manifest} can be called")
        said = {name: each.description for name, each in project.manifest.scripts.items()}
        written.update(functions.texts(arguments.name, scripts, said))
        found = kernels.inputs_of(project, plan)
        written[f"{arguments.name}.d"] = _depfile(stamp, found)

    sources = os.path.abspath(arguments.sources)
    stamp = os.path.join(sources, f"{arguments.name}.stamp")
    os.makedirs(sources, exist_ok=True)
    manifest, beside = os.path.abspath(arguments.manifest), os.path.abspath(arguments.beside)
    place = os.path.join(beside, f"{arguments.name}.tilus")
    os.makedirs(beside, exist_ok=True)
    with TemporaryDirectory("cmake", beside) as private:
        settings = collect_settings(arguments)
        made = kernels.embed(manifest, private.path, order, settings=settings, built=built)
        lists = [os.path.join(each, LIST) for each in (made.path if made else "", place)]
        # It stays as it was if it has the same files.
        if not os.path.exists(lists[1]) or len({*map(sha256_file, lists)}) == 2:
            replace_directory(made.path if made else "", place, private.path)
    for name, text in written.items():
        path = os.path.join(sources, name)
        # What depends on it is made again only if it changed.
        if not os.path.isfile(path) or read_text(path) != text:
            write_atomic(path, text.encode())
    write_atomic(stamp, b"")
    return 0


def _depfile(target: str, paths: set[str]) -> str:
    def escaped(path: str) -> str:
        return path.replace("$", "$$").replace(" ", "\\ ").replace("#", "\\#")

    return " \\\n  ".join([f"{escaped(target)}:", *map(escaped, sorted(paths))]) + "\n"


ACTIONS = {
    "dir": Verb(DirArgs, directory, help="print the directory of the package configuration file"),
    "build": Verb(CMakeArgs, build, help="build the kernels of a target"),
}
