"""One trial: a command in a box of its own, and what is wrong with how it ended.

The oracle is the same for every class: a documented exit status, no traceback, a message that names
the place, nothing that acts on a terminal, nothing outside touched, no code run, no file left in
TMPDIR, and, for what is refused, little memory and time.
"""

import contextlib
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.faults.commands import Ended
from support.faults.oracle import Finding
from support.faults.world import World

STATUSES = (0, 1, 2, 130)
MAX_MEMORY, MAX_SECONDS = 512 << 20, 5.0
_OURS = ("project/.cache", "home/.cache", "tmp")
"""What a command may change below its box, besides what the trial says."""
_EXTERNAL = re.compile(r"^(error|internal error|.*: error|usage|tilusbuild: error)\b", re.MULTILINE)

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_TURNS = ("RLO", "LRO", "RLE", "LRE", "RLI", "LRI", "FSI")
_DENIED = re.compile(
    r"(?P<before>/[^\s'\":]+)['\"]?: Permission denied|Permission denied: '(?P<after>/[^']+)'"
)


@dataclass(frozen=True, slots=True)
class Trial:
    """A command, and the files that it finds. Paths are relative to the box, whose `project` is
    the working directory; `canary` in a text stands for a file that nobody may make."""

    words: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    prepare: Callable[[Path], None] | None = None
    """Changes the box further."""
    inside: str = ""
    """Python code that runs in the child, before the command."""
    silent: bool = False
    """Whether `inside` takes away what messages go to."""
    environment: Mapping[str, str] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    """A message of what is refused has one of these, if there are any."""
    writes: tuple[str, ...] = ()
    """What the command is asked to write, besides the caches."""
    start: bool | None = None
    """Whether it is a process of its own: it must be where `inside` closes streams, and cannot be
    where `inside` takes what Python needs to start. None: it may be."""


_HOLD = """
import os, resource
from tilusbuild.process import landlock
if landlock.find_version() >= 2:  # the first forbids every rename from one directory to another
    landlock.restrict_files(["/"], [{room!r}, {tools!r}, os.devnull, "/dev/tty"])
resource.setrlimit(resource.RLIMIT_CPU, (20, 25))
"""
"""Lets nothing outside of a room be written, but what stand-ins write beside them."""
_WALL = 300
"""Seconds after which a command is killed: what waits is to end on a busy machine, too."""


def attempt(world: World, trial: Trial) -> Iterator[Finding]:
    """Run a trial in the empty room of a world; yield what is wrong with how it ended."""
    world.empty()
    box = world.room
    (box / "outside").mkdir()
    (box / "outside" / "secret").write_text("secret\n")
    canary = box / "canary"
    for name, data in trial.files.items():
        path = box / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.replace(b"@CANARY@", os.fsencode(canary)))
    if trial.prepare is not None:
        trial.prepare(box)
    before = _outside(box, trial.writes)
    words = [word.replace("@CANARY@", str(canary)) for word in trial.words]
    inside = _HOLD.format(room=str(box), tools=str(world.toolkit)) + trial.inside
    variables = trial.environment
    ended = world.server.run(words, world.project, variables, seconds=_WALL, inside=inside)
    yield from (Finding("left over", f"process {process}") for process in world.server.settle())
    yield from _wrong(trial, ended)
    for denied in _denied(trial, ended, box):
        yield Finding("outside", f"denied: {denied}")
    if canary.exists() or (box / "project" / "canary").exists():
        yield Finding("outside", "code ran: the canary is there")
    for touched in _changed(before, _outside(box, trial.writes)):
        yield Finding("outside", f"touched: {touched}")
    if remaining := sorted(os.listdir(world.temporary)):
        yield Finding("left over", f"in TMPDIR: {remaining[:3]}")


def _outside(box: Path, allowed: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    stamps: dict[str, tuple[int, ...]] = {}
    free = tuple(os.path.join(box, name) for name in (*_OURS, *allowed))
    stack = [str(box)]
    while stack:
        directory = stack.pop()
        with contextlib.suppress(OSError):
            for entry in os.scandir(directory):
                if entry.path in free:
                    continue
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    stamps[entry.path] = (status.st_ino, status.st_mode)
                    stack.append(entry.path)
                else:
                    size, mtime = status.st_size, status.st_mtime_ns
                    stamps[entry.path] = (status.st_ino, status.st_mode, size, mtime)
    return stamps


def _changed(
    before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]]
) -> list[str]:
    names = before.keys() | after.keys()
    return sorted(name for name in names if before.get(name) != after.get(name))[:3]


def _wrong(trial: Trial, ended: Ended) -> Iterator[Finding]:
    output, err = ended.out + ended.err, ended.err
    if "always" in trial.words:
        output, err = _STYLE.sub("", output), _STYLE.sub("", err)
    if ended.status not in STATUSES:
        yield Finding("status", f"exit status {ended.status}: {err[-300:]!a}")
    if "Traceback (most recent call last)" in output or "internal error" in err:
        yield Finding("traceback", f"{err[-1500:]!a}")
    for character in sorted(set(output)):
        acts = unicodedata.category(character) == "Cc" and character not in "\n\t"
        if acts or unicodedata.bidirectional(character) in _TURNS:
            yield Finding("terminal", f"{character!r} reached the terminal")
            break
    if ended.status == 2 and not trial.silent:
        if not _EXTERNAL.search(err):
            yield Finding("status", "refused without a message")
        elif trial.places and not any(location in err for location in trial.places):
            yield Finding("status", f"the message names no place: {err[-300:]!a}")
    if ended.status and ended.memory > MAX_MEMORY:
        yield Finding("dear", f"refused with {ended.memory >> 20} MiB")
    if ended.status and ended.cpu > MAX_SECONDS:
        yield Finding("dear", f"refused after {ended.cpu:.1f} s of processor time")


def _denied(trial: Trial, ended: Ended, box: Path) -> Iterator[str]:
    """Yield what the command was not let write outside of its box, unless its input names it."""
    if trial.inside:
        return  # it may have given up rights
    named = (*trial.words, *trial.environment.values())
    for match in _DENIED.finditer(ended.out + ended.err):
        path = match["before"] or match["after"]
        outside = not path.startswith(str(box)) and os.path.isabs(path)
        asked = any(word.startswith(path) or path.startswith(word) for word in named if word)
        if outside and not asked and not any(path.encode() in f for f in trial.files.values()):
            yield path
