"""Whether a build would have anything to do, found out without writing a byte.

It plans like a build and looks everything up; what a plan learns is not kept. A project that is
checked has to be opened with `Project.keeps_nothing`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilusbuild.builder.build import metas_of, script_record, statuses_of
from tilusbuild.builder.project import Project
from tilusbuild.cache.entries import lookup
from tilusbuild.cache.index import read_index
from tilusbuild.cache.scripts import is_published
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import jobs
from tilusbuild.report.text import counted
from tilusbuild.runtime.sealed import CorruptFileError


@dataclass(frozen=True, slots=True)
class Checked:
    """What a build would have to do."""

    programs: int
    """How many there are."""
    missing: int
    """How many of them are not in the cache."""
    what: str | None
    """The first thing that is out of date, in words; None when nothing is."""


def check(project: Project, selection: PlanSelection) -> Checked:
    """Return what a build of the selection would have to do. Raises `InputError`."""
    plan = project.plan(selection)
    missing = {job.hash: job for job in jobs(plan) if lookup(project.cache, job.hash) is None}
    if missing:
        first = next(iter(missing.values())).label
        what = f"{counted(len(missing), 'program')} of {plan.size} to build, first {first}"
        return Checked(plan.size, len(missing), what)
    for instance in plan.instances:
        metas = metas_of(project, instance)
        record = script_record(project, instance, metas)
        if not is_published(project.cache, record, statuses_of(metas)):
            return Checked(plan.size, 0, f"the directory of {instance.label} is not current")
    try:
        known = read_index(project.cache).get(project.manifest.path)
    except CorruptFileError as error:
        return Checked(plan.size, 0, str(error))
    listed = set() if known is None else set(known.scripts)
    # A part of it, as of another level, may be listed with more than was asked for.
    if (
        selection.is_whole
        and not {(each.directory, each.hash) for each in plan.instances} <= listed
    ):
        return Checked(plan.size, 0, "index.json does not list this build")
    return Checked(plan.size, 0, None)
