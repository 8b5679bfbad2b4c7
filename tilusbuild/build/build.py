"""A whole build: plan, compile what is missing, publish the scripts' folders and the index.

Nothing is written when everything is there already. What a build could not do is in its result;
what is wrong with the input is raised before anything was compiled.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from tilusbuild.build.compiler import ProgramCompiler
from tilusbuild.build.noop_record import Asked, remember, seen
from tilusbuild.build.project import Project
from tilusbuild.build.published import Published
from tilusbuild.build.resources import manners
from tilusbuild.build.shards import Part, part_of
from tilusbuild.build.store import BuildStore, Stamp
from tilusbuild.cache.trouble import CacheReadOnly
from tilusbuild.engine.base import Options
from tilusbuild.engine.build import build as run_engine
from tilusbuild.engine.events import Reporter, Result
from tilusbuild.engine.history import History
from tilusbuild.plan.jobs import ProgramJob, jobs
from tilusbuild.plan.memo import own_code
from tilusbuild.plan.planner import Plan
from tilusbuild.plan.selection import Selection
from tilusbuild.plan.shards import Shard


def build(
    project: Project,
    selection: Selection,
    options: Options,
    reporter: Reporter,
    *,
    dump_ir: bool = False,
    asked: Asked | None = None,
    shard: Shard | None = None,
    times: str | None = None,
) -> Result:
    """Build the selected part of a project, or one shard of it; `times` is a history to split by.

    Raises `InputError` and `CacheTrouble`.
    """
    began = time.monotonic()
    plan = project.plan(selection)
    if shard is not None:
        part = part_of(plan, shard, times)
        options = replace(options, part=True)
        return build_planned(
            project, plan, selection, options, reporter, dump_ir=dump_ir, part=part, began=began
        )
    result = build_planned(
        project,
        plan,
        selection,
        options,
        reporter,
        dump_ir=dump_ir,
        began=began,
        seen={} if asked is None else seen(project, asked),
    )
    if asked is not None and not options.dry_run:
        remember(project, plan, result, project.settings.jobs.value, asked)
    return result


def build_planned(
    project: Project,
    plan: Plan,
    selection: Selection,
    options: Options,
    reporter: Reporter,
    *,
    dump_ir: bool = False,
    only: Sequence[ProgramJob] | None = None,
    part: Part | None = None,
    began: float | None = None,
    seen: Mapping[str, Stamp] | None = None,
    root: str | None = None,
) -> Result:
    """Build what was planned; with `only`, just those of its programs, and nothing else is written;
    with `part`, one shard. `seen` is for the store. `root` is who keeps what was made, in the place
    of the project: its scripts get no dispatcher then."""
    wanted: Iterable[ProgramJob] = jobs(plan) if only is None else only
    if part is not None:
        wanted = part.jobs(reporter)
    history = History(project.cache.state_path)
    with (
        manners(project.settings, project.environment, project.runner) as how,
        BuildStore(project.cache, seen) as store,
    ):
        compiler = ProgramCompiler(
            project.cache,
            plan.script_instances[0].toolchain
            if plan.script_instances
            else project.toolchain(cuda=False),
            project.runner,
            timeout=project.manifest.build.timeout,
            prefix=project.launcher(),
            nice=how.nice,
            makeflags=how.makeflags,
        )
        try:
            result = run_engine(
                wanted,
                store,
                compiler,
                reporter,
                options,
                history=history,
                admission=how.admission,
                slots=how.slots,
                warnings=how.warnings,
                began=began,
            )
        finally:
            compiler.close()
            history.save()
            reporter.close()
        if "changed" in result.statuses.values():
            project.memo.forget()
        stopped = result.summary.signal is not None or result.summary.error is not None
        if options.dry_run or stopped:
            return result
        if part is not None:
            publish(project, plan, selection, dispatchers=False)
        elif only is None:
            statuses = result.statuses
            published = Published(project.cache.tree, project.manifest, own_code(project.digests))
            known = {
                instance.hash
                for instance in plan.instances
                if published.is_current(instance, statuses)
            }
            publish(project, plan, selection, known=known, root=root)
            for instance in plan.instances:
                if instance.hash not in known and root is None:
                    published.note(instance, statuses)
            published.save()
        if dump_ir:
            from tilusbuild.build.dump_ir import dump

            dump(project, plan)
    return result


def publish(
    project: Project,
    plan: Plan,
    selection: Selection,
    *,
    known: Container[str] = (),
    dispatchers: bool = True,
    root: str | None = None,
) -> None:
    """The scripts' folders and the index, as far as they are not what they should be.

    Instances whose hash is `known` are taken to say everything already. `dispatchers`: those too;
    one that is made from a part of its programs is of no use to anybody. `root` as for
    `build_planned`.
    """
    try:
        for instance, script_instance in zip(plan.instances, plan.script_instances, strict=True):
            if instance.hash in known:
                continue
            # What describes and dispatches is imported only when a folder changes.
            from tilusbuild.build.scripts import publish_folder

            publish_folder(
                project, instance, script_instance, dispatch=dispatchers and root is None
            )
        project.cache.record_build(
            project.manifest.path if root is None else root,
            plan.project,
            [(instance.folder, instance.hash) for instance in plan.instances],
            replace=root is not None or selection.is_whole,
        )
    except CacheReadOnly:
        # Everything that a reader needs is there: a cache that cannot be written only misses the
        # names under which this project finds its programs again.
        return
