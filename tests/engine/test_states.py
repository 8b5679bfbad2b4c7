"""The states of a program."""

import pytest

from support.fake_engine import FakeJob
from tilusbuild.engine.states import TRANSITIONS, BuildState, Ticket


def test_every_state_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(BuildState)


@pytest.mark.parametrize("state", [BuildState.DONE, BuildState.SKIPPED, BuildState.DROPPED])
def test_a_program_that_is_through_stays_so(state: BuildState) -> None:
    ticket = Ticket(FakeJob("a"), 0, state=state)
    for other in BuildState:
        with pytest.raises(RuntimeError, match=f"from {state.name} to {other.name}"):
            ticket.move_to(other)
        assert ticket.state is state
