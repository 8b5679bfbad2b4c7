"""`tilusbuild plan`: what would be built, and what the rules of each space removed."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import options
from tilusbuild.status import Status

if TYPE_CHECKING:
    from tilusbuild.build.project import Project
    from tilusbuild.manifest import Manifest
    from tilusbuild.plan.planner import Plan


def configure(parser: argparse.ArgumentParser) -> None:
    """Which part of the project, and how much to say."""
    options.selection(parser)
    parser.add_argument(
        "--space",
        action="store_true",
        help="show what each rule of a space removes, alone and after the rules before it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the plan to stdout. Reads only: no compiler runs, nothing is written to the tree."""
    with options.project(arguments) as project:
        selection = options.selected(arguments, project)
        if arguments.space:
            return _spaces(arguments, project)
        plan = project.plan(selection)
        rows = [_row(project, plan, number) for number in range(len(plan.instances))]
    if arguments.json:
        for row in rows:
            print(json.dumps({"event": "instance", **row}, ensure_ascii=False))
        total = {"event": "summary", "programs": plan.size, "instances": len(rows)}
        print(json.dumps(total))
        return 0
    _print_table(rows, plan)
    if arguments.verbose:
        _print_rest(project.manifest)
    return 0


def _row(project: Project, plan: Plan, number: int) -> dict[str, Any]:
    instance = plan.instances[number]
    statuses = [
        entry.status if (entry := project.cache.lookup(program)) else Status.MISSING
        for program in instance.programs
    ]
    return {
        "script": instance.script,
        "params": dict(instance.params),
        "target": instance.target.name,
        "arch": instance.target.arch,
        "cartesian": instance.cartesian,
        "valid": instance.points,
        "programs": len(instance.programs),
        "built": statuses.count(Status.BUILT),
        "failed": statuses.count(Status.FAILED),
        "pruned": statuses.count(Status.PRUNED),
        "to_compile": statuses.count(Status.MISSING),
        "default": instance.default,
        "hash": instance.hash,
    }


def _print_table(rows: list[dict[str, Any]], plan: Plan) -> None:
    from tilusbuild.table import table

    shown = [
        (
            row["script"],
            ", ".join(f"{name}={value}" for name, value in row["params"].items()),
            row["target"],
            row["arch"],
            row["cartesian"],
            row["valid"],
            row["programs"],
            row["built"],
            row["failed"] + row["pruned"],
            row["to_compile"],
        )
        for row in rows
    ]
    heads = ("script", "params", "target", "arch", "cartesian", "valid", "planned", "built")
    print(table((*heads, "refused", "to compile"), shown), end="")
    todo = sum(row["to_compile"] for row in rows)
    print(f"\n{plan.size} programs, {todo} to compile")


def _print_rest(manifest: Manifest) -> None:
    """Every other table of the manifest that says something, as it was understood."""
    parts: list[tuple[str, Any]] = [("toolchain", manifest.toolchain)]
    for name, script in manifest.scripts.items():
        parts += [
            (f"script.{name}.{table}", getattr(script, table))
            for table in ("levels", "prune", "dispatch", "tune")
        ]
    parts += [(f"package.{name}", package) for name, package in manifest.packages.items()]
    for title, part in parts:
        said = part.model_dump(mode="json", by_alias=True, exclude_defaults=True) if part else {}
        if said:
            print(f"\n[{title}]")
            for key, value in said.items():
                print(f"{key} = {json.dumps(value, ensure_ascii=False)}")


def _spaces(arguments: argparse.Namespace, project: Project) -> int:
    from tilusbuild.plan.spaces import reports
    from tilusbuild.table import table

    empty = False
    for number, (label, report) in enumerate(
        reports(project.manifest, options.selected(arguments, project))
    ):
        empty = empty or report.count == 0
        if arguments.json:
            rules = [
                {"name": r.name, "removed": r.removed, "alone": r.alone, "empties": r.empties}
                for r in report.rules
            ]
            line = {
                "event": "space",
                "instance": label,
                "cartesian": report.cartesian,
                "conditional": report.conditional,
                "valid": report.count,
                "rules": rules,
            }
            print(json.dumps(line, ensure_ascii=False))
            continue
        print(("\n" if number else "") + f"{label}: {report.cartesian:,} combinations")
        if report.conditional:
            print(f"{report.conditional:,} are the same as another, for a `when` that is false")
        if report.rules:
            rows = [
                (r.name, r.removed, r.alone, "alone leaves none" if r.empties else "")
                for r in report.rules
            ]
            print(table(("rule", "removes", "alone", ""), rows), end="")
        valid = "too many to count" if report.count is None else f"{report.count:,}"
        print(f"{valid} valid")
    return 2 if empty else 0
