"""`tilusbuild install PATH`: install a package into the cache, or uninstall one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilusbuild.cli import options
from tilusbuild.cli.arguments import SignedArgs, Verb, option, optional
from tilusbuild.cli.options import emit_line
from tilusbuild.report.jsonl import declare_line
from tilusbuild.report.text import format_count

if TYPE_CHECKING:
    from tilusbuild.cache.tree import Tree


class InstallArgs(SignedArgs, frozen=True, kw_only=True):
    path: str | None = optional("PATH", help="a package in any format")
    remove: str | None = option(
        "--remove",
        metavar="NAME",
        help="uninstall a package; `cache gc` then removes what nothing else uses",
    )
    into: str | None = option(
        "--into",
        metavar="DIR",
        help="for a package of a foreign cache: the directory where its system looks for it",
    )


InstalledLine = declare_line(
    "installed", cache=str, name=str, version=str, digest=str, programs=int, new=int, size=int
)
"""A package was installed: how many of its programs are new, and the bytes of these."""


UninstalledLine = declare_line("removed", cache=str, name=str)
"""A package was uninstalled."""


def run(arguments: InstallArgs) -> int:
    """Install or uninstall a package. Return the exit status. Raises `InputError` unless the
    arguments name exactly one of the two."""
    from tilusbuild.errors import input_error

    cache = options.find_cache(arguments.cache_dir)
    if arguments.path is not None and arguments.remove is None:
        return _install_package(arguments, cache, arguments.path)
    if arguments.remove is not None and arguments.path is None:
        return _uninstall_package(arguments, cache, arguments.remove)
    raise input_error("name one: PATH, to install it, or --remove NAME")


def _install_package(arguments: InstallArgs, cache: Tree, path: str) -> int:
    """Check a package's signature and install it. A package of a foreign cache is installed by the
    optional part that knows the cache. Return the exit status."""
    from tilusbuild.errors import input_error
    from tilusbuild.package.install import install_package, list_ties
    from tilusbuild.package.names import load_command
    from tilusbuild.package.read import open_package

    with open_package(path) as reader:
        # Before anything is unpacked.
        options.check_signature(arguments, reader)
        foreign_module = load_command(reader.list_bytes())
        if foreign_module is not None:
            status: int = foreign_module.install(reader, arguments)
            return status
        if arguments.into is not None:
            raise input_error(
                "--into is for packages of foreign caches", hint="--cache-dir names our cache"
            )
        result = install_package(reader, cache, options.parse_limits(arguments))
    listing, programs = result.listing, len(result.listing.programs)
    if arguments.json:
        names = (cache.root, listing.title, listing.version, listing.digest)
        emit_line(InstalledLine(*names, programs, result.new, result.size))
    elif not arguments.quiet:
        print(
            f"installed {listing.title} {listing.version} into {cache.root}:"
            f" {format_count(programs, 'program')}, {result.new} of them new ({result.size} bytes)"
        )
    for label, owner in list_ties(cache, listing):
        options.print_message(
            f"warning: {owner} has {label}, too: `load` takes that of the project around the"
            " working directory, else neither\n"
        )
    return 0


def _uninstall_package(arguments: InstallArgs, cache: Tree, name: str) -> int:
    """Remove a package from the cache's index. Return the exit status."""
    from tilusbuild.package.install import uninstall_package

    uninstall_package(cache, name)
    if arguments.json:
        emit_line(UninstalledLine(cache.root, name))
    elif not arguments.quiet:
        print(f"uninstalled {name}; `tilusbuild cache gc` frees its space")
    return 0


VERB = Verb(InstallArgs, run, (InstalledLine, UninstalledLine))
