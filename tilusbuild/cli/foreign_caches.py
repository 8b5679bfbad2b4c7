"""`tilusbuild cache stats|verify|gc|package DIR` for a foreign cache, and packages of one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from tilusbuild.cli import options
from tilusbuild.cli.arguments import Common, flag, option, positional, repeated
from tilusbuild.cli.options import emit, say
from tilusbuild.cli.package import PackageFileLine, show_files
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.report.text import amount, counted

if TYPE_CHECKING:
    from tilusbuild.cli.cache_gc import CacheGcArgs
    from tilusbuild.cli.install import InstallArgs
    from tilusbuild.interop.caches.directory import ForeignCache
    from tilusbuild.package.model import Reader


_FORMATS = ("dir", "tar.zst", "oci")
DIRECTORY_HELP = "another cache: of tilusbuild, Tilus, TileLang, Hidet or Triton"


@dataclass(frozen=True, slots=True)
class StatsLine(JsonLine):
    """A foreign cache in numbers, and the paths of the entries that have the same code."""

    event: ClassVar[str] = "stats"
    path: str
    system: str
    version: str
    size: int
    counts: Mapping[str, int]
    duplicates: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class BrokenEntryLine(JsonLine):
    """Something in a foreign cache that is wrong."""

    event: ClassVar[str] = "problem"
    name: str
    what: str


@dataclass(frozen=True, slots=True)
class StaleFileLine(JsonLine):
    """A file that a system left behind and does not use."""

    event: ClassVar[str] = "litter"
    name: str
    what: str
    size: int


@dataclass(frozen=True, slots=True)
class ForeignVerifySummary(JsonLine):
    """How many entries and problems a foreign cache has."""

    event: ClassVar[str] = "summary"
    entries: int
    problems: int


@dataclass(frozen=True, slots=True)
class RemovedFileLine(JsonLine):
    """Something that was removed from a foreign cache, and why."""

    event: ClassVar[str] = "removed"
    name: str
    why: str
    size: int


@dataclass(frozen=True, slots=True)
class InUseLine(JsonLine):
    """Something that is in use, and was not removed."""

    event: ClassVar[str] = "in use"
    name: str
    why: str
    size: int


@dataclass(frozen=True, slots=True)
class ForeignGcSummary(JsonLine):
    """How much was removed, the bytes that this freed, and how much was in use."""

    event: ClassVar[str] = "summary"
    removed: int
    freed: int
    left: int


@dataclass(frozen=True, kw_only=True)
class PackCacheArgs(Common):
    """Which cache, in which format, where to."""

    source: str = positional("DIR", help="a cache of Tilus, TileLang, Hidet or Triton")
    formats: tuple[str, ...] = repeated(
        "--format",
        metavar="F",
        help=f"{', '.join(_FORMATS)}; can be repeated (default: tar.zst)",
    )
    output: str = option(
        "-o", "--output", metavar="DIR", default="dist", help="where to write it (default: dist)"
    )
    name: str | None = option(
        "--name", metavar="NAME", help="name of the package (default: SYSTEM-cache)"
    )
    package_version: str | None = option(
        "--package-version", metavar="VERSION", help="its version (default: the system's)"
    )
    skip_broken: bool = flag("--skip-broken", help="leave out what `cache verify` reports")
    sign: str | None = option(
        "--sign",
        metavar="KEY",
        help="sign it with the private key in this PEM file, or `keyless`",
    )


@dataclass(frozen=True, slots=True)
class LeftOutLine(JsonLine):
    """With `--skip-broken`: an entry that is not in the package."""

    event: ClassVar[str] = "left out"
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class PackedCacheLine(JsonLine):
    """What is in a package of a foreign cache."""

    event: ClassVar[str] = "package"
    name: str
    version: str
    digest: str
    system: str
    entries: int
    pickles: int
    files: int
    size: int


@dataclass(frozen=True, slots=True)
class InstalledCacheLine(JsonLine):
    """A package of a foreign cache was installed in the directory `cache`."""

    event: ClassVar[str] = "installed"
    cache: str
    system: str
    name: str
    version: str
    digest: str
    entries: int
    new: int
    size: int
    pickles: int


VERIFY_LINES = (BrokenEntryLine, StaleFileLine, ForeignVerifySummary)
GC_LINES = (RemovedFileLine, InUseLine, ForeignGcSummary)
PACK_LINES = (LeftOutLine, PackageFileLine, PackedCacheLine)


def is_foreign(path: str | None) -> TypeGuard[str]:
    """Return whether a word of the command line is the directory of a foreign cache."""
    from tilusbuild.interop.caches import system_of

    return path is not None and os.path.isdir(path) and system_of(path) is not None


def stats(path: str, arguments: Common) -> int:
    """Print counts and sizes."""
    from tilusbuild.interop.caches import read
    from tilusbuild.table import table

    cache = read(path)
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
        paths = tuple(tuple(entry.path for entry in group) for group in doubles)
        emit(StatsLine(cache.root, cache.system, cache.version, cache.size, counts, paths))
        return 0
    print(f"{cache.root}: {title(cache)}")
    print(table(("", "count", "size"), facts), end="")
    for name in cache.out_of_scope:
        print(f"{name}/ holds no kernels: out of scope, and left alone")
    for group in doubles if arguments.verbose else ():
        print("the same code: " + ", ".join(entry.path for entry in group))
    return 0


def verify(path: str, arguments: Common) -> int:
    """Print what is broken; 1 when anything is."""
    from tilusbuild.interop.caches import read

    cache = read(path)
    for problem in cache.broken:
        if arguments.json:
            emit(BrokenEntryLine(problem.path, problem.what))
        else:
            print(problem)
    for file in cache.stale:
        if arguments.json:
            emit(StaleFileLine(file.path, file.what, file.size))
        else:
            print(f"{file.path}: {file.what}, {amount(file.size)}")
    if arguments.json:
        emit(ForeignVerifySummary(len(cache.entries), len(cache.broken)))
    elif not cache.broken:
        entries = counted(len(cache.entries), "entry", "entries")
        print(f"{entries} of {title(cache)}, no problems found")
    else:
        problems = counted(len(cache.broken), "problem")
        say(f"{problems}; `gc --broken` removes the broken entries\n")
    return 1 if cache.broken else 0


def gc(path: str, arguments: CacheGcArgs) -> int:
    """Remove entries; 1 when one that should go is in use."""
    from tilusbuild.interop.caches import read
    from tilusbuild.interop.caches.gc import decide, remove
    from tilusbuild.manifest.table import parse_duration, parse_size

    cache = read(path)
    removals = decide(
        cache,
        now=time.time(),
        older_than=parse_duration(arguments.older_than) if arguments.older_than else None,
        max_size=parse_size(arguments.max_size) if arguments.max_size else None,
        broken=arguments.broken,
    )
    removed = (
        [(each, True) for each in removals] if arguments.dry_run else list(remove(cache, removals))
    )
    freed = sum(each.size for each, went in removed if went)
    left = [each for each, went in removed if not went]
    for each, went in removed:
        if arguments.json:
            kind = RemovedFileLine if went else InUseLine
            emit(kind(each.path, each.why, each.size))
        elif arguments.verbose or arguments.dry_run or not went:
            print(f"{amount(each.size):>10}  {each.path}: {each.why if went else 'in use, kept'}")
    if arguments.json:
        emit(ForeignGcSummary(len(removed) - len(left), freed, len(left)))
    else:
        verb = "would remove" if arguments.dry_run else "removed"
        entries = counted(len(cache.entries), "entry", "entries")
        print(f"{verb} {len(removed) - len(left)} of {entries}, {amount(freed)}")
    return 1 if left else 0


def title(cache: ForeignCache) -> str:
    """Return the name of a cache's system, with its version where that is known."""
    return f"{cache.system} {cache.version}".strip()


