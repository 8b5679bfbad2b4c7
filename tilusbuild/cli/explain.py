"""`tilusbuild explain [SCRIPT[/I]]`: why something is out of date."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.build.explain import Explanation

_WORDS = {"missing": "to be compiled", "built": "up to date"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Scripts, or single programs as SCRIPT/I."""
    options.selection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print an explanation for each group of programs that have the same; reads only."""
    from tilusbuild.build.explain import as_json, explain_plan
    from tilusbuild.errors import input_error

    numbers = _numbers(arguments.scripts)
    with options.project(arguments) as project:
        selection = options.selected(arguments, project, numbers)
        found = explain_plan(project.plan(selection), project.manifest.path, project.cache, numbers)
    if not found and arguments.scripts:
        raise input_error(f"no program {' '.join(arguments.scripts)}")
    if arguments.json:
        for each in found:
            print(json.dumps(as_json(each), ensure_ascii=False))
    else:
        _print(found, every=arguments.verbose)
    return 0


def _numbers(words: Sequence[str]) -> dict[str, set[int]]:
    """Which programs of which scripts are meant; an empty set means all."""
    from tilusbuild.errors import input_error

    found: dict[str, set[int]] = {}
    for word in words:
        name, slash, number = word.partition("/")
        numbers = found.setdefault(name, set())
        if slash and not number.isdigit():
            raise input_error(f'"{word}": a program is named by its number, as in {name}/0')
        if slash:
            numbers.add(int(number))
    return found


def _print(found: Sequence[Explanation], *, every: bool) -> None:
    from tilusbuild.build.explain import grouped

    for (state, *reasons), members in grouped(found):
        if state == "built" and not every and len(members) > 1:
            print(f"{len(members)} programs are up to date")
            continue
        names = ", ".join(each.label for each in members[:3])
        more = f" and {len(members) - 3} more" if len(members) > 3 else ""
        print(f"{names}{more}: {_WORDS.get(state, state)}")
        for reason in reasons:
            print(f"  {reason}")
