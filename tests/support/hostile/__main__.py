"""Try hostile inputs for as long as asked, and print the table: class, tried, refused, findings.

`python -m support.hostile --seconds 3600 --seed 7` (`make hostile`). A finding is printed with its
seed as it comes, and its input is kept; `--only CLASS --trial SEED` runs that one again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from support.hostile.classes import CLASSES, Samples
from support.hostile.trial import Boxes, Ended, Trial, attempt, warm_up


def main() -> int:
    """Return 1 when there are findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--count", type=int, help="so many trials of each class, however long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=list(CLASSES))
    parser.add_argument("--trial", help="run one trial of the only class, by its number")
    parser.add_argument("--keep", type=Path, help="where inputs of findings go")
    asked = parser.parse_args()
    warm_up()
    root = Path(tempfile.mkdtemp(prefix="tilusbuild-hostile-"))
    try:
        return _run(asked, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _run(asked: argparse.Namespace, root: Path) -> int:
    samples = Samples.made(root / "samples")
    boxes = Boxes(root / "boxes")
    names = asked.only or list(CLASSES)
    tried, refused, found = Counter[str](), Counter[str](), Counter[str]()
    kinds: Counter[tuple[str, str]] = Counter()
    began, number = time.monotonic(), 0
    most = None if asked.count is None else asked.count * len(names)
    while number < most if most is not None else time.monotonic() - began < asked.seconds:
        name = names[number % len(names)]
        seed = asked.trial or f"{asked.seed}:{name}:{number // len(names)}"
        number += 1
        trial = CLASSES[name](random.Random(seed), samples)
        with boxes.one() as box:
            ended, wrong = attempt(trial, box)
            tried[name] += 1
            refused[name] += ended.status != 0
            if wrong:
                found[name] += 1
                kinds[name, wrong[0].split(":")[0]] += 1
                _tell(seed, trial, ended, wrong)
                if asked.keep:
                    shutil.copytree(box, asked.keep / seed.replace(":", "-"), symlinks=True)
        if asked.trial:
            print(ended.out + ended.err)
            break
    _table(asked.seed, time.monotonic() - began, names, (tried, refused, found))
    for (name, kind), count in kinds.most_common():
        print(f"  {name}: {kind}: {count}")
    return 1 if found else 0


def _tell(seed: str, trial: Trial, ended: Ended, wrong: list[str]) -> None:
    print(f"FINDING {seed}: {' '.join(trial.words)!r:.200} → {ended.status}", flush=True)
    for each in wrong:
        print(f"  {each}")
    for line in ended.err.splitlines()[-6:]:
        print(f"  | {line!a:.200}")


def _table(seed: int, seconds: float, names: list[str], columns: tuple[Counter[str], ...]) -> None:
    print(f"\nseed {seed}, {seconds:.0f} s\n{'class':12}{'tried':>9}{'refused':>9}{'findings':>9}")
    for name in names:
        print(f"{name:12}" + "".join(f"{column[name]:>9,}" for column in columns))
    print(f"{'all':12}" + "".join(f"{column.total():>9,}" for column in columns))


if __name__ == "__main__":
    sys.exit(main())
