"""What was measured survives an edit of the space: of the same programs, and of nothing else."""

import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.marks import MANIFEST, Marks
from tilusbuild.cache.scripts import ScriptRecord, publish_script
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch import carry_over, latency, tables
from tilusbuild.dispatch.latency import Measurement
from tilusbuild.plan.identity import format_script_text
from tilusbuild.runtime.script import SCHEMA, Script, read_script
from tilusbuild.runtime.sealed import seal_json
from tilusbuild.runtime.table_file import Refusal
from tilusbuild.runtime.tables import TableEntry, read_dispatch_table
from tilusbuild.state.files import sha256_text

KEYS = ((1,), (2,), (96,), (128,), (1000,))
DEVICES = ("one", "two")


@dataclass(frozen=True)
class Space:
    """An instance as an edit leaves it. Values of one `code` that are equal in `v // share` are the
    same program."""

    values: tuple[int, ...]
    code: int
    share: int
    bucket: str
    key: str
    missing: frozenset[int]

    @property
    def programs(self) -> list[str]:
        return [sha256_text(f"{v // self.share} {self.code}") for v in self.values]


def described(space: Space, digest: str) -> bytes:
    target = {"name": "cpu", "kind": "cpu", "archs": ["cpu"], "ptx": False, "toolkit": None}
    not_built = {str(i): "missing" for i, v in enumerate(space.values) if v in space.missing}
    dispatch = {"keys": [space.key], "buckets": {space.key: space.bucket}, "rules": []}
    return seal_json(
        {
            "schema": SCHEMA,
            "script": "s",
            "hash": digest,
            "level": 2,
            "params": {},
            "target": {**target, "machine": "x86_64"},
            "arguments": [],
            "parameters": ["v"],
            "schedules": {"v": list(space.values)},
            "programs": space.programs,
            "not_built": not_built,
            "default": None,
            "dispatch": {**dispatch, "model": None},
        }
    )


def published(cache: Tree, space: Space) -> Script:
    """The script directory of a space, made if it is not there."""
    text = _text(space)
    digest = sha256_text(text)
    data = described(space, digest)
    files = partial(carry_over.make_initial_files, cache.script_path("s", digest), data)
    return read_script(publish_script(cache, ScriptRecord("s", text, (), (), data, files)))


spaces = st.builds(
    Space,
    st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True).map(tuple),
    st.sampled_from((0, 0, 0, 1)),
    st.sampled_from((1, 1, 2)),
    st.sampled_from(("tilus", "tilus", "pow2")),
    st.sampled_from(("n", "n", "n", "m")),
    st.frozensets(st.integers(0, 7), max_size=2),
)
SECONDS = st.floats(1e-6, 1e-3)
"""Of each program at each key on each device: what is measured."""


def tune(script: Script, data: st.DataObject) -> None:
    """Write whatever a tuning, a person and a pruning may leave."""
    built = sorted(set(script.programs) - script.not_built.keys())
    for device in DEVICES if built else ():
        fingerprint = {"script": script.hash, "device": device, "arch": "cpu"}
        rows = []
        for key in data.draw(st.lists(st.sampled_from(KEYS), unique=True)):
            some = st.lists(st.sampled_from(built), min_size=1, unique=True)
            seconds = {program: data.draw(SECONDS) for program in data.draw(some)}
            latency.write_measurement(script, Measurement(fingerprint, key, seconds))
            program = data.draw(st.sampled_from(sorted(seconds)))
            source = data.draw(st.sampled_from(("measured", "measured", "table")))
            rows.append(TableEntry(key, program, source, seconds[program]))
        tables.update_rows(script, fingerprint, rows)


Facts = dict[tuple[str, tuple[int, ...], str], set[float]]


def facts(script: Script) -> Facts:
    """What is said to be measured: seconds by device, key and program's hash."""
    found: Facts = {}
    for each in latency.read_measurements(script):
        for program, seconds in each.seconds.items():
            at = each.fingerprint["device"], each.key, script.programs[program]
            found.setdefault(at, set()).add(seconds)
    for table in read_dispatch_table(script).tables:
        for row in table.entries:
            if row.source == "measured" and row.seconds is not None:
                at = table.fingerprint["device"], row.key, script.programs[row.program]
                found.setdefault(at, set()).add(row.seconds)
    return found


