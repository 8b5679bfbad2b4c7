"""A wanted kernel, built into the cache or found there, and what it was made from.

The files that a plan read are looked at again before a kernel is handed out from memory: one that
was edited is planned anew, as a build would.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from tilusbuild.build.build import build_planned
from tilusbuild.build.project import Project
from tilusbuild.engine.base import Options
from tilusbuild.engine.events import Event, Reporter, Summary
from tilusbuild.jit.errors import KernelNotBuilt
from tilusbuild.jit.request import Request
from tilusbuild.plan.planner import Plan, Planner
from tilusbuild.plan.selection import Selection
from tilusbuild.runtime.places import JIT_ROOT_PREFIX
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.state.hashing import sha256_text

Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Built:
    """A script with the one program."""

    script: Script
    program: int
    compiled: bool
    """Whether a compiler ran for it."""
    inputs: tuple[tuple[str, Stamp], ...]
    """Every file that decided it, and how it looked."""

    @property
    def is_current(self) -> bool:
        """Whether the files look as they did."""
        return all(stamp_of(path) == stamp for path, stamp in self.inputs)


def stamp_of(path: str) -> Stamp:
    """How a file looks to `stat`; None when it is not there."""
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return (seen.st_size, seen.st_mtime_ns, seen.st_ino)


def planned_for(project: Project, script: str, target: str) -> tuple[Plan, Selection]:
    """The plan of one program; no plan is remembered for it. Raises `InputError`."""
    selection = Selection((script,), (target,), 0)
    remembering = project.planner(selection)
    planner = Planner(
        remembering.manifest, remembering.toolchain, remembering.renderer, remembering.memory
    )
    return planner.plan(selection), selection


def stamps(project: Project, inputs: Iterable[str]) -> tuple[tuple[str, Stamp], ...]:
    """Of the manifest, and of what was read for a plan."""
    return tuple((path, stamp_of(path)) for path in sorted({project.manifest.path, *inputs}))


def build(project: Project, script: str, target: str, wanted: Request) -> Built:
    """Have the program in the cache. Raises `InputError`, `CacheTrouble`, `KernelNotBuilt`."""
    plan, selection = planned_for(project, script, target)
    (instance,) = plan.instances
    seen = stamps(project, plan.inputs)
    result = build_planned(
        project,
        plan,
        selection,
        Options(jobs=project.settings.jobs.value),
        _reporter(wanted),
        dump_ir=wanted.config("dump_ir") or project.settings.dump_ir.value,
        root=JIT_ROOT_PREFIX + sha256_text(f"{project.manifest.path}\0{instance.hash}")[:16],
    )
    if result.summary.signal is not None:
        raise KeyboardInterrupt
    (program,) = instance.programs
    if result.statuses.get(program) != "built":
        raise KernelNotBuilt(_why(instance.label, result.summary))
    found = read_script(project.cache.tree.script_path(instance.folder, instance.hash))
    return Built(found, 0, result.summary.compiled > 0, seen)


def _why(label: str, summary: Summary) -> str:
    said = [group.message for group in summary.failures] or [summary.error or "its compiler died"]
    return f"{label} was not built\n" + "\n".join(said)


class _Silent:
    """Tells nobody: what went wrong is in the error."""

    def emit(self, event: Event, /) -> None:
        pass

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass


def _reporter(wanted: Request) -> Reporter:
    if not wanted.verbose:
        return _Silent()
    import sys

    from tilusbuild.report.plain import PlainReporter

    return PlainReporter(sys.stderr, verbose=True)
