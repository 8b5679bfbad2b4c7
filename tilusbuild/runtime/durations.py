"""The one parser of durations, for manifests, options and machines that have only the runtime."""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhd])\s*", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as `90s`, `10m` or `1h30m`. Raises `ValueError`."""
    if not _DURATION.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a duration")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
