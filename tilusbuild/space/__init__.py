"""Tuning spaces: domains and restrictions in, schedules out. numpy comes with the first `Space`."""
