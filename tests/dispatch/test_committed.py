"""Choices by schedule that a repository keeps: written from what was measured, read by builds."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.marks import MANIFEST, MARK, Marks, record
from support.project import needs_cxx
from tilusbuild.runtime import load
from tilusbuild.runtime.device import get_cpu
from tilusbuild.runtime.tables import TableEntry, read_dispatch_table

FILE = "tuned/mark.jsonl"
HEAD = '{"schema": 1, "script": "mark"}'


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Marks:
    """A built project, whose manifest names a file that is not there yet."""
    needs_cxx()
    project = Marks(tmp_path_factory.mktemp("committed"))
    manifest = MANIFEST.partition("\n[script.modelled]")[0]
    project.write_all({"tilus.toml": manifest, "mark.cu.j2": MARK, ".git": ""})
    project.edit("tilus.toml", "\ntable", f'\nmeasured = "{FILE}"\ntable')
    project.run("build")
    return project


@pytest.fixture
def declared(first: Marks, tmp_path: Path) -> Marks:
    """The same, one's own, in a cache of one project."""
    project = first.copy(tmp_path / "copy")
    (project.cache / "index.json").unlink()
    return project


def row(n: int, variant: int, **other: Any) -> str:
    device = {"target": "cpu", "device": get_cpu().name, "arch": "cpu", "params": {}}
    choice = {"sizes": {"n": n}, "schedule": {"variant": variant}, "seconds": 1e-5}
    return json.dumps({**device, **choice, **other})


def write(project: Marks, *lines: str) -> None:
    project.write(FILE, "".join(f"{line}\n" for line in (HEAD, *lines)))


def measure(project: Marks, n: int, variant: int, seconds: float = 1.234567e-5) -> None:
    """Note a measurement at `n`, of the bucket 64, as tuning does."""
    script = project.script("mark")
    entry = TableEntry((64,), variant, seconds, (n,))
    record(script, get_cpu().make_fingerprint(script.hash), [entry])


def chosen(project: Marks, n: int = 64) -> tuple[int, str]:
    choice = load("mark", where=str(project.cache)).select(n=n)
    return choice.program, choice.source


def test_what_was_measured_here_is_chosen_in_another_checkout(declared, tmp_path) -> None:
    """Given a tuned project, when its choices are exported, then a checkout that has never been
    tuned, whose programs are others, chooses the same schedules, and so does its package."""
    measure(declared, 50, 3)
    output = declared.run("dispatch", "export", "mark").out
    head, line = (declared.directory / FILE).read_text().splitlines()
    assert output == f"new: {line}\n{FILE}: 1 row, 1 new, 0 changed\n"
    assert head == HEAD
    program = declared.script("mark").programs[3]
    assert line == row(50, 3, seconds=1.235e-05, program=program)

    other = declared.copy(tmp_path / "other", cache=False)
    other.edit("mark.cu.j2", "10 * x[i]", "x[i] * 10")
    other.run("build")
    assert other.programs.keys().isdisjoint(declared.programs)
    other.run("package", "--format", "dir", "-o", "dist")
    (package,) = (other.directory / "dist").iterdir()
    for directory in (other.cache, package):
        kernel = load("mark", where=str(directory))
        choice = kernel.select(n=64)
        assert (choice.program, choice.source) == (3, "measured")
        assert choice.why == f"measured at n = 50 ({FILE})"
        assert f"source: nearest: nothing is measured for n = 100; n = 50 ({FILE}) is nearest" in (
            kernel.explain(n=100)
        )
        assert kernel(np.ones(60, "f4"))[0] == 13
    assert f"measured ({FILE})" in other.run("dispatch", "show", "mark").out
    other.run("dispatch", "check", "mark")


def test_builds_follow_an_edit_of_the_file(declared: Marks) -> None:
    """Also where nothing else changed, and none of the rows of before stays."""
    write(declared, row(64, 3), row(1000, 0))
    declared.run("build")
    assert (chosen(declared), chosen(declared, 1000)) == ((3, "measured"), (0, "measured"))
    assert load("mark", where=str(declared.cache))(np.ones(60, "f4"))[0] == 13
    (table,) = read_dispatch_table(declared.script("mark")).tables
    assert [entry.origin for entry in table.entries] == [FILE, FILE]
    assert "nothing to do" in declared.run("build").err
    write(declared, row(64, 0))
    assert "nothing to do" in declared.run("build").err
    assert (chosen(declared), chosen(declared, 1000)) == ((0, "measured"), (0, "nearest"))
    (declared.directory / FILE).unlink()
    declared.run("build")
    assert chosen(declared) == (1, "default")


def test_an_edit_of_the_space_keeps_rows_and_renumbers_them(declared: Marks) -> None:
    write(declared, row(64, 3))
    declared.run("build")
    declared.edit("tilus.toml", "variant = { range = [0, 3] }", "variant = [1, 2, 3]")
    declared.run("build")
    assert chosen(declared) == (2, "measured")


def test_what_was_measured_here_takes_precedence_in_its_bucket(declared: Marks) -> None:
    write(declared, row(64, 3), row(1000, 0))
    declared.run("build")
    measure(declared, 50, 2)
    declared.run("build")
    assert (chosen(declared), chosen(declared, 1000)) == ((2, "measured"), (0, "measured"))
    measure(declared, 50, 1)
    declared.run("build")
    assert chosen(declared) == (1, "measured")


def test_rows_of_another_device_or_level_are_no_mistake(declared: Marks) -> None:
    write(declared, row(64, 3))
    assert "warning" not in declared.run("build", "mark", "--level", "0").err
    assert chosen(declared) == (1, "default")
    write(declared, row(64, 3, device="another"))
    assert "warning" not in declared.run("build").err
    declared.run("dispatch", "check", "mark")
    kernel = load("mark", where=str(declared.cache), strict=True)
    assert kernel.select(n=64).source == "default"


