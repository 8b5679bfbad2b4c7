"""Runs faults of several groups in several worlds at once, and counts what was wrong."""

import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from support.faults.group import Group, NotTriedError
from support.faults.mounts import own_mounts
from support.faults.oracle import COLUMNS, Finding
from support.faults.registry import FAULTS, GROUPS
from support.faults.world import World, make_equipment
from tilusbuild.table import format_table as as_table

MEMORY = "/dev/shm"  # where trials take milliseconds
STARTED = 1 / 50
"""The share of trials whose commands are not forks: see `is_started`."""


@dataclass(frozen=True)
class Tried:
    """A fault that was tried; `seed` is that of the run."""

    group: str
    fault: str
    seed: int
    findings: tuple[Finding, ...]

    @property
    def again(self) -> str:
        """The command that tries it again."""
        return f"make faults GROUPS={self.group} SEED={self.seed} REPEAT='{self.fault}'"


def directory_for(name: str) -> Path:
    """Make a directory for a laboratory, in memory where that can be."""
    return Path(tempfile.mkdtemp(prefix=f"faults-{name}-", dir=_memory()))


def _memory() -> str | None:
    return MEMORY if os.access(MEMORY, os.W_OK) else None


def chosen(
    world: World, names: Sequence[str], seed: int, most: int | None, sample: bool
) -> list[tuple[str, str]]:
    """(group, fault) of all that is to be tried, the groups in turn, in the order of the seed."""
    lists = []
    for name in names or FAULTS:
        if sample and not GROUPS[name].sample:
            continue
        if sample:
            most = GROUPS[name].sample
        chance = Random(f"{seed} {name}")
        faults = list(GROUPS[name].faults(world, chance))
        chance.shuffle(faults)
        lists.append([(name, fault) for fault in faults[:most]])
    places = sorted(
        ((index + 0.5) / len(faults), number, index)
        for number, faults in enumerate(lists)
        for index in range(len(faults))
    )
    return [lists[number][index] for _, number, index in places]


def is_started(group: str, fault: str, seed: int) -> bool:
    """Whether the commands of a trial are started as a person starts them, in an interpreter each:
    so that what a process that has imported everything cannot show is met, too."""
    return Random(f"{seed} {group} {fault} interpreter").random() < STARTED


def try_one(world: World, group: Group, fault: str, seed: int) -> Tried | None:
    """Try a fault; None when it did not come to that."""
    world.server.interpreters = is_started(group.name, fault, seed)
    try:
        findings = group.run(world, fault)
    except NotTriedError:
        return None
    except Exception:
        findings = [Finding("stuck", traceback.format_exc())]
    finally:
        world.server.interpreters = False
    return Tried(group.name, fault, seed, tuple(findings))


def run_all(
    names: Sequence[str],
    *,
    seed: int,
    seconds: float | None = None,
    most: int | None = None,
    sample: bool = False,
    jobs: int = 2,
    only: str | None = None,
    report: Callable[[Tried], None],
) -> list[Tried]:
    """Try the faults of these groups, or the one that is named, until the time is over.

    No more than `most` of each group, or with `sample` what the group says.
    """
    directory = directory_for("laboratory")
    try:
        equipment = make_equipment(directory / "equipment")
        deadline = None if seconds is None else time.monotonic() + seconds
        if only is not None:
            todo = [(names[0], only)]
        else:
            planning = World(directory / "plan", equipment)
            todo = chosen(planning, names, seed, most, sample)
            planning.close()
        return _in_worlds(directory, equipment, todo, seed, deadline, jobs, report)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _make_ready(world: World, todo: list[tuple[str, str]]) -> None:
    """Make what faults start from, which inputs have no use for: a world that cannot ends here."""
    if any(name in FAULTS for name, _ in todo):
        world.reset("bare")


def _in_worlds(
    directory: Path,
    equipment: Path,
    todo: list[tuple[str, str]],
    seed: int,
    deadline: float | None,
    jobs: int,
    report: Callable[[Tried], None],
) -> list[Tried]:
    context = multiprocessing.get_context("fork")
    turn, answers = context.Value("L", 0), context.SimpleQueue()

    def work(number: int) -> None:
        try:
            try_all(number)
            answers.put("done")
        except BaseException:
            answers.put(traceback.format_exc())

    def try_all(number: int) -> None:
        own_mounts()
        world = World(directory / f"world{number}", equipment)
        _make_ready(world, todo)
        while deadline is None or time.monotonic() < deadline:
            with turn.get_lock():
                index = turn.value
                turn.value += 1
            if index >= len(todo):
                break
            name, fault = todo[index]
            answers.put(try_one(world, GROUPS[name], fault, seed))
        world.close()

    workers = [context.Process(target=work, args=(number,), daemon=True) for number in range(jobs)]
    for worker in workers:
        worker.start()
    results: list[Tried] = []
    remaining = jobs
    while remaining:
        answer = answers.get()
        if answer == "done":
            remaining -= 1
        elif isinstance(answer, str):
            raise RuntimeError(f"a world ended early:\n{answer}")
        elif answer is not None:
            results.append(answer)
            report(answer)
    for worker in workers:
        worker.join()
    return results


def table(results: Sequence[Tried]) -> str:
    """How many faults of each group were tried, and in how many of them what was wrong."""
    rows = []
    groups = [name for name in GROUPS if any(tried.group == name for tried in results)]
    for name in [*groups, "all"]:
        group_results = [tried for tried in results if name in (tried.group, "all")]
        counts = [
            sum(
                any(finding.column == column for finding in tried.findings)
                for tried in group_results
            )
            for column in COLUMNS
        ]
        rows.append([name, *map(str, (len(group_results), *counts))])
    return as_table(("group", "tried", *COLUMNS), rows)
