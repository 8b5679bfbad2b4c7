"""What the benchmarks share: arms that are run in turn, and the table of what they took.

An arm is one way to do the work. Arms run alternately, so that whatever else the machine does falls
on all of them alike, and are compared round by round: a ratio is the median of the rounds' ratios,
and its spread goes from the least to the greatest. Every arm says, after every run, whether the
work was done; a benchmark of something that did not happen is an error.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tilusbuild.toolchain.nvrtc_places import list_wheel_roots

ROOT = Path(__file__).resolve().parents[1]
TILUSBUILD = (sys.executable, "-m", "tilusbuild")
COMMAND = tuple(
    path for path in [os.path.join(os.path.dirname(sys.executable), "tilusbuild")]
    if os.path.exists(path)
)  # fmt: skip
"""The command that an installation makes, if this is one."""

MANY = 10_000
"""Programs; from so many on, the machine is let settle before anything is timed."""


class WorkNotDoneError(AssertionError):
    """An arm ran and the work is not there."""


@dataclass(frozen=True)
class Ran:
    """A process that has ended; times in seconds, memory in bytes."""

    wall: float
    cpu: float
    peak_rss: int
    out: str = ""


@dataclass
class Arm:
    """One way to do the work. `run` does it once; `prepare`, outside the clock, makes it due."""

    name: str
    run: Callable[[], Ran]
    check: Callable[[], bool]
    prepare: Callable[[], None] = lambda: None
    runs: list[Ran] = field(default_factory=list)

    def once(self, keep: bool = True) -> None:
        self.prepare()
        ran = self.run()
        if not self.check():
            raise WorkNotDoneError(f"{self.name} did not do the work:\n{ran.out[-2000:]}")
        if keep:
            self.runs.append(ran)

    @property
    def walls(self) -> list[float]:
        """Seconds elapsed."""
        return [ran.wall for ran in self.runs]


def alternate(arms: Sequence[Arm], rounds: int, warm_up: bool = True) -> None:
    """Run every arm once a round, each round in the other order; one round has no warm-up."""
    if warm_up and rounds > 1:
        for arm in arms:
            arm.once(keep=False)
    for number in range(rounds):
        for arm in arms if number % 2 == 0 else reversed(arms):
            arm.once()


@dataclass(frozen=True)
class Ratio:
    """How long one arm takes by another: the median of the rounds, the least, the greatest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(arm: Arm, to: Arm, what: str = "wall") -> Ratio:
    """Round by round, of time elapsed or of `cpu`."""
    pairs = zip(arm.runs, to.runs, strict=True)
    ratios = [getattr(a, what) / getattr(b, what) for a, b in pairs]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def report(
    title: str, arms: Sequence[Arm], *, unit: float = 1e-3, per: int = 1, rounds: str = ""
) -> dict[str, object]:
    """Print the table of arms, each compared with the first; the same as a value.

    `unit` is what the numbers count, in seconds; `per` divides them (programs).
    """
    base = arms[0]
    suffix = {1.0: "s", 1e-3: "ms"}[unit]
    print(f"\n{title} ({suffix}{' a program' if per > 1 else ''}{rounds})")
    print(
        f"  {'':34}{'median':>10}{'min':>10}{'max':>10}{'cpu':>10}   {base.name} by it, and of CPU"
    )
    row_by_arm: dict[str, object] = {}
    for arm in arms:
        walls = [wall / unit / per for wall in arm.walls]
        cpu = statistics.median(ran.cpu for ran in arm.runs) / unit / per
        by = ratio(base, arm)
        middle = statistics.median(walls)
        by_cpu = ratio(base, arm, "cpu")
        compared = "" if arm is base else f"   {by}, {by_cpu}"
        numbers = "".join(f"{n:10.3f}" for n in (middle, min(walls), max(walls), cpu))
        print(f"  {arm.name:34}{numbers}{compared}")
        row_by_arm[arm.name] = {
            "median": middle,
            "min": min(walls),
            "max": max(walls),
            "cpu": cpu,
            "ratio": None if arm is base else [by.median, by.low, by.high],
            "cpu_ratio": None if arm is base else [by_cpu.median, by_cpu.low, by_cpu.high],
        }
    sys.stdout.flush()
    return {"title": title, "unit": suffix, "arms": row_by_arm}


def process(
    words: Sequence[str], directory: str | Path, environment: Mapping[str, str] | None = None
) -> Ran:
    """Run a program to its end. Raises `WorkNotDoneError` when it does not end well."""
    with tempfile.TemporaryFile() as output:
        handle = output.fileno()
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, handle, 1),
            (os.POSIX_SPAWN_DUP2, handle, 2),
        ]
        program = shutil.which(words[0])
        if program is None:
            raise WorkNotDoneError(f"there is no {words[0]}")
        with entered(directory):
            started = time.perf_counter()
            pid = os.posix_spawn(
                program, list(words), {**os.environ, **(environment or {})}, file_actions=actions
            )
            _, status, usage = os.wait4(pid, 0)
            wall = time.perf_counter() - started
        output.seek(0)
        text = output.read().decode(errors="replace")
    if status:
        raise WorkNotDoneError(f"{' '.join(words)} ended with status {status}:\n{text[-4000:]}")
    return Ran(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, text)


