"""The measurements of a plan's instances, for `report`: times, refused programs, the roofs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from tilusbuild.builder.project import Project
from tilusbuild.dispatch.measurements import (
    Measurement,
    fold_refusals,
    group_measurements,
    read_rows,
)
from tilusbuild.dispatch.model import compute_work
from tilusbuild.errors import InputError
from tilusbuild.overview.serving import DispatchOverview, read_overviews
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.planner import Plan
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.naming import NamePattern


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


def list_measurements(
    project: Project, plan: Plan
) -> Iterator[tuple[DispatchOverview, list[MeasuredLine]]]:
    """Yield the dispatch overview of each built instance of a plan, with a line for each of its
    measurements. A script whose files cannot be read is passed over."""
    instances = plan.instances
    numbers_by_hash = {instance.hash: number for number, instance in enumerate(instances)}
    # A script has one overview for each of its instances, so each pair is read once.
    pairs = dict.fromkeys((instance.script, instance.target.name) for instance in instances)
    for script, target in pairs:
        try:
            instance_overviews = list(
                read_overviews(
                    project.manifest,
                    project.settings.cache_dir,
                    NamePattern(script, target=target),
                    None,
                )
            )
        except (InputError, LoadError):
            continue
        for overview in instance_overviews:
            if (number := numbers_by_hash.get(overview.script.hash)) is not None:
                yield overview, list(_make_lines(project, overview, plan.instances[number]))


def _make_lines(
    project: Project,
    overview: DispatchOverview,
    instance: PlannedInstance,
) -> Iterator[MeasuredLine]:
    """Yield a line for each measurement of an instance."""
    script = overview.script
    dispatch = project.manifest.scripts[instance.script].dispatch
    rows = read_rows(project.cache, instance.directory)
    for measurement in group_measurements(script, rows, fold_refusals(rows)):
        sizes = dict(zip(script.keys, measurement.sizes, strict=True))
        bytes_moved, flops = compute_work(instance, dispatch, sizes)
        facts = instance.target.facts
        yield MeasuredLine(
            instance=instance.label,
            device=measurement.device,
            sizes=sizes,
            program=_find_chosen_program(overview, measurement),
            seconds={str(program): seconds for program, seconds in measurement.seconds.items()},
            refused={str(program): why for program, why in measurement.refused.items()},
            bytes=bytes_moved,
            flops=flops,
            bandwidth=_scale_fact(facts.get("dram_gbs"), 1e9),
            peak=_scale_fact(facts.get("tflops"), 1e12),
        )


def _find_chosen_program(overview: DispatchOverview, measurement: Measurement) -> int | None:
    """Return the program that the table of the measurement's device chooses for its bucket, if
    any."""
    for table in overview.tables:
        device_key = (table.fingerprint["device"], table.fingerprint["arch"])
        if device_key != (measurement.device, measurement.arch):
            continue
        # A device has one table, and a bucket at most one entry in it.
        for entry in table.entries:
            if entry.key == measurement.key:
                return entry.program
        return None
    return None


def _scale_fact(fact: object, unit: float) -> float | None:
    """Return a fact of a target in base units; None if it is not a number."""
    return float(fact) * unit if isinstance(fact, int | float) and fact else None
