"""`build --profile-headers`: what the headers of each instance cost, by its first program.

One program of each instance is compiled once more, one after the other so that they do not disturb
each other, after the build and beside it: the cache, the hashes and the record are as without.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tilusbuild.builder.dump_ir import write
from tilusbuild.builder.project import Project
from tilusbuild.cache.entries import lookup
from tilusbuild.compile.header_times import CompileTimes, HeaderTime, header_times
from tilusbuild.engine.timeline import Span
from tilusbuild.plan.planner import Plan, ProgramJob
from tilusbuild.status import Status
from tilusbuild.table import Cell, table

_SHORTEST = 0.001
"""Seconds: shorter readings of a header are not in the trace."""
_MOST = 15
"""Rows of a table for people."""


@dataclass(frozen=True, slots=True)
class HeaderProfile:
    """What one program's headers cost, in seconds elapsed; `problem` says why nothing is known."""

    script: str
    program: str
    hash: str
    compiler: str
    phases: dict[str, float]
    headers: tuple[HeaderTime, ...]
    problem: str | None = None


def profile(project: Project, plan: Plan) -> list[HeaderProfile]:
    """Profile the first program of each instance that was built. Raises `InputError`, `CacheError`
    and `CancelledError`."""
    found = []
    for instance, owner in zip(plan.instances, plan.script_instances, strict=True):
        for index, program in enumerate(instance.programs):
            entry = lookup(project.cache, program)
            job = ProgramJob(program, index, instance, owner)
            if entry is not None and entry.status == Status.BUILT and not job.needs:
                found.append(_profiled(project, job))
                break
    return found


def _profiled(project: Project, job: ProgramJob) -> HeaderProfile:
    recipe = job.render().recipe
    private = project.cache.private()
    start = project.timeline.now()
    try:
        module = os.path.join(private.path, "module")
        os.makedirs(module)
        texts = {"source.cu": recipe.source, **recipe.pipeline.generated(recipe)}
        for name, text in {**texts, **recipe.pipeline.fixed_files}.items():
            write(os.path.join(module, name), text)
        digest = recipe.include_digest
        times = header_times(
            recipe,
            job.script_instance.toolchain,
            private.path,
            None if digest is None else project.cache.include_path(digest),
            project.runner,
            project.manifest.build.timeout,
        )
    finally:
        private.discard()
    about = (job.script, job.label, job.hash, recipe.pipeline.compiler)
    if isinstance(times, str):
        return HeaderProfile(*about, {}, (), times)
    _note(project, job.label, start, times)
    return HeaderProfile(*about, dict(times.phases), times.headers)


def _note(project: Project, label: str, start: float, times: CompileTimes) -> None:
    """Have the readings of headers in the trace of the build."""
    project.timeline.headers += [
        Span(each.header, start + each.start, start + each.end, label)
        for each in times.spans
        if each.end - each.start >= _SHORTEST
    ]


def text(profiles: Sequence[HeaderProfile]) -> str:
    """Return the tables for people: of each program, and of each script that has several."""
    parts = []
    by_script: dict[str, list[HeaderProfile]] = defaultdict(list)
    for each in profiles:
        if each.problem is not None:
            parts.append(f"{each.program}: no times of headers: {each.problem}\n")
            continue
        by_script[each.script].append(each)
        phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in each.phases.items())
        seconds = sum(each.phases.values())
        parts.append(f"{each.program}: {seconds:.2f} s by {each.compiler}: {phases}\n")
        parts.append(_table(each.headers, seconds))
    for script, of_script in by_script.items():
        if len(of_script) > 1:
            parts.append(f"{script}: {len(of_script)} programs together\n")
            seconds = sum(sum(each.phases.values()) for each in of_script)
            parts.append(_table(together(of_script), seconds))
    return "\n".join(parts)


def together(profiles: Sequence[HeaderProfile]) -> tuple[HeaderTime, ...]:
    """Return the headers of several programs, their times added."""
    own: dict[str, float] = defaultdict(float)
    whole: dict[str, float] = defaultdict(float)
    for each in profiles:
        for header in each.headers:
            own[header.header] += header.own
            whole[header.header] += header.whole
    times = [HeaderTime(name, own[name], whole[name]) for name in own]
    return tuple(sorted(times, key=lambda each: (-each.whole, each.header)))


def _table(headers: Sequence[HeaderTime], seconds: float) -> str:
    rows: list[tuple[Cell, ...]] = [
        (f"{each.whole:.3f}", f"{each.whole / seconds:.1%}", f"{each.own:.3f}", each.header)
        for each in headers[:_MOST]
    ]
    if left := headers[_MOST:]:
        own = sum(each.own for each in left)
        rows.append(("", "", f"{own:.3f}", f"{len(left)} more"))
    return table(("seconds", "of all", "without its includes", "header"), rows)