def test_a_cost_without_declared_keys_reads_any_dimension(declared: Marks) -> None:
    declared.edit("tilus.toml", 'keys = ["n"]\n', "")
    write(declared, row(64, 3, sizes={}, seconds=None, cost="1e-9 * n"))
    assert "warning" not in declared.run("build").err
    assert chosen(declared) == (3, "fitted")


def test_rows_without_a_program_are_counted_in_one_warning(declared: Marks) -> None:
    """Rows of other targets and constants are not: they are for other builds."""
    others = row(64, 9, target="gone"), row(64, 9, params={"dtype": "f16"})
    write(declared, row(64, 9), row(96, 3), row(128, 2), *others)
    stderr = declared.run("build").err
    assert stderr.count("warning") == 1
    assert f"warning: mark cpu: 1 of 3 rows of {FILE} serve nothing: n=64 (the space has" in stderr
    assert "`tilusbuild tune mark`, `tilusbuild dispatch export mark`" in stderr

    declared.edit("mark.cu.j2", "{{ variant }}", "{{ variant if variant != 3 else 'no' }}")
    declared.run("build")
    # With a name, since the record of the build before would answer the same words again.
    stderr = declared.run("build", "mark").err
    assert f"2 of 3 rows of {FILE} serve nothing: n=64 (" in stderr
    assert "), n=96 (its program is failed)" in stderr
    assert chosen(declared, 96) == (2, "nearest")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([""], "1:1: error: not measurements of mark: "),
        (["[]"], "1:1: error: not measurements of mark: this version of tilusbuild reads schema 1"),
        ([HEAD.replace("1", "2")], "1:1: error: not measurements of mark: this version of"),
        ([HEAD.replace("mark", "sum")], "1:1: error: not measurements of mark: they are of 'sum'"),
        ([HEAD, "<<<<<<< main"], "2:1: error: not measurements of mark: JSON is malformed"),
        (["[" * 100_000], "1:1: error: not measurements of mark: "),
        ([HEAD, "{}"], "2:1: error: not measurements of mark: Object missing required field"),
        ([HEAD, row(1, 1, sizes={"n": "1"})], "2:1: error: not measurements of mark: Expected"),
        ([HEAD, row(1, 1, more=1)], "2:1: error: not measurements of mark: Object contains unkn"),
        ([HEAD, row(1, 1), row(1, 2)], "3:1: error: another row has the same instance"),
    ],
)
def test_a_mistake_in_the_file_is_shown_at_its_line(declared, lines, message) -> None:
    declared.write(FILE, "".join(f"{line}\n" for line in lines))
    err = declared.run("plan", status=2).err
    assert err.startswith(f"{FILE}:{message}")
    assert len(err.splitlines()) == 4, "the line, the place in it, what would be right"


def test_a_mistake_in_the_file_ends_what_would_use_it(declared: Marks) -> None:
    path = declared.write(FILE, "no file of ours\n")
    for verb in (["build"], ["dispatch", "export", "mark"]):
        assert declared.run(*verb, status=2).err.startswith(f"{FILE}:1:1: error:")
    assert path.read_text() == "no file of ours\n"
    path.unlink()
    path.mkdir()
    assert "the file is a directory" in declared.run("plan", status=2).err
    declared.edit("tilus.toml", FILE, "../mark.jsonl")
    assert "the file is outside the project" in declared.run("plan", status=2).err


def test_an_export_replaces_what_its_buckets_had_and_nothing_else(declared: Marks) -> None:
    other = row(50, 0, device="another"), row(1000, 0), row(5, 0, sizes={"m": 5})
    write(declared, row(50, 3), *other)
    measure(declared, 60, 2)
    assert declared.run("dispatch", "export", "mark").out.endswith(": 4 rows, 0 new, 1 changed\n")
    text = (declared.directory / FILE).read_text()
    assert sorted(text.splitlines()[1:]) == sorted(
        [row(60, 2, seconds=1.235e-05, program=declared.script("mark").programs[2]), *other]
    )
    output = declared.run("dispatch", "export", "mark").out
    assert output == f"{FILE}: 4 rows, 0 new, 0 changed\n"
    assert declared.run("dispatch", "export", "mark", "--json").events == [
        {"event": "summary", "rows": 4, "new": 0, "changed": 0}
    ]


def test_an_export_needs_a_name(declared: Marks) -> None:
    declared.edit("tilus.toml", f'measured = "{FILE}"\n', "")
    stderr = declared.run("dispatch", "export", "mark", status=2).err
    assert "mark names no file for its measurements" in stderr
    assert '`measured = "tuned/mark.jsonl"` in [script.mark.dispatch]' in stderr


def test_shards_agree_and_the_cache_that_joins_them_has_the_rows(
    declared: Marks, tmp_path: Path
) -> None:
    write(declared, row(64, 3))
    address = f"file://{tmp_path}/remote"
    words = ("env", f"TILUSBUILD_REMOTE_CACHE={address}", "TILUSBUILD_REMOTE_WRITE=1")
    sharing = replace(declared, before=words)
    for shard in ("1/2", "2/2"):
        sharing.run("build", "--shard", shard, "--cache-dir", str(tmp_path / shard[0]))
    cache = str(tmp_path / "whole")
    assert "4 fetched" in sharing.run("build", "--cache-dir", cache).err
    assert load("mark", where=cache).select(n=64).program == 3


def test_a_build_with_rows_does_not_import_numpy(declared: Marks) -> None:
    write(declared, row(64, 1))
    code = (
        "import sys; from tilusbuild.cli.main import main\n"
        "main(['build']); print('numpy' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=declared.directory,
        env={**os.environ, **declared.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr
