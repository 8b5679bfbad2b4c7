"""Tuning spaces: domains and restrictions in, schedules out. numpy comes with the first `Space`."""

from tilusbuild.space.space import MAX_SCHEDULES, Schedule, Space, select
from tilusbuild.space.spec import Parameter, SpaceError, SpaceSpec

__all__ = [
    "MAX_SCHEDULES",
    "Parameter",
    "Schedule",
    "Space",
    "SpaceError",
    "SpaceSpec",
    "select",
]
