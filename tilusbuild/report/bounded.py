"""The limit of a summary's line: readers take it whole, whatever a build of any size came to."""

from __future__ import annotations

import os
from dataclasses import replace

from tilusbuild.cache.layout import LOG
from tilusbuild.engine.events import Event, FailureGroup, Summary

MOST_VERDICTS, MOST_TEXT = 1_000, 32 << 10
"""Verdicts of a summary, and characters of a failure's message."""


def bounded(event: Event) -> Event:
    """Return an event as it fits a line. Of a summary's verdicts, those that are not well come
    first; of a long message, the beginning and the end are kept."""
    if not isinstance(event, Summary):
        return event
    verdicts = event.scripts
    if len(verdicts) > MOST_VERDICTS:
        verdicts = tuple(sorted(verdicts, key=lambda verdict: verdict.ok))
    return replace(
        event,
        scripts=verdicts[:MOST_VERDICTS],
        scripts_left_out=len(verdicts[MOST_VERDICTS:]),
        failures=tuple(map(_cut_group, event.failures)),
    )


def _cut_group(group: FailureGroup) -> FailureGroup:
    whole = ""
    if group.compile_sh is not None:
        whole = os.path.join(os.path.dirname(group.compile_sh), os.path.basename(LOG))
    return replace(group, error=_cut(group.error), message=_cut(group.message, whole))


def _cut(text: str, whole: str = "") -> str:
    left_out = len(text) - MOST_TEXT
    if left_out <= 0:
        return text
    where = f": all of it is in {whole}" if whole else ""
    half = MOST_TEXT // 2
    return f"{text[:half]}\n[... {left_out:,} characters left out{where} ...]\n{text[-half:]}"
