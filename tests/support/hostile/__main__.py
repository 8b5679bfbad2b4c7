"""Try hostile inputs for as long as asked, and print the table: class, tried, refused, findings.

`python -m support.hostile --seconds 3600 --seed 7` (`make hostile`). A finding is printed with its
seed as it comes; `--only CLASS --trial SEED` runs that one again.
"""

import argparse
import itertools
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.hostile.classes import CLASSES, ROUND, Laboratory
from support.hostile.running import Ended, warm_up
from support.hostile.trial import Trial, attempt

_STOPPED: list[bool] = []
"""Not empty when the run is to end after this trial: the table says how far it came."""


def main() -> int:
    """Return 1 when there are findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--count", type=int, help="so many trials of each class, however long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=CLASSES)
    parser.add_argument("--trial", help="run one trial of the only class, by its number")
    asked = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _STOPPED.append(True))
    warm_up()
    root = Path(tempfile.mkdtemp(prefix="tilusbuild-hostile-"))
    try:
        return _run(asked, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _run(asked: argparse.Namespace, root: Path) -> int:
    laboratory = Laboratory(root)
    tally = _Tally(asked.only or CLASSES)
    began = time.monotonic()
    for name in _order(asked, began):
        seed = asked.trial or f"{asked.seed}:{name}:{tally.tried[name]}"
        trial = laboratory.trial(name, seed)
        if not tally.tried[name]:
            again = laboratory.trial(name, seed)
            assert (again.words, again.files) == (trial.words, trial.files), "of the same seed"
            assert again.environment == trial.environment
        with laboratory.box() as box:
            ended, wrong = attempt(trial, box)
        tally.add(name, ended, wrong)
        if wrong:
            _tell(seed, trial, ended, wrong)
        if asked.trial:
            print(ended.out + ended.err)
    tally.print(f"seed {asked.seed}, {time.monotonic() - began:.0f} s")
    return 1 if tally.found else 0


def _order(asked: argparse.Namespace, began: float) -> Iterator[str]:
    """Yield the classes of trials, for as long as asked."""
    if asked.trial:
        yield from asked.only
    elif asked.count is not None:
        yield from (asked.only or CLASSES) * asked.count
    else:
        for name in itertools.cycle(asked.only or ROUND):
            if _STOPPED or time.monotonic() - began >= asked.seconds:
                return
            yield name


class _Tally:
    """What was tried of each class, and what became of it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.tried, self._refused, self.found = Counter[str](), Counter[str](), Counter[str]()
        self._kinds: Counter[tuple[str, str]] = Counter()

    def add(self, name: str, ended: Ended, wrong: list[str]) -> None:
        """Count a trial."""
        self.tried[name] += 1
        self._refused[name] += ended.status != 0
        if wrong:
            self.found[name] += 1
            self._kinds[name, wrong[0].split(":")[0]] += 1

    def print(self, title: str) -> None:
        """Print the table."""
        columns = (self.tried, self._refused, self.found)
        print(f"\n{title}\n{'class':12}{'tried':>9}{'refused':>9}{'findings':>9}")
        for name in self._names:
            print(f"{name:12}" + "".join(f"{column[name]:>9,}" for column in columns))
        print(f"{'all':12}" + "".join(f"{column.total():>9,}" for column in columns))
        for (name, kind), count in self._kinds.most_common():
            print(f"  {name}: {kind}: {count}", flush=True)


def _tell(seed: str, trial: Trial, ended: Ended, wrong: list[str]) -> None:
    print(f"FINDING {seed}: {' '.join(trial.words)!r:.200} → {ended.status}", flush=True)
    for each in wrong:
        print(f"  {each}")
    for line in ended.err.splitlines()[-6:]:
        print(f"  | {line!a:.200}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