def rows_of(script: Script) -> dict[tuple[str, tuple[int, ...]], tuple[str, str]]:
    return {
        (table.fingerprint["device"], row.key): (script.programs[row.program], row.source)
        for table in read_dispatch_table(script).tables
        for row in table.entries
    }


@settings(max_examples=12)
@given(st.lists(spaces, min_size=2, max_size=4), st.data())
def test_every_row_after_an_edit_is_a_measurement_of_the_program_that_it_names(edits, data) -> None:
    known: Facts = {}
    chosen: set[tuple[object, ...]] = set()
    with TemporaryDirectory() as root:
        cache = Tree(os.path.join(root, "cache"))
        for space in edits:
            if os.path.isdir(cache.path("scripts", "s", _digest(space))):
                continue  # its tables are its own
            script = published(cache, space)
            assert {t.fingerprint["script"] for t in read_dispatch_table(script).tables} <= {
                script.hash
            }
            for at, seconds in facts(script).items():
                assert seconds <= known.get(at, set()), "never measured"
            for (device, key), (program, source) in rows_of(script).items():
                assert source == "measured" or (device, key, program, source) in chosen
            tune(script, data)
            for at, seconds in facts(script).items():
                known.setdefault(at, set()).update(seconds)
            chosen |= {(*at, *what) for at, what in rows_of(script).items()}


def _digest(space: Space) -> str:
    return sha256_text(_text(space))


def _text(space: Space) -> str:
    fixed: dict[str, Any] = {"script": "s", "params": {}, "target": "cpu", "arch": "cpu"}
    return format_script_text(**fixed, signature=[], programs=enumerate(space.programs))


@settings(max_examples=12)
@given(st.permutations(range(6)), st.sets(st.integers(10, 20)), st.data())
def test_adding_and_reordering_loses_nothing(order, more, data) -> None:
    before = Space((0, 1, 2, 3, 4, 5), 0, 1, "tilus", "n", frozenset())
    after = Space((*more, *order), 0, 1, "tilus", "n", frozenset())
    with TemporaryDirectory() as root:
        cache = Tree(os.path.join(root, "cache"))
        former = published(cache, before)
        tune(former, data)
        held = {at: what for at, what in facts(former).items() if at[1] not in _OF_NONE}
        path = cache.script_path("s", _digest(after))
        said = carry_over.describe_lost_rows(path, partial(described, after, _digest(after)))
        heir = published(cache, after)
        kept = {at: what for at, what in rows_of(former).items() if at[1] not in _OF_NONE}
        assert rows_of(heir) == kept
        assert facts(heir) == held
        assert (said is None) == (kept == rows_of(former)), said


_OF_NONE = ((1000,),)
"""No bucket of "tilus" is called so: what a person wrote there speaks for no sizes."""


def test_what_is_refused_stays_refused_and_serves_nothing(tmp_path: Path) -> None:
    cache = Tree(str(tmp_path))
    script = published(cache, Space((0, 1, 2), 0, 1, "tilus", "n", frozenset()))
    fingerprint = {"script": script.hash, "device": "one", "arch": "cpu"}
    latency.write_measurement(script, Measurement(fingerprint, (16,), {0: 1.0, 1: 2.0, 2: 3.0}))
    tables.update_rows(script, fingerprint, [TableEntry((16,), 1, "measured", 2.0)])
    wrong = Refusal(script.programs[0], "incorrect", {"n": 16}, "y[0] is 1, expected 2")
    tables.replace_tables(script, read_dispatch_table(script).tables, (wrong,))
    heir = published(cache, Space((2, 0), 0, 1, "tilus", "n", frozenset()))
    assert rows_of(heir) == {("one", (16,)): (script.programs[2], "measured")}
    assert read_dispatch_table(heir).refused == (wrong,)


