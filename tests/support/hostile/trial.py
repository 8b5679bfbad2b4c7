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

from support.hostile.running import Ended, run

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
    inside: Callable[[], object] | None = None
    """Runs in the child, before the command."""
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
    tools: Path | None = None
    """Stand-ins, which may write beside them, outside of the box."""


def attempt(
    trial: Trial, box: Path, *, run: Callable[[Trial, Path], Ended] = run
) -> tuple[Ended, list[str]]:
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
    ended = run(trial, box)
    wrong = [*_wrong(trial, ended), *_denied(trial, ended, box)]
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
    said, err = ended.out + ended.err, ended.err
    if "always" in trial.words:
        said, err = _STYLE.sub("", said), _STYLE.sub("", err)
    if ended.status not in STATUSES:
        wrong.append(f"exit status {ended.status}")
    if "Traceback (most recent call last)" in said:
        wrong.append("a traceback")
    if "internal error" in err:
        line = next(line for line in err.splitlines() if "internal error" in line)
        wrong.append(line[:200])
    for character in sorted(set(said)):
        acts = unicodedata.category(character) == "Cc" and character not in "\n\t"
        if acts or unicodedata.bidirectional(character) in _TURNS:
            wrong.append(f"{character!r} reached the terminal")
            break
    if ended.status == 2 and not trial.silent:
        if not _EXTERNAL.search(err):
            wrong.append("refused without a message")
        elif trial.places and not any(place in err for place in trial.places):
            wrong.append("the message names no place")
    if ended.status and ended.memory > MAX_MEMORY:
        wrong.append(f"refused with {ended.memory >> 20} MiB")
    if ended.status and ended.cpu > MAX_SECONDS:
        wrong.append(f"refused after {ended.cpu:.1f} s of processor time")
    return wrong


def _denied(trial: Trial, ended: Ended, box: Path) -> Iterator[str]:
    """Yield what the command was not let write outside of its box, unless its input names it."""
    if trial.inside is not None:
        return  # it may have given up rights
    named = (*trial.words, *trial.environment.values())
    for found in _DENIED.finditer(ended.out + ended.err):
        path = found["before"] or found["after"]
        outside = not path.startswith(str(box)) and os.path.isabs(path)
        asked = any(word.startswith(path) or path.startswith(word) for word in named if word)
        if outside and not asked and not any(path.encode() in f for f in trial.files.values()):
            yield f"denied: {path}"
