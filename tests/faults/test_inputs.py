"""A sample of every class of hostile inputs. `make hostile` tries more."""

import os

from support.faults.laboratory import try_one
from support.faults.registry import GROUPS, INPUTS
from support.faults.world import World
from support.hostile.trial import Trial, attempt

TRIALS = int(os.environ.get("HOSTILE_TRIALS", "3"))


def test_a_sample_of_each_class(world: World) -> None:
    for name in INPUTS:
        for number in range(TRIALS):
            tried = try_one(world, GROUPS[name], f"1:{name}:{number}", 1)
            assert tried is not None
            assert not tried.findings, tried.again


def test_the_oracle_sees_what_it_is_for(world: World) -> None:
    """Each kind of finding, by a command that is made to have it."""
    column = {
        "open('../canary', 'w').close()": "outside",
        "open('../outside/secret', 'w').close()": "outside",
        "open('../tmp/x', 'w').close()": "left over",
        "import os; os._exit(99)": "status",
        "1 // 0": "traceback",
        "print('\\x1b[31m')": "terminal",
        "import os; os._exit(2)": "status",
        "import os; b'x' * (600 << 20); os._exit(1)": "dear",
    }
    seen = {code: {f.column for f in attempt(world, _trial(code, world))} for code in column}
    assert seen == {code: {name} for code, name in column.items()}
    assert not [*attempt(world, _trial("", world))]


def _trial(inside: str, world: World) -> Trial:
    return Trial(("schema",), inside=inside, environment=world.environment())
