"""`tilusbuild verify --against-remote`: the project's cache, compared with the remote cache, and a
compile that says which of the two is right."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.cli import options
from tilusbuild.cli.arguments import Common
from tilusbuild.cli.options import emit, say
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.report.text import counted

if TYPE_CHECKING:
    from tilusbuild.cache.index import ScriptListing
    from tilusbuild.cache.tree import Tree
    from tilusbuild.package.rebuild import RebuildResult
    from tilusbuild.remote.compare import Differing


@dataclass(frozen=True, slots=True)
class RemoteDifferenceLine(JsonLine):
    """With `--against-remote`: a program that has other bytes there."""

    event: ClassVar[str] = "differs"
    program: str
    name: str
    files: tuple[str, ...]
    wrong: str
    """Which one is: "cache", "remote", "both", or "" when that is not known."""
    why: str


@dataclass(frozen=True, slots=True)
class RemoteVerifySummary(JsonLine):
    """With `--against-remote`: how many programs were compared, and how many the remote has not."""

    event: ClassVar[str] = "summary"
    address: str
    same: int
    differing: int
    missing: int
    warnings: tuple[str, ...]
    """What kept the remote from being asked for all."""


_WRONG = {
    "cache": "the one in this cache is wrong",
    "remote": "the remote's is wrong",
    "both": "both are wrong",
    "": "which one is right is not known",
}


def verify_remote(arguments: Common, names: Sequence[str]) -> int:
    """Print which programs differ; 1 when any does, or when the remote is in trouble."""
    from tilusbuild.builder.transfer import compared

    warnings: list[str] = []
    with options.project(arguments) as project:
        labels = _labels(project.cache, names)
        found = compared(project, list(labels), warnings.append)
        for each, wrong, why in _judged(project.cache, found.differing):
            line = RemoteDifferenceLine(each.program, labels[each.program], each.files, wrong, why)
            if arguments.json:
                emit(line)
            else:
                files = ", ".join(each.files)
                print(f"{line.name} ({line.program[:12]}): {files}: {_WRONG[wrong]}: {why}")
    counts = (found.same, len(found.differing), found.missing)
    if arguments.json:
        emit(RemoteVerifySummary(found.address, *counts, tuple(warnings)))
    else:
        for warning in warnings:
            say(f"warning: {warning}\n")
        if not arguments.quiet:
            rest = f", {found.missing} not there" if found.missing else ""
            print(
                f"{found.address}: {counted(counts[0], 'program')} the same, {counts[1]} not{rest}"
            )
    return 1 if found.differing or warnings else 0


def _labels(cache: Tree, names: Sequence[str]) -> dict[str, str]:
    """Return the programs that are meant, with what people call them. Raises `InputError`."""
    from tilusbuild.cache.index import find_programs, script_listings
    from tilusbuild.cache.names import instances, named

    found: dict[str, str] = {}
    chosen: list[tuple[ScriptListing, int | None]] = []
    if not names:
        chosen += [(each, None) for each in script_listings(cache)]
    chosen += [(each, named(word).program) for word in names for each in instances(cache, word)]
    for script, number in chosen:
        for index, program in enumerate(script.programs):
            if number in (None, index):
                found.setdefault(program, script.label_of(index))
    if not names:  # those that no script has any more
        found |= {
            program: "a program" for program in find_programs(cache, "") if program not in found
        }
    return found


def _judged(cache: Tree, differing: Sequence[Differing]) -> list[tuple[Differing, str, str]]:
    """Return which one is wrong, and why: damage shows by itself; of two libraries that could both
    be right, the one is that a compile makes."""
    from tilusbuild.package.rebuild import compile_again

    doubtful = {
        each.program: each.products[0]
        for each in differing
        if each.products[0] and not each.here and not each.there
    }
    made = {each.program: each for each in compile_again(os.path.abspath(cache.root), doubtful)}
    return [(each, *_verdict(each, made)) for each in differing]


def _verdict(each: Differing, made: Mapping[str, RebuildResult]) -> tuple[str, str]:
    result = made.get(each.program)
    if result is None:
        wrong = {(True, False): "cache", (False, True): "remote", (True, True): "both"}
        why = "; ".join(filter(None, (each.here, each.there)))
        return wrong.get((bool(each.here), bool(each.there)), ""), why or "no compile makes these"
    if result.rebuilt_sha256 is None:
        return "", f"it does not compile here: {result.error}"
    if result.same:
        return "remote", "compiled again, it is as in this cache"
    if result.rebuilt_sha256 == each.products[1]:
        return "cache", "compiled again, it is as the remote's"
    return "both", f"compiled again, it has sha256 {result.rebuilt_sha256}"
