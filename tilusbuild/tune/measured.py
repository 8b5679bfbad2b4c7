"""What was measured of a plan's instances, for `report`: times, who was dropped when, the roofs.

Read from the tables and the logs that tuning left; what is not there, or cannot be read, was not
measured.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import ClassVar

from tilusbuild.builder.project import Project
from tilusbuild.dispatch import latency
from tilusbuild.dispatch.model import work_of
from tilusbuild.dispatch.overview import DispatchOverview, overviews
from tilusbuild.errors import InputError
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.planner import Plan
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.naming import Name
from tilusbuild.runtime.script import Script
from tilusbuild.tune.bench.session import CASE, RUN, answers, lines
from tilusbuild.tune.tune import Key, key_of


class MeasuredLine(JsonLine, frozen=True):
    """The times of an instance's programs at some sizes on a device, programs by their numbers."""

    event: ClassVar[str] = "measured"
    instance: str
    device: str
    sizes: Mapping[str, int]
    """Of the calls that were measured, by dispatch key."""
    program: int | None
    """The one that the table chooses."""
    seconds: Mapping[str, float]
    refused: Mapping[str, str]
    """Why a program cannot be used."""
    samples: Mapping[str, int]
    """How often each program was timed: who has fewer was dropped earlier."""
    bytes: float | None
    """Of a call: each tensor once, or what the manifest says."""
    flops: float | None
    bandwidth: float | None
    """`facts.dram_gbs` of the target, in bytes a second."""
    peak: float | None
    """`facts.tflops` of the target, in operations a second."""


def measured(project: Project, plan: Plan) -> Iterator[tuple[DispatchOverview, list[MeasuredLine]]]:
    """Yield each instance of a plan that is built, with its dispatch and what was measured."""
    named = {each.hash: number for number, each in enumerate(plan.instances)}
    pairs = dict.fromkeys((each.script, each.target.name) for each in plan.instances)
    for script, target in pairs:
        try:
            looks = list(
                overviews(project.manifest, project.cache.root, Name(script, target=target), None)
            )
        except (InputError, LoadError):
            continue
        for look in looks:
            if (number := named.get(look.script.hash)) is not None:
                yield look, list(_lines(project, look, plan.instances[number]))


def _lines(
    project: Project,
    look: DispatchOverview,
    instance: PlannedInstance,
) -> Iterator[MeasuredLine]:
    script = look.script
    dispatch = project.manifest.scripts[instance.script].dispatch
    counted = _samples(project.cache.state_path, script)
    try:
        found = latency.read(script)
    except LoadError:
        return
    for each in found:
        device = each.fingerprint.get("device", "")
        sizes = dict(zip(script.keys, each.at or each.key, strict=True))
        moved, flops = work_of(instance, dispatch, sizes)
        bandwidth, peak = (instance.target.facts.get(n) for n in ("dram_gbs", "tflops"))
        yield MeasuredLine(
            instance=instance.label,
            device=device,
            sizes=sizes,
            program=_chosen(look, each),
            seconds={str(program): seconds for program, seconds in each.seconds.items()},
            refused={str(program): why for program, why in each.refused.items()},
            samples=counted.get((device, each.key), {}),
            bytes=moved,
            flops=flops,
            bandwidth=_scaled(bandwidth, 1e9),
            peak=_scaled(peak, 1e12),
        )


def _chosen(look: DispatchOverview, each: latency.Measured) -> int | None:
    for table in look.tables:
        if dict(table.fingerprint) == dict(each.fingerprint):
            return next((e.program for e in table.entries if e.key == each.key), None)
    return None


def _scaled(fact: object, unit: float) -> float | None:
    return float(fact) * unit if isinstance(fact, int | float) and fact else None


def _samples(state: str, script: Script) -> dict[tuple[str, Key], dict[str, int]]:
    """Return how often each program was timed, by its number, for each device and bucket in a
    script's logs."""
    numbers = {program: number for number, program in script.programs.items()}
    found: dict[tuple[str, Key], dict[str, int]] = {}
    name = os.path.basename(os.path.dirname(script.path))
    for path in sorted(glob.glob(os.path.join(glob.escape(state), "tune", name, "*.jsonl"))):
        try:
            log = [*lines(path)]
        except OSError:
            continue
        device, keys = "", dict[str, Key]()
        for line in log:
            with suppress(KeyError, TypeError, ValueError, AttributeError):
                if line.get("what") == RUN:
                    device = str(line["device"]["name"])
                elif line.get("what") == CASE:
                    keys[str(line["case"])] = key_of(script, line["integers"])
        counts = Counter(key[:2] for key in answers(log) if key[2] == "sample")
        for (case, program), count in counts.items():
            if case in keys and program in numbers:
                samples = found.setdefault((device, keys[case]), {})
                number = str(numbers[program])
                samples[number] = max(count, samples.get(number, 0))
    return found
