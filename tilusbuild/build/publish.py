"""What a build leaves beside the programs: the scripts' directories, their dispatchers, the index.

A script's directory lists every schedule with its program, and what a deployment must know.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from tilusbuild.build.project import Project
from tilusbuild.cache.errors import CacheReadOnlyError
from tilusbuild.plan.model import PlannedInstance
from tilusbuild.plan.planner import Plan
from tilusbuild.plan.script_instance import ScriptInstance
from tilusbuild.plan.selection import Selection

if TYPE_CHECKING:
    from tilusbuild.cache.scripts import ScriptRecord


def publish(
    project: Project,
    plan: Plan,
    selection: Selection,
    *,
    known: Container[str] = (),
    dispatchers: bool = True,
    root: str | None = None,
) -> None:
    """Publish the scripts' directories and the index, as far as they are not what they should be.

    Instances whose hash is `known` are taken to say everything already. `dispatchers`: those too;
    one that is made from a part of its programs is of no use to anybody. `root` as for
    `build_planned`. Raises `CacheError` and `InputError`.
    """
    try:
        for instance, script_instance in zip(plan.instances, plan.script_instances, strict=True):
            if instance.hash not in known:
                dispatch = dispatchers and root is None
                _publish_script(project, instance, script_instance, dispatch=dispatch)
        project.cache.record_build(
            project.manifest.path if root is None else root,
            plan.project,
            [(instance.folder, instance.hash) for instance in plan.instances],
            replace=root is not None or selection.is_whole,
        )
    except CacheReadOnlyError:
        # Everything that a reader needs is there: a cache that cannot be written only misses the
        # names under which this project finds its programs again.
        return


def _publish_script(
    project: Project,
    instance: PlannedInstance,
    script_instance: ScriptInstance,
    *,
    dispatch: bool,
) -> None:
    # Imported only here: after most edits no directory changes, and the start should be quick.
    from tilusbuild.dispatch import dispatcher

    path = project.cache.publish_script(script_record(project, instance, script_instance))
    if dispatch:
        dispatcher.after_build(
            project.cache, path, project.manifest, script_instance, project.runner
        )


def script_record(
    project: Project, instance: PlannedInstance, script_instance: ScriptInstance
) -> ScriptRecord:
    """Return what a script's directory says: every schedule, and the resources of its program."""
    from tilusbuild.cache.scripts import ScriptRecord
    from tilusbuild.dispatch.describe import script_json
    from tilusbuild.dispatch.tables import columns_of, rows_of

    entries = [project.cache.lookup(program) for program in instance.programs]
    metas: list[Mapping[str, Any] | None] = [entry.meta if entry else None for entry in entries]
    schedules = (schedule.values for schedule in script_instance.space.take(instance.schedules))
    return ScriptRecord(
        instance.folder,
        instance.script_txt,
        columns_of(instance.parameters),
        rows_of(instance.parameters, schedules, instance.programs, metas),
        script_json(project.manifest, instance, script_instance, metas),
    )
