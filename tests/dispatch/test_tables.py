"""Tables and measurements as files; trees as expressions; the fewest programs."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.marks import Marks, record
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import repair_cache, verify_cache
from tilusbuild.dispatch import latency, tables
from tilusbuild.dispatch.describe import json_to_node, node_to_json
from tilusbuild.dispatch.latency import Measurement
from tilusbuild.expr import ExprError, parse_expression
from tilusbuild.runtime.device import get_cpu
from tilusbuild.runtime.errors import CorruptCacheError
from tilusbuild.runtime.semantics import NoValueError, build_function
from tilusbuild.runtime.tables import TableEntry, read_dispatch_table
from tilusbuild.tune.bench.race import Decision, Outcome
from tilusbuild.tune.bench.work import Candidate, Case
from tilusbuild.tune.tune import TuningPublisher

HERE = {"script": "*", "device": "here", "arch": "cpu"}
THERE = {"script": "*", "device": "there", "arch": "sm_90"}


def test_a_table_is_written_as_people_read_it(copied: Marks) -> None:
    script = copied.script("mark")
    entries = [
        TableEntry((1536,), 0, "measured", 1.25e-5, (1500,)),
        TableEntry((1024,), 2, "measured", None),
    ]
    record(script, HERE, entries)
    assert Path(script.path, "dispatch_table.txt").read_text() == (
        "arch cpu, device here, script *\n\n"
        "   n    choice  source    latency (µs)\n"
        "----  --------  --------  --------------\n"
        "1024         2  measured\n"
        "1500         0  measured  12.50\n"
    )
    text = Path(script.path, "dispatch_table.json").read_text()
    assert '[[1536], 0, "measured", 1.25e-05, [1500]]' in text.splitlines()[6]
    (table,) = read_dispatch_table(script).tables
    assert table.entries == tuple(reversed(entries))


def test_a_device_replaces_its_own_rows_and_comes_before_any_device(copied: Marks) -> None:
    script = copied.script("mark")
    anywhere, any_name = {**HERE, "device": "*", "arch": "*"}, {**THERE, "device": "*"}
    for fingerprint in (anywhere, THERE, any_name, HERE):
        record(script, fingerprint, [TableEntry((8,), 0, "measured", None)])
        tables.update_rows(script, fingerprint, [TableEntry((16,), 1, "measured", None)])
    record(script, HERE, [TableEntry((16,), 3, "measured", 3.0)])
    rows = [
        (table.fingerprint["device"], table.fingerprint["arch"], [e.program for e in table.entries])
        for table in read_dispatch_table(script).tables
    ]
    assert sorted(rows[:2]) == [("here", "cpu", [3]), ("there", "sm_90", [0, 1])]
    assert rows[2:] == [("*", "sm_90", [0, 1]), ("*", "*", [0, 1])]


def test_writers_at_the_same_time_lose_nothing(copied: Marks) -> None:
    script = copied.script("mark")

    def write(number: int) -> None:
        device = {**HERE, "device": f"gpu {number % 2}"}
        tables.update_rows(script, device, [TableEntry((number + 1,), 0, "measured", None)])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(40)))
    assert [len(table.entries) for table in read_dispatch_table(script).tables] == [20, 20]


@pytest.mark.parametrize("damage", ["cut", "zeros", "directory", "fifo", "loop"])
@pytest.mark.parametrize("rows", [0, 1])
def test_a_damaged_table_stays_until_it_is_repaired(copied, damage: str, rows: int) -> None:
    """It may hold measurements, or what a user wrote: whatever its bytes are, no build replaces
    it."""
    script = copied.script("mark")
    path = Path(script.path, "dispatch_table.json")
    record(script, HERE, [TableEntry((8,), 0, "measured", 1.0)][:rows])
    tables.update_tables(script)
    harm(path, damage)
    before = os.lstat(path)
    for write in (tables.update_tables, lambda script: record(script, HERE, [])):
        with pytest.raises(CorruptCacheError):
            write(script)
        assert os.lstat(path) == before
    tree = Tree(script.root)
    (problem,) = verify_cache(tree)
    assert problem.name.endswith("/dispatch_table.json")
    assert "delete it, and tune again" in str(problem)
    assert repair_cache(tree, [problem]) == [problem.name]
    assert not tables.has_entries(tables.update_tables(script))
    assert verify_cache(tree) == []


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


def test_measurements_are_kept_by_key_and_device(copied: Marks) -> None:
    script = copied.script("mark")
    first = Measurement(HERE, (128,), {0: 2e-5, 2: 1e-5}, {1: "wrong result"})
    latency.write_measurement(script, first)
    latency.write_measurement(script, Measurement(THERE, (128,), {3: 1e-6}))
    latency.write_measurement(script, Measurement(HERE, (64,), {0: 1e-6}))
    assert [(m.fingerprint["device"], m.key) for m in latency.read_measurements(script)] == [
        ("here", (64,)),
        ("here", (128,)),
        ("there", (128,)),
    ]
    report = Path(script.path, "latency", "128", "report.txt").read_text().splitlines()
    assert [line.split() for line in report[4:7]] == [
        ["2", "2", "10.00"],
        ["0", "0", "20.00"],
        ["1", "1", "wrong", "result"],
    ]
    assert first.find_best() == TableEntry((128,), 2, "measured", 1e-5)
    assert first.find_best({2}) == TableEntry((128,), 0, "measured", 2e-5)
    near = Measurement(HERE, (1,), {0: 1.02, 3: 1.0095, 7: 1.0}).find_best()
    assert near is not None
    assert near.program == 3, "as good as the best is the earlier program"
    assert Measurement(HERE, (1,), {}).find_best() is None


SOURCES = [
    "m <= 16 and n % 8 == 0",
    "not (m < n < 100) or m in (1, 2, n)",
    "m not in (3, 4)",
    "cdiv(m, n) * 2 ** 3 - (m >> 1) + align(m, 8)",
    "(m if m > n else n) / 4 + log2(max(m, 1))",
    "~m & 7 | gcd(m, n) ^ 1",
    "-m // n",
    "m * 0.5 < n or divides(n, m)",
]


@pytest.mark.parametrize("source", SOURCES)
@given(m=st.integers(-(10**6), 10**6), n=st.integers(-5, 5))
def test_a_tree_has_the_values_of_its_expression(source: str, m: int, n: int) -> None:
    parsed = parse_expression(source)
    tree = json.loads(json.dumps(node_to_json(parsed.tree)))
    assert json_to_node(tree) == parsed.tree
    function = build_function(tree, ("m", "n"))
    try:
        expected = parsed.evaluate({"m": m, "n": n})
    except ExprError:
        with pytest.raises(NoValueError):
            function({"m": m, "n": n})
    else:
        value = function({"m": m, "n": n})
        assert value == expected
        assert type(value) is type(expected)


# What is written of decisions: whose bucket, which program, which row goes.
def decision(n: int, *times: float | str) -> Decision:
    """Programs 0, 1, … with these times, or what they came to."""
    outcomes = []
    for index, time in enumerate(times):
        program = Candidate(index, str(index), "", {"variant": index})
        if isinstance(time, str):
            outcomes.append(Outcome(program, time, "as said"))
        else:
            outcomes.append(Outcome(program, "ok", seconds=time, samples=(time,)))
    right = [outcome for outcome in outcomes if outcome.seconds is not None]
    winner = min(right, key=lambda outcome: outcome.seconds or 0.0) if right else None
    return Decision(Case(str(n), {"n": n}, (), True), winner, tuple(outcomes), 0)


@pytest.fixture
def publish(copied: Marks) -> Callable[..., Any]:
    """publish(decision, …) as one tuning; the script."""

    def make(*decisions: Decision) -> Any:
        script = copied.script("mark")
        publisher = TuningPublisher(script, get_cpu().make_fingerprint(script.hash))
        for each in decisions:
            publisher.add_decision(each.case.sizes, each)
        return script

    return make


def rows(script: Any) -> dict[int, int]:
    return {
        e.key[0]: e.program for table in read_dispatch_table(script).tables for e in table.entries
    }


def test_the_greatest_size_decides_for_its_bucket(publish: Callable[..., Any]) -> None:
    for sizes in ((1000, 1024, 900), (1024, 900, 1000)):
        decisions = [decision(n, 1.0 if n == 1024 else 3.0, 2.0) for n in sizes]
        assert rows(publish(*decisions)) == {1024: 0}


def test_what_is_wrong_at_any_size_of_a_bucket_is_not_chosen(publish) -> None:
    small, great = decision(1000, "incorrect", 3.0, 2.0), decision(1024, 1.0, 1.02, 1.011)
    for order in ((small, great), (great, small)):
        script = publish(*order)
        assert rows(script) == {1024: 1}, "within 1 % the earlier one"
        (measured,) = json.loads(Path(script.path, "latency/1024/measured.json").read_text())[
            "measured"
        ]
        assert measured["refused"] == {"0": "at n=1000: incorrect: as said"}
        assert set(measured["seconds"]) == {"1", "2"}


def test_a_row_that_no_program_is_left_for_goes(publish: Callable[..., Any]) -> None:
    assert rows(publish(decision(1024, 1.0, 2.0), decision(64, 2.0, 1.0))) == {1024: 0, 64: 1}
    assert rows(publish(decision(1024, "incorrect", "crash"))) == {64: 1}
    assert rows(publish(decision(60, "crash", 1.0), decision(64, 1.0, "incorrect"))) == {}
