"""The build graph of a plan: files, the scripts made of them, programs.

A script for one target is one node, whatever its constants; its programs are nodes of their own
only on request. Nothing is written and no compiler runs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilusbuild.builder.project import Project
from tilusbuild.cache import layout
from tilusbuild.cache.entries import Entry, listed, lookup
from tilusbuild.expr import Value
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.planner import Plan, ProgramJob, jobs
from tilusbuild.status import KNOWN_IN_CACHE, Status

Kind = Literal["manifest", "template", "header"]


@dataclass(frozen=True, slots=True)
class FileNode:
    """An input of scripts. A path inside the project is relative to it."""

    path: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class ScriptNode:
    """A script for one target: the paths of its inputs, how many programs have which status, and
    the bytes of their libraries together."""

    script: str
    target: str
    arch: str
    inputs: tuple[str, ...]
    statuses: Mapping[str, int]
    library: int = 0

    @property
    def name(self) -> str:
        return f"{self.script} {self.target}"

    @property
    def programs(self) -> int:
        return sum(self.statuses.values())


@dataclass(frozen=True, slots=True)
class ProgramNode:
    """A program, and the names of the scripts that it is a schedule of."""

    hash: str
    status: Status
    label: str
    values: Mapping[str, Value]
    """Constants, parameters and derived values."""
    scripts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """Everything, in the manifest's order; `programs` are empty when they were not asked for."""

    project: str
    files: Sequence[FileNode]
    scripts: Sequence[ScriptNode]
    programs: Sequence[ProgramNode]


_Held: TypeAlias = Mapping[str, tuple[Status, int]]
"""What the cache has of each program: its status, and the bytes of its library."""


def graph(project: Project, plan: Plan, *, programs: bool) -> Graph:
    """Return the graph of a plan, down to each program or to the scripts. Reads only."""
    held: dict[str, tuple[Status, int]] = {}
    groups: dict[str, list[ProgramJob]] = {}
    for job in jobs(plan):
        groups.setdefault(_name(job), []).append(job)
        if job.hash not in held:
            held[job.hash] = _held(lookup(project.cache, job.hash))
    manifest = FileNode(_shown(project.manifest.path, project.manifest.root), "manifest")
    files = {manifest.path: manifest}
    scripts = []
    for group in groups.values():
        inputs = _inputs({job.planned for job in group}, project.manifest.root)
        files |= {file.path: file for file in inputs}
        names = (manifest.path, *(file.path for file in inputs))
        scripts.append(_script(group, names, held))
    nodes = _programs(groups, held) if programs else []
    return Graph(plan.project, list(files.values()), scripts, nodes)


def _name(job: ProgramJob) -> str:
    return f"{job.script} {job.planned.target.name}"


def _held(entry: Entry | None) -> tuple[Status, int]:
    if entry is None:
        return Status.MISSING, 0
    sizes = {name: size for name, size, _ in listed(entry.meta)}
    return entry.status, sizes.get(layout.LIBRARY, 0)


def _script(group: Sequence[ProgramJob], inputs: tuple[str, ...], held: _Held) -> ScriptNode:
    statuses, sizes = zip(*(held[program] for program in {job.hash for job in group}), strict=True)
    target = group[0].planned.target
    counts: dict[str, int] = {status: statuses.count(status) for status in KNOWN_IN_CACHE}
    return ScriptNode(group[0].script, target.name, target.arch, inputs, counts, sum(sizes))


def _programs(groups: dict[str, list[ProgramJob]], held: _Held) -> list[ProgramNode]:
    owners: dict[str, dict[str, ProgramJob]] = {}
    for name, group in groups.items():
        for job in group:
            owners.setdefault(job.hash, {}).setdefault(name, job)
    return [_program(program, held[program][0], by) for program, by in owners.items()]


def _program(program: str, status: Status, by: dict[str, ProgramJob]) -> ProgramNode:
    first = next(iter(by.values()))
    schedule = first.schedule
    return ProgramNode(program, status, first.label, first.planned.spec.values(schedule), tuple(by))


def _inputs(instances: Collection[PlannedInstance], root: str) -> list[FileNode]:
    """Return the files among the inputs, templates first. The rest are places where one was looked
    for."""
    templates = {path for instance in instances for path in instance.inputs.templates}
    headers = {path for instance in instances for path in instance.inputs.paths} - templates
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
