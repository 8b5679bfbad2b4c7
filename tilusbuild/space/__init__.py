"""Tuning spaces: domains and restrictions in, schedules out. numpy comes with the first `Space`."""

from tilusbuild.space.model import (
    DefaultError,
    EmptySpaceError,
    Parameter,
    Schedule,
    Schedules,
    SpaceError,
    SpaceSpec,
)
from tilusbuild.space.space import MAX_SCHEDULES, SAMPLE_BUDGET, Space, select_schedules

__all__ = [
    "MAX_SCHEDULES",
    "SAMPLE_BUDGET",
    "DefaultError",
    "EmptySpaceError",
    "Parameter",
    "Schedule",
    "Schedules",
    "Space",
    "SpaceError",
    "SpaceSpec",
    "select_schedules",
]
