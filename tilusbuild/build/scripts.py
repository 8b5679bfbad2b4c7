"""A script's folder as a build leaves it: every schedule and its program, what a deployment must
know, and the C dispatcher.

Imported when a folder is not what it should be, which after most edits none is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilusbuild.build.project import Project
from tilusbuild.cache.scripts import ScriptRecord
from tilusbuild.dispatch import dispatcher
from tilusbuild.dispatch.describe import script_json
from tilusbuild.dispatch.schedules import columns_of, rows_of
from tilusbuild.plan.model import PlannedInstance
from tilusbuild.plan.script_instance import ScriptInstance


def publish_folder(
    project: Project, instance: PlannedInstance, script_instance: ScriptInstance, *, dispatch: bool
) -> None:
    """Make the folder say what is the case; with `dispatch`, its dispatcher too. Raises
    `CacheTrouble` and `InputError`."""
    path = project.cache.publish_script(script_record(project, instance, script_instance))
    if dispatch:
        dispatcher.after_build(
            project.cache, path, project.manifest, script_instance, project.runner
        )


def script_record(
    project: Project, instance: PlannedInstance, script_instance: ScriptInstance
) -> ScriptRecord:
    """What a script's folder says: every schedule, and the resources of its program."""
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
