"""A sample of the laboratory's faults, of every group; `make faults` tries them all."""

import pytest

from support.faults import laboratory
from support.faults.laboratory import run_all, table
from support.faults.registry import GROUPS

SEED = 13


@pytest.mark.slow
def test_a_sample_of_faults_leaves_nothing_wrong(compilers: None) -> None:
    results = run_all([], seed=SEED, sample=True, report=lambda tried: None)
    wrong = [tried for tried in results if tried.findings]
    print(table(results))
    assert not wrong, "\n".join(f"{tried.again}\n    {tried.findings}" for tried in wrong)
    assert len(results) >= sum(group.sample for group in GROUPS.values()) // 2, table(results)


@pytest.mark.parametrize("fault", ["kills edit 40 half", "changes cold 60 ENOSPC on"])
def test_a_trial_with_interpreters_is_judged_as_any(world, monkeypatch, fault) -> None:
    group, _, name = fault.partition(" ")
    monkeypatch.setattr(laboratory, "STARTED", 1)
    tried = laboratory.try_one(world, GROUPS[group], name, SEED)
    assert tried is not None
    assert not tried.findings
