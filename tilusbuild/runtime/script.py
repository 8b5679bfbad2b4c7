"""`script.json`: what a call needs to know of a script, read without the builder.

It stands in the script's directory beside `script.txt`, sealed. `script.txt` is what the directory
is named by, and the two must list the same programs, so a file of another script is never believed.
Whatever the bytes are, reading ends in a `Script` or in `CorruptCacheError`. docs/runtime.md has
the form.

Dispatch groups sizes in buckets, each known by the greatest size in it: what is measured for that
size serves the whole bucket. A size below 1 is a bucket of its own; a size above the last of the
edges belongs to the last bucket, which is open. `dispatch.c` does the same arithmetic.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from tilusbuild.runtime.errors import CorruptCacheError
from tilusbuild.runtime.naming import format_instance_name
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.sealed import CorruptFileError, unseal_json
from tilusbuild.runtime.semantics import Function, Value, build_function, collect_names
from tilusbuild.runtime.structs import is_struct, parse_struct

FILE, TEXT = "script.json", "script.txt"
SCHEMA = 1
CALLED, SHARED = "called", "shared"
"""Forms of a script: one whose programs are called, and a shared library. There are more."""

Dim: TypeAlias = "int | str | Function"


class ScriptArgument(NamedTuple):
    """One argument of the kernel. `dims` is None for a scalar."""

    name: str
    dtype: str
    dims: tuple[Dim, ...] | None
    out: bool
    """Whether the kernel writes it and a call may leave it out: one that it reads, too, is not."""
    dimension: bool
    """Read off the tensors' shapes: the caller does not pass it."""
    type: str
    """As a manifest spells it: `f16*[m, k]`."""
    optional: bool = False
    """Whether None may be passed for the tensor."""
    constant: bool = False
    """Whether it is copied to a variable of the code: then it may be on the host, and says nothing
    of the device."""
    inout: bool = False
    """Whether the kernel reads it and writes it."""


class DispatchRule(NamedTuple):
    """A row of the hand-written table: where `when` holds, `program` serves."""

    source: str
    when: Function
    program: int
    names: frozenset[str] = frozenset()
    """What `when` reads."""


class ScriptModel(NamedTuple):
    """A cost for each program at some sizes; lower is better."""

    source: str
    cost: Function
    columns: Mapping[str, Mapping[int, Value | None]]
    """What it reads of each program, by its number."""


class Code(NamedTuple):
    """What the code of a script's programs is for."""

    archs: tuple[str, ...]
    ptx: bool
    toolkit: str | None
    """The CUDA toolkit's version that made the code."""
    machine: str
    """What the host code is for, as `uname -m` says it."""


class Script(NamedTuple):
    """An instance of a script for a target. A program's number is its place in the space."""

    path: str
    name: str
    hash: str
    level: int
    """How much of the space is planned: 2 all, 1 a sample, 0 one schedule."""
    target: str
    kind: str
    """ "cpu" or "cuda"."""
    code: Code
    params: Mapping[str, Value]
    arguments: tuple[ScriptArgument, ...]
    schedules: Mapping[str, Mapping[int, Value]]
    """Parameters by name, a value for each program."""
    programs: Mapping[int, str]
    not_built: Mapping[int, str]
    """Programs that there are none of, and why."""
    default: int | None
    buckets: Mapping[str, Callable[[int], int]]
    """By dispatch key, in their order: from a size to its bucket."""
    rules: tuple[DispatchRule, ...]
    model: ScriptModel | None
    form: str = CALLED
    committed: Any = None
    """Tables that its repository keeps, as the file has them (`runtime/tables.py` reads them)."""

    @property
    def first_program(self) -> int:
        """Return the number of the first program: of the only one, where there is one."""
        return next(iter(self.programs))

    @property
    def root(self) -> str:
        """Return the tree that its directory is in."""
        return os.path.dirname(os.path.dirname(os.path.dirname(self.path)))

    @property
    def keys(self) -> tuple[str, ...]:
        """Return what its sizes are looked up by."""
        return tuple(self.buckets)

    @property
    def arch(self) -> str:
        """Return the architectures in one word."""
        return "+".join([*self.code.archs, *(["ptx"] if self.code.ptx else [])])

    @property
    def label(self) -> str:
        """Return the instance's name for people: `matmul[dtype=f16] h100`."""
        return format_instance_name(self.name, self.params, self.target)

    @property
    def chosen_by(self) -> tuple[str, ...]:
        """Return what the choice of a program depends on: the keys, then what else rules read."""
        read = frozenset().union(*(rule.names for rule in self.rules))
        return (*self.keys, *(a.name for a in self.arguments if a.name in read - {*self.keys}))

    def get_schedule(self, program: int) -> dict[str, Value]:
        """Return the parameters of one program. Raises `IndexError`."""
        if program not in self.programs:
            raise IndexError(f"{self.label} has no program {program}")
        return {name: values[program] for name, values in self.schedules.items()}

    def get_library_path(self, program: int) -> str:
        """Return the path that the program's `lib.so` has when it is there."""
        return os.path.join(self.root, "programs", self.programs[program], "module", "lib.so")


