"""What programs came to in earlier plans, so that a plan renders only what may have changed.

The hash of a program is a function of its instance's fixed facts, of the schedule's values, of the
templates that its rendering asked for, and of the headers that its source can reach. A memo keeps
the answers together with digests of all four, and gives one only when each is what it was:

- fixed facts (`ScriptInstance.fixed`) and the code that makes programs: by digest;
- templates: by the digest of what the renderer reads now;
- headers: one source of each kind is kept, and its closure is computed again. Two sources are of
  one kind when a closure cannot tell them apart.

So a plan by memo is the plan without it, and time stamps play no part. A memo that is missing,
damaged or of another version costs time only. It is written only when something was added.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice

from tilusbuild.plan.points import Points
from tilusbuild.plan.script_instance import RenderedProgram, ScriptInstance
from tilusbuild.render.closure import Closure
from tilusbuild.space import Schedule
from tilusbuild.state.files import write_atomic
from tilusbuild.state.hashing import sha256_bytes, sha256_text
from tilusbuild.toolchain import DigestMemory

_MAGIC = b"tilusbuild plan 1\n"
_LENGTH = struct.Struct("<Q")
_ROW = struct.Struct("<32s32sH")
"""The digest of a schedule's values, the program's hash, and the number of its kind."""
_MAX_KINDS = 1000
_SLACK = 1000
"""So many rows, or as many as four times those in use, are kept though no schedule asks for them:
those of another level, or of values that were taken out and may come back."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Programs that asked for the same templates and can reach the same headers."""

    templates: tuple[tuple[str, str], ...]
    """Name and digest of each template that was asked for; "" when there was none."""
    sample: str
    """A source of this kind."""
    closure: str
    """The digest of its closure, with what the toolchain has of the headers beyond it."""


@dataclass(slots=True)
class Answers:
    """What is known of one instance."""

    fixed: str
    kinds: list[Kind] = field(default_factory=list)
    rows: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)


class PlanMemo:
    """The answers of one project's scripts: a file for each in `folder`, read when asked for.

    `folder` is only written to by `save`. `owner` tells projects that share a folder apart.
    """

    def __init__(self, folder: str, owner: str, memory: DigestMemory) -> None:
        self._folder = folder
        self._owner = owner
        self._code = own_code(memory)
        self._scripts: dict[str, dict[str, Answers]] = {}
        self._changed: set[str] = set()
        self.points = Points(folder, owner, self._code)
        """What was chosen of the scripts' spaces."""

    def programs(
        self, script_instance: ScriptInstance, schedules: Sequence[Schedule]
    ) -> tuple[str, ...]:
        """The hashes of an instance's programs; those that are not known are made. Raises
        `InputError`."""
        known = self._answers(script_instance)
        lookup = _Lookup(script_instance, known)
        found = tuple(lookup.program(schedule) for schedule in schedules)
        if lookup.made:
            self._changed.add(script_instance.script)
            self._scripts[script_instance.script][script_instance.label] = lookup.answers()
        return found

    def _answers(self, script_instance: ScriptInstance) -> Answers:
        if script_instance.script not in self._scripts:
            self._scripts[script_instance.script] = self._read(script_instance.script)
        fixed = sha256_text(f"{self._code}\n{script_instance.fixed()}")
        known = self._scripts[script_instance.script].get(script_instance.label)
        return known if known is not None and known.fixed == fixed else Answers(fixed)

    def save(self) -> None:
        """Write what is new; silently nothing where that is not possible."""
        self.points.save()
        for script in self._changed:
            with suppress(OSError):
                os.makedirs(self._folder, exist_ok=True)
                write_atomic(self._path(script), packed(self._scripts[script]))
        self._changed.clear()

    def forget(self) -> None:
        """Drop all answers of the scripts that were asked for."""
        self._scripts = {script: {} for script in self._scripts}
        self._changed.update(self._scripts)

    def _path(self, script: str) -> str:
        return os.path.join(self._folder, sha256_text(f"{self._owner}\0{script}"))

    def _read(self, script: str) -> dict[str, Answers]:
        try:
            with open(self._path(script), "rb") as file:
                return unpacked(file.read())
        except (OSError, ValueError):
            return {}


