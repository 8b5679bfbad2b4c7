"""The states of a program: the table that people read is the one that is checked."""

import re

import pytest

from support.fake_engine import FakeJob
from tilusbuild.engine import states
from tilusbuild.engine.states import TRANSITIONS, BuildState, Ticket


def documented() -> dict[str, set[str]]:
    """The table of the module's docstring."""
    table: dict[str, set[str]] = {}
    lines = (states.__doc__ or "").splitlines()
    rule = next(number for number, line in enumerate(lines) if line.startswith("    -----"))
    third = lines[rule].rindex("  --") + 2
    name = ""
    for line in lines[rule + 1 :]:
        if not line:
            break
        name = (line[:third].split(maxsplit=1) or [""])[0] if line[4] != " " else name
        table.setdefault(name, set()).update(re.findall(r"[A-Z]+", line[third:]))
    return table


def test_the_documented_table_is_the_checked_one() -> None:
    checked = {state.name: {each.name for each in after} for state, after in TRANSITIONS.items()}
    assert documented() == checked
    assert set(TRANSITIONS) == set(BuildState)


@pytest.mark.parametrize("state", [BuildState.DONE, BuildState.SKIPPED, BuildState.DROPPED])
def test_a_program_that_is_through_stays_so(state: BuildState) -> None:
    ticket = Ticket(FakeJob("a"), 0, state=state)
    for other in BuildState:
        with pytest.raises(RuntimeError, match=f"from {state.name} to {other.name}"):
            ticket.move_to(other)
        assert ticket.state is state
