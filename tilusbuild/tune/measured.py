"""What was measured of a plan's instances, for `report`: times, who was refused, the roofs.

Read from the tables that tuning left; what is not there, or cannot be read, was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
