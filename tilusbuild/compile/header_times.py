"""`--profile-headers`: what each header of a program costs, by the compiler's own report.

The program's device code is compiled once more in a private directory, with the compiler told to
report its times; nothing of it is kept, and nothing of the program knows of it. The reports of nvcc
and NVRTC are Chrome trace events. A header's time is that from its first line to its last, as
far as the front end reads it in one go: a template of it that is instantiated at the end counts as
`templates`. nvcc's preprocessor is no part of that: it reports one number.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilusbuild.compile.causes import StepError
from tilusbuild.compile.model import Recipe
from tilusbuild.compile.program import Compile
from tilusbuild.compile.steps import steps, tools_of
from tilusbuild.process.base import Runner
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.envelope import StepStore

if TYPE_CHECKING:
    from tilusbuild.toolchain import Toolchain

_HEADER = "Processing Header File"
_FRONT_END, _OPTIMISER, _PTXAS = "CUDA C++ Front-End", "LibNVVM", "Total PTXAS Time"
_TEMPLATES = ("Generating Needed Template Instantiations", "Wrapping up translation unit")
_MICROSECOND = 1e-6


@dataclass(frozen=True, slots=True)
class HeaderTime:
    """What one header cost, in seconds."""

    header: str
    """As `shown` gives it."""
    own: float
    """Without what it includes."""
    whole: float


@dataclass(frozen=True, slots=True)
class HeaderSpan:
    """One reading of a header, in seconds since the compile began."""

    header: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class CompileTimes:
    """What a compiler said of one compile."""

    phases: Mapping[str, float]
    """Seconds, elapsed: `preprocessor` (of nvcc), `headers`, `templates`, `other front end`,
    `optimiser`, `ptxas`."""
    headers: tuple[HeaderTime, ...]
    """The dearest first."""
    spans: tuple[HeaderSpan, ...]


def header_times(
    recipe: Recipe,
    toolchain: Toolchain,
    stage: str,
    include_dir: str | None,
    runner: Runner,
    timeout: float | None = None,
) -> CompileTimes | str:
    """Compile a program's device code once more, in a directory beside a stage whose `module` holds
    the source. Return the times; in words, why there are none. Raises `CancelledError` and
    `OSError` (of the stage's file system)."""
    work = f"{stage}.headers"
    store = StepStore()
    try:
        compiling = Compile(recipe, tools_of(toolchain), stage, work, runner, store, timeout)
        compiling.prepare(include_dir)
        events: list[dict[str, Any]] = []
        for number, step in enumerate(steps(recipe)):
            # Of a name of its own, so that NVRTC takes no precompiled headers for it.
            name = f"times{number}-{os.path.basename(stage)}.json"
            reporting = recipe.pipeline.reporting(step, name)
            if reporting is None:
                continue
            finished = compiling.execute(reporting)
            if finished.status or finished.timed_out:
                return f"{step.tool} ended with status {finished.status}"
            events += _events(work, name, len(events))
        return found(events) if events else f"{recipe.pipeline.compiler} reports no times"
    except StepError as error:
        return error.reason
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _events(work: str, name: str, run: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a report. The compilers of 13.0 append a suffix to the name; an unknown
    report has none."""
    for path in (os.path.join(work, name), os.path.join(work, name + ".json")):
        try:
            held = json.loads(read_bytes(path))
        except (OSError, ValueError):
            continue
        for each in held.get("traceEvents", ()):
            if each.get("ph") == "X":
                yield {**each, "run": run}


def found(events: Sequence[Mapping[str, Any]]) -> CompileTimes:
    """Return what the events of one or more reports say."""
    spans: list[HeaderSpan] = []
    own: dict[str, float] = defaultdict(float)
    whole: dict[str, float] = defaultdict(float)
    for one in _by_process(each for each in events if each.get("name") == _HEADER):
        for header, start, end, inner, outermost in _nested(one):
            own[header] += end - start - inner
            whole[header] += end - start if outermost else 0.0
            spans.append(HeaderSpan(header, start, end))
    times = (HeaderTime(name, round(own[name], 6), round(whole[name], 6)) for name in own)
    headers = tuple(sorted(times, key=lambda each: (-each.whole, each.header)))
    return CompileTimes(_phases(events, sum(own.values())), headers, tuple(spans))


def _phases(events: Sequence[Mapping[str, Any]], headers: float) -> dict[str, float]:
    def seconds(*names: str) -> float:
        return sum(float(e.get("dur", 0)) for e in events if e.get("name") in names) * _MICROSECOND

    preprocessors = {str(e["name"]) for e in events if "(preprocessing" in str(e.get("name"))}
    templates = seconds(*_TEMPLATES)
    phases = {
        "preprocessor": seconds(*preprocessors),
        "headers": headers,
        "templates": templates,
        "other front end": max(0.0, seconds(_FRONT_END) - headers - templates),
        "optimiser": seconds(_OPTIMISER),
        "ptxas": seconds(_PTXAS),
    }
    return {name: round(value, 6) for name, value in phases.items()}


def _by_process(events: Iterator[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return events by the process and thread that they happened in, each in the order of their
    beginning, what holds others first."""
    apart: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for each in events:
        apart[each.get("run"), each.get("pid"), each.get("tid")].append(each)
    return [sorted(each, key=lambda e: (e["ts"], -e["dur"])) for each in apart.values()]


def _nested(
    events: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, float, float, float, bool]]:
    """Yield for each reading of a header its name, when it began and ended, the seconds of those
    directly in it, and whether it is in no other reading of the same header."""
    rows = [(shown(str(e["args"]["detail"])), e["ts"], e["ts"] + e["dur"]) for e in events]
    inner = [0.0] * len(rows)
    outermost = [True] * len(rows)
    around: list[int] = []
    for number, (name, start, end) in enumerate(rows):
        while around and rows[around[-1]][2] <= start:
            around.pop()
        if around:
            inner[around[-1]] += end - start
        outermost[number] = all(rows[each][0] != name for each in around)
        around.append(number)
    for (name, start, end), within, outer in zip(rows, inner, outermost, strict=True):
        yield name, start * _MICROSECOND, end * _MICROSECOND, within * _MICROSECOND, outer


def shown(path: str) -> str:
    """Return a header's name for people: of the program's own, without the directory of their copy;
    of others `<…>`, without the directory that is searched for them. NVRTC says only the file's
    name."""
    whole = posixpath.normpath(path)
    if "/" not in whole:
        return whole
    before, mark, name = whole.rpartition("/include/")
    if whole.startswith("include/"):
        return whole.removeprefix("include/")
    if before == "/proc/self/cwd":
        return name
    return f"<{name if mark else posixpath.basename(whole)}>"
