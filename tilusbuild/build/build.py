"""A whole build: plan, compile what is missing, publish the scripts' directories and the index.

Nothing is written when everything is there already. What a build could not do is in its result;
what is wrong with the input is raised before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from tilusbuild.build.noop_record import Invocation, remember, seen
from tilusbuild.build.project import Project
from tilusbuild.build.publish import PublishedScripts, publish
from tilusbuild.build.resources import open_builder
from tilusbuild.build.shards import Part, Shard, part_of
from tilusbuild.engine.build import build as run_engine
from tilusbuild.engine.config import BuildConfig
from tilusbuild.engine.events import Reporter, Result
from tilusbuild.plan.jobs import ProgramJob, jobs
from tilusbuild.plan.memo import own_code
from tilusbuild.plan.planner import Plan
from tilusbuild.plan.selection import Selection
from tilusbuild.state.stamp import Stamp
from tilusbuild.status import Status


def build(
    project: Project,
    selection: Selection,
    config: BuildConfig,
    reporter: Reporter,
    *,
    dump_ir: bool = False,
    invocation: Invocation | None = None,
    shard: Shard | None = None,
    times: str | None = None,
) -> Result:
    """Build the selected part of a project, or one shard of it; `times` is a history to split by.

    Raises `InputError` and `CacheError`.
    """
    config = replace(config, started_at=config.clock())
    plan = project.plan(selection)
    if shard is not None:
        part = part_of(plan, shard, times)
        config = replace(config, part=True)
        return build_planned(project, plan, selection, config, reporter, dump_ir=dump_ir, part=part)
    known = {} if invocation is None else seen(project, invocation)
    result = build_planned(project, plan, selection, config, reporter, dump_ir=dump_ir, seen=known)
    if invocation is not None and not config.dry_run:
        remember(project, plan, result, project.settings.jobs.value, invocation)
    return result


def build_planned(
    project: Project,
    plan: Plan,
    selection: Selection,
    config: BuildConfig,
    reporter: Reporter,
    *,
    dump_ir: bool = False,
    only: Sequence[ProgramJob] | None = None,
    part: Part | None = None,
    seen: Mapping[str, Stamp] | None = None,
    root: str | None = None,
) -> Result:
    """Build what was planned; with `only`, just those of its programs, and nothing else is written;
    with `part`, one shard. `seen` is for the store. `root` is who keeps what was made, in the place
    of the project: its scripts get no dispatcher then."""
    wanted: Iterable[ProgramJob] = jobs(plan) if only is None else only
    if part is not None:
        wanted = part.jobs(reporter)
    instances = plan.script_instances
    toolchain = instances[0].toolchain if instances else project.toolchain(cuda=False)
    with open_builder(project, toolchain, config, seen=seen) as builder:
        with closing(reporter), closing(builder.compiler):
            result = run_engine(wanted, builder.store, builder.compiler, reporter, builder.config)
        if Status.CHANGED in result.statuses.values():
            project.memo.forget()
        stopped = result.summary.signal is not None or result.summary.error is not None
        if config.dry_run or stopped:
            return result
        if part is not None:
            publish(project, plan, selection, dispatchers=False)
        elif only is None:
            _publish_changed(project, plan, selection, result, root)
        if dump_ir:
            from tilusbuild.build.dump_ir import dump

            dump(project, plan)
    return result


def _publish_changed(
    project: Project, plan: Plan, selection: Selection, result: Result, root: str | None
) -> None:
    """Publish the scripts that are not known to be current, and remember those that are now."""
    published = PublishedScripts(project.cache.tree, project.manifest, own_code(project.digests))
    known = {
        instance.hash
        for instance in plan.instances
        if published.is_current(instance, result.statuses)
    }
    publish(project, plan, selection, known=known, root=root)
    for instance in plan.instances:
        if instance.hash not in known and root is None:
            published.note(instance, result.statuses)
    published.save()
