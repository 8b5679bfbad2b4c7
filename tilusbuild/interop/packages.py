"""`tilusbuild cache package`, and `install` of a package of a foreign cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import options
from tilusbuild.cli.arguments import (
    DIST,
    SIGN,
    Common,
    Verb,
    option,
    positional,
    repeated,
)
from tilusbuild.cli.options import emit_line, print_message
from tilusbuild.cli.package import PackageFileLine, parse_formats, show_files
from tilusbuild.report.jsonl import declare_line
from tilusbuild.report.text import format_count
from tilusbuild.rooms import find_contributions

if TYPE_CHECKING:
    from tilusbuild.cli.install import InstallArgs
    from tilusbuild.package.model import Reader


class PackCacheArgs(Common, frozen=True, kw_only=True):
    """Which cache, in which format, where to."""

    source: str = positional("DIR", help="a cache of Tilus, TileLang, Hidet or Triton")
    formats: tuple[str, ...] = repeated(
        "--format",
        metavar="F",
        help="dir, tar.zst, or another format of `package` that holds any file; can be repeated"
        " (default: tar.zst)",
    )
    output: str = DIST
    name: str | None = option(
        "--name", metavar="NAME", help="name of the package (default: SYSTEM-cache)"
    )
    package_version: str | None = option(
        "--package-version", metavar="VERSION", help="its version (default: the system's)"
    )
    sign: str | None = SIGN


PackedCacheLine = declare_line(
    "package",
    name=str,
    version=str,
    digest=str,
    system=str,
    entries=int,
    pickles=int,
    files=int,
    size=int,
)
"""What is in a package of a foreign cache."""


InstalledCacheLine = declare_line(
    "installed",
    cache=str,
    system=str,
    name=str,
    version=str,
    digest=str,
    entries=int,
    new=int,
    size=int,
    pickles=int,
)
"""A package of a foreign cache was installed in the directory `cache`."""


INSTALL_LINES = (InstalledCacheLine,)


def package(arguments: PackCacheArgs) -> int:
    """Write the package, and print the path of each file or directory."""
    from tilusbuild.errors import input_error
    from tilusbuild.interop import pack as foreign
    from tilusbuild.interop.caches import read
    from tilusbuild.interop.listing import cache_of, count_pickles, pickle_warning
    from tilusbuild.manifest.sections import PackageSection
    from tilusbuild.package import pack
    from tilusbuild.package.collect import PackageOrder
    from tilusbuild.package.formats import load_format
    from tilusbuild.package.read import is_cache

    known = [name for name in find_contributions("package format") if load_format(name).holds_kinds]
    chosen = parse_formats(arguments.formats, known) or ["tar.zst"]
    if is_cache(arguments.source):
        raise input_error(
            f"{arguments.source} is a cache of tilusbuild", hint="use `tilusbuild package` for it"
        )
    cache = read(arguments.source)
    name, version = foreign.default_name(cache)
    name, version = arguments.name or name, arguments.package_version or version
    contents = foreign.collect(cache, name, version)
    order = PackageOrder(name, PackageSection(), cache.system, version)
    attest = _attest(arguments.sign)
    made = pack.write(order, contents, chosen, arguments.output, attest=attest)
    listed = contents.listed
    if not arguments.json:
        print_message(pickle_warning(listed))
    show_files(arguments, made, contents.digest)
    if arguments.json:
        entries = len(cache_of(listed).entries)
        counts = (entries, count_pickles(listed), len(listed.files), listed.size)
        emit_line(PackedCacheLine(name, version, contents.digest, cache.system, *counts))
    return 0


def install(reader: Reader, arguments: InstallArgs) -> int:
    """Bring the cache of such a package to its system's place."""
    from tilusbuild.interop.caches import home_of
    from tilusbuild.interop.install import install
    from tilusbuild.interop.listing import cache_of, count_pickles, pickle_warning
    from tilusbuild.package.listing import parse

    listing = parse(reader.list_bytes())
    system, entries = cache_of(listing).system, len(cache_of(listing).entries)
    place = os.path.abspath(arguments.into) if arguments.into else home_of(system, os.environ)
    new, size = install(reader, listing, place, options.parse_limits(arguments))
    if arguments.json:
        named = (place, system, listing.title, listing.version, listing.digest)
        emit_line(InstalledCacheLine(*named, entries, new, size, count_pickles(listing)))
        return 0
    if not arguments.quiet:
        print(
            f"installed {listing.title} {listing.version} into {place}:"
            f" {format_count(entries, 'entry', 'entries')} of {system}, {new} of them new"
            f" ({size} bytes)"
        )
    print_message(pickle_warning(listing))
    return 0


def _attest(key: str | None) -> Callable[[Any], dict[str, bytes]]:
    """Make the signature alone: how another system built its entries is not known here."""
    if key is None:
        return lambda contents: {}
    from tilusbuild.package import names

    attest = options.find_attester(key)
    return lambda contents: {names.SIGNATURE: attest(contents)[names.SIGNATURE]}


PACKAGE = Verb(
    PackCacheArgs,
    package,
    (PackageFileLine, PackedCacheLine),
    "package a foreign cache for other machines",
)
