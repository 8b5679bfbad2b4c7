"""A sample of every class of hostile inputs. `make hostile` tries more."""

import os
import sys
from pathlib import Path

from support.hostile.trial import Trial, attempt
from support.processes import run_to_end

TRIALS = int(os.environ.get("HOSTILE_TRIALS", "3"))


def test_a_sample_of_each_class() -> None:
    """In a process of its own: trials are forks, and threads of the tests are no part of them."""
    command = [sys.executable, "-m", "support.hostile", "--count", str(TRIALS)]
    path = f"{Path(__file__).parents[1]}:{os.environ['PYTHONPATH']}"
    run_to_end(command, environment={"PYTHONPATH": path})


def test_the_oracle_sees_what_it_is_for(tmp_path: Path) -> None:
    """Each kind of finding, by a command that is made to have it."""

    def write(name: str) -> None:
        Path(name).write_text("x")

    found = {}
    for name, inside in {
        "code ran": lambda: write("../canary"),
        "touched": lambda: write("../outside/secret"),
        "left in TMPDIR": lambda: write("../tmp/x"),
        "exit status": lambda: os._exit(99),
        "a traceback": lambda: 1 // 0,
        "reached the terminal": lambda: print("\x1b[31m"),
    }.items():
        trial = Trial(("schema",), inside=inside)
        found[name] = attempt(trial, tmp_path / name.replace(" ", "-"))[1]
    assert {name: any(name in each for each in wrong) for name, wrong in found.items()} == (
        dict.fromkeys(found, True)
    )
    assert attempt(Trial(("schema",)), tmp_path / "well")[1] == []
