"""What is to be measured, as values and as the JSON that a worker and a bundle read.

A case is one combination of sizes: its directory holds `case.json`, with the seed of each tensor
(`elements.py`), and what each output should hold after the call (`NAME.want`, raw bytes in C
order). A case is known by its digest, which covers all of that and the way of timing: a sample
belongs to a case and a program, and to no path, host or time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.runtime.regular import open_file, read_bytes

Scalar: TypeAlias = "bool | int | float | str"

CASE, WORK = "case.json", "work.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class CaseArgument:
    """One argument of the plain C `launch`, in its order."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    """None for a scalar."""
    value: Scalar | None = None
    """Of a scalar; of a struct its bytes, as hexadecimal digits; None for a null pointer. Of a
    tensor the seed of what it holds before the call."""
    out: bool = False
    want: str | None = None
    """The type of the elements in `NAME.want`; None when the output is not checked."""
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def bytes(self) -> int:
        """Of the tensor; 0 for a scalar."""
        if self.shape is None:
            return 0
        count = DTYPES[self.dtype].bytes
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, slots=True)
class Case:
    """One combination of sizes."""

    digest: str
    sizes: Mapping[str, Scalar]
    arguments: tuple[CaseArgument, ...]
    cold: bool
    """Time with caches that hold none of the data."""

    @property
    def label(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.sizes.items()) or "no sizes"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One schedule's program. `library` is a path."""

    index: int
    hash: str
    library: str
    schedule: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Work:
    """One instance of a script to tune. Paths of its programs are relative to the file's
    directory."""

    label: str
    script: str
    """The name of the script."""
    script_hash: str
    kind: str
    """ "cpu" or "cuda"."""
    default: int | None
    groups: tuple[tuple[str, ...], ...]
    """The parameters, linked ones together: what counts as one step of a search."""
    programs: tuple[Candidate, ...]
    cases: tuple[str, ...]
    """Their directories."""
    judge: str = ""
    """The digest of what results are judged by; "" where nothing is compared."""

    def to_json(self) -> bytes:
        return (json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n").encode()


def digest_of(value: Mapping[str, Any], directory: str) -> str:
    """Return the digest of a case: what `case.json` says, and its files by content. Raises
    `OSError`."""
    hasher = hashlib.sha256(json.dumps(value, sort_keys=True).encode())
    for name in sorted(os.listdir(directory)):
        if name.endswith(".want"):
            with open_file(os.path.join(directory, name)) as file:
                hasher.update(name.encode() + b"\0")
                for block in iter(lambda: file.read(1 << 20), b""):
                    hasher.update(block)
    return hasher.hexdigest()


def write_case(
    directory: str, sizes: Mapping[str, Scalar], arguments: tuple[CaseArgument, ...], *, cold: bool
) -> Case:
    """Complete a directory whose tensors are there. Raises `OSError`."""
    value = {
        "schema": SCHEMA,
        "sizes": dict(sizes),
        "arguments": [asdict(argument) for argument in arguments],
        "cold": cold,
    }
    digest = digest_of(value, directory)
    with open(os.path.join(directory, CASE), "w", encoding="utf-8") as file:
        json.dump({**value, "digest": digest}, file, indent=1)
    return Case(digest, dict(sizes), arguments, cold)


def read_case(directory: str) -> Case:
    """Raises `OSError`, and `ValueError` for a case of another form."""
    value = json.loads(read_bytes(os.path.join(directory, CASE)))
    try:
        return Case(value["digest"], value["sizes"], _arguments(value["arguments"]), value["cold"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{directory}/{CASE} is malformed: {error}") from None


def _arguments(rows: Any) -> tuple[CaseArgument, ...]:
    return tuple(
        CaseArgument(**{**row, "shape": None if row["shape"] is None else tuple(row["shape"])})
        for row in rows
    )


def read_work(path: str) -> Work:
    """Raises `OSError`, and `ValueError` for a file of another form."""
    value = json.loads(read_bytes(path))
    try:
        return Work(
            label=value["label"],
            script=value["script"],
            script_hash=value["script_hash"],
            kind=value["kind"],
            default=value["default"],
            groups=tuple(tuple(group) for group in value["groups"]),
            programs=tuple(Candidate(**program) for program in value["programs"]),
            cases=tuple(value["cases"]),
            judge=value.get("judge", ""),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is malformed: {error}") from None
