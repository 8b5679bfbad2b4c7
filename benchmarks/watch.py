"""From a save to the compiler's start, in a project of 1,000 programs; and what a soak leaves.

    python benchmarks/watch.py [--programs 1000] [--rounds 10] [--json] [--small]
    python benchmarks/watch.py --soak MINUTES

`tilusbuild watch` runs as a process of its own, with a toolkit that only journals. A save is a
write beside the template and a rename, as editors do. The clock runs from the rename to the moment
when the compiler has written to its journal, so it holds the debounce and the start of a process.
Each kind of save also counts renderings and compiles, and says how many there have to be.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _projects
from _bench import TILUSBUILD, machine, workshop

from tilusbuild.watch.change_detector import QUIET

SCRIPTS = 10


class Watch:
    """A `tilusbuild watch` that runs, and what it says."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [*TILUSBUILD, "watch", "--json", *words],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line) if line.startswith("{") else {"event": line})
        self._events.put(None)

    def rest(self) -> list[dict[str, Any]]:
        """Everything said until it waits for a change again."""
        events = []
        while (event := self._events.get(timeout=600)) is not None:
            events.append(event)
            if event["event"] == "watching":
                return events
        raise AssertionError(f"watch has ended: {events[-3:]}")

    @property
    def memory(self) -> int:
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    @property
    def processes(self) -> int:
        """That it started and that are there."""
        pids = [self.process.pid]
        for pid in pids:
            # What has ended since it was listed has no children.
            with suppress(FileNotFoundError, ProcessLookupError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/children") as file:
                        pids += [int(word) for word in file.read().split()]
        return len(pids) - 1

    def stop(self) -> int:
        """Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=60)


@dataclass
class Kind:
    """A kind of save: what it does, and what it has to lead to."""

    name: str
    edit: Callable[[int], None]
    renders: int
    compiles: int
    latencies: list[float] = field(default_factory=list)
    planned: list[float] = field(default_factory=list)
    seen: list[tuple[int, int]] = field(default_factory=list)


def save(path: Path, text: str) -> None:
    """As an editor does."""
    beside = path.with_name(f".{path.name}.swp")
    beside.write_text(text)
    os.replace(beside, path)


def kinds(directory: Path, programs: int) -> list[Kind]:
    per_script = programs // SCRIPTS

    def template(text: str) -> Callable[[int], None]:
        def edit(number: int) -> None:
            path = directory / f"kernels/s{number % SCRIPTS}.cu.j2"
            save(path, _projects.TEMPLATE + text.format(number=number))

        return edit

    def manifest(number: int) -> None:
        path = directory / "tilus.toml"
        save(path, f"{path.read_text()}# {number}\n")

    return [
        Kind("a kernel's code", template("// edit {number}\n"), per_script, per_script),
        Kind("a comment of its template", template("{{# {number} #}}"), per_script, -1),
        Kind("a comment in the manifest", manifest, 0, 0),
    ]


def measure(watch: Watch, kind: Kind, journal: Path, number: int) -> None:
    size = journal.stat().st_size
    kind.edit(number)
    saved = time.perf_counter()
    if kind.compiles > 0:
        while journal.stat().st_size == size:
            if time.perf_counter() - saved > 60:
                raise AssertionError("no compiler started")
            time.sleep(0.0005)
        kind.latencies.append(time.perf_counter() - saved)
    events = watch.rest()
    renders = sum(event["renders"] for event in events if event["event"] == "replanned")
    compiles = sum(event["event"] == "started" for event in events)
    kind.planned += [event["seconds"] for event in events if event["event"] == "replanned"]
    kind.seen.append((renders, compiles))


def latency(programs: int, rounds: int) -> list[Kind]:
    with workshop() as work_directory:
        nvcc = _projects.fake_toolkit(work_directory / "toolkit")
        directory = work_directory / "project"
        _projects.project(directory, programs, nvcc, scripts=SCRIPTS)
        watch = Watch(directory)
        watch.rest()
        saves = kinds(directory, programs)
        code, comment, manifest = saves
        for number in range(rounds):
            time.sleep(0.3)
            measure(watch, code, work_directory / "toolkit/journal", number)
            # The comment goes to the text that is there, so that only the comment is new.
            path = directory / f"kernels/s{number % SCRIPTS}.cu.j2"
            text = path.read_text()
            comment.edit = lambda n, path=path, text=text: save(path, f"{{# {n} #}}{text}")  # type: ignore[misc]
            comment.compiles = 0
            time.sleep(0.3)
            measure(watch, comment, work_directory / "toolkit/journal", number)
            time.sleep(0.3)
            measure(watch, manifest, work_directory / "toolkit/journal", number)
        status = watch.stop()
        assert status == 130, status
    return saves


def show(saves: list[Kind], programs: int) -> dict[str, Any]:
    print(f"{programs} programs in {SCRIPTS} scripts; a debounce of {QUIET * 1000:.0f} ms\n")
    heads = ("from a save to the compiler", "median", "min", "max", "less the debounce")
    print(f"{heads[0]:30}{heads[1]:>9}{heads[2]:>9}{heads[3]:>9}{heads[4]:>20}   (ms)")
    row_by_kind: dict[str, Any] = {}
    for kind in saves:
        values = [1000 * value for value in kind.latencies]
        if values:
            middle = statistics.median(values)
            print(
                f"{kind.name:30}{middle:9.1f}{min(values):9.1f}{max(values):9.1f}"
                f"{middle - 1000 * QUIET:20.1f}"
            )
            row_by_kind[kind.name] = {"median": middle, "min": min(values), "max": max(values)}
    print(
        f"\n{'what a save costs':30}{'renders':>9}{'needed':>9}{'compiles':>9}{'needed':>9}"
        "   plan (ms)"
    )
    for kind in saves:
        renders = statistics.median(seen[0] for seen in kind.seen)
        compiles = statistics.median(seen[1] for seen in kind.seen)
        most = max(seen for seen in kind.seen)
        planned = 1000 * statistics.median(kind.planned)
        print(
            f"{kind.name:30}{renders:9.0f}{kind.renders:9}{compiles:9.0f}{kind.compiles:9}"
            f"{planned:12.1f}"
        )
        row_by_kind.setdefault(kind.name, {}).update(
            renders=renders, compiles=compiles, most=most, plan=planned
        )
        assert all(seen == (kind.renders, kind.compiles) for seen in kind.seen), kind.seen
    return row_by_kind


_ROW = "{:8.1f}{:8}{:13.1f}{:12}{:9}{:11}"


def soak(minutes: float, programs: int) -> dict[str, Any]:
    """Random edits, mistakes, renames and reverts for so long; what the process holds meanwhile."""
    chance = random.Random(1)
    with workshop() as work_directory:
        nvcc = _projects.fake_toolkit(work_directory / "toolkit")
        directory = work_directory / "project"
        _projects.project(directory, programs, nvcc, scripts=SCRIPTS)
        watch = Watch(directory, "--exec", "echo $TILUSBUILD_REBUILT")
        watch.rest()
        rows: list[tuple[float, int, float, int, int, int]] = []
        print(
            f"{'minutes':>8}{'edits':>8}{'resident MB':>13}{'open files':>12}{'threads':>9}"
            f"{'processes':>11}"
        )

        def note() -> None:
            held = watch.memory / 1e6, watch.open_files, watch.threads, watch.processes
            rows.append(((time.monotonic() - began) / 60, edits, *held))
            print(_ROW.format(*rows[-1]), flush=True)

        began = time.monotonic()
        edits = 0
        due = 0.0
        while (elapsed := time.monotonic() - began) < 60 * minutes:
            if elapsed >= due:
                note()
                due += 6 * minutes
            for edit in _edits(directory, chance, edits):
                edit()
                watch.rest()
            edits += 1
        note()
        assert watch.stop() == 130
    return {"rows": rows}


def _edits(directory: Path, chance: random.Random, number: int) -> list[Callable[[], None]]:
    """A few steps, each of them seen: what it writes is new."""
    kernel = directory / f"kernels/s{chance.randrange(SCRIPTS)}.cu.j2"
    manifest = directory / "tilus.toml"
    headers = [directory / f"include/h{index}.h" for index in range(5)]
    header = chance.choice(headers)
    away = directory / "away"

    def write(path: Path, text: str) -> Callable[[], None]:
        return lambda: save(path, text)

    code = write(kernel, f"{_projects.TEMPLATE}// {number}\n")
    comment = manifest.read_text().rpartition("# edit")[0] or manifest.read_text()

    def check_out() -> None:
        for path in headers:
            save(path, f"#pragma once\n// checked out {number}\n")
        code()

    return chance.choice(
        [
            [code],
            [write(kernel, f"{_projects.TEMPLATE}{{{{ missing_{number} }}}}\n"), code],
            [code, write(kernel, f"{_projects.TEMPLATE}// {number}\n{{# {number} #}}")],
            [write(kernel, f"{_projects.TEMPLATE}// fake: fail\n// {number}\n"), code],
            [write(manifest, f"{comment}# edit {number}\n")],
            [write(manifest, f"[nothing # edit {number}\n"), write(manifest, comment)],
            [write(header, f"#pragma once\n// {number}\n")],
            [check_out],
            [code, kernel.unlink, write(kernel, f"{_projects.TEMPLATE}// again {number}\n")],
            [
                lambda: os.rename(directory / "kernels", away),
                lambda: os.rename(away, directory / "kernels"),
            ],
        ]
    )


def main() -> None:
    # Who is started in the background ignores Ctrl-C, and so would the watch.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    parser.add_argument("--small", action="store_true", help="tiny sizes: only that it works")
    parser.add_argument("--json", action="store_true", help="a line of JSON at the end")
    options = parser.parse_args()
    if options.small:
        options.programs, options.rounds = 20, 1
    if options.soak is not None:
        results = soak(options.soak, 20)
    else:
        results = show(latency(options.programs, options.rounds), options.programs)
    if options.json:
        print(json.dumps({"benchmark": "watch", "machine": machine(), "found": results}))


if __name__ == "__main__":
    main()
