"""Twenty steps of a random walk: `make walk` takes more of them, with a GPU's compiler, too."""

import shutil
from collections.abc import Sequence

import pytest

from support.walk import __main__ as command
from support.walk import steps
from support.walk.world import FoundError

SEED, STEPS = 6, 20


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if shutil.which("g++", path="/usr/bin") is None:
        pytest.skip("needs /usr/bin/g++")


def test_a_walk_ends_where_clean_builds_do() -> None:
    finding, step_numbers, counts = command.walk(SEED, range(STEPS), "")
    assert not finding, f"make walk SEED={SEED} ONLY={','.join(map(str, step_numbers))}\n{finding}"
    assert len(step_numbers) == STEPS
    assert "builds that end 0" in counts


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program's file that changes behind a build's back."""

    def meddle(self: steps.Walk, chance: object) -> None:
        for path in self.world.cache.glob("programs/*/module/compile.sh"):
            path.write_text(path.read_text().replace("Compiles", "Complies"))

    def begin(self: steps.Walk, chance: object) -> None:
        self.compared(("build", "--json", "-k", "0", "scale"))

    drawn = ["begin", "meddle", "begin", "begin"]
    monkeypatch.setitem(steps.STEPS, "begin", (begin, 0))
    monkeypatch.setitem(steps.STEPS, "meddle", (meddle, 0))
    monkeypatch.setattr(command, "steps", lambda *_: [(each, 1) for each in drawn])
    finding, step_numbers, _ = command.walk(1, range(len(drawn)), "")
    assert "is other in ['module/compile.sh']" in finding
    assert step_numbers == [0, 1, 2]


def test_the_shortest_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(seed: int, numbers: Sequence[int], *_: str, **__: float) -> tuple[str, list[int], str]:
        ends = {3, 17, 30} <= set(numbers)
        return "found" if ends else "", [n for n in numbers if n <= 30], ""

    monkeypatch.setattr(command, "walk", walk)
    assert command.shrunk(1, list(range(31)), "", "", seconds=60) == ([3, 17, 30], "found")


def test_the_steps_of_a_seed_are_the_same() -> None:
    assert steps.steps(7, 50) == steps.steps(7, 80)[:50]
    assert steps.steps(7, 50) != steps.steps(8, 50)
    assert issubclass(FoundError, AssertionError)
