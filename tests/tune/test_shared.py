"""What one machine measured, another with the same device takes from a remote cache, and checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.recorded_bench import Recorded, make_case, make_work
from support.stores import address
from tilusbuild.remote.settings import RemoteSettings
from tilusbuild.tune.bench.race import Decision, campaign
from tilusbuild.tune.bench.session import Budget, SampleLog, TuningSession
from tilusbuild.tune.bench.work import Candidate, Case
from tilusbuild.tune.shared import SharedResults

pytest.importorskip("google.protobuf", reason="needs tilusbuild[remote]")

__all__ = ["address"]

New = Callable[..., Any]

WORK = make_work(tile=[1, 2, 3, 4])
DEVICE = {"kind": "cpu", "name": "a cpu", "arch": "cpu", "driver": 0, "caches": ["32K"]}


def by_tile(program: Candidate) -> float | str:
    tile = program.schedule["tile"]
    return "incorrect" if tile == 4 else float(tile) * 1e-5


class Machine:
    """One that tunes, with a log of its own."""

    def __init__(self, log: Path, address: str, **settings: Any) -> None:
        self.bench = Recorded(by_tile)
        self.log = SampleLog(str(log))
        self.warnings: list[str] = []
        self.settings = RemoteSettings(address, "test", **settings)

    def tune(self, case: Case, **other: Any) -> Decision:
        session = TuningSession(self.log, self.bench, other.pop("budget", Budget()))
        given = {"device": DEVICE, "work": WORK, "seed": 0, "warmup": 1, "takes": True, **other}
        shared = SharedResults(self.settings, session=session, warn=self.warnings.append, **given)

        def cases(numbers: Any) -> Iterator[Case]:
            for _ in numbers:
                shared.take(case)
                yield case

        (decision,) = campaign(
            session, WORK, cases, [case.sizes], 0, lambda d: shared.keep(d.case), {}
        )
        shared.close()
        return decision


def test_times_are_taken_and_the_winner_is_checked_here(address: str, tmp_path: Path) -> None:
    case = make_case("c" * 64, n=4)
    first = Machine(tmp_path / "1", address, write=True)
    second = Machine(tmp_path / "2", address)
    one, other = first.tune(case), second.tune(case)
    assert one.winner is not None
    assert other.winner == one.winner
    winner = one.winner.program.index
    # Who is wrong is found out here, and that the winner is right.
    assert second.bench.asked == [(case.digest, 3, "check", 0), (case.digest, winner, "check", 1)]
    assert len(first.bench.asked) > 30
    assert first.warnings == second.warnings == []
    taken = [json.loads(each) for each in (tmp_path / "2").read_text().splitlines()]
    marked = [each for each in taken if each.get("from") == address]
    assert len(marked) == len(second.log.known) - 2
    assert SampleLog(str(tmp_path / "2")).origins == {case.digest: address}


@pytest.mark.parametrize(
    "other",
    [
        {"device": {**DEVICE, "name": "another"}},
        {"device": {**DEVICE, "caches": ["64K"]}},
        {"device": {**DEVICE, "driver": 12000}},
        {"warmup": 5},
        {"seed": 1},
        {"work": replace(WORK, programs=WORK.programs[:3])},
        {"takes": False},
    ],
)
def test_nothing_is_taken_for_what_differs(other: dict[str, Any], tmp_path: Path) -> None:
    case, address = make_case("c" * 64, n=4), f"file://{tmp_path}/store"
    Machine(tmp_path / "1", address, write=True).tune(case)
    second = Machine(tmp_path / "2", address)
    second.tune(case, **other)
    assert second.log.origins == {}


def test_who_may_not_write_sends_nothing(tmp_path: Path) -> None:
    Machine(tmp_path / "1", f"file://{tmp_path}/store").tune(make_case("c" * 64, n=4))
    assert not (tmp_path / "store").exists()


def test_what_was_not_measured_in_one_go_stays_here(tmp_path: Path) -> None:
    case, address = make_case("c" * 64, n=4), f"file://{tmp_path}/store"
    Machine(tmp_path / "1", address).tune(case)
    Machine(tmp_path / "1", address, write=True).tune(case)
    Machine(tmp_path / "2", address, write=True).tune(case, budget=Budget(runs=20))
    assert not (tmp_path / "store").exists()


def test_what_was_taken_is_not_sent_back(tmp_path: Path) -> None:
    case, address = make_case("c" * 64, n=4), f"file://{tmp_path}/store"
    Machine(tmp_path / "1", address, write=True).tune(case)
    before = {each: each.stat().st_mtime_ns for each in (tmp_path / "store").rglob("*")}
    Machine(tmp_path / "2", address, write=True).tune(case)
    assert {each: each.stat().st_mtime_ns for each in (tmp_path / "store").rglob("*")} == before


def blob(tmp_path: Path) -> Path:
    (found,) = (tmp_path / "store/cas").iterdir()
    return found


def put_in_place(tmp_path: Path, data: bytes) -> None:
    """Have the record name these bytes, as who may write can."""
    from tilusbuild.remote import reapi_pb2 as reapi
    from tilusbuild.remote.record import blob_for

    (record,) = (tmp_path / "store/ac").iterdir()
    result = reapi.ActionResult.FromString(record.read_bytes())
    named = blob_for(data)
    result.output_files[0].digest.hash = named.digest
    result.output_files[0].digest.size_bytes = named.size
    record.write_bytes(result.SerializeToString())
    (tmp_path / "store/cas" / named.digest).write_bytes(data)


def changed(line: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({**line, **more}).encode() + b"\n"


LIES: dict[str, Callable[[list[bytes], dict[str, Any]], bytes]] = {
    "another device": lambda lines, head: (
        changed(head, device={**DEVICE, "name": "x"}) + b"".join(lines[1:])
    ),
    "no header": lambda lines, head: b"".join(lines[1:]),
    "a gap": lambda lines, head: b"".join(lines[:5] + lines[6:]),
    "no JSON": lambda lines, head: b"\xff" + b"".join(lines),
    "nothing": lambda lines, head: b"",
    "negative": lambda lines, head: (
        b"".join(lines[:2]) + changed(json.loads(lines[2]), seconds=-1.0) + b"".join(lines[3:])
    ),
    "a refusal": lambda lines, head: (
        lines[0] + changed(json.loads(lines[1]), status="incorrect", why="no") + b"".join(lines[2:])
    ),
    "another program": lambda lines, head: (
        b"".join(lines) + changed(json.loads(lines[1]), program="0" * 64)
    ),
    "a list": lambda lines, head: b"".join(lines) + b"[]\n",
    "nested": lambda lines, head: lines[0] + b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("lie", LIES)
def test_what_is_not_of_the_form_is_not_used(lie: str, tmp_path: Path) -> None:
    case, address = make_case("c" * 64, n=4), f"file://{tmp_path}/store"
    one = Machine(tmp_path / "1", address, write=True).tune(case)
    lines = blob(tmp_path).read_bytes().splitlines(keepends=True)
    put_in_place(tmp_path, LIES[lie](lines, json.loads(lines[0])))
    second = Machine(tmp_path / "2", address)
    assert second.tune(case) == one
    assert (second.log.origins, len(second.warnings)) == ({}, 1)
    assert "results for n=4" in second.warnings[0]


def test_other_bytes_than_their_sha256(tmp_path: Path) -> None:
    case, address = make_case("c" * 64, n=4), f"file://{tmp_path}/store"
    Machine(tmp_path / "1", address, write=True).tune(case)
    blob(tmp_path).write_bytes(blob(tmp_path).read_bytes().replace(b"1", b"2", 1))
    second = Machine(tmp_path / "2", address)
    second.tune(case)
    assert (second.log.origins, len(second.warnings)) == ({}, 1)


def test_a_remote_that_is_gone_is_one_warning(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "1", "http://127.0.0.1:1", write=True)
    machine.tune(make_case("c" * 64, n=4))
    machine.tune(make_case("d" * 64, n=5))
    assert len(machine.warnings) == 2  # one a tuning
    assert "everything is measured here" in machine.warnings[0]


def test_from_one_user_to_another(tune_project: New, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    project = tune_project("slow", "fast", "wrong", sizes=(1000, 5000))
    second = project.copy(tmp_path / "second")
    words = ("tune", "scale", "--cache", "warm")
    project.environment |= {"TILUSBUILD_REMOTE_CACHE": store, "TILUSBUILD_REMOTE_WRITE": "1"}
    second.environment |= {"TILUSBUILD_REMOTE_CACHE": store, "TMPDIR": str(second.directory)}
    first = [each for each in project.events(*words) if each["event"] == "tuned"]
    assert [each["taken_from"] for each in first] == [None, None]
    said = [each for each in second.events(*words) if each["event"] == "tuned"]
    assert [each["taken_from"] for each in said] == [store, store]
    assert [each["seconds"] for each in said] == [each["seconds"] for each in first]
    assert project.table["entries"] == second.table["entries"]
    lines = [json.loads(each) for each in second.log.read_text().splitlines()]
    own = [each for each in lines if each["what"] in ("check", "sample") and "from" not in each]
    # The one that is wrong, at the first size; the winners.
    assert [each["status"] for each in own] == ["incorrect", "ok", "ok"]
    report = second.run("report", "scale", "--json").events
    measured = [each for each in report if each["event"] == "measured"]
    assert [each["taken_from"] for each in measured] == [store, store]
    assert f"2 of 2 sizes measured elsewhere: {store}" in second.run(*words).out
    # With --fresh everything is measured here.
    fresh = [each for each in second.events(*words, "--fresh") if each["event"] == "tuned"]
    assert [each["taken_from"] for each in fresh] == [None, None]
