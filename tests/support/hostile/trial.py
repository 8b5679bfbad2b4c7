"""One trial: a command in a box of its own, and what is wrong with how it ended.

A fork of a process that has imported everything runs the command, so that a trial costs tens of
milliseconds. The oracle is the same for every class: a documented exit status, no traceback, a
message that names the place, nothing that acts on a terminal, nothing outside touched, no code run,
no file left in TMPDIR, and, for what is refused, little memory and time.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import stat
import sys
import threading
import time
import unicodedata
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

STATUSES = (0, 1, 2, 130)
MAX_MEMORY, MAX_SECONDS = 512 << 20, 5.0
_CPU, _WALL = 20, 120
_OURS = ("project/.cache", "home/.cache", "tmp")
"""What a command may change below its box, besides what the trial says."""
_EXTERNAL = re.compile(r"^(error|internal error|.*: error|usage|tilusbuild: error)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Trial:
    """A command, and the files that it finds. Paths are relative to the box, whose `project` is
    the working directory; `canary` in a text stands for a file that nobody may make."""

    words: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    prepare: Callable[[Path], None] | None = None
    """Changes the box further."""
    inside: Callable[[], object] | None = None
    """Runs in the child, before the command."""
    silent: bool = False
    """Whether `inside` takes away what messages go to."""
    environment: Mapping[str, str] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    """A message of what is refused has one of these, if there are any."""
    writes: tuple[str, ...] = ()
    """What the command is asked to write, besides the caches."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    status: int
    """As a shell says it: 128 and more for a signal."""
    out: str
    err: str
    cpu: float
    memory: int


def attempt(trial: Trial, box: Path) -> tuple[Ended, list[str]]:
    """Run a trial in an empty directory; return how it ended and what is wrong with that."""
    for name in ("project", "home", "tmp", "outside"):
        (box / name).mkdir(parents=True)
    (box / "outside" / "secret").write_text("secret\n")
    canary = box / "canary"
    for name, data in trial.files.items():
        path = box / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.replace(b"@CANARY@", os.fsencode(canary)))
    if trial.prepare is not None:
        trial.prepare(box)
    before = _outside(box, trial.writes)
    ended = _run(trial, box)
    wrong = list(_wrong(trial, ended))
    if canary.exists() or (box / "project" / "canary").exists():
        wrong.append("code ran: the canary is there")
    wrong += [f"touched: {each}" for each in _changed(before, _outside(box, trial.writes))]
    left = sorted(os.listdir(box / "tmp"))
    if left:
        wrong.append(f"left in TMPDIR: {left[:3]}")
    return ended, wrong


def _outside(box: Path, allowed: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    free = tuple(os.path.join(box, each) for each in (*_OURS, *allowed))
    stack = [str(box)]
    while stack:
        where = stack.pop()
        with contextlib.suppress(OSError):
            for entry in os.scandir(where):
                if entry.path in free:
                    continue
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    found[entry.path] = (status.st_ino, status.st_mode)
                    stack.append(entry.path)
                else:
                    size, mtime = status.st_size, status.st_mtime_ns
                    found[entry.path] = (status.st_ino, status.st_mode, size, mtime)
    return found


def _changed(
    before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]]
) -> list[str]:
    names = before.keys() | after.keys()
    return sorted(name for name in names if before.get(name) != after.get(name))[:3]


def _wrong(trial: Trial, ended: Ended) -> list[str]:
    wrong = []
    said = ended.out + ended.err
    if ended.status not in STATUSES:
        wrong.append(f"exit status {ended.status}")
    if "Traceback (most recent call last)" in said:
        wrong.append("a traceback")
    if "internal error" in ended.err:
        line = next(line for line in ended.err.splitlines() if "internal error" in line)
        wrong.append(line[:200])
    for character in sorted(set(said)):
        acts = unicodedata.category(character) == "Cc" and character not in "\n\t"
        if acts or unicodedata.bidirectional(character) in ("RLO", "LRO", "RLE", "LRE", "RLI"):
            wrong.append(f"{character!r} reached the terminal")
            break
    if ended.status == 2 and not trial.silent:
        if not _EXTERNAL.search(ended.err):
            wrong.append("refused without a message")
        elif trial.places and not any(place in ended.err for place in trial.places):
            wrong.append("the message names no place")
    if ended.status and ended.memory > MAX_MEMORY:
        wrong.append(f"refused with {ended.memory >> 20} MiB")
    if ended.status and ended.cpu > MAX_SECONDS:
        wrong.append(f"refused after {ended.cpu:.1f} s of processor time")
    return wrong


def _run(trial: Trial, box: Path) -> Ended:
    outputs = box / "tmp-out", box / "tmp-err"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside pytest's threads
        child = os.fork()
    if child == 0:
        _live(trial, box, outputs)
    killer = threading.Timer(_WALL, os.killpg, (child, signal.SIGKILL))
    killer.daemon = True
    killer.start()
    _, status, usage = os.wait4(child, 0)
    killer.cancel()
    killer.join()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # what it left running
    code = os.waitstatus_to_exitcode(status)
    out, err = (path.read_bytes().decode("utf-8", "replace") for path in outputs)
    for path in outputs:
        path.unlink()
    return Ended(
        128 - code if code < 0 else code,
        out,
        err,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss << 10,
    )


def _live(trial: Trial, box: Path, outputs: tuple[Path, Path]) -> NoReturn:
    """Be the command."""
    status = 99
    try:
        os.setpgid(0, 0)
        os.environ.clear()
        os.environ.update(
            {
                "PATH": _PATH,
                "HOME": str(box / "home"),
                "TMPDIR": str(box / "tmp"),
                "LANG": "C.UTF-8",
                **trial.environment,
            }
        )
        os.chdir(box / "project")
        for number, path in ((1, outputs[0]), (2, outputs[1])):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
            os.dup2(handle, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = open(1, "w", encoding="utf-8", errors="strict", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU, _CPU + 5))
        if trial.inside is not None:
            trial.inside()
        status = _command([word.replace("@CANARY@", str(box / "canary")) for word in trial.words])
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
    finally:
        os._exit(status)


_PATH = os.environ.get("PATH", os.defpath)


def _command(words: list[str]) -> int:
    from tilusbuild.cli.main import main

    try:
        return main(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1


def warm_up() -> None:
    """Import what commands need, once for all trials."""
    import importlib

    import tilusbuild.cli.main  # noqa: F401
    from tilusbuild.cli.parser import VERBS, actions_of

    for verb in VERBS:
        actions_of(verb)
    for name in (
        "builder.build",
        "builder.project",
        "builder.resources",
        "builder.noop_record",
        "plan.planner",
        "render.renderer",
        "package.read",
        "package.check",
        "package.pack",
        "package.install",
        "interop.kind",
        "cache.verify",
        "cache.merging",
        "report.choose",
        "expr.vector",
        "dispatch.describe",
        "process.local",
    ):
        importlib.import_module(f"tilusbuild.{name}")


class Boxes:
    """Directories for one trial after the other."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._number = 0

    @contextlib.contextmanager
    def one(self):  # type: ignore[no-untyped-def]
        """Yield a path where nothing is; remove what came to be there."""
        self._number += 1
        box = self._root / f"b{self._number}-{time.time_ns():x}"
        box.mkdir(mode=0o700, parents=True)
        try:
            yield box
        finally:
            shutil.rmtree(box, ignore_errors=True)
