"""The rows that a cache keeps of what was measured, and the tables that follow from them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.marks import MANIFEST, Marks, built
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import repair_cache, verify_cache
from tilusbuild.dispatch.measurements import (
    CommittedRows,
    append_rows,
    derive_tables,
    fold_refusals,
    group_measurements,
    make_tuning_time,
    read_rows,
)
from tilusbuild.plan.measured import MeasuredRow
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.table_file import Refusal
from tilusbuild.runtime.tables import TableEntry, TableFile, read_dispatch_table
from tilusbuild.tune.bench.race import Decision, Outcome
from tilusbuild.tune.bench.work import Candidate, Case
from tilusbuild.tune.tune import TuningPublisher

__all__ = ["built"]


def make_row(
    script: Script, number: int, n: int, seconds: float | None, **more: Any
) -> MeasuredRow:
    """A row of a program of `mark` at a size, on the device "here"."""
    values: dict[str, Any] = {
        "target": script.target,
        "device": "here",
        "arch": "cpu",
        "params": {},
        "sizes": {"n": n},
        "schedule": {"variant": number},
        "program": script.programs[number],
        "status": "" if seconds is not None else "timeout",
    }
    return MeasuredRow(**{**values, "seconds": seconds, **more})


def derive(script: Script, rows: list[MeasuredRow], committed: Any = ()) -> TableFile:
    """The tables that follow from rows of a cache and of a repository."""
    refusals = fold_refusals(rows)
    measurements = group_measurements(script, rows, refusals)
    repository = CommittedRows("tuned.jsonl", committed)
    return derive_tables(script, rows, measurements, refusals, repository)


def choose(script: Script, *rows: MeasuredRow, committed: Any = ()) -> dict[Any, tuple[int, str]]:
    """The program and the origin of each device's and bucket's entry."""
    tables = derive(script, [*rows], committed).tables
    return {
        (table.fingerprint["device"], entry.key[0]): (entry.program, entry.origin_text)
        for table in tables
        for entry in table.entries
    }


def test_the_fastest_program_of_each_bucket_and_device_is_chosen(built: Marks) -> None:
    script = built.script("mark")
    rows = [
        make_row(script, 0, 64, 2e-6),
        make_row(script, 3, 64, 1e-6),
        make_row(script, 1, 1000, 1.02e-6),
        make_row(script, 2, 1000, 1.009e-6),
        make_row(script, 3, 1000, 1e-6),
        make_row(script, 1, 64, 5e-6, device="there"),
    ]
    assert choose(script, *rows) == {
        ("here", 64): (3, ""),
        ("here", 1024): (2, ""),  # within 1 % of the best the first
        ("there", 64): (1, ""),
    }


def test_the_greatest_sizes_decide_for_their_bucket_and_others_only_exclude(built: Marks) -> None:
    script = built.script("mark")
    great = [make_row(script, number, 1024, seconds) for number, seconds in enumerate((1, 2, 3))]
    small = [make_row(script, 0, 1000, None), make_row(script, 2, 1000, 0.5)]
    for rows in (great + small, small + great):
        assert choose(script, *rows) == {("here", 1024): (1, "")}
    none = [make_row(script, number, 1024, None) for number in range(3)]
    assert choose(script, *none, make_row(script, 3, 1000, 1.0)) == {}


def test_a_later_tuning_replaces_the_earlier_one_of_the_same_sizes(built: Marks) -> None:
    script = built.script("mark")
    earlier = [make_row(script, number, 64, 1.0 + number, time="2026-01") for number in range(4)]
    later = [make_row(script, number, 64, 5.0 - number, time="2026-02") for number in (1, 2)]
    for rows in (earlier + later, later + earlier):  # as when two caches are merged
        assert choose(script, *rows) == {("here", 64): (2, "")}
    mended = [make_row(script, 1, 8, None, time="2026"), make_row(script, 1, 8, 1.0, time="2026")]
    assert choose(script, *mended) == {("here", 8): (1, "")}, "in one second the last row counts"


def test_rows_of_earlier_code_serve_where_nothing_else_does(built: Marks) -> None:
    script = built.script("mark")
    earlier = make_row(script, 3, 64, 1e-6, program="f" * 64)
    assert choose(script, earlier) == {("here", 64): (3, " (earlier code)")}
    committed = make_row(script, 2, 64, 9.0, program="")
    assert choose(script, earlier, committed=[committed]) == {("here", 64): (2, " (tuned.jsonl)")}
    current = make_row(script, 1, 64, 9.0, time="2026")
    assert choose(script, earlier, current, committed=[committed]) == {("here", 64): (1, "")}
    gone = make_row(script, 3, 64, 1e-6, program="f" * 64, schedule={"variant": 9})
    assert choose(script, gone) == {}
    mended = make_row(script, 3, 64, None, program="f" * 64)
    assert choose(script, mended, make_row(script, 3, 50, 1.0)) == {}, "64 decides, and knows none"


def test_the_costs_of_a_repository_or_else_those_that_came_last_serve(built: Marks) -> None:
    script = built.script("mark")

    def make_cost(number: int, **more: Any) -> MeasuredRow:
        return make_row(script, number, 0, None, status="", sizes={}, cost="n", **more)

    def list_programs(rows: list[MeasuredRow], committed: Any = ()) -> list[int]:
        (table,) = derive(script, rows, committed).tables
        return [cost.program for cost in table.fitted]

    packages = [make_cost(0, time="2026-01"), *(make_cost(i, time="2026-02") for i in (1, 2))]
    assert list_programs(packages) == list_programs(packages[::-1])[::-1] == [1, 2]
    assert list_programs(packages, committed=[make_cost(3)]) == [3]


def test_packages_of_one_second_are_not_one_tuning() -> None:
    assert len({make_tuning_time([]) for _ in range(1000)}) > 2


def test_a_rejected_program_has_no_row_on_any_device_until_another_judge_finds_it_right(
    built: Marks,
) -> None:
    script = built.script("mark")
    timed = [make_row(script, number, 64, 1.0 + number, device="there") for number in range(2)]
    wrong = make_row(
        script, 0, 7, None, status="incorrect", why="y[0] is 1", rejected=True, judge="first"
    )
    refusal = Refusal(script.programs[0], "incorrect", {"n": 7}, "y[0] is 1", "first")
    assert derive(script, [*timed, wrong]).refused == (refusal,)
    assert choose(script, *timed, wrong) == {("there", 64): (1, "")}
    for lifts, row in (
        (False, make_row(script, 0, 7, 1.0, judge="first")),
        (False, make_row(script, 0, 8, 1.0, judge="second")),
        (True, make_row(script, 0, 7, 1.0, judge="second", time="2026")),
    ):
        refused = derive(script, [*timed, wrong, row]).refused
        assert refused == (() if lifts else (refusal,))


@settings(max_examples=30)
@given(data=st.data())
def test_every_entry_is_a_measurement_of_its_program(built: Marks, data: st.DataObject) -> None:
    """Whatever was measured, merged and edited: no row speaks for a program that it is not of,
    unless it says so, and a failed one serves nothing."""
    script = built.script("mark")
    codes = st.sampled_from([*script.programs.values(), "e" * 64])
    rows = [
        make_row(
            script,
            data.draw(st.integers(0, 3)),
            data.draw(st.sampled_from([1, 3, 60, 64, 1000])),
            seconds := data.draw(st.none() | st.floats(1e-6, 1e-3)),
            program=data.draw(codes),
            schedule={"variant": data.draw(st.integers(0, 5))},
            rejected=seconds is None and data.draw(st.booleans()),
            time=data.draw(st.sampled_from(["", "2026-01", "2026-02"])),
        )
        for _ in range(data.draw(st.integers(0, 20)))
    ]
    table_file = derive(script, rows)
    rejected = {refusal.program for refusal in table_file.refused}
    for entry in (entry for table in table_file.tables for entry in table.entries):
        digest = script.programs[entry.program]
        assert digest not in rejected
        sources = [
            row for row in rows if (row.seconds, row.sizes["n"]) == (entry.seconds, *entry.sizes)
        ]
        assert any(
            row.program == digest
            or (entry.is_earlier and row.schedule == {"variant": entry.program})
            for row in sources
        )


# As files: what tuning appends, and builds write.


@pytest.fixture
def publish(copied: Marks) -> Callable[..., Script]:
    """publish(decision, …) as one tuning; the script."""

    def make(*decisions: Decision) -> Script:
        script, device = copied.script("mark"), Device("cpu", 0, "here", "cpu", 0)
        cache = Tree(script.root)
        publisher = TuningPublisher(cache, script, device, "", CommittedRows())
        for decision in decisions:
            publisher.add_decision(decision.case.sizes, decision)
        return script

    return make


def decide(script: Script, n: int, *times: float | str) -> Decision:
    """Programs 0, 1, … with these times, or what they came to."""
    outcomes = []
    for index, time in enumerate(times):
        program = Candidate(index, script.programs[index], "", {"variant": index})
        if isinstance(time, str):
            outcomes.append(Outcome(program, time, "as said", is_refusal=time == "incorrect"))
        else:
            outcomes.append(Outcome(program, "ok", seconds=time, samples=(time,)))
    return Decision(Case(str(n), {"n": n}, (), True), None, tuple(outcomes), 0)


def test_a_tuning_writes_rows_tables_and_reports(copied: Marks, publish) -> None:
    script = copied.script("mark")
    publish(decide(script, 1000, 1.25e-5, "incorrect", 2.5e-5), decide(script, 64, 1e-6))
    rows = read_rows(Tree(script.root), "mark")
    assert [(row.sizes, row.schedule, row.seconds, row.status) for row in rows] == [
        ({"n": 1000}, {"variant": 0}, 1.25e-5, ""),
        ({"n": 1000}, {"variant": 1}, None, "incorrect"),
        ({"n": 1000}, {"variant": 2}, 2.5e-5, ""),
        ({"n": 64}, {"variant": 0}, 1e-6, ""),
    ]
    assert Path(script.path, "dispatch_table.txt").read_text().splitlines()[:5] == [
        f"arch cpu, device here, script {script.hash}",
        "",
        "   n    choice  source    latency (µs)",
        "----  --------  --------  --------------",
        "  64         0  measured   1.00",
    ]
    report = Path(script.path, "latency", "1024", "report.txt").read_text().splitlines()
    assert [line.split() for line in report[4:]] == [
        ["0", "0", "12.50"],
        ["2", "2", "25.00"],
        ["1", "1", "incorrect:", "as", "said"],
    ]
    text = Path(script.path, "dispatch_table.json").read_text()
    assert "    [[1024], 0, 1.25e-05, [1000], null, false, []]" in text.splitlines()
    before = Path(Tree(script.root).locate_measurements("mark")).read_bytes()
    publish(decide(script, 64, 1e-6))
    assert Path(Tree(script.root).locate_measurements("mark")).read_bytes() == before


def test_a_line_that_is_cut_short_counts_for_nothing_and_harms_no_other(copied: Marks) -> None:
    script = copied.script("mark")
    cache, rows = Tree(script.root), [make_row(script, i, 64, 1.0) for i in range(3)]
    append_rows(cache, "mark", rows[:2])
    path = cache.locate_measurements("mark")
    os.truncate(path, os.stat(path).st_size - 9)
    append_rows(cache, "mark", rows[2:])
    assert read_rows(cache, "mark") == [rows[0], rows[2]]


def test_a_build_after_an_edit_of_the_space_keeps_rows_and_renumbers_them(
    copied: Marks, publish
) -> None:
    script = copied.script("mark")
    publish(
        *(decide(script, n, *times) for n, times in {8: (9.0, 8.0, 1.0), 32: (2.0, 1.0)}.items())
    )
    append_rows(Tree(script.root), "mark", [make_row(script, 3, 1000, 1.0)])
    warnings = build_space(copied, "[2, 0, 1]")
    remedy = "`tilusbuild tune mark` measures the manifest's sizes again"
    assert warnings == [f"mark cpu: the programs of n=1000 are gone; {remedy}"]
    (path,) = (path for path in copied.paths("mark") if str(path) != script.path)
    (table,) = json.loads((path / "dispatch_table.json").read_text())["tables"]
    assert [(key, program) for key, program, *_ in table["entries"]] == [([8], 0), ([32], 2)]
    assert not build_space(copied, "[2, 0, 1]")
    copied.run("cache", "verify")


def test_a_build_after_an_edit_of_the_template_is_served_by_what_was_measured_before(
    copied: Marks, publish
) -> None:
    script = copied.script("mark")
    publish(decide(script, 64, 2.0, 3.0, 1.0))
    copied.edit("mark.cu.j2", "10 * x[i]", "x[i] * 10")
    (warning,) = build_space(copied, "{ range = [0, 3] }")
    assert "1 of 1 measured sizes are served by what was measured for earlier code" in warning
    show = copied.run("dispatch", "show", "mark").out
    assert "64         2  measured (earlier code)" in show


def build_space(project: Marks, space: str) -> list[str]:
    """The warnings of a build after the space of `mark` was edited."""
    text = MANIFEST.replace("variant = { range = [0, 3] }", f"variant = {space}", 1)
    project.write("tilus.toml", text)
    events = project.run("build", "--json").events
    return [event["message"] for event in events if event["event"] == "warning"]


def test_an_edit_of_the_dispatch_keys_keeps_the_measurements(copied: Marks) -> None:
    script = copied.script("modelled", real="f32")
    row = make_row(
        script,
        0,
        0,
        1e-6,
        params={"real": "f32"},
        sizes={"m": 8, "n": 16, "k": 30},
        schedule=script.get_schedule(0),
    )
    append_rows(Tree(script.root), "modelled", [row])
    keys = 'keys = ["m", "n", "k"]'
    copied.write("tilus.toml", MANIFEST.replace(keys, 'keys = ["n", "m", "k"]', 1))
    copied.run("build")
    (table,) = read_dispatch_table(copied.script("modelled", real="f32")).tables
    assert [entry.sizes for entry in table.entries] == [(16, 8, 30)]


def test_the_tables_stand_after_every_build(copied: Marks) -> None:
    for path in copied.cache.glob("scripts/*/*"):
        table_file = json.loads((path / "dispatch_table.json").read_text())
        assert table_file["tables"] == []
        assert (path / "dispatch_table.txt").read_text().startswith("nothing is measured yet")
    (path,) = copied.paths("mark")
    for name in ("dispatch_table.json", "dispatch_table.txt"):
        text = (path / name).read_text()
        (path / name).unlink()
        copied.run("build")
        assert (path / name).read_text() == text


@pytest.mark.parametrize("damage", ["cut", "zeros", "directory", "fifo", "loop"])
def test_a_build_mends_a_damaged_table_from_the_rows(copied, publish, damage: str) -> None:
    script = publish(decide(copied.script("mark"), 64, 2.0, 1.0))
    table_file = read_dispatch_table(script)
    path, tree = Path(script.path, "dispatch_table.json"), Tree(script.root)
    harm(path, damage)
    (problem,) = verify_cache(tree)
    assert problem.name.endswith("/dispatch_table.json")
    copied.run("build", "mark")
    assert read_dispatch_table(script) == table_file
    assert verify_cache(tree) == []
    harm(path, damage)
    repair_cache(tree, verify_cache(tree))
    assert read_dispatch_table(script) == TableFile()


def harm(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "zeros":
        path.write_bytes(bytes(len(data)))
    elif how == "directory":
        (path / "inner").mkdir(parents=True)
    elif how == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name)


def test_a_damaged_description_is_mended_and_the_measurements_stay(copied: Marks, publish) -> None:
    script = publish(decide(copied.script("mark"), 64, 2.0, 1.0))
    for name in ("script.txt", "script.json"):
        Path(script.path, name).unlink()
        copied.run("build")
        (table,) = read_dispatch_table(copied.script("mark")).tables
        assert table.entries == (TableEntry((64,), 1, 1.0, (64,)),)
    copied.run("cache", "verify")