def read_script(path: str) -> Script:
    """Return the script in a directory. Raises `CorruptCacheError`."""
    path = os.path.abspath(path)
    value = _read_description(path)
    digest = os.path.basename(path)
    try:
        script = parse_description(path, value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptCacheError(
            f"{path}/{FILE} is malformed: {type(error).__name__}: {error}"
        ) from None
    if script.hash != digest or _read_listed_programs(path, digest) != script.programs:
        raise CorruptCacheError(f"{path}/{FILE} does not belong to the {TEXT} beside it")
    return script


read_script_once = lru_cache(maxsize=4096)(read_script)
"""As `read_script`, or as this process read it before. Its constants and target are right, because
its directory is named by them; for the rest, read it."""


def _read_description(path: str) -> dict[str, Any]:
    try:
        return unseal_json(read_bytes(os.path.join(path, FILE)))
    except FileNotFoundError:
        raise CorruptCacheError(f"{path} has no {FILE}: build the project again") from None
    except OSError as error:
        raise CorruptCacheError(f"{path}/{FILE} cannot be read: {error.strerror}") from None
    except CorruptFileError as error:
        raise CorruptCacheError(f"{path}/{FILE} is damaged: {error}") from None


def _read_listed_programs(path: str, digest: str) -> dict[int, str]:
    try:
        data = read_bytes(os.path.join(path, TEXT))
    except OSError as error:
        raise CorruptCacheError(f"{path}/{TEXT} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise CorruptCacheError(f"{path} is not named by the hash of its {TEXT}")
    _, _, program_lines = data.partition(b"\n[programs]\n")
    rows = (line.decode("ascii", "replace").partition(" ") for line in program_lines.splitlines())
    return {int(number[:100]) if number.isdigit() else -1: program for number, _, program in rows}


def parse_description(path: str, value: Mapping[str, Any]) -> Script:
    """Return the script that a file's content describes. Raises what a malformed one may."""
    if value.get("schema") != SCHEMA:
        raise ValueError(f"schema {value.get('schema')!r} is not read by this version")
    target, dispatch = value["target"], value["dispatch"]
    hashes = _check_texts(value["programs"])
    programs = dict(zip(value.get("numbers", range(len(hashes))), hashes, strict=True))
    if not all(type(number) is int for number in programs) or len(programs) != len(hashes):
        raise TypeError("programs and their numbers do not match")
    keys = tuple(_check_texts(dispatch["keys"]))
    schedules = {
        n: _parse_column(value["schedules"][n], programs) for n in _check_texts(value["parameters"])
    }
    scalars = {_check_text(each["name"]) for each in value["arguments"] if each["dims"] is None}
    default = value["default"]
    if default is not None:
        _check_program_number(default, programs)
    return Script(
        path=path,
        name=_check_text(value["script"]),
        hash=_check_text(value["hash"]),
        level=int(value["level"]),
        target=_check_text(target["name"]),
        kind=_check_text(target["kind"]),
        code=Code(
            archs=tuple(_check_texts(target["archs"])),
            ptx=target["ptx"] is True,
            toolkit=None if target["toolkit"] is None else _check_text(target["toolkit"]),
            machine=_check_text(target["machine"]),
        ),
        params=dict(value["params"]),
        arguments=tuple(_parse_argument(each, scalars) for each in value["arguments"]),
        schedules=schedules,
        programs=programs,
        not_built={
            _check_program_number(int(number), programs): _check_text(why)
            for number, why in value["not_built"].items()
        },
        default=default,
        buckets={key: make_rounding(dispatch["buckets"][key]) for key in keys},
        rules=tuple(_parse_rule(each, scalars, programs) for each in dispatch["rules"]),
        model=_parse_model(dispatch["model"], keys, programs),
        form=_check_text(value.get("form", CALLED)),
        committed=dispatch.get("committed"),
    )


def _parse_argument(value: Mapping[str, Any], scalars: Collection[str]) -> ScriptArgument:
    dims, dtype = value["dims"], _check_text(value["dtype"])
    if not dtype:
        raise ValueError("an argument has no type")
    if is_struct(dtype):
        parse_struct(dtype)  # what it says is used in every call
    inout = value.get("inout") is True
    return ScriptArgument(
        name=_check_text(value["name"]),
        dtype=dtype,
        dims=None if dims is None else tuple(_parse_dim(dim, scalars) for dim in dims),
        out=value["out"] is True and not inout,
        dimension=value["dimension"] is True,
        type=_check_text(value["type"]),
        optional=value.get("optional") is True,
        constant=value.get("constant") is True,
        inout=inout,
    )


def _parse_dim(value: object, scalars: Collection[str]) -> Dim:
    if type(value) is int or isinstance(value, str):
        return value
    return build_function(value, scalars)


def _parse_rule(
    value: Mapping[str, Any], scalars: Collection[str], programs: Mapping[int, str]
) -> DispatchRule:
    when = build_function(value["when"], scalars)
    program = _check_program_number(value["program"], programs)
    return DispatchRule(_check_text(value["source"]), when, program, collect_names(value["when"]))


def _parse_model(
    value: Mapping[str, Any] | None, keys: Collection[str], programs: Mapping[int, str]
) -> ScriptModel | None:
    if value is None:
        return None
    columns = {name: _parse_column(column, programs) for name, column in value["columns"].items()}
    return ScriptModel(
        _check_text(value["source"]), build_function(value["cost"], {*keys, *columns}), columns
    )


def _parse_column(values: object, programs: Mapping[int, str]) -> dict[int, Value]:
    """Return a value for each program; None where it is not known."""
    if not isinstance(values, list) or len(values) != len(programs):
        raise ValueError("a column is not as long as the list of programs")
    if not all(value is None or isinstance(value, bool | int | float | str) for value in values):
        raise TypeError("a column holds something that is not a value")
    return dict(zip(programs, values, strict=True))


def _check_program_number(value: object, programs: Mapping[int, str]) -> int:
    if type(value) is not int or value not in programs:
        raise ValueError(f"there is no program {value!r}")
    return value


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is not a string")
    return value


def _check_texts(values: Sequence[object]) -> list[str]:
    return [_check_text(value) for value in values]


def make_rounding(bucket: object) -> Callable[[int], int]:
    """Return the function from a size to its bucket. Raises `ValueError` for no bucket."""
    if bucket == "tilus":
        return _round_like_tilus
    if bucket == "pow2":
        return _round_to_power
    if bucket == "exact":
        return _return_size
    if isinstance(bucket, list) and bucket and all(type(edge) is int for edge in bucket):
        edges = list(bucket)
        if edges != sorted(set(edges)) or edges[0] < 1:
            raise ValueError(f"edges must rise from 1: {bucket!r:.80}")
        return lambda size: (
            edges[min(bisect_left(edges, size), len(edges) - 1)] if size > 0 else size
        )
    if isinstance(bucket, dict) and list(bucket) == ["every"]:
        step = bucket["every"]
        if type(step) is int and step >= 1:
            return lambda size: -(-size // step) * step if size > 0 else size
    raise ValueError(f"no kind of bucket: {bucket!r:.80}")


def _round_like_tilus(size: int) -> int:
    """Two buckets an octave, as Tilus rounds: 1, 2, 3, 4, 6, 8, 12, 16, 24 …"""
    if size < 1:
        return size
    block = 1 << max(size.bit_length() - 2, 0)
    return -(-size // block) * block


def _round_to_power(size: int) -> int:
    """Return the next power of two: one bucket an octave."""
    return size if size < 1 else 1 << (size - 1).bit_length()


def _return_size(size: int) -> int:
    """Return each size for itself."""
    return size
