"""A program that computed wrong or crashed at any size is not chosen until it is rebuilt."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilusbuild.runtime import load
from tilusbuild.runtime.errors import LoadError

New = Callable[..., Any]
WARM = ("tune", "scale", "--cache", "warm", "--repeat", "4")


def rows(project: Any) -> dict[int, int]:
    return {key[0]: program for key, program, *_ in project.table["entries"]}


def refused(project: Any) -> list[dict[str, Any]]:
    table = json.loads((project.script / "dispatch_table.json").read_text())
    return list(table.get("refused", []))


def loaded(project: Any) -> Any:
    return load("scale", where=str(project.directory / ".cache"))


@pytest.mark.parametrize(
    ("mode", "sizes"), [("wrong1000", (65536, 1000)), ("crash1000", (1000, 65536))]
)
def test_what_failed_at_one_size_serves_none(tune_project, mode, sizes) -> None:
    project = tune_project("slow", mode, sizes=sizes)
    *tuned, summary = project.events(*WARM)
    assert summary == {"event": "summary", "tuned": 2, "without": 0}
    last = {line["sizes"]["n"]: line["program"] for line in tuned if line["event"] == "tuned"}
    assert last == {1000: 0, 65536: 0}
    assert rows(project) == {1024: 0, 65536: 0}
    (why,) = refused(project)
    assert (why["status"], why["sizes"]) == (
        "incorrect" if mode == "wrong1000" else "crash",
        {"n": 1000},
    )
    text = (project.script / "dispatch_table.txt").read_text()
    assert "not chosen until it is rebuilt" in text
    kernel = loaded(project)
    chance = random.Random(1)
    for n in [*(chance.randrange(1, 1 << 20) for _ in range(998)), 1000, 65536]:
        assert kernel.select(n=n).program == 0
    for n in (1000, 20_001, 60_001):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(kernel(2.0, x), 2 * x)
    assert kernel.select(n=1000).source == "measured"
    first = (project.script / "dispatch_table.json").read_bytes()
    log = project.log.read_bytes().count(b"\n")
    again = project.events(*WARM)
    assert {line["sizes"]["n"]: line["program"] for line in again[:-1]} == last
    assert project.log.read_bytes().count(b"\n") == log + 3, "notes of a run and two cases"
    assert (project.script / "dispatch_table.json").read_bytes() == first


def test_it_holds_for_tables_of_before_and_for_tunings_after(tune_project: New) -> None:
    project = tune_project("slow", "wrong1000", sizes=(65536,))
    project.events(*WARM)
    assert rows(project) == {65536: 1}, "nothing is known of it yet"
    project.events(*WARM, "--size", "n=1000")
    assert rows(project) == {1024: 0, 65536: 0}, "the row goes to the best of the others"
    for more in (("--size", "n=50000"), ("--size", "n=65536", "--fresh"), ("--seed", "7")):
        project.events(*WARM, *more)
        assert set(rows(project).values()) == {0}
    (project.script / "dispatch_table.json").unlink()
    project.run("build")
    assert set(rows(project).values()) == {0}


def test_other_directories_that_list_the_program_learn_of_it(tune_project: New) -> None:
    project = tune_project("slow", "wrong1000", sizes=(1000,))
    project.events(*WARM)
    manifest = project.directory / "tilus.toml"
    text = manifest.read_text()
    manifest.write_text(text.replace('["slow", "wrong1000"]', '["wrong1000", "slow", "fast"]'))
    project.run("build", "--level", "2")
    scripts = sorted((project.directory / ".cache/scripts/scale").iterdir())
    assert len(scripts) == 2
    for path in scripts:
        assert len(json.loads((path / "dispatch_table.json").read_text())["refused"]) == 1
    kernel = loaded(project)
    assert kernel.select(n=5).program != 0, "the first program, where nothing is said"
    # And the other way round: what a later directory's tuning finds.
    project.events(*WARM, "--size", "n=77", "--level", "2")
    assert set(rows_of(scripts)) <= {"slow", "fast"}


def rows_of(scripts: list[Path]) -> list[str]:
    row_modes = []
    for path in scripts:
        modes = json.loads((path / "script.json").read_text())["schedules"]["mode"]
        for table in json.loads((path / "dispatch_table.json").read_text())["tables"]:
            row_modes += [modes[program] for _, program, *_ in table["entries"]]
    return row_modes


def test_a_default_and_a_rule_for_it_are_refused_loudly(tune_project: New) -> None:
    project = tune_project("slow", "wrong1000", sizes=(1000,))
    manifest = project.directory / "tilus.toml"
    manifest.write_text(
        manifest.read_text().replace(
            "[script.scale.tune]",
            """[script.scale.default]
mode = "wrong1000"

[script.scale.dispatch]
keys = ["n"]
table = [{ when = "n > 100000", use = { mode = "wrong1000" } }]

[script.scale.tune]""",
        )
    )
    ran = project.run(*WARM, "--level", "2", status=1)
    assert "error: scale cpu: the default schedule chooses program" in ran.err
    assert "the dispatch rule 'n > 100000' chooses program" in ran.err
    kernel = loaded(project)
    assert kernel.select(n=5).schedule == {"mode": "slow"}
    x = np.ones(200_000, np.float32)
    for call in (lambda: kernel.select(n=200_000), lambda: kernel(2.0, x)):
        with pytest.raises(LoadError, match="incorrect at n=1000: y"):
            call()
    # Without a row, calls come to the default.
    path = project.script / "dispatch_table.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "tables": []}))
    with pytest.raises(LoadError, match="the default schedule chooses program"):
        loaded(project).select(n=5)


def test_a_mended_reference_clears_what_the_wrong_one_condemned(tune_project: New) -> None:
    project = tune_project("slow", "fast", sizes=(1000,))
    reference = project.directory / "ref.py"
    right = reference.read_text()
    reference.write_text(right.replace("* x", "* x + 1"))
    project.events(*WARM, status=1)
    assert len(refused(project)) == 2
    with pytest.raises(LoadError, match="incorrect at n=1000"):
        loaded(project).select(n=5)
    reference.write_text(right)
    project.events(*WARM, "--size", "n=64", status=1)
    assert len(refused(project)) == 2, "another size says nothing of it"
    project.events(*WARM)
    assert refused(project) == []
    project.events(*WARM, "--size", "n=64")
    assert set(rows(project)) == {64, 1024}


@pytest.mark.parametrize(
    ("mode", "status", "why"),
    [("far", "crash", "SIGSEGV"), ("late", "incorrect", "64 of 64 elements are wrong")],
)
def test_far_writes_and_late_errors_are_found(tune_project, mode, status, why) -> None:
    project = tune_project("slow", mode, sizes=(64,))
    *_, tuned, _ = project.events(*WARM)
    assert tuned["program"] == 0
    assert tuned["refused"]["1"].partition(":")[0] == status
    assert why in refused(project)[0]["why"]
