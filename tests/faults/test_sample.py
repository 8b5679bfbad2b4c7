"""A sample of the laboratory's faults, of every group; `make faults` tries them all."""

from __future__ import annotations

from random import Random

import pytest

from support.faults import laboratory
from support.faults.laboratory import is_started, run_all, table
from support.faults.oracle import Finding
from support.faults.registry import GROUPS
from support.faults.world import World

SEED = 13


@pytest.mark.slow
def test_a_sample_of_faults_leaves_nothing_wrong(compilers: None) -> None:
    results = run_all([], seed=SEED, sample=True, report=lambda tried: None)
    wrong = [tried for tried in results if tried.findings]
    print(table(results))
    assert not wrong, "\n".join(f"{tried.again}\n    {tried.findings}" for tried in wrong)
    assert len(results) >= sum(group.sample for group in GROUPS.values()) // 2, table(results)


def test_one_trial_in_fifty_starts_an_interpreter_for_each_command() -> None:
    faults = [f"cold {number} EIO once" for number in range(5000)]
    started = [fault for fault in faults if is_started("changes", fault, SEED)]
    assert 70 < len(started) < 130


@pytest.mark.parametrize(("share", "command"), [(1, "-m tilusbuild watch"), (0, "server.py")])
def test_what_a_command_of_a_trial_is(
    world: World, monkeypatch: pytest.MonkeyPatch, share: int, command: str
) -> None:
    """Looked at by what is found left over: a command that goes on."""

    class Leaving:
        name, sample = "leaving", 0

        def faults(self, world: World, chance: Random) -> list[str]:
            return []

        def run(self, world: World, fault: str) -> list[Finding]:
            world.start_sleeper()
            return [Finding("left over", words) for words in world.server.settle(2)]

    monkeypatch.setattr(laboratory, "STARTED", share)
    tried = laboratory.try_one(world, Leaving(), "", SEED)
    assert tried is not None
    assert [command in finding.what for finding in tried.findings] == [True]


@pytest.mark.parametrize("fault", ["kills edit 40 half", "changes cold 60 ENOSPC on"])
def test_a_trial_with_interpreters_is_judged_as_any(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    group, _, name = fault.partition(" ")
    monkeypatch.setattr(laboratory, "STARTED", 1)
    tried = laboratory.try_one(world, GROUPS[group], name, SEED)
    assert tried is not None
    assert not tried.findings