# By the command line: the directory that a build makes, and what it says.


def edited(project: Marks, space: str) -> list[dict[str, Any]]:
    """The events of a build after the space of `mark` was edited."""
    text = MANIFEST.replace("variant = { range = [0, 3] }", f"variant = {space}", 1)
    project.write("tilus.toml", text)
    return project.run("build", "--json").events


def test_a_build_keeps_what_was_measured_and_says_what_it_dropped(copied: Marks) -> None:
    script = copied.script("mark")
    fingerprint = {"script": script.hash, "device": "*", "arch": "*"}
    rows = [TableEntry((n,), min(n // 8, 3), "measured", 1e-6) for n in (8, 16, 24, 32)]
    tables.update_rows(script, fingerprint, rows)
    latency.write_measurement(script, Measurement(fingerprint, (24,), {2: 3e-6, 3: 1e-6}))
    before = set(copied.paths("mark"))
    warnings = [e for e in edited(copied, "[2, 0, 1]") if e["event"] == "warning"]
    (path,) = set(copied.paths("mark")) - before
    assert [(row[0], row[1]) for row in _rows(path)] == [([8], 2), ([16], 0), ([24], 0)]
    assert warnings[0]["message"] == (
        "mark cpu: 2 of 4 rows of its tables keep their program; "
        "1 get the best other measured program; "
        "to be tuned again: n=32 (`tilusbuild tune mark`)"
    )
    assert not [e for e in edited(copied, "[2, 0, 1]") if e["event"] == "warning"]
    copied.run("dispatch", "check", "mark")
    copied.run("cache", "verify")


def _rows(path: Path) -> list[Any]:
    (table,) = json.loads((path / "dispatch_table.json").read_text())["tables"]
    found: list[Any] = table["entries"]
    return found


def test_the_tables_stand_after_every_build(copied: Marks) -> None:
    for path in copied.cache.glob("scripts/*/*"):
        found = json.loads((path / "dispatch_table.json").read_text())
        assert found["tables"] == []
        assert (path / "dispatch_table.txt").read_text().startswith("nothing is measured yet")
    (path,) = copied.paths("mark")
    for name in ("dispatch_table.json", "dispatch_table.txt"):
        text = (path / name).read_text()
        (path / name).unlink()
        copied.run("build")
        assert (path / name).read_text() == text


def test_a_damaged_description_is_mended_and_what_was_measured_stays(copied: Marks) -> None:
    script = copied.script("mark")
    fingerprint = {"script": script.hash, "device": "*", "arch": "*"}
    tables.update_rows(script, fingerprint, [TableEntry((8,), 3, "measured", 1e-6)])
    for name in ("script.txt", "script.json"):
        Path(script.path, name).unlink()
        copied.run("build")
        assert _rows(Path(script.path)) == [[[8], 3, "measured", 1e-6]]
    copied.run("cache", "verify")


def test_tables_of_other_dispatch_keys_go_and_a_warning_says_so(copied: Marks) -> None:
    path = str(copied.paths("modelled")[0])
    script = read_script(path)
    fingerprint = {"script": script.hash, "device": "*", "arch": "*"}
    tables.update_rows(script, fingerprint, [TableEntry((8, 16, 32), 3, "measured", 1e-6)])
    wrong = Refusal(script.programs[0], "incorrect", {"m": 8}, "wrong")
    tables.replace_tables(script, read_dispatch_table(script).tables, [wrong])
    keys = 'keys = ["m", "n", "k"]'
    copied.write("tilus.toml", MANIFEST.replace(keys, 'keys = ["n", "m", "k"]', 1))
    (warning,) = _warnings(copied)
    assert "it was for the dispatch keys m, n, k, which are n, m, k now" in warning["message"]
    assert read_dispatch_table(read_script(path)) == ((), (wrong,))
    assert not _warnings(copied)


def _warnings(project: Marks) -> list[dict[str, Any]]:
    return [e for e in project.run("build", "--json").events if e["event"] == "warning"]
