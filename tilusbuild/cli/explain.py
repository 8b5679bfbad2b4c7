"""`tilusbuild explain [SCRIPT[/I]]`: why something is out of date."""

from __future__ import annotations

import argparse
import json

from tilusbuild.cli import options


def configure(parser: argparse.ArgumentParser) -> None:
    """Scripts, or single programs as SCRIPT/I."""
    options.selection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print an explanation for each group of programs that have the same; reads only."""
    from tilusbuild.errors import input_error
    from tilusbuild.plan.jobs import jobs
    from tilusbuild.plan.selection import Selection
    from tilusbuild.project.explain import LastBuild, as_json, explain, grouped

    wanted = [word.partition("/") for word in arguments.scripts]
    numbers: dict[str, set[int]] = {}
    for name, slash, number in wanted:
        if slash and not number.isdigit():
            raise input_error(f'"{name}/{number}": a program is named by a number, as in {name}/0')
        numbers.setdefault(name, set())
        if slash:
            numbers[name].add(int(number))
    with options.project(arguments) as project:
        targets = tuple(name for word in arguments.targets for name in word.split(","))
        selection = Selection(tuple(numbers), targets, project.settings.level.value)
        planned = project.plan(selection)
        last: dict[tuple[str, str], LastBuild] = {}
        found = []
        for job in jobs(planned):
            if numbers.get(job.script) and job.index not in numbers[job.script]:
                continue
            key = (job.planned.folder, job.planned.target.name)
            if key not in last:
                last[key] = LastBuild(project.cache, project.manifest.path, *key)
            work = job.recipe()
            texts = (work.program_txt, work.options_txt)
            found.append(explain(job.label, job.hash, texts, project.cache, last[key]))
    if not found and arguments.scripts:
        raise input_error(f"no program {' '.join(arguments.scripts)}")
    if arguments.json:
        for each in found:
            print(json.dumps(as_json(each), ensure_ascii=False))
        return 0
    for (state, *reasons), members in grouped(found):
        if state == "built" and not arguments.verbose and len(members) > 1:
            print(f"{len(members)} programs are up to date")
            continue
        names = ", ".join(each.label for each in members[:3])
        more = f" and {len(members) - 3} more" if len(members) > 3 else ""
        words = {"missing": "to be compiled", "built": "up to date"}
        print(f"{names}{more}: {words.get(state, state)}")
        for reason in reasons:
            print(f"  {reason}")
    return 0
