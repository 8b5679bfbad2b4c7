"""`scripts/measure.py` counts what it says, at any revision and in the working tree."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.paths import ROOT

BEFORE = {
    "tilusbuild/__init__.py": '"""The package."""\n',
    "tilusbuild/cli/build.py": """\
from __future__ import annotations

import json
from typing import Any

from tilusbuild.engine import loop
from tilusbuild.engine.loop import Entry


class Model:
    def run(self, entry: Entry, given: Any) -> Any:
        \"\"\"Run it.

        In two lines.\"\"\"
        import os

        if entry.pipeline == "cpu" or entry.pipeline in ("host",):
            print(json.dumps({"at": os.getpid()}))
        return loop
""",
    "tilusbuild/engine/loop.py": """\
# Why this is so.
import tilusbuild.cli.build  # noqa: F401


class Entry:
    pipeline = "cpu"  # a default


class Model:
    through_nvrtc = False


class FakeStore:
    asks = Model().through_nvrtc
""",
    "tests/test_build.py": """\
import pytest


def helper():
    assert True


def test_one():
    assert 1 + 1 == 2
    with pytest.raises(ValueError, match="x"):
        int("x")
""",
    "docs/not_counted.py": "x = 1\n",
}


def git(repository: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(repository), *identity, *words], check=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files that import each other, tagged `before`; in the working tree they do not."""
    root = tmp_path_factory.mktemp("repository")
    for name, text in BEFORE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "before")
    git(root, "tag", "before")
    (root / "tilusbuild/engine/loop.py").unlink()
    (root / "tilusbuild/engine/new.py").write_text("class Entry:\n    pass\n")
    return root


Measure = Callable[..., str]


@pytest.fixture(scope="module")
def measure(repository: Path) -> Measure:
    def run(*words: str) -> str:
        command = [sys.executable, str(ROOT / "scripts/measure.py"), "-C", str(repository), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return run


def numbers(table: str) -> dict[str, list[str]]:
    """The columns of each row; names and cells are two or more spaces apart."""
    rows = [line.split("  ") for line in table.splitlines()[1:]]
    return {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}


def test_a_revision_is_counted(measure: Measure) -> None:
    found = {name: cells[0] for name, cells in numbers(measure("--rev", "before")).items()}
    assert found == {
        "files": "3",
        "lines": "34",
        "lines per file, median": "14",
        "longest file, lines": "19",
        "packages and top modules": "3",
        "classes": "4",
        "class names in several modules": "1",
        "functions": "1",
        "function length, median": "9",
        "function length, p95": "9",
        "function length, longest": "9",
        "comment lines": "2",
        "comment lines, share": "5.9 %",
        "docstring lines": "4",
        "uses of Any": "2",
        "imports in functions": "1",
        "import cycles of modules": "1",
        "import cycles of packages": "1",
        "doubles for tests, shipped": "1",
        "JSON printed directly": "1",
        "decisions on the pipeline": "3",
        "test files and lines": "1 / 11",
        "tests": "1",
        "assertions": "3",
    }


def test_revisions_stand_side_by_side_and_the_working_tree_has_what_is_not_committed(
    measure: Measure,
) -> None:
    table = measure("--rev", "before", "--rev", ".")
    assert table.splitlines()[0].split("  ")[-2:] == ["before", "working tree"]
    found = numbers(table)
    assert found["classes"] == ["4", "2"]
    assert found["import cycles of modules"] == ["1", "0"]
    assert numbers(measure())["classes"] == ["2"]


def test_details_name_what_is_counted(measure: Measure) -> None:
    lines = [line.strip() for line in measure("--rev", "before", "--details").splitlines()]
    assert "long file: tilusbuild/cli/build.py 19" in lines
    assert "long function: tilusbuild/cli/build.py run 9" in lines
    places = "tilusbuild.cli.build, tilusbuild.engine.loop"
    assert f"class in several modules: Model: {places}" in lines
    assert f"cycle of modules: {places}" in lines
    assert "cycle of packages: cli, engine" in lines
    assert "double: tilusbuild.engine.loop.FakeStore" in lines
