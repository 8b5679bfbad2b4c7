"""Tuning spaces: domains and restrictions in, schedules out. numpy comes with the first `Space`."""

from tilusbuild.space.model import EmptySpaceError, Parameter, SpaceError, SpaceSpec
from tilusbuild.space.space import MAX_SCHEDULES, Schedule, Space, select

__all__ = [
    "MAX_SCHEDULES",
    "EmptySpaceError",
    "Parameter",
    "Schedule",
    "Space",
    "SpaceError",
    "SpaceSpec",
    "select",
]
