"""`tilusbuild cache ls|stats|verify|gc|package DIR` for a foreign cache."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import options
from tilusbuild.report.text import amount

if TYPE_CHECKING:
    from tilusbuild.interop.caches.model import ForeignCache

_FORMATS = ("dir", "tar.zst", "oci")


def configure_package(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cache package`."""
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
        "-o", "--output", metavar="DIR", default="dist", help="the directory to write to: dist"
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


def is_foreign(path: str | None) -> bool:
    """Return whether a word of the command line is the directory of a foreign cache."""
    from tilusbuild.interop.caches.systems import system_of

    return path is not None and os.path.isdir(path) and system_of(path) is not None


def run(arguments: argparse.Namespace) -> int:
    """Do the action; return 1 if `verify` found something, or `gc` had to leave something."""
    from tilusbuild.interop.caches.systems import read

    cache = read(arguments.folder)
    actions = {"ls": _ls, "stats": _stats, "verify": _verify, "gc": _gc}
    return actions[arguments.action](cache, arguments)


def _ls(cache: ForeignCache, arguments: argparse.Namespace) -> int:
    from tilusbuild.table import table

    now = time.time()
    if arguments.json:
        for entry in cache.entries:
            options.emit(
                "entry",
                system=cache.system,
                path=entry.path,
                kind=entry.kind,
                name=entry.name,
                says=entry.says,
                holds=list(entry.holds),
                by=entry.by,
                size=entry.size,
                age=round(now - entry.modified),
                pickles=list(entry.pickles),
                problems=[str(problem) for problem in entry.problems],
            )
        return 0
    rows = [
        (
            entry.kind,
            entry.name,
            ", ".join(entry.holds) or entry.says,
            entry.by,
            amount(entry.size),
            _age(now - entry.modified),
            "broken" if entry.problems else "",
            entry.path,
        )
        for entry in cache.entries
    ]
    print(f"{cache.root}: {_title(cache)}")
    heads = ("kind", "name", "code", "compiled by", "size", "age", "", "path")
    print(table(heads, rows), end="")
    return 0


def _stats(cache: ForeignCache, arguments: argparse.Namespace) -> int:
    from tilusbuild.table import table

    doubles = cache.duplicates
    spare = sum(entry.size for group in doubles for entry in group[1:])
    facts: list[tuple[str, int, str]] = [
        ("entries", len(cache.entries), amount(cache.size)),
        ("broken", sum(bool(e.problems) for e in cache.entries), ""),
        ("the same code as another", sum(len(group) - 1 for group in doubles), amount(spare)),
        ("left over", len(cache.stale), amount(sum(file.size for file in cache.stale))),
        ("pickles, never opened", sum(len(e.pickles) for e in cache.entries), ""),
    ]
    if arguments.json:
        counts = {name: count for name, count, _ in facts}
        options.emit(
            "stats",
            path=cache.root,
            system=cache.system,
            version=cache.version,
            size=cache.size,
            counts=counts,
            duplicates=[[entry.path for entry in group] for group in doubles],
        )
        return 0
    print(f"{cache.root}: {_title(cache)}")
    print(table(("", "count", "size"), facts), end="")
    for group in doubles if arguments.verbose else ():
        print("the same code: " + ", ".join(entry.path for entry in group))
    return 0


def _verify(cache: ForeignCache, arguments: argparse.Namespace) -> int:
    for problem in cache.broken:
        if arguments.json:
            options.emit("problem", name=problem.path, what=problem.what)
        else:
            print(problem)
    for file in cache.stale:
        if arguments.json:
            options.emit("litter", name=file.path, what=file.what, size=file.size)
        else:
            print(f"{file.path}: {file.what}, {amount(file.size)}")
    if arguments.json:
        options.emit("summary", entries=len(cache.entries), problems=len(cache.broken))
    elif not cache.broken:
        print(f"{len(cache.entries)} entries of {_title(cache)}, no problems found")
    else:
        sys.stderr.write(f"{len(cache.broken)} problems; `gc --broken` removes the entries\n")
    return 1 if cache.broken else 0


def _gc(cache: ForeignCache, arguments: argparse.Namespace) -> int:
    from tilusbuild.interop.caches.gc import decide, remove
    from tilusbuild.manifest.table import parse_duration, parse_size

    removals = decide(
        cache,
        now=time.time(),
        older_than=parse_duration(arguments.older_than) if arguments.older_than else None,
        max_size=parse_size(arguments.max_size) if arguments.max_size else None,
        broken=arguments.broken,
    )
    gone = (
        [(each, True) for each in removals] if arguments.dry_run else list(remove(cache, removals))
    )
    freed = sum(each.size for each, went in gone if went)
    left = [each for each, went in gone if not went]
    for each, went in gone:
        if arguments.json:
            options.emit(
                "removed" if went else "in use", name=each.path, why=each.why, size=each.size
            )
        elif arguments.verbose or arguments.dry_run or not went:
            print(f"{amount(each.size):>10}  {each.path}: {each.why if went else 'in use, stays'}")
    if arguments.json:
        options.emit("summary", removed=len(gone) - len(left), freed=freed, left=len(left))
    else:
        verb = "would remove" if arguments.dry_run else "removed"
        print(f"{verb} {len(gone) - len(left)} of {len(cache.entries)} entries, {amount(freed)}")
    return 1 if left else 0


def _title(cache: ForeignCache) -> str:
    return f"{cache.system} {cache.version}".strip()


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


# Packaging.


def package(arguments: argparse.Namespace) -> int:
    """Write the package in each format, and print the paths."""
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
        if arguments.json:
            options.emit("left out", name=path, why=why)
        else:
            sys.stderr.write(f"left out: {path}: {why}\n")
    if not arguments.json and (warning := pickle_warning(listed)):
        sys.stderr.write(f"{warning}\n")
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
    """Make the signature alone: how another system built its entries is not known here."""
    if arguments.sign is None:
        return lambda contents: {}
    from tilusbuild.package import names
    from tilusbuild.package.signing import attester

    attest = attester(arguments.sign)
    return lambda contents: {names.SIGNATURE: attest(contents)[names.SIGNATURE]}
