"""A whole build, from top to bottom: plan, compile the missing programs, publish.

Nothing is written when everything is in the cache. Failures are in the result of a build; a mistake
in the input is raised before anything is compiled but programs of generators, which are compiled
while others are generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress

from msgspec import Struct, field
from msgspec.structs import replace

from tilusbuild.builder.noop_record import Invocation, PlanRead, write_record
from tilusbuild.builder.project import Project
from tilusbuild.builder.publish import (
    NoPublication,
    ProjectPublication,
    Publication,
    ShardPublication,
    restore_needed,
)
from tilusbuild.builder.resources import open_builder
from tilusbuild.builder.shards import Shard
from tilusbuild.builder.timeline import record_timeline
from tilusbuild.engine.build import build_jobs as run_engine
from tilusbuild.engine.events import PlanFirstReporter, Reporter, Result, Warned
from tilusbuild.engine.inbox import PlanQueue
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import TilusbuildError
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import Plan, ProgramJob, StartAhead
from tilusbuild.status import Status


class BuildRequest(Struct, frozen=True):
    """A plan to build, its selection, and what to publish of it."""

    plan: Plan
    selection: PlanSelection
    publishes: Publication = field(default_factory=ProjectPublication)
    dump_ir: bool = False
    queue: PlanQueue | None = None
    """Has the jobs to build, to which another thread adds; None for those of `publishes`."""


def build_project(
    project: Project,
    selection: PlanSelection,
    config: BuildConfig,
    reporter: Reporter,
    *,
    dump_ir: bool = False,
    invocation: Invocation | None = None,
    shard: Shard | None = None,
) -> Result:
    """Plan the selected part of a project, or one shard of it, build the plan and publish it.

    With an `invocation`, and unless a part of the programs is selected, write the no-op record from
    which the next such command is answered while nothing changes. Raises `InputError` and
    `CacheError`.
    """
    config = replace(config, started_at=config.clock(), part=shard is not None)
    publishes = ProjectPublication() if shard is None else ShardPublication(shard)
    plan_inputs: PlanRead | None = None

    def make_request(start_ahead: StartAhead) -> BuildRequest:
        nonlocal plan_inputs
        # A dry run starts nothing, and the programs of a shard are known at the end of the plan.
        starts = shard is None and not config.dry_run
        plan = project.make_plan(selection, start_ahead if starts else None)
        # The inputs are collected before the rest is compiled: the record shall have their stamps
        # as the plan saw them.
        if invocation is not None and shard is None:
            plan_inputs = PlanRead.collect_inputs(project, plan, invocation)
        return BuildRequest(plan, selection, publishes, dump_ir)

    request, result = _plan_and_build(project, make_request, config, reporter)
    if plan_inputs is not None and not (config.dry_run or request.plan.selected_numbers):
        jobs = project.settings.jobs.value
        write_record(project, request.plan, result, jobs, plan_inputs)
    return result


def build_request(
    project: Project, request: BuildRequest, config: BuildConfig, reporter: Reporter
) -> Result:
    """Build a plan, and publish its results as the request says. Close the reporter.

    A dry run, or a build that a signal or an error stopped, publishes nothing. Raises `InputError`
    and `CacheError`.
    """
    return _plan_and_build(project, lambda start_ahead: request, config, reporter, request.queue)[1]


def _plan_and_build(
    project: Project,
    make_request: Callable[[StartAhead], BuildRequest],
    config: BuildConfig,
    reporter: Reporter,
    queue: PlanQueue | None = None,
) -> tuple[BuildRequest, Result]:
    """Make a request and build it, as `build_request` does. Programs that `make_request` starts are
    built meanwhile. Return the request and the result."""
    with open_builder(project, config) as builder:
        with (
            closing(reporter),
            closing(builder.compiler),
            record_timeline(project.cache, builder.config, PlanFirstReporter(reporter)) as recorder,
        ):
            request: BuildRequest

            def list_jobs(start_ahead: StartAhead) -> Iterable[ProgramJob]:
                nonlocal request
                request = make_request(start_ahead)
                for notice in request.publishes.list_notices(project, request.plan):
                    recorder.emit(Warned(notice))
                return request.publishes.list_jobs(request.plan, recorder)

            if queue is not None:
                list_jobs(lambda job: None)  # the queue has the jobs
            jobs = queue or PlanQueue(list_jobs)
            result = run_engine(jobs, builder.store, builder.compiler, recorder, builder.config)
            is_complete = not (config.dry_run or result.was_stopped)
            if is_complete and request.publishes.restores_includes:
                restore_needed(project.cache, request.plan, builder.compiler.lay_out_includes)
        # The memo would return the hash of the texts before the change again.
        if Status.CHANGED in result.statuses.values():
            project.memo.forget_scripts()
        if not is_complete:
            return request, result
        if project.cache.exists():
            project.cache.sweep_staging()
        request.publishes.publish_results(project, request.plan, request.selection, result)
        if request.dump_ir:
            from tilusbuild.builder.dump_ir import dump_programs

            dump_programs(project, request.plan)
    is_larger = result.summary.attempts or (result.summary.remote and result.summary.remote.hits)
    # The programs of a build without publication are used next, and nothing else keeps them.
    if is_larger and not isinstance(request.publishes, NoPublication):
        limit_cache(project)
    return request, result


def limit_cache(project: Project) -> None:
    """Collect garbage down to the setting `cache-max-size`, unless another build uses the cache:
    then that one or a later one does. This reads the sizes of all entries, 0.1 ms a program."""
    if (max_size := project.settings.cache_max_size.value) is not None:
        from tilusbuild.cache.garbage import collect_garbage

        with suppress(TilusbuildError):
            collect_garbage(project.cache, max_size=max_size)
