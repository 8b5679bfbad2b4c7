"""`tilusbuild install PATH`: bring a package into the cache, or let go of one."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from tilusbuild.cli import adopt, options

if TYPE_CHECKING:
    from tilusbuild.cache.cache import Cache


def configure(parser: argparse.ArgumentParser) -> None:
    """A package, or the name of one that is installed."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "path", metavar="PATH", nargs="?", help="a folder, a .tar.zst, a wheel, an OCI layout"
    )
    what.add_argument(
        "--remove",
        metavar="NAME",
        help="let go of an installed package; `cache gc` then takes what nothing else uses",
    )
    parser.add_argument(
        "--into",
        metavar="DIR",
        help="of a package with another system's cache: the folder that the system looks in",
    )
    options.signer(parser)
    options.package_limits(parser)


def run(arguments: argparse.Namespace) -> int:
    """Install or remove."""
    from tilusbuild.cache.sealed import CorruptFileError
    from tilusbuild.errors import TilusbuildError

    cache = options.cache(arguments)
    try:
        return (_remove if arguments.remove is not None else _install)(arguments, cache)
    except CorruptFileError as error:
        raise TilusbuildError(str(error)) from None


def _install(arguments: argparse.Namespace, cache: Cache) -> int:
    from tilusbuild.errors import input_error
    from tilusbuild.package.install import install
    from tilusbuild.package.kinds import other_kind
    from tilusbuild.package.opening import opened

    policy = options.policy(arguments)
    with opened(arguments.path) as reader:
        if policy is not None:
            from tilusbuild.package.signing import check_signature

            check_signature(reader.list_bytes(), reader.attestations(), policy)
        if other_kind(reader.list_bytes()):
            return adopt.install(reader, arguments)
        if arguments.into is not None:
            raise input_error(
                "--into is for the caches of other systems", hint="--cache-dir names ours"
            )
        done = install(reader, cache, options.limits(arguments))
    listing = done.listing
    programs = len(listing.programs)
    if arguments.json:
        line = {"name": listing.title, "version": listing.version, "digest": listing.digest}
        counts = {"programs": programs, "new": done.new, "size": done.size}
        layers = {"layers": done.layers, "layers_read": done.layers_read}
        print(json.dumps({"event": "installed", "cache": cache.root, **line, **counts, **layers}))
    elif not arguments.quiet:
        print(
            f"{listing.title} {listing.version} is in {cache.root}: {programs} programs,"
            f" {done.new} of them new ({done.size} bytes; {done.layers_read} of {done.layers}"
            " layers read)"
        )
    return 0


def _remove(arguments: argparse.Namespace, cache: Cache) -> int:
    from tilusbuild.package.install import uninstall

    uninstall(cache, arguments.remove)
    if arguments.json:
        line = {"event": "removed", "cache": cache.root, "name": arguments.remove}
        print(json.dumps(line))
    elif not arguments.quiet:
        print(f"{arguments.remove} is let go of; `tilusbuild cache gc` makes room")
    return 0