def package(arguments: PackCacheArgs) -> int:
    """Write the package, and print the path of each file or directory."""
    from tilusbuild.errors import input_error
    from tilusbuild.interop import pack as foreign
    from tilusbuild.interop.caches import read
    from tilusbuild.interop.listing import count_pickles, pickle_warning
    from tilusbuild.manifest.sections import PackageSection
    from tilusbuild.package import pack
    from tilusbuild.package.collect import PackageOrder
    from tilusbuild.package.read import is_cache

    formats = _formats(arguments.formats)
    if is_cache(arguments.source):
        raise input_error(
            f"{arguments.source} is a cache of tilusbuild", hint="use `tilusbuild package` for it"
        )
    cache = read(arguments.source)
    name, version = foreign.default_name(cache)
    name, version = arguments.name or name, arguments.package_version or version
    found = foreign.collect(cache, name, version, skip_broken=arguments.skip_broken)
    order = PackageOrder(name, PackageSection(), cache.system, version)
    attest = _attest(arguments.sign)
    made = pack.write(order, found.contents, formats, arguments.output, attest=attest)
    listed = found.contents.listed
    for path, why in found.left_out:
        if arguments.json:
            emit(LeftOutLine(path, why))
        else:
            say(f"left out: {path}: {why}\n")
    if not arguments.json:
        say(pickle_warning(listed))
    show_files(arguments, made)
    if arguments.json:
        counts = (len(found.entries), count_pickles(listed), len(listed.files), listed.size)
        emit(PackedCacheLine(name, version, found.contents.digest, cache.system, *counts))
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
    done = install(reader, listing, place, options.limits(arguments))
    if done.warning is not None:
        say(f"warning: {done.warning}\n")
    if arguments.json:
        named = (place, system, listing.title, listing.version, listing.digest)
        emit(InstalledCacheLine(*named, entries, done.new, done.size, count_pickles(listing)))
        return 0
    if not arguments.quiet:
        print(
            f"installed {listing.title} {listing.version} into {place}:"
            f" {counted(entries, 'entry', 'entries')} of {system}, {done.new} of them new"
            f" ({done.size} bytes)"
        )
    say(pickle_warning(listing))
    return 0


def _formats(words: Sequence[str]) -> list[str]:
    from tilusbuild.errors import did_you_mean, input_error

    named = options.split(words)
    for name in named:
        if name == "wheel":
            raise input_error(
                "--format wheel: pip installs a wheel where Python looks, and no system looks there"
                " for its cache",
                hint=f"choose among {', '.join(_FORMATS)}",
            )
        if name not in _FORMATS:
            hint = did_you_mean(name, _FORMATS)
            raise input_error(f'--format: unknown format "{name}"', hint=hint)
    return list(dict.fromkeys(named)) or ["tar.zst"]


def _attest(key: str | None) -> Callable[[Any], dict[str, bytes]]:
    """Make the signature alone: how another system built its entries is not known here."""
    if key is None:
        return lambda contents: {}
    from tilusbuild.package import names
    from tilusbuild.package.signing import attester

    attest = attester(key)
    return lambda contents: {names.SIGNATURE: attest(contents)[names.SIGNATURE]}
