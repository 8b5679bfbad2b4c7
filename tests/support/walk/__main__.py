"""Walk, and print the shortest walk that finds the same.

`python -m support.walk --seed 7 --steps 1000` (`make walk`). A finding is printed with its step;
`--only 3,17,18` takes these steps of the walk alone.
"""

import argparse
import contextlib
import importlib.util
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.walk.steps import Walk, steps
from support.walk.world import FoundError

_SHRINK_SECONDS = 300.0


def main() -> int:
    """Return 1 when there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1e9, help="end after so many")
    parser.add_argument("--only", help="numbers of steps, with commas")
    parser.add_argument("--shrink", type=float, default=_SHRINK_SECONDS, metavar="SECONDS")
    parser.add_argument("--host", action="store_true", help="compile nothing for a GPU")
    parser.add_argument("-v", action="store_true", help="print each step")
    asked = parser.parse_args()
    only = [int(number) for number in asked.only.split(",")] if asked.only else None
    numbers = only or list(range(asked.steps))
    device_compiler = "" if asked.host else gpu()
    began = time.monotonic()
    finding, step_numbers, counts = walk(
        asked.seed, numbers, device_compiler, until=began + asked.seconds, verbose=asked.v
    )
    spent = f"{time.monotonic() - began:.0f} s"
    print(
        f"seed {asked.seed}: {len(step_numbers)} steps in {spent}, {'FOUND' if finding else 'well'}"
    )
    print(f"  {counts}")
    if not finding:
        return 0
    print(finding, flush=True)
    if asked.shrink > 0:
        step_numbers, finding = shrunk(
            asked.seed, step_numbers, finding, device_compiler, seconds=asked.shrink
        )
        print(f"the shortest walk that was found:\n{finding}")
    print(f"again: make walk SEED={asked.seed} ONLY={','.join(map(str, step_numbers))}", flush=True)
    return 1


def walk(
    seed: int,
    numbers: Sequence[int],
    device_compiler: str,
    *,
    until: float = math.inf,
    verbose: bool = False,
) -> tuple[str, list[int], str]:
    """Take these steps of a seed's walk; return what was found, the steps that were taken, and
    what was run."""
    drawn = steps(seed, max(numbers) + 1)
    step_numbers: list[int] = []
    with _place() as directory:
        walk = Walk(directory / "w", device_compiler)
        finding = ""
        try:
            for number in numbers:
                if time.monotonic() > until or finding:
                    break
                name, own = drawn[number]
                step_numbers.append(number)
                before = time.monotonic()
                try:
                    walk.take(name, own)
                except FoundError as error:
                    finding = f"step {number}, {name} {walk.said}:\n{error}"
                if verbose:
                    took = time.monotonic() - before
                    print(f"{number:4} {took:5.1f} s  {name} {walk.said}", flush=True)
        finally:
            walk.world.close()
        return finding, step_numbers, str(dict(sorted(walk.world.counts.items())))


def shrunk(
    seed: int, step_numbers: list[int], finding: str, device_compiler: str, *, seconds: float
) -> tuple[list[int], str]:
    """Drop steps for as long as there is still a finding and time; the last step stays."""
    until = time.monotonic() + seconds
    size = len(step_numbers) // 2
    while size:
        start = 0
        while start < len(step_numbers) - 1 and time.monotonic() < until:
            fewer = step_numbers[:start] + step_numbers[min(start + size, len(step_numbers) - 1) :]
            again, ended, _ = walk(seed, fewer, device_compiler, until=until)
            if again:
                step_numbers, finding = ended, again
            else:
                start += size
        size //= 2
    return step_numbers, finding


def gpu() -> str:
    """The quickest compiler of device code that is here."""
    roots = getattr(importlib.util.find_spec("nvidia"), "submodule_search_locations", None) or []
    if any(Path(root).glob("*/lib/libnvrtc.so*") for root in roots):
        return "nvrtc"
    return "nvcc" if shutil.which("nvcc") else ""


@contextlib.contextmanager
def _place() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="tilusbuild-walk-"))
    try:
        yield directory
    finally:
        if os.environ.get("WALK_KEEP"):
            print(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
