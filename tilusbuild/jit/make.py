"""A wanted kernel, built into the cache or found there, what it was made from, and its removal.

The files that a plan read are checked again before a kernel is handed out from memory: one that was
edited is planned again, as a build would.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress

from tilusbuild.builder.build import BuildRequest, build_planned
from tilusbuild.builder.project import Project
from tilusbuild.builder.publish import Under
from tilusbuild.cache.garbage import exclusive_use, remove_unread
from tilusbuild.cache.index import forget_projects, read_index, script_listings
from tilusbuild.cache.tree import Tree
from tilusbuild.engine.events import CompositeReporter, Reporter, Summary
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import TilusbuildError
from tilusbuild.jit.request import SOURCES, Request
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import Plan, Planner
from tilusbuild.process.stopping import StoppedError
from tilusbuild.report.summary import first_spot
from tilusbuild.runtime.places import JIT_ROOT_PREFIX
from tilusbuild.runtime.regular import read_text
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.state.clock import Moment
from tilusbuild.state.files import sha256_file, sha256_text
from tilusbuild.state.stamp import observe
from tilusbuild.status import Status


class Inputs:
    """What a kernel was made from: the manifest and everything that its plan read.

    `since` is when reading began. What may have changed after it may have been read
    before the change: a kernel from such inputs is never current, and the next request plans again.
    Only the projects that are written for a `Source` are exempt: their content is their name, and
    they are always that young.
    """

    def __init__(self, project: Project, paths: Iterable[str], since: Moment) -> None:
        self._seen = {
            path: observe(path, project.digests.digest, now=project.clock.recent)
            for path in sorted({project.manifest.path, *paths})
        }
        sources = os.path.join(project.cache.state_path, SOURCES, "")
        self._now = project.clock.recent
        self._is_sure = all(
            not seen.may_be_later(since) or path.startswith(sources)
            for path, seen in self._seen.items()
        )

    def are_current(self) -> bool:
        """Return whether every input has the content that it had.

        One with its old stamp is read again only while it was too young to trust its stamp, so that
        a call costs one `stat` for each input.
        """
        for path, old in self._seen.items():
            new = self._seen[path] = observe(path, sha256_file, now=self._now, before=old)
            if new.content != old.content:
                self._is_sure = False
        return self._is_sure


def planned_for(project: Project, script: str, target: str) -> tuple[Plan, PlanSelection]:
    """Return the plan of one program; no plan is remembered for it. Raises `InputError`."""
    selection = PlanSelection((script,), (target,), 0)
    remembering = project.planner(selection)
    planner = Planner(
        remembering.manifest, remembering.toolchains, remembering.renderer, remembering.memory
    )
    return planner.plan(selection), selection


def build(
    project: Project, script: str, target: str, wanted: Request, since: Moment
) -> tuple[Script, bool, Inputs]:
    """Return a script with the one program, which is in the cache then, whether a compiler ran for
    it, and what it was made from; `since` is when reading began. Raises `InputError`, `CacheError`,
    `KernelNotBuilt`."""
    plan, selection = planned_for(project, script, target)
    (instance,) = plan.instances
    inputs = Inputs(project, plan.inputs, since)
    root = JIT_ROOT_PREFIX + sha256_text(f"{project.manifest.path}\0{instance.hash}")[:16]
    dump_ir = wanted.config("dump_ir") or project.settings.dump_ir.value
    request = BuildRequest(plan, selection, Under(root), dump_ir=dump_ir)
    config = BuildConfig(jobs=project.settings.jobs.value)
    result = build_planned(project, request, config, _reporter(wanted))
    if result.summary.signal is not None:
        raise StoppedError(result.summary.signal)
    (program,) = instance.programs
    if result.statuses.get(program) != Status.BUILT:
        raise KernelNotBuilt(_why(instance.label, result.summary), project.manifest.root)
    found = read_script(project.cache.script_path(instance.directory, instance.hash))
    return found, result.summary.compiled > 0, inputs


def _why(label: str, summary: Summary) -> str:
    said = [group.message for group in summary.failures] or [summary.error or "its compiler died"]
    return f"{label} was not built\n" + "\n".join(said)


def _reporter(wanted: Request) -> Reporter:
    if not wanted.verbose:
        return CompositeReporter()  # silent: what went wrong is in the error
    import sys

    from tilusbuild.report.plain import PlainReporter

    return PlainReporter(sys.stderr, verbose=True)


class KernelNotBuilt(TilusbuildError):  # noqa: N818 - named for what is the case
    """The compiler refused the kernel; the text has its messages, in the template's lines.

    `message` is the first one. `path`, `line`, `column` and `text` (the line itself) say where it
    is, as those of an `InputError`, None where no place is named; `hint` is None.
    """

    hint = None

    def __init__(self, text: str, root: str = "") -> None:
        super().__init__(text)
        spot = first_spot(text)
        self.message = text.partition("\n")[0] if spot is None else spot.message
        self.path = None if spot is None else os.path.normpath(os.path.join(root, spot.file))
        self.line = None if spot is None else spot.line
        self.column = None if spot is None else spot.column
        self.text: str | None = None
        if self.path is not None and self.line is not None:
            with suppress(OSError, ValueError, IndexError):
                self.text = read_text(self.path).splitlines()[self.line - 1]


def clear(root: str) -> None:
    """Remove the scripts that only kernels in programs asked for, and the programs that only those
    have; not those that a process has loaded. Raises `CacheError` and `CorruptFileError`."""
    cache = Tree(root)
    if not os.path.isdir(root) or not cache.exists():
        return
    projects = read_index(cache)
    ours = [name for name in projects if name.startswith(JIT_ROOT_PREFIX)]
    wanted = {pair for name in ours for pair in projects[name].scripts}
    others = {pair for name in projects if name not in ours for pair in projects[name].scripts}
    forget_projects(cache, ours)
    with exclusive_use(cache, wait=True):
        listed = {(each.directory, each.hash): each.programs for each in script_listings(cache)}
        gone = {pair for pair in wanted - others if remove_unread(cache, *pair)}
        left = {p for pair, programs in listed.items() if pair not in gone for p in programs}
        for program in {p for pair in gone for p in listed.get(pair, ())} - left:
            cache.remove_entry(cache.program_path(program))
    shutil.rmtree(os.path.join(cache.state_path, SOURCES), ignore_errors=True)
