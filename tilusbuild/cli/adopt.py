"""`tilusbuild cache package DIR`, and what `install` and `preflight` do with such a package."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.interop.preflight import CachePreflight
    from tilusbuild.package.preflight import Host
    from tilusbuild.package.reader import Reader

_FORMATS = ("dir", "tar.zst", "oci")


def configure(parser: argparse.ArgumentParser) -> None:
    """Which cache, as what, where to."""
    parser.add_argument("folder", metavar="DIR", help="a cache of Tilus, TileLang, Hidet or Triton")
    parser.add_argument(
        "--format",
        dest="formats",
        metavar="F",
        action="append",
        default=[],
        help=f"{', '.join(_FORMATS)}; may be given several times; tar.zst without",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", default="dist", help="the folder to write to: dist"
    )
    parser.add_argument("--name", metavar="NAME", help="what the package is called: SYSTEM-cache")
    parser.add_argument(
        "--package-version", metavar="VERSION", help="its version; the system's without"
    )
    parser.add_argument(
        "--skip-broken", action="store_true", help="leave behind what `cache verify` complains of"
    )
    parser.add_argument(
        "--sign", metavar="KEY", help="sign it: the PEM file of a private key, or `keyless`"
    )


def package(arguments: argparse.Namespace) -> int:
    """Write the package, and print the path of each carrier."""
    from tilusbuild.errors import input_error
    from tilusbuild.interop import pack as foreign
    from tilusbuild.interop.caches.systems import read
    from tilusbuild.interop.listing import count_pickles, pickle_warning
    from tilusbuild.manifest.sections import PackageSection
    from tilusbuild.package import pack
    from tilusbuild.package.opening import is_cache

    formats = _formats(arguments.formats)
    if is_cache(arguments.folder):
        raise input_error(
            f"{arguments.folder} is a cache of tilusbuild", hint="`tilusbuild package` packs it"
        )
    cache = read(arguments.folder)
    name, version = foreign.default_name(cache)
    name, version = arguments.name or name, arguments.package_version or version
    found = foreign.collect(cache, name, version, skip_broken=arguments.skip_broken)
    order = pack.Order(name, PackageSection(), cache.system, version)
    made = pack.write(order, found.contents, formats, arguments.output, attest=_attest(arguments))
    listed = found.contents.listed
    for path, why in found.left_out:
        _tell(arguments, "left out", name=path, why=why)
    if not arguments.json:
        sys.stderr.write(pickle_warning(listed))
    for each in made:
        if arguments.json:
            options.emit(
                "carrier", format=each.format, path=each.path, size=each.size, digest=each.digest
            )
        else:
            print(each.path)
            if not arguments.quiet:
                sys.stderr.write(f"  {each.format}, {each.size} bytes, sha256 {each.digest}\n")
    if arguments.json:
        options.emit(
            "package",
            name=name,
            version=version,
            digest=found.contents.digest,
            system=cache.system,
            entries=len(found.entries),
            pickles=count_pickles(listed),
            files=len(listed.files),
            size=listed.size,
        )
    return 0


def install(reader: Reader, arguments: argparse.Namespace) -> int:
    """Bring the cache of such a package to its system's place."""
    from tilusbuild.interop.caches.systems import home_of
    from tilusbuild.interop.install import install
    from tilusbuild.interop.listing import cache_of, count_pickles, pickle_warning
    from tilusbuild.package.listing import parse

    listing = parse(reader.list_bytes())
    system, entries = cache_of(listing).system, len(cache_of(listing).entries)
    place = os.path.abspath(arguments.into) if arguments.into else home_of(system, os.environ)
    done = install(reader, listing, place, options.limits(arguments))
    pickles = count_pickles(listing)
    if arguments.json:
        line = {"name": listing.title, "version": listing.version, "digest": listing.digest}
        counts = {"entries": entries, "new": done.new, "size": done.size, "pickles": pickles}
        options.emit("installed", cache=place, system=system, **line, **counts)
        return 0
    if not arguments.quiet:
        print(
            f"{listing.title} {listing.version} is in {place}: {entries} entries of {system},"
            f" {done.new} of them new ({done.size} bytes)"
        )
    sys.stderr.write(pickle_warning(listing))
    return 0


def preflight(reader: Reader, arguments: argparse.Namespace, hosts: list[Host]) -> int:
    """Say of each entry whether it would run; 1 when one would not."""
    from tilusbuild.interop.preflight import preflight as judge
    from tilusbuild.package.arriving import check_limits
    from tilusbuild.package.listing import parse
    from tilusbuild.table import table

    listing = parse(reader.list_bytes())
    check_limits(listing, reader, options.limits(arguments))
    results = [judge(listing, host) for host in hosts]
    if arguments.json:
        _print_json(results)
    else:
        rows = [
            (result.host.device.arch, each.label, "yes" if each.runs else "no", each.why)
            for result in results
            for each in result.entries
        ]
        print(table(("device", "entry", "runs", "why"), rows), end="")
        for result in results:
            for what in result.missing:
                print(f"{result.host.device.arch}: missing: {what}")
        if listing.needs.isa and any(host.isa is None for host in hosts):
            print(f"its host code is for a CPU with {listing.needs.isa}; --cpu says the host's")
    return 0 if not any(result.missing for result in results) else 1


def _print_json(results: list[CachePreflight]) -> None:
    missing = 0
    for result in results:
        device = result.host.device.arch
        for each in result.entries:
            missing += not each.runs
            entry = {"path": each.entry.path, "kind": each.entry.kind, "name": each.entry.name}
            options.emit("preflight", device=device, **entry, runs=each.runs, why=each.why)
        for problem in result.problems:
            missing += 1
            options.emit("problem", device=device, what=problem)
    options.emit("summary", devices=len(results), missing=missing)


def _formats(words: list[str]) -> list[str]:
    from tilusbuild.errors import did_you_mean, input_error

    named = [name for word in words for name in word.split(",") if name]
    for name in named:
        if name == "wheel":
            raise input_error(
                "--format wheel: pip installs a wheel where Python looks, and no system looks there"
                " for its cache",
                hint=f"choose among {', '.join(_FORMATS)}",
            )
        if name not in _FORMATS:
            raise input_error(f'--format: no format "{name}"', hint=did_you_mean(name, _FORMATS))
    return list(dict.fromkeys(named)) or ["tar.zst"]


def _attest(arguments: argparse.Namespace) -> Callable[[Any], dict[str, bytes]]:
    """The signature alone: how another system came to its entries, nobody here can attest."""
    if arguments.sign is None:
        return lambda contents: {}
    from tilusbuild.package import names
    from tilusbuild.package.signing import attester

    attest = attester(arguments.sign)
    return lambda contents: {names.SIGNATURE: attest(contents)[names.SIGNATURE]}


def _tell(arguments: argparse.Namespace, event: str, **fields: str) -> None:
    if arguments.json:
        options.emit(event, **fields)
    else:
        sys.stderr.write(f"{event}: {': '.join(fields.values())}\n")
