"""What is to be measured: the programs of an instance, and cases as the JSON that a worker reads.

A case is one combination of sizes: its directory holds `case.json`, with the seed of each tensor
(`elements.py`) or its content (`NAME.input`, raw bytes in C order), and what each output should
hold after the call (`NAME.want`, likewise). A case is known by its digest, which covers all of that
and the way of timing: a sample belongs to a case and a program, and to no path, host or time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.runtime.regular import read_bytes, sha256_file

if TYPE_CHECKING:
    from tilusbuild.runtime.script import Script, ScriptServes

CallScalar: TypeAlias = bool | int | float | str

CASE = "case.json"
WORKSPACE = "workspace"
"""The dtype of a workspace in a case. Each program has its own number of bytes."""
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class CaseArgument:
    """One argument of the plain C `launch`, in its order."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    """None for a scalar."""
    value: CallScalar | None = None
    """Of a scalar; of a struct its bytes, as hexadecimal digits; None for a null pointer. Of a
    tensor the seed of what it holds before the call; None where `NAME.input` has it."""
    out: bool = False
    reset: bool = False
    """Whether the tensor is restored before every launch that is timed."""
    want: str | None = None
    """The type of the elements in `NAME.want`; None when the output is not checked."""
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def bytes(self) -> int:
        """Return the bytes of the tensor; 0 for a scalar."""
        return 0 if self.shape is None else DTYPES[self.dtype].bytes * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Case:
    """One combination of sizes."""

    digest: str
    sizes: Mapping[str, CallScalar]
    arguments: tuple[CaseArgument, ...]
    cold: bool
    """Time with caches that hold none of the data."""
    judge: str = ""
    """The digest of the reference and the tolerances; "" where nothing is compared. The case's
    digest covers it only with `find_mismatch`."""
    find_mismatch: Callable[[Mapping[str, bytes]], str | None] | None = None
    """Returns what is wrong with the outputs, by their names; None for right ones. `case.json` does
    not have it: a package's outputs are not compared by a function of the project."""
    directory: str = ""
    """The path of its files; "" for a case without files here."""

    @property
    def label(self) -> str:
        """Return the sizes for people: `m=1, n=1000`."""
        return ", ".join(f"{name}={value}" for name, value in self.sizes.items()) or "no sizes"

    def explain_mismatch(self, outputs: Iterable[Mapping[str, bytes]]) -> str | None:
        """Return what is wrong with the first wrong one of several outputs, by `find_mismatch`;
        None if there is none, or no function. Raises `InputError`."""
        if self.find_mismatch is None:
            return None
        return next(filter(None, map(self.find_mismatch, outputs)), None)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One schedule's program. `library` is a path."""

    index: int
    hash: str
    library: str
    schedule: Mapping[str, CallScalar]
    content: str = ""
    """The digest of the library; "" if it was not read. Programs of equal content are measured
    once."""


@dataclass(frozen=True, slots=True)
class Work:
    """The programs of one instance, to be compared."""

    default: int | None
    groups: tuple[tuple[str, ...], ...]
    """The parameters, linked ones together: a search changes one group at a time."""
    programs: tuple[Candidate, ...]
    serves: ScriptServes | None = None
    """The rules of the sizes that programs may serve."""

    def select_serving(self, sizes: Mapping[str, CallScalar]) -> Work:
        """Return the work with the programs that serve these sizes of a call."""
        serves = self.serves
        if serves is None:
            return self
        serving = (p for p in self.programs if not serves.explain_refusal(p.index, sizes))
        return replace(self, programs=tuple(serving))

    @property
    def baseline(self) -> int | None:
        """Return the program that a call takes when nothing is measured: the default, else the
        first; None without programs."""
        first = next((program.index for program in self.programs), None)
        return first if self.default is None else self.default


class ProgramSource:
    """Has the programs of a tuning. In this one all are built already; `tune/ahead.py` has the one
    that builds them while others are measured."""

    ahead = 0
    """How many compiles run at once, and so many programs are built ahead of need."""

    def build_ahead(
        self, programs: Iterable[Candidate], limit: float, on_build: Callable[[list[str]], None]
    ) -> None:
        """Begin to build the first `limit` of these programs that are not built. Call `on_build`
        with their hashes before."""

    def take_program(self, program: Candidate) -> tuple[Candidate | None, str]:
        """Return a program when it is built, with the digest of its library; for one that cannot be
        built None and the reason. Raises `OSError`."""
        return replace(program, content=sha256_file(program.library)), ""

    def order_built(self, programs: Sequence[Candidate]) -> Iterable[Candidate]:
        """Return the programs, those first that are built first."""
        return programs

    def cancel_on_error(self) -> AbstractContextManager[None]:
        """Return a context whose exceptions end all waits for a program, by `CancelledError`."""
        return nullcontext()

    def pause_builds(self) -> AbstractContextManager[None]:
        """Return a context in which no compiler disturbs the device."""
        return nullcontext()


def make_work(script: Script, programs: Iterable[int], groups: Sequence[tuple[str, ...]]) -> Work:
    """Return what a race needs to compare built programs of a script.

    `groups` are the parameters of its space, with those in one group that are linked: a search
    changes one group at a time.
    """
    return Work(
        default=script.default,
        groups=tuple(groups),
        programs=tuple(make_candidate(script, program) for program in programs),
        serves=script.serves,
    )


def make_candidate(script: Script, program: int) -> Candidate:
    """Return a program of a script by its number."""
    return Candidate(
        index=program,
        hash=script.programs[program],
        library=script.get_library_path(program),
        schedule=script.get_schedule(program),
    )


def digest_case(value: Mapping[str, Any], directory: str) -> str:
    """Return the digest of `case.json`, the inputs and the expected outputs. Raises `OSError`."""
    hasher = hashlib.sha256(json.dumps(value, sort_keys=True).encode())
    for name in sorted(os.listdir(directory)):
        if name.endswith((".input", ".want")):
            hasher.update(f"{name}\0{sha256_file(os.path.join(directory, name))}".encode())
    return hasher.hexdigest()


def write_case(
    directory: str,
    sizes: Mapping[str, CallScalar],
    arguments: tuple[CaseArgument, ...],
    *,
    cold: bool,
    judge: str = "",
    find_mismatch: Callable[[Mapping[str, bytes]], str | None] | None = None,
) -> Case:
    """Write `case.json` beside the expected outputs; return the case. Raises `OSError`."""
    value = {
        "schema": SCHEMA,
        "sizes": dict(sizes),
        "arguments": [asdict(argument) for argument in arguments],
        "cold": cold,
        # Another function may decide otherwise: no earlier answer counts then.
        **({"compare": judge} if find_mismatch else {}),
    }
    digest = digest_case(value, directory)
    with open(os.path.join(directory, CASE), "w", encoding="utf-8") as file:
        json.dump({**value, "digest": digest, "judge": judge}, file, indent=1)
    return Case(digest, dict(sizes), arguments, cold, judge, find_mismatch, directory)


def read_case(directory: str) -> Case:
    """Return the case in a directory. Raises `OSError`, and `ValueError` for another form."""
    value = json.loads(read_bytes(os.path.join(directory, CASE)))
    try:
        arguments = []
        for row in value["arguments"]:
            # JSON has lists in place of tuples.
            shape = None if row["shape"] is None else tuple(row["shape"])
            arguments.append(CaseArgument(**{**row, "shape": shape}))
        judge = str(value.get("judge", ""))
        return Case(
            value["digest"],
            value["sizes"],
            tuple(arguments),
            value["cold"],
            judge,
            directory=directory,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{directory}/{CASE} is malformed: {error}") from None
