"""The JSON lines: every event in the schema, and the documents that describe it."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from support import events_schema
from support.fake_engine import FakeCompiler, FakeJob, FakeStore, built, failed
from support.json_schema import valid
from tilusbuild.engine.build import build_jobs
from tilusbuild.engine.events import Dropped, HeldBack, Placed, Sharded
from tilusbuild.engine.running import BuildConfig
from tilusbuild.report.choose import make_reporter
from tilusbuild.report.jsonl import JsonReporter
from tilusbuild.status import Compiled

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = events_schema.schema()


def is_build_line(line: dict[str, Any]) -> bool:
    return valid(line, SCHEMA["$defs"]["build"], SCHEMA)


def eventful_build(stdout: io.StringIO, dry_run: bool) -> None:
    """A build in which everything happens that can."""

    def script(job: Any) -> Compiled:
        if job.index == 1:
            return failed()
        if job.index == 2:
            return failed("Killed", status="killed")
        if job.index == 4:
            raise OSError(28, "No space left on device")
        return built(0.5, 1 << 20)

    jobs = [FakeJob(f"job {i}", index=i) for i in range(5)]
    store = FakeStore()
    other = store.lock_program(jobs[0].hash, wait=False)
    assert other.__enter__()
    reporter = JsonReporter(stdout)
    emit_event = reporter.emit

    def emit(event: Any, /) -> None:
        emit_event(event)
        if event.event == "waiting":
            other.__exit__(None, None, None)

    reporter.emit = emit  # type: ignore[method-assign]
    build_jobs(
        jobs[:4],
        store,
        FakeCompiler(script),
        reporter,
        BuildConfig(jobs=1, dry_run=dry_run, warnings=("make keeps its jobserver to itself",)),
    )
    if not dry_run:
        build_jobs(jobs, store, FakeCompiler(script), reporter, BuildConfig(jobs=1))


def test_every_event_is_a_line_that_the_schema_allows() -> None:
    stdout = io.StringIO()
    for dry_run in (True, False):
        eventful_build(stdout, dry_run)
    JsonReporter(stdout).emit(Dropped("00", "matmul/0 sm_90a"))
    JsonReporter(stdout).emit(Sharded(2, 4, 13, 50, "00"))
    JsonReporter(stdout).emit(HeldBack("matmul/0 sm_90a", ("matmul", "sm_90a"), 3, "error"))
    JsonReporter(stdout).emit(Placed("00", "matmul/0 sm_90a", "sent", "grpc://x", "w"))
    lines = [json.loads(line) for line in stdout.getvalue().splitlines()]
    for line in lines:
        assert is_build_line(line), line
    assert {line["event"] for line in lines} == {event.event for event in events_schema.BUILD}


def test_a_line_with_a_missing_key_is_not_valid() -> None:
    line = {"event": "waiting", "hash": "00"}
    assert not is_build_line(line)
    assert is_build_line({**line, "label": "a", "later": 1})


def test_the_first_line_has_the_schema_and_the_last_is_the_summary() -> None:
    stdout = io.StringIO()
    store = FakeStore()
    for _ in range(2):
        stdout.truncate(stdout.seek(0))
        reporter = make_reporter(stdout=stdout, stderr=io.StringIO(), env={}, json=True)
        build_jobs([FakeJob("a")], store, FakeCompiler(), reporter)
    first, *_, last = [json.loads(line) for line in stdout.getvalue().splitlines()]
    assert (first["event"], first["schema"]) == ("start", 1)
    keys = ("event", "programs", "compiled", "cached", "failed", "pruned")
    assert [last[key] for key in keys] == ["summary", 1, 0, 1, 0, 0]
    assert isinstance(last["seconds"], float)


def test_the_schema_in_the_documents_is_this_one() -> None:
    text = (DOCS / "events.schema.json").read_text()
    assert text == events_schema.text(), "run: make docs"


@pytest.mark.parametrize("event", events_schema.BUILD, ids=lambda event: event.event)
def test_the_documents_list_every_key_of_an_event(event: Any) -> None:
    section = re.search(
        rf"^### `{event.event}`$(.*?)(?=^#|\Z)",
        (DOCS / "output.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert section is not None
    documented = re.findall(r"^- `(\w+)`:", section.group(1), re.MULTILINE)
    common = re.findall(r"^With (.*)\.$", section.group(1), re.MULTILINE)
    documented += re.findall(r"`(\w+)`", "".join(common))  # described at the top
    (rule,) = (
        rule
        for rule in SCHEMA["$defs"]["build"]["oneOf"]
        if rule["properties"]["event"]["const"] == event.event
    )
    assert sorted(["event", *documented]) == sorted(rule["required"])
