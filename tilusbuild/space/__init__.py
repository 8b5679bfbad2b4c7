"""Tuning spaces: domains and restrictions in, schedules out. numpy comes with the first `Space`."""

from tilusbuild.space.errors import SpaceError
from tilusbuild.space.select import MAX_SCHEDULES, select
from tilusbuild.space.space import Schedule, Space
from tilusbuild.space.spec import Parameter, SpaceSpec

__all__ = [
    "MAX_SCHEDULES",
    "Parameter",
    "Schedule",
    "Space",
    "SpaceError",
    "SpaceSpec",
    "select",
]
