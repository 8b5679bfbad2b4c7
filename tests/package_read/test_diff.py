"""What changed: down to the schedule and the line that differs, in packages and caches alike."""

import json
import shutil
from pathlib import Path

import pytest

from support.packages import Hand
from support.project import Project
from tilusbuild.diff.verb_diff import ChangeLine, list_changes, open_side
from tilusbuild.package.extract import Limits


def between(a: Path, b: Path) -> list[ChangeLine]:
    with open_side(str(a), Limits()) as one, open_side(str(b), Limits()) as other:
        return list(list_changes(one, other))


def edited(project: Project, name: str, old: str, new: str) -> None:
    project.edit(name, old, new)
    shutil.rmtree(project.cache)
    project.run("build")


@pytest.fixture
def old(hand: Hand, carrier: str, tmp_path: Path) -> Path:
    path: Path = hand.write(carrier, tmp_path / "old")
    return path


def test_equal_packages_in_any_format(hand: Hand, old: Path, tmp_path: Path) -> None:
    assert between(old, hand.archive(tmp_path / "new")) == []


def test_a_package_and_its_cache(project: Project, old: Path) -> None:
    assert between(old, project.cache) == []


def test_an_edit_of_a_template(own_project: Project, hand: Hand, tmp_path: Path) -> None:
    edited(own_project, "twice.cu.j2", "2 *", "3 *")
    changes = between(hand.archive(tmp_path / "old"), own_project.cache)
    assert changes == [
        ChangeLine("program", "changed", "twice cpu", ("the rendered source changed",))
    ]


def test_schedules_and_scripts_that_come_and_go(own_project, hand, tmp_path) -> None:
    text = (own_project.directory / "tilus.toml").read_text()
    (own_project.directory / "tilus.toml").write_text(text[: text.index("[script.twice]")])
    edited(own_project, "tilus.toml", "range = [0, 2]", "range = [1, 3]")
    old = hand.archive(tmp_path / "old")
    assert [(c.what, c.kind, c.label) for c in between(old, own_project.cache)] == [
        ("program", "added", "mark cpu (variant = 3)"),
        ("program", "removed", "mark cpu (variant = 0)"),
        ("script", "removed", "twice cpu"),
    ]


def test_dispatch_tables(hand: Hand, tmp_path: Path) -> None:
    """Given another choice for one bucket and a bucket more, then these two rows are told."""
    (script,) = [s for s in hand.listing.scripts if s.script == "mark"]
    paths = []
    for number, rows in enumerate((((8, 0),), ((8, 2), (16, 1)))):
        package = hand.copy()
        fingerprint = {"script": "s", "device": "D", "arch": "a"}
        entries = [[[size], program, 1e-6, [size], None, False, []] for size, program in rows]
        tables = [{"fingerprint": fingerprint, "entries": entries}]
        data = json.dumps({"schema": 2, "keys": ["n"], "tables": tables}).encode()
        package.files[f"{script.root}/dispatch_table.json"] = data
        paths.append(package.relist().archive(tmp_path / f"p{number}"))
    assert between(*paths) == [
        ChangeLine(
            "table",
            "changed",
            "mark cpu on D at n = 8",
            ("variant = 0 (measured) → variant = 2 (measured)",),
        ),
        ChangeLine("table", "added", "mark cpu on D at n = 16"),
    ]


def test_changes_of_the_package_itself(hand: Hand, tmp_path: Path) -> None:
    old = hand.copy().archive(tmp_path / "old")
    new = hand.relist(version="0.2.0").archive(tmp_path / "new")
    assert between(old, new) == [ChangeLine("package", "changed", "version", ("0.1.0 → 0.2.0",))]


def test_the_same_inputs_with_other_bytes(hand: Hand, tmp_path: Path) -> None:
    old = hand.copy().archive(tmp_path / "old")
    hand.files[hand.path("lib.so")] += b"\0"
    (change,) = between(old, hand.relist().archive(tmp_path / "new"))
    assert change.reasons == ("the same inputs gave other bytes",)


def test_the_command(own_project: Project, hand: Hand, tmp_path: Path) -> None:
    old = str(hand.archive(tmp_path / "old"))
    cache = str(own_project.cache)
    assert own_project.run("diff", old, cache, "--exit-code").out == "nothing changed\n"
    edited(own_project, "mark.cu.j2", "10 *", "11 *")
    output = own_project.run("diff", old, cache).out
    assert output == (
        "program changed: mark cpu (variant = 0); mark cpu (variant = 1); mark cpu (variant = 2)\n"
        "  the rendered source changed\n"
    )
    lines = own_project.run("diff", old, cache, "--json", "--exit-code", status=1).out
    assert json.loads(lines.splitlines()[-1]) == {"event": "summary", "changes": 3}


def test_which_of_the_two_cannot_be_read_is_said(hand, tmp_path, project) -> None:
    good, bad = (hand.write("archive", tmp_path / name) for name in ("good", "bad"))
    bad.write_bytes(bad.read_bytes()[:-1])
    for pair in ((good, bad), (bad, good)):
        stderr = project.run("diff", *pair, status=1).err
        assert str(bad) in stderr
        assert str(good) not in stderr
