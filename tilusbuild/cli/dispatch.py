"""`tilusbuild dispatch`: show, check and thin out the tables that choose programs by sizes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.build.project import Project
    from tilusbuild.dispatch.look import Look

ACTIONS = {
    "show": "the rules, tables and models of a script",
    "check": "whether every table, rule and program is what it should be; 1 when not",
    "coverage": "which sizes are served by what, and where that comes from",
    "build": "make the C dispatcher anew, of the tables as they are now",
    "prune": "the fewest programs that serve what was measured, and what fewer would cost",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """What to do, and for which script."""
    options.device_compiler(parser)
    listed = "; ".join(f"{name}: {what}" for name, what in ACTIONS.items())
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=listed)
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("-t", "--target", metavar="NAME", help="for this target only")
    parser.add_argument(
        "--slowdown",
        type=float,
        default=1.05,
        metavar="R",
        help="prune: how many times the best a program may take (1.05)",
    )
    parser.add_argument(
        "--write", action="store_true", help="prune: let the tables choose among these only"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print to stdout; 1 when a check finds something."""
    from tilusbuild.errors import TilusbuildError, input_error
    from tilusbuild.runtime.errors import LoadError

    if not arguments.slowdown >= 1:
        raise input_error(f"--slowdown {arguments.slowdown:g}: it is at least 1")
    with options.project(arguments) as project:
        try:
            looks = list(_looks(arguments, project))
            act = {"show": _show, "check": _check, "coverage": _coverage, "prune": _prune}
            status = act[arguments.action](arguments, looks) if arguments.action in act else 0
            if arguments.action == "build" or (arguments.action == "prune" and arguments.write):
                _build(arguments, project, looks)
            return status
        except LoadError as error:
            raise TilusbuildError(str(error)) from None


def _looks(arguments: argparse.Namespace, project: Project) -> Iterator[Look]:
    from tilusbuild.dispatch.look import looks

    yield from looks(
        project.manifest, project.settings.cache_dir.value, arguments.script, arguments.target
    )


def _show(arguments: argparse.Namespace, looks: Sequence[Look]) -> int:
    from tilusbuild.dispatch.tables import table_text

    for number, look in enumerate(looks):
        if arguments.json:
            print(json.dumps({"event": "dispatch", **look.as_json()}, ensure_ascii=False))
            continue
        script = look.script
        print(("\n" if number else "") + f"{script.label} ({script.arch})")
        print(f"keys: {', '.join(script.keys) or 'none'}; {len(script.programs)} programs")
        for rule in script.rules:
            print(f"rule: {rule.source} → program {rule.program}")
        if script.model is not None:
            print(f"model: {script.model.source}")
        default = "none declared" if script.default is None else f"program {script.default}"
        print(f"default: {default}")
        if look.tables:
            print("\n" + table_text(script, look.tables), end="")
    _summary(arguments, instances=len(looks))
    return 0


def _check(arguments: argparse.Namespace, looks: Sequence[Look]) -> int:
    found = [(look, problem) for look in looks for problem in look.problems()]
    for look, problem in found:
        if arguments.json:
            line = {"event": "problem", "instance": look.script.label, "what": problem}
            print(json.dumps(line, ensure_ascii=False))
        else:
            print(f"{look.script.label}: {problem}")
    if not found and not arguments.json:
        word = "instance" if len(looks) == 1 else "instances"
        print(f"{len(looks)} {word}: nothing is wrong")
    _summary(arguments, instances=len(looks), problems=len(found))
    return 1 if found else 0


def _coverage(arguments: argparse.Namespace, looks: Sequence[Look]) -> int:
    from tilusbuild.table import table

    for number, look in enumerate(looks):
        rows = look.coverage()
        if arguments.json:
            for row in rows:
                line = {"instance": look.script.label, **row._asdict()}
                print(json.dumps({"event": "coverage", **line}, ensure_ascii=False))
            continue
        print(("\n" if number else "") + f"{look.script.label} on {look.device or 'any device'}")
        shown = [(*row.sizes.values(), row.program, row.source, row.why) for row in rows]
        names = tuple(rows[0].sizes) if rows else look.script.keys
        print(table((*names, "choice", "source", "why"), shown), end="")
        counts = {s: sum(row.source == s for row in rows) for s in {r.source for r in rows}}
        print(", ".join(f"{count} by {source}" for source, count in sorted(counts.items())))
    _summary(arguments, instances=len(looks))
    return 0


def _prune(arguments: argparse.Namespace, looks: Sequence[Look]) -> int:
    from tilusbuild.table import table

    for look in looks:
        for fingerprint, times in look.times().items():
            kept, steps = look.thinned(fingerprint, times, arguments.slowdown, arguments.write)
            device = dict(fingerprint).get("device", "")
            if arguments.json:
                line: dict[str, Any] = {"instance": look.script.label, "device": device}
                line |= {"programs": list(kept.programs), "worst": kept.worst, "mean": kept.mean}
                print(json.dumps({"event": "prune", **line}, ensure_ascii=False))
                continue
            used = sorted({p for measured in times.values() for p in measured})
            print(f"{look.script.label} on {device}: {len(times)} keys, {len(used)} programs")
            rows = [
                (len(step.programs), step.programs[-1], f"{step.worst:.3f}", f"{step.mean:.3f}")
                for step in steps
            ]
            print(table(("programs", "adds", "worst", "mean"), rows), end="")
            listed = ", ".join(map(str, sorted(kept.programs)))
            print(f"within {arguments.slowdown:g} of the best everywhere: programs {listed}")
    if not arguments.json and not any(look.times() for look in looks):
        print("nothing is measured: `tilusbuild tune` measures")
    _summary(arguments, instances=len(looks))
    return 0


def _build(arguments: argparse.Namespace, project: Project, looks: Sequence[Look]) -> None:
    from tilusbuild.dispatch.dispatcher import refresh

    toolchain = project.toolchain(cuda=False)
    for look in looks:
        if arguments.action == "build" or look.has_dispatcher:
            made = refresh(project.cache, look.script, toolchain, project.runner)
            if arguments.action == "build" and not arguments.json:
                print(made or f"{look.script.label}: there can be none")
    if arguments.action == "build":
        _summary(arguments, instances=len(looks))


def _summary(arguments: argparse.Namespace, **counts: int) -> None:
    if arguments.json:
        print(json.dumps({"event": "summary", **counts}))