@contextmanager
def entered(directory: str | Path) -> Iterator[None]:
    """Be in a directory."""
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def as_installed() -> None:
    """Compile our modules to bytecode, as installing them does."""
    compileall.compile_dir(ROOT / "tilusbuild", quiet=2)


@contextmanager
def workshop() -> Iterator[Path]:
    """A directory for the workloads, removed afterwards; records of builds are kept in it too."""
    as_installed()
    with tempfile.TemporaryDirectory(prefix="tilusbuild-bench-") as directory:
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = f"{directory}/xdg"
        try:
            yield Path(directory)
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


def settle() -> None:
    """What was written to make a workload is written out, and its names are forgotten by the system
    where we may ask for it (as root), as they are the next morning.

    A small table of names, as a virtual machine may have that was given its memory later
    (`dmesg | grep Dentry`), makes every `stat` walk past names of files that nobody uses.
    """
    os.sync()
    with suppress(OSError), open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2\n")


def arguments(description: str | None, **defaults: int) -> argparse.Namespace:
    """The options of a benchmark: `--small`, `--json`, and a number for each of the defaults."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="tiny sizes: only that it works")
    parser.add_argument("--json", action="store_true", help="a line of JSON at the end")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{value} without it")
    return parser.parse_args()


def machine() -> dict[str, object]:
    """What the numbers were taken on."""
    model = platform.machine()
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "names": int(Path("/proc/sys/fs/dentry-state").read_text().split()[0]),
    }


def finish(asked: argparse.Namespace, results: Sequence[Mapping[str, object]]) -> None:
    """The line of JSON, when it was asked for."""
    if asked.json:
        print(json.dumps({"machine": machine(), "results": list(results)}))


def ninja() -> str:
    """Ninja's program, of its package. Raises `WorkNotDoneError` where there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "ninja")
    path = beside if os.path.exists(beside) else shutil.which("ninja")
    if path is None:
        raise WorkNotDoneError('ninja is needed: pip install "tilusbuild[bench]"')
    return path


def nvcc() -> str:
    """The peers' nvcc: named by TILUSBUILD_BENCH_NVCC, on PATH, or of NVIDIA's wheels. Raises
    `WorkNotDoneError` where there is none."""
    named = os.environ.get("TILUSBUILD_BENCH_NVCC")
    places = ["nvcc", *(os.path.join(root, "bin", "nvcc") for root in list_wheel_roots())]
    path = next(filter(None, map(shutil.which, [named] if named else places)), None)
    if path is None:
        raise WorkNotDoneError('nvcc is needed: pip install "tilusbuild[cuda]"')
    return path


@dataclass(frozen=True)
class Use:
    """How the places for compilers were used by a build, whatever else the machine did."""

    used: float
    """Of the time from the first start to the last end, times the places: the part in use."""
    tail: float
    """Of that time, the part at the end in which fewer ran than could."""


def use(spans: Sequence[tuple[float, float]], places: int) -> Use:
    """Of (start, end) of each compile, in any unit."""
    if not spans:
        raise WorkNotDoneError("nothing was compiled")
    changes = sorted([*((start, 1) for start, _ in spans), *((end, -1) for _, end in spans)])
    begun, ended = changes[0][0], changes[-1][0]
    running, busy_time, full_until, last = 0, 0.0, begun, begun
    for moment, change in changes:
        busy_time += min(running, places) * (moment - last)
        if running >= places:
            full_until = moment
        running, last = running + change, moment
    duration = max(ended - begun, 1e-9)
    return Use(busy_time / (duration * places), (ended - full_until) / duration)


def spans_of_build(words: Sequence[str], directory: str | Path) -> list[tuple[float, float]]:
    """Run `tilusbuild build --json` and note when each compile begins and has its answer."""
    begun: dict[str, float] = {}
    spans = []
    with subprocess.Popen(words, cwd=directory, stdout=subprocess.PIPE, text=True) as build:
        assert build.stdout is not None
        for line in build.stdout:
            event, now = json.loads(line), time.perf_counter()
            if event["event"] == "started":
                begun[event["hash"]] = now
            elif event["event"] == "finished":
                spans.append((begun[event["hash"]], now))
    if build.returncode:
        raise WorkNotDoneError(f"{' '.join(words)} ended with status {build.returncode}")
    return spans


def spans_of_ninja(directory: Path) -> list[tuple[float, float]]:
    """When each edge began and ended, by `.ninja_log`: start, end (ms), mtime, output, hash."""
    lines = (directory / ".ninja_log").read_text().splitlines()[1:]
    return [(float(line.split("\t")[0]), float(line.split("\t")[1])) for line in lines]


def busy(arm: Arm, cores: int) -> None:
    """How much of the cores' time an arm and its children used."""
    part = statistics.median(ran.cpu / (ran.wall * cores) for ran in arm.runs)
    print(f"  {arm.name:34}{part:10.0%} of {cores} cores busy")
