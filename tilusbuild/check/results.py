"""The results of a check as lines of JSON, as a table with the failures, and as JUnit's XML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from xml.etree import ElementTree as Xml

from tilusbuild.table import format_table, format_times
from tilusbuild.tune.bench.bench import OK
from tilusbuild.tune.bench.work import CallScalar

# Failures that the report shows in full.
_MAX_SHOWN = 20
_MAX_REASON_LINES = 8


@dataclass(frozen=True, slots=True)
class ServedLine:
    """The instance of a script that serves the device. `target` is None where none does."""

    event: ClassVar[str] = "served"
    script: str
    """The script's name with its constants."""
    target: str | None
    arch: str
    device: str
    programs: int
    cases: int
    why: tuple[str, ...]
    """The verdict on each instance."""


@dataclass(frozen=True, slots=True)
class CheckedLine:
    """A program that was called with the tensors of a case."""

    event: ClassVar[str] = "checked"
    script: str
    target: str
    program: int
    hash: str
    sizes: Mapping[str, CallScalar]
    status: str
    """`ok`, `incorrect`, `crash`, `timeout`, `launch error` or `corrupt`."""
    why: str
    compared: bool
    """Whether the case has expected outputs."""
    error: float
    """The largest absolute error."""
    seconds: float | None
    """The time by the samples; None where there are none."""
    chosen: bool
    """Whether a call at these sizes would choose it."""
    again: str
    """The command that shows it again; "" for one that is right."""


ResultLine = ServedLine | CheckedLine


def format_report(rows: Sequence[ResultLine]) -> str:
    """Return the table of a check, and each failure with the command that repeats it."""
    served = [row for row in rows if isinstance(row, ServedLine)]
    calls = [row for row in rows if isinstance(row, CheckedLine)]
    lines = []
    for row in served:
        instance = f"{row.target} ({row.arch})" if row.target else "nothing serves it"
        lines.append(f"{row.script}: {instance} on {row.device}")
        if row.target is None:
            lines += [f"  {line}" for line in row.why]
        elif not row.cases:
            lines.append("  no case: not checked")
    calls_by_case: dict[tuple[str, str], list[CheckedLine]] = {}
    for call in calls:
        calls_by_case.setdefault((call.script, str(dict(call.sizes))), []).append(call)
    best_seconds = [_find_least_seconds(case_calls) for case_calls in calls_by_case.values()]
    chosen_seconds = [
        _find_least_seconds([call for call in case_calls if call.chosen])
        for case_calls in calls_by_case.values()
    ]
    # Formatted by one call, so that the two columns have one unit.
    unit, times = format_times([*best_seconds, *chosen_seconds])
    best_times, chosen_times = times[: len(calls_by_case)], times[len(calls_by_case) :]
    cells = [
        (
            case_calls[0].script,
            _format_sizes(case_calls[0]),
            len(case_calls),
            _count_outcomes(case_calls),
            best,
            chosen,
        )
        for case_calls, best, chosen in zip(
            calls_by_case.values(), best_times, chosen_times, strict=True
        )
    ]
    if cells:
        headers = ("script", "sizes", "programs", "outcome", f"best ({unit})", f"chosen ({unit})")
        lines += ["", format_table(headers, cells).rstrip("\n")]
    wrong_calls = [call for call in calls if call.status != OK]
    for call in wrong_calls[:_MAX_SHOWN]:
        name = f"{call.script}/{call.program} {call.target}"
        lines += ["", f"{name} at {_format_sizes(call)}: {call.status}"]
        reason_lines = call.why.splitlines()[:_MAX_REASON_LINES]
        lines += [f"  {line}" for line in [*reason_lines, f"again: {call.again}"]]
    if len(wrong_calls) > _MAX_SHOWN:
        lines += ["", f"and {len(wrong_calls) - _MAX_SHOWN} more"]
    return "\n".join(lines) + "\n"


def _format_sizes(call: CheckedLine) -> str:
    return ", ".join(f"{name}={value}" for name, value in call.sizes.items())


def _find_least_seconds(calls: Sequence[CheckedLine]) -> float | None:
    return min((call.seconds for call in calls if call.seconds is not None), default=None)


def _count_outcomes(calls: Sequence[CheckedLine]) -> str:
    counts = Counter(
        call.status if call.status != OK or call.compared else "ran, not compared" for call in calls
    )
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def count_results(rows: Sequence[ResultLine]) -> tuple[int, int]:
    """Return the number of right calls, and that of failures: wrong calls, and scripts without an
    instance for the device."""
    statuses = [row.status for row in rows if isinstance(row, CheckedLine)]
    targets = [row.target for row in rows if isinstance(row, ServedLine)]
    right = statuses.count(OK)
    return right, len(statuses) - right + targets.count(None)


def format_junit(rows: Sequence[ResultLine]) -> bytes:
    """Return the results as JUnit's XML: a suite for each script, with a case for each call, and a
    failed case if no instance serves the device."""
    top = Xml.Element("testsuites")
    for script in dict.fromkeys(row.script for row in rows):
        suite = Xml.SubElement(top, "testsuite", name=script)
        for row in (row for row in rows if row.script == script):
            if isinstance(row, CheckedLine):
                is_failure = row.status != OK
                name = f"program {row.program} {row.target}, {_format_sizes(row)}"
                message, text = row.status, f"{row.why}\nagain: {row.again}"
            elif row.target is None:
                name, is_failure = "serves the device", True
                message, text = "; ".join(row.why), ""
            else:
                continue
            case = Xml.SubElement(suite, "testcase", name=name, classname=script)
            if is_failure:
                failure = Xml.SubElement(case, "failure", message=message)
                # XML has no control characters, not even escaped.
                failure.text = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
    document: bytes = Xml.tostring(top, encoding="utf-8", xml_declaration=True)
    return document + b"\n"