class _Lookup:
    """One instance under way: each kind is looked at once."""

    def __init__(self, script_instance: ScriptInstance, known: Answers) -> None:
        self._instance = script_instance
        self._known = known
        self._valid: dict[int, bool] = {}
        self._numbers: dict[tuple[tuple[str, ...], int], int | None] = {}
        self._closures: list[Closure] = []  # kept alive: their `id` is a key
        self._used: set[bytes] = set()
        self.made = 0

    def program(self, schedule: Schedule) -> str:
        key = bytes.fromhex(sha256_text(repr(dict(schedule.values))))
        self._used.add(key)
        row = self._known.rows.get(key)
        if row is not None and self._holds(row[1]):
            return row[0].hex()
        made = self._instance.render(schedule)
        program = made.hash
        kind = self._kind(made)
        if kind is not None:
            self._known.rows[key] = bytes.fromhex(program), kind
        self.made += 1
        return program

    def _holds(self, number: int) -> bool:
        if number not in self._valid:
            self._valid[number] = self._is_current(self._known.kinds[number])
        return self._valid[number]

    def _is_current(self, kind: Kind) -> bool:
        script_instance = self._instance
        if any(script_instance.template_digest(name) != digest for name, digest in kind.templates):
            return False
        closure = script_instance.closure(kind.sample)
        if self._closure_digest(closure) != kind.closure:
            return False
        script_instance.note_inputs(tuple(name for name, _ in kind.templates), closure)
        return True

    def _kind(self, made: RenderedProgram) -> int | None:
        """The number of a program's kind; None when there are too many."""
        place = (made.templates, id(made.closure))
        if place not in self._numbers:
            templates = tuple(
                (name, self._instance.template_digest(name)) for name in made.templates
            )
            kind = Kind(templates, made.recipe.source, self._closure_digest(made.closure))
            kinds = self._known.kinds
            self._closures.append(made.closure)
            self._numbers[place] = None
            if len(kinds) < _MAX_KINDS:
                self._numbers[place] = len(kinds)
                self._valid[len(kinds)] = True
                kinds.append(kind)
        return self._numbers[place]

    def _closure_digest(self, closure: Closure) -> str:
        return sha256_text("\n".join((closure.digest, *self._instance.other_headers(closure))))

    def answers(self) -> Answers:
        """What to keep: kinds that hold, and their rows."""
        rows = self._known.rows
        if len(rows) > _SLACK + 4 * len(self._used):
            rows = {key: rows[key] for key in self._used if key in rows}
        numbers: dict[int, int] = {}
        for _, number in rows.values():
            if self._holds(number):
                numbers.setdefault(number, len(numbers))
        return Answers(
            self._known.fixed,
            [self._known.kinds[number] for number in numbers],
            {
                key: (program, numbers[number])
                for key, (program, number) in rows.items()
                if number in numbers
            },
        )


def own_code(memory: DigestMemory) -> str:
    """What makes programs of inputs: this package, and the libraries that its results rest on."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    select: Callable[[str], bool] = lambda name: (  # noqa: E731
        name.endswith((".py", "/")) and not name.endswith("__pycache__/")
    )
    digest = memory.tree(package, "tilusbuild's code", select)
    libraries = (f"{name} {version(name)}" for name in ("jinja2", "markupsafe", "numpy"))
    return "\n".join([digest, sys.version, *libraries])


def packed(scripts: dict[str, Answers]) -> bytes:
    """Answers as a file holds them: a digest, a line of JSON, and the rows of all of them."""
    head = [
        {
            "instance": label,
            "fixed": known.fixed,
            "kinds": [[list(kind.templates), kind.sample, kind.closure] for kind in known.kinds],
            "rows": len(known.rows),
        }
        for label, known in scripts.items()
    ]
    text = json.dumps(head).encode()
    rows = b"".join(
        _ROW.pack(key, program, number)
        for known in scripts.values()
        for key, (program, number) in known.rows.items()
    )
    body = _LENGTH.pack(len(text)) + text + rows
    return _MAGIC + sha256_bytes(body).encode() + body


def unpacked(data: bytes) -> dict[str, Answers]:
    """What `packed` was given. Raises `ValueError` for anything else."""
    start = len(_MAGIC) + 64
    body = data[start:]
    if not data.startswith(_MAGIC) or sha256_bytes(body).encode() != data[len(_MAGIC) : start]:
        raise ValueError("not a whole file of this version")
    (length,) = _LENGTH.unpack_from(body)
    rows = _ROW.iter_unpack(body[_LENGTH.size + length :])
    return {
        entry["instance"]: Answers(
            entry["fixed"],
            [
                Kind(tuple((name, digest) for name, digest in templates), sample, closure)
                for templates, sample, closure in entry["kinds"]
            ],
            {key: (program, kind) for key, program, kind in islice(rows, entry["rows"])},
        )
        for entry in json.loads(body[_LENGTH.size : _LENGTH.size + length])
    }
