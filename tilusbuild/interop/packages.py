"""`tilusbuild cache package`, and `install` of a package of a foreign cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import options
from tilusbuild.cli.arguments import DIST, SIGN, Common, Verb, option, positional, repeated
from tilusbuild.cli.options import emit_line, print_message
from tilusbuild.cli.package import PackageFileLine, parse_formats, show_files
from tilusbuild.report.jsonl import declare_line
from tilusbuild.report.text import format_count
from tilusbuild.rooms import find_contributions

if TYPE_CHECKING:
    from tilusbuild.cli.install import InstallArgs
    from tilusbuild.package.model import Reader


class PackCacheArgs(Common, frozen=True, kw_only=True):
    """The cache to package, the formats and the directory for the files."""

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
"""A package of a foreign cache, and the counts of its content."""


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


def package_cache(arguments: PackCacheArgs) -> int:
    """Package a foreign cache in each format, and print the paths and a warning of pickles. Return
    the exit status. Raises `InputError` for a cache of tilusbuild, and `PackageError`."""
    from tilusbuild.errors import input_error
    from tilusbuild.interop import pack as foreign
    from tilusbuild.interop.caches import read_foreign_cache
    from tilusbuild.interop.listing import count_pickles, format_pickle_warning, get_foreign_cache
    from tilusbuild.manifest.sections import PackageSection
    from tilusbuild.package import pack
    from tilusbuild.package.collect import PackageOrder
    from tilusbuild.package.formats import load_format
    from tilusbuild.package.read import is_cache

    usable_formats = [
        name for name in find_contributions("package format") if load_format(name).holds_kinds
    ]
    format_names = parse_formats(arguments.formats, usable_formats) or ["tar.zst"]
    if is_cache(arguments.source):
        raise input_error(
            f"{arguments.source} is a cache of tilusbuild", hint="use `tilusbuild package` for it"
        )
    cache = read_foreign_cache(arguments.source)
    default_name, default_version = foreign.choose_default_name(cache)
    name = arguments.name or default_name
    version = arguments.package_version or default_version
    contents = foreign.collect_foreign_cache(cache, name, version)
    order = PackageOrder(name, PackageSection(), cache.system, version)
    attest = _make_attester(arguments.sign)
    files = pack.write_formats(order, contents, format_names, arguments.output, attest=attest)
    listing = contents.listed
    if not arguments.json:
        print_message(format_pickle_warning(listing))
    show_files(arguments, files, contents.digest)
    if arguments.json:
        emit_line(
            PackedCacheLine(
                name=name,
                version=version,
                digest=contents.digest,
                system=cache.system,
                entries=len(get_foreign_cache(listing).entries),
                pickles=count_pickles(listing),
                files=len(listing.files),
                size=listing.size,
            )
        )
    return 0


def install(reader: Reader, arguments: InstallArgs) -> int:
    """Install the foreign cache of a package into `--into`, else into the directory where its
    system looks for its cache, and print the counts. Return the exit status."""
    from tilusbuild.interop.caches import find_home
    from tilusbuild.interop.install import install_foreign_cache
    from tilusbuild.interop.listing import count_pickles, format_pickle_warning, get_foreign_cache
    from tilusbuild.package.listing import parse_list

    listing = parse_list(reader.list_bytes())
    listed_cache = get_foreign_cache(listing)
    system, entries = listed_cache.system, len(listed_cache.entries)
    if arguments.into:
        destination = os.path.abspath(arguments.into)
    else:
        destination = find_home(system, os.environ)
    new, size = install_foreign_cache(reader, listing, destination, options.parse_limits(arguments))
    if arguments.json:
        emit_line(
            InstalledCacheLine(
                cache=destination,
                system=system,
                name=listing.title,
                version=listing.version,
                digest=listing.digest,
                entries=entries,
                new=new,
                size=size,
                pickles=count_pickles(listing),
            )
        )
        return 0
    if not arguments.quiet:
        print(
            f"installed {listing.title} {listing.version} into {destination}:"
            f" {format_count(entries, 'entry', 'entries')} of {system}, {new} of them new"
            f" ({size} bytes)"
        )
    print_message(format_pickle_warning(listing))
    return 0


def _make_attester(key: str | None) -> Callable[[Any], dict[str, bytes]]:
    """Return a function from a package to its signature, by file name. Without a key, the function
    returns an empty dictionary."""
    if key is None:
        return lambda contents: {}
    from tilusbuild.package import names

    # The provenance is left out, because how another system built its entries is not known.
    attest = options.find_attester(key)
    return lambda contents: {names.SIGNATURE: attest(contents)[names.SIGNATURE]}


PACKAGE = Verb(
    PackCacheArgs,
    package_cache,
    (PackageFileLine, PackedCacheLine),
    "package a foreign cache for other machines",
)
