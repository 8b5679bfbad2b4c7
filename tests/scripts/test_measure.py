"""`scripts/measure.py` counts what it says, at any revision, and holds the tree to its budget."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.paths import ROOT
from support.processes import run_to_end

BEFORE = {
    "tilusbuild/builder/build.py": """\
# A comment.
from tilusbuild.engine import loop
from tilusbuild.engine.loop import Entry, Event


class Started(Event):
    at: int


class Model:
    def run(self, entry: Entry) -> None:
        \"\"\"Run it.

        In two lines.\"\"\"
        self.last = entry.begin(
            "TILUSBUILD_LEVEL"
        )


def build_project(model: Model) -> None:
    loop.start()
    publish()


def publish() -> None: ...
""",
    "tilusbuild/engine/loop.py": """\
import tilusbuild.builder.build
_NAMES = \"\"\"JOBS LEVEL\"\"\"


class Event: ...


class Entry:
    name: str
    at: int
    def begin(self, name): ...


def start():
    Entry().begin("")
""",
    "tests/test_build.py": "def test_one():\n    assert True\n",
    "docs/manifest.md": "| key | |\n|---|---|\n| `edition` | 1 |\n",
    "docs/manifest/a.md": "| `b` | |\n\nAs in [b](b.md): `c`, `d`.\n",
    "docs/formats.md": "| `index.json` | |\n",
    "README.md": "not counted\n",
}

COUNTED = {
    "lines": 40,
    "lines of the core": 40,
    "code lines": 22,
    "files": 2,
    "classes": 4,
    "JSON line classes": 1,
    "options": 0,
    "manifest keys": 4,
    "environment variables": 2,
    "formats on disk": 1,
    "circles of imports": 1,
    "files in circles": 2,
    "largest class, attributes": 2,
    "rooms that a build enters": 2,
    "climbs of a build": 1,
    "lines of tests": 2,
    "OSErrors that are ignored": 0,
    "one-word names in 1,000": 800,
    "participles in 1,000 names": 0,
    "names defined five times": 0,
    "words in 100 names": 120,
    "comments in 1,000 lines": 25,
}

NAMES = """\
class Reader:
    # Why a line is skipped.
    def read_line(self): ...
    @property
    def path(self): ...
    def __iter__(self): ...


def _opened():
    try:
        Reader().read_line()
    except (OSError, ValueError):
        pass


def written():
    with suppress(FileNotFoundError, OSError):
        _opened()


def feed():
    try:
        written()
    except OSError as error:
        raise SystemExit from error
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with two files that import each other, tagged `before`."""
    for name, text in BEFORE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "scripts").mkdir()
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"], ["tag", "before"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True)
    return tmp_path


Measure = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def measure(repository: Path) -> Measure:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts/measure.py"), "-C", str(repository), *words]
        return run_to_end(command, status=None)

    return run


def numbers(table: str) -> dict[str, list[int]]:
    """The columns of each row; names and cells are two or more spaces apart."""
    rows = [[cell for cell in line.split("  ") if cell] for line in table.splitlines()[1:]]
    return {row[0]: [int(cell.replace(",", "")) for cell in row[1:]] for row in rows}


def test_a_revision_is_counted_beside_the_working_tree(measure: Measure, repository: Path) -> None:
    (repository / "tilusbuild/new.py").write_text("class Entry:\n    pass\n")
    cells_by_name = numbers(measure("--rev", "before", "--rev", ".").stdout)
    assert {name: cells[0] for name, cells in cells_by_name.items()} == COUNTED
    assert (cells_by_name["files"], cells_by_name["classes"]) == ([2, 3], [4, 5])


def test_names_comments_and_ignored_errors_are_counted(measure: Measure, repository: Path) -> None:
    (repository / "tilusbuild/extra").mkdir()
    (repository / "tilusbuild/extra/room.py").write_text("BRINGS = {}\n")
    (repository / "tilusbuild/extra/reader.py").write_text(NAMES)
    rows = numbers(measure("--rev", "before", "--rev", ".").stdout)
    # Five functions before, one of two words; of four more, one has two, two are participles.
    assert rows["one-word names in 1,000"] == [800, 777]
    assert rows["participles in 1,000 names"] == [0, 222]
    assert rows["words in 100 names"] == [120, 122]
    assert rows["OSErrors that are ignored"] == [0, 2]
    assert rows["comments in 1,000 lines"] == [25, 1000 * 2 // rows["lines"][1]]
    assert rows["lines of the core"][1] == rows["lines of the core"][0]


def test_fewer_words_in_names_fail_like_more_lines(measure: Measure, repository: Path) -> None:
    (repository / "tilusbuild/new.py").write_text("def read_line(): ...\n")
    assert measure("--write").returncode == 0
    (repository / "tilusbuild/new.py").write_text("def read(): ...\n")
    assert "error: words in 100 names: 116 is under the budget of 133" in measure().stderr


def test_a_number_that_rises_fails_until_the_budget_is_edited(measure, repository) -> None:
    assert measure("--write").returncode == 0
    assert json.loads((repository / "scripts/budget.json").read_text()) == COUNTED
    (repository / "tilusbuild/new.py").write_text("class Entry:\n    pass\n")
    ran = measure()
    assert ran.returncode == 1
    assert "error: files: 3 is over the budget of 2; remove what" in ran.stderr
    assert "circles" not in ran.stderr
    assert measure("--write").returncode == 0
    assert measure().returncode == 0
