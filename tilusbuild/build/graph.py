"""A plan as a graph: which files each script's programs are made from, and what became of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from tilusbuild.build.project import Project
from tilusbuild.plan.jobs import ProgramJob, jobs
from tilusbuild.plan.planner import Plan
from tilusbuild.plan.script_instance import ScriptInstance
from tilusbuild.report.graph import (
    FileNode,
    Graph,
    Kind,
    ProgramNode,
    ScriptNode,
)
from tilusbuild.status import KNOWN_IN_CACHE, Status


def graph(project: Project, plan: Plan, *, programs: bool) -> Graph:
    """Return the graph of a plan, down to each program or to the scripts. Reads only."""
    statuses: dict[str, Status] = {}
    groups: dict[str, list[ProgramJob]] = {}
    for job in jobs(plan):
        groups.setdefault(_name(job), []).append(job)
        if job.hash not in statuses:
            entry = project.cache.lookup(job.hash)
            statuses[job.hash] = entry.status if entry else Status.MISSING
    manifest = FileNode(_shown(project.manifest.path, project.manifest.root), "manifest")
    files = {manifest.path: manifest}
    scripts = []
    for group in groups.values():
        inputs = _inputs({job.script_instance for job in group}, project.manifest.root)
        files |= {file.path: file for file in inputs}
        names = (manifest.path, *(file.path for file in inputs))
        scripts.append(_script(group, names, statuses))
    nodes = _programs(groups, statuses) if programs else []
    return Graph(plan.project, list(files.values()), scripts, nodes)


def _name(job: ProgramJob) -> str:
    return f"{job.script} {job.planned.target.name}"


def _script(
    group: Sequence[ProgramJob], inputs: tuple[str, ...], statuses: dict[str, Status]
) -> ScriptNode:
    found = [statuses[program] for program in {job.hash for job in group}]
    target = group[0].planned.target
    counts: dict[str, int] = {status: found.count(status) for status in KNOWN_IN_CACHE}
    return ScriptNode(group[0].script, target.name, target.arch, inputs, counts)


def _programs(
    groups: dict[str, list[ProgramJob]], statuses: dict[str, Status]
) -> list[ProgramNode]:
    owners: dict[str, dict[str, ProgramJob]] = {}
    for name, group in groups.items():
        for job in group:
            owners.setdefault(job.hash, {}).setdefault(name, job)
    return [_program(program, statuses[program], by) for program, by in owners.items()]


def _program(program: str, status: Status, by: dict[str, ProgramJob]) -> ProgramNode:
    first = next(iter(by.values()))
    schedule = first.schedule
    return ProgramNode(
        program, status, first.label, first.script_instance.values(schedule), tuple(by)
    )


def _inputs(script_instances: Iterable[ScriptInstance], root: str) -> list[FileNode]:
    """Return the files among the inputs, templates first. The rest are places where one was looked
    for."""
    templates = {path for script_instance in script_instances for path in script_instance.templates}
    headers = {
        path for script_instance in script_instances for path in script_instance.inputs
    } - templates
    kinds: tuple[tuple[Kind, set[str]], ...] = (("template", templates), ("header", headers))
    return [
        FileNode(_shown(path, root), kind)
        for kind, paths in kinds
        for path in sorted(paths)
        if os.path.isfile(path)
    ]


def _shown(path: str, root: str) -> str:
    relative = os.path.relpath(path, root)
    return path if relative.startswith("../") else relative
