"""Reads `script.json`, the description of a script for calls, without the builder.

The sealed file is in the script's directory beside `script.txt`, whose hash names the directory.
The two must list the same programs, so a file of another script is never used. Reading any bytes
ends in a `Script` or in `CorruptCacheError`. docs/runtime.md has the form.

Dispatch groups sizes in buckets. A bucket is named by its greatest size, and the measurement for
that size serves all of it. A size below 1 is a bucket of its own; sizes above the last edge belong
to the last bucket. `dispatch.c` does the same arithmetic.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from tilusbuild.runtime.dtypes import WHOLE
from tilusbuild.runtime.errors import CorruptCacheError, make_read_error
from tilusbuild.runtime.naming import format_instance_name
from tilusbuild.runtime.regular import read_bytes, sha256_text
from tilusbuild.runtime.sealed import CorruptFileError, unseal_json
from tilusbuild.runtime.semantics import (
    MAX_ALIGNMENT,
    Function,
    NoValueError,
    Value,
    build_function,
    collect_names,
    name_alignment,
)
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
    """Whether a call may leave it out: the kernel writes it, and does not read it."""
    dimension: bool
    """Whether it is read from the tensors' shapes, and the caller does not pass it."""
    type: str
    """As a manifest spells it: `f16*[m, k]`."""
    optional: bool = False
    """Whether None may be passed for the tensor."""
    constant: bool = False
    """Whether it is copied to constant memory: then it may be on the host, whatever the device."""
    inout: bool = False
    """Whether the kernel reads it and writes it."""
    workspace: bool = False
    """Whether it is memory for one call, which the call may leave out."""

    @property
    def is_on_device(self) -> bool:
        """Return whether it is a tensor of every call, in the memory of the call's device."""
        # An optional one may be None, and one for constant memory may be on the host.
        return self.dims is not None and not self.optional and not self.constant


class DispatchRule(NamedTuple):
    """A rule by hand: where `when` holds, `program` serves."""

    source: str
    when: Function
    program: int
    names: frozenset[str] = frozenset()
    """The names in `when`."""
    tree: Any = None
    """`when` as JSON arrays."""


class FittedCost(NamedTuple):
    """A program's cost at sizes of the keys, by which `dispatch fit` lets the least serve."""

    source: str
    cost: Function
    program: int
    tree: Any
    """`cost` as JSON arrays."""


class ServesRule(NamedTuple):
    """A rule of the sizes that programs may serve."""

    name: str
    source: str
    when: Function
    names: frozenset[str]
    """The names in `when`."""


class ScriptServes(NamedTuple):
    """The rules of the sizes that programs may serve. A program serves a call if all are true."""

    rules: tuple[ServesRule, ...]
    columns: Mapping[str, Mapping[int, Value | None]]
    """The names in the rules besides sizes, each with a value for each program number."""
    alignments: Mapping[str, Value]
    """The names `align(x)` in the rules, with the value for a call whose addresses are unknown."""

    def explain_refusal(self, program: int, sizes: Mapping[str, Value]) -> str | None:
        """Return the first rule by which a program does not serve a call, as `NAME (SOURCE)`; None
        for a program that serves it. A rule without a value is false. One that reads a size that is
        not among `sizes` is true: a row of a table has the keys alone, and each call decides."""
        values = {name: column[program] for name, column in self.columns.items()}
        for rule in self.rules:
            try:
                is_true = bool(rule.when({**self.alignments, **sizes, **values}))
            except NoValueError:
                is_true = False
            except KeyError:
                continue
            if not is_true:
                return f"{rule.name} ({rule.source})"
        return None


class ScriptModel(NamedTuple):
    """A cost for each program at some sizes; lower is better."""

    source: str
    cost: Function
    columns: Mapping[str, Mapping[int, Value | None]]
    """The names in `cost` besides sizes, each with a value for each program number."""


class Code(NamedTuple):
    """The architectures and tools of the code of a script's programs."""

    archs: tuple[str, ...]
    ptx: bool
    toolkit: str | None
    """The version of the CUDA toolkit that made the code."""
    machine: str
    """The architecture of the host code, as `uname -m` prints it."""
    isa: frozenset[str] = frozenset()
    """The features of a CPU that the host code may use, as /proc/cpuinfo has them without `_`."""


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
    """The status of each program without a library."""
    default: int | None
    buckets: Mapping[str, Callable[[int], int]]
    """By dispatch key, in their order: from a size to its bucket."""
    rules: tuple[DispatchRule, ...]
    model: ScriptModel | None
    form: str = CALLED
    serves: ScriptServes | None = None

    @property
    def first_program(self) -> int:
        """Return the number of the first program."""
        return next(iter(self.programs))

    @property
    def root(self) -> str:
        """Return the path of the tree around its directory."""
        return os.path.dirname(os.path.dirname(os.path.dirname(self.path)))

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the dispatch keys in order."""
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
        """Return the sizes that decide on a program: the keys, then other arguments in rules of
        dispatch and of `serves`, then the alignments of tensors."""
        names = [rule.names for rule in self.rules]
        names += [rule.names for rule in self.serves.rules] if self.serves else []
        rule_names = frozenset().union(*names)
        other_names = rule_names.difference(self.keys)
        integers = (a.name for a in self.arguments if a.name in other_names)
        return (*self.keys, *integers, *(self.serves.alignments if self.serves else ()))

    def complete_sizes(self, sizes: Mapping[str, Value]) -> dict[str, Value]:
        """Return the sizes with 1 for each integer argument that is not among them, as rules may
        read integers that no size of a table or of a manifest gives."""
        integers = (a.name for a in self.arguments if a.dims is None and a.dtype in WHOLE)
        return {**dict.fromkeys(integers, 1), **sizes}

    @property
    def workspaces(self) -> list[str]:
        """Return the names of the workspaces, in order."""
        return [argument.name for argument in self.arguments if argument.workspace]

    def explain_refusal(self, program: int, sizes: Mapping[str, Value]) -> str | None:
        """Return the rule of `serves` by which a program does not serve a call; None if it does."""
        return None if self.serves is None else self.serves.explain_refusal(program, sizes)

    def find_bucket(self, sizes: Mapping[str, Value]) -> tuple[int, ...]:
        """Return the bucket of a call's sizes, which have all dispatch keys."""
        return tuple(to_bucket(int(sizes[key])) for key, to_bucket in self.buckets.items())

    def get_schedule(self, program: int) -> dict[str, Value]:
        """Return the parameters of one program. Raises `IndexError`."""
        if program not in self.programs:
            raise IndexError(f"{self.label} has no program {program}")
        return {name: values[program] for name, values in self.schedules.items()}

    def get_library_path(self, program: int) -> str:
        """Return the path of a program's `lib.so`, which may be missing."""
        return os.path.join(self.root, "programs", self.programs[program], "module", "lib.so")


def read_script(path: str) -> Script:
    """Return the script in a directory. Raises `CorruptCacheError`, and others of `LoadError` for a
    file that the system does not let this process read."""
    path = os.path.abspath(path)
    digest = os.path.basename(path)
    try:
        value = unseal_json(_read_file(path, FILE))
        script = parse_description(path, value)
    except CorruptFileError as error:
        raise CorruptCacheError(f"{path}/{FILE} is damaged: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise CorruptCacheError(f"{path}/{FILE} is malformed: {problem}") from None
    # The seal shows that the file is whole; script.txt shows that it belongs to this script.
    text = _read_file(path, TEXT)
    if sha256_text(text) != digest:
        raise CorruptCacheError(f"{path} is not named by the hash of its {TEXT}")
    if script.hash != digest or parse_listed_programs(text) != script.programs:
        raise CorruptCacheError(f"{path}/{FILE} does not belong to the {TEXT} beside it")
    return script


read_script_once = lru_cache(maxsize=4096)(read_script)
"""As `read_script`, from a cache. Only constants and target are current in it: the directory's name
covers them, while a build may change the rest."""


def _read_file(path: str, name: str) -> bytes:
    """Return a file of the script directory `path`. Raises `LoadError`s."""
    try:
        return read_bytes(os.path.join(path, name))
    except FileNotFoundError:
        raise CorruptCacheError(f"{path} has no {name}: build the project again") from None
    except OSError as error:
        raise make_read_error(f"{path}/{name}", error) from None


def parse_listed_programs(data: bytes) -> dict[int, str]:
    """Return the programs in a `script.txt`, by number. A line without a number has the number
    -1, which no script has."""
    _, _, program_lines = data.partition(b"\n[programs]\n")
    programs: dict[int, str] = {}
    for line in program_lines.splitlines():
        number, _, program = line.decode("ascii", "replace").partition(" ")  # "12 9f86d081…"
        # At most 100 digits: Python refuses to parse integers of thousands of them.
        programs[int(number[:100]) if number.isdigit() else -1] = program
    return programs


def parse_description(path: str, value: Mapping[str, Any]) -> Script:
    """Return the script that a file's content describes. Raises `KeyError`, `TypeError`,
    `ValueError` and `AttributeError` for a malformed one."""
    if value.get("schema") != SCHEMA:
        raise ValueError(f"schema {value.get('schema')!r} is not read by this version")
    target, dispatch = value["target"], value["dispatch"]
    hashes = _check_texts(value["programs"])
    # Without "numbers" the whole space is planned, and a program's number is its position.
    programs = dict(zip(value.get("numbers", range(len(hashes))), hashes, strict=True))
    if not all(type(number) is int for number in programs) or len(programs) != len(hashes):
        raise TypeError("programs and their numbers do not match")
    keys = _check_texts(dispatch["keys"])
    parameters = _check_texts(value["parameters"])
    scalars = {_check_text(a["name"]) for a in value["arguments"] if a["dims"] is None}
    default = value["default"]
    toolkit = target["toolkit"]
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
            toolkit=None if toolkit is None else _check_text(toolkit),
            machine=_check_text(target["machine"]),
            isa=frozenset(_check_texts(target.get("isa", ()))),
        ),
        params=dict(value["params"]),
        arguments=tuple(_parse_argument(argument, scalars) for argument in value["arguments"]),
        schedules={name: _parse_column(value["schedules"][name], programs) for name in parameters},
        programs=programs,
        not_built={
            _check_program_number(int(number), programs): _check_text(why)
            for number, why in value["not_built"].items()
        },
        default=None if default is None else _check_program_number(default, programs),
        buckets={key: make_rounding(dispatch["buckets"][key]) for key in keys},
        rules=tuple(parse_rule(rule, scalars, programs) for rule in dispatch["rules"]),
        model=_parse_model(dispatch["model"], keys, programs),
        form=_check_text(value.get("form", CALLED)),
        serves=_parse_serves(
            dispatch.get("serves"),
            scalars,
            [name_alignment(a["name"]) for a in value["arguments"] if a["dims"] is not None],
            programs,
        ),
    )


def _parse_argument(value: Mapping[str, Any], scalars: Collection[str]) -> ScriptArgument:
    """Return an argument of `script.json`. Its dimensions are expressions over `scalars`. Raises as
    `parse_description`."""
    dims, dtype = value["dims"], _check_text(value["dtype"])
    if not dtype:
        raise ValueError("an argument has no type")
    if is_struct(dtype):
        parse_struct(dtype)  # called for its errors only: a malformed type must not fail in a call
    inout = value.get("inout") is True
    return ScriptArgument(
        name=_check_text(value["name"]),
        dtype=dtype,
        dims=None if dims is None else tuple(_parse_dim(dim, scalars) for dim in dims),
        # A call must pass an output that the kernel also reads.
        out=value["out"] is True and not inout,
        dimension=value["dimension"] is True,
        type=_check_text(value["type"]),
        optional=value.get("optional") is True,
        constant=value.get("constant") is True,
        inout=inout,
        workspace=value.get("workspace") is True,
    )


def _parse_dim(value: object, scalars: Collection[str]) -> Dim:
    is_size = type(value) is int or isinstance(value, str)
    return value if is_size else build_function(value, scalars)  # type: ignore[return-value]


def parse_rule(
    value: Mapping[str, Any], scalars: Collection[str], programs: Mapping[int, str]
) -> DispatchRule:
    """Return a rule of a file, an expression over `scalars`. Raises as `parse_description`."""
    tree = value["when"]
    when = build_function(tree, scalars)
    program = _check_program_number(value["program"], programs)
    return DispatchRule(_check_text(value["source"]), when, program, collect_names(tree), tree)


def parse_fitted_cost(
    value: Mapping[str, Any], keys: Collection[str], programs: Mapping[int, str]
) -> FittedCost:
    """Return a file's fitted cost, an expression over the keys. Raises as `parse_description`."""
    tree, program = value["cost"], _check_program_number(value["program"], programs)
    return FittedCost(_check_text(value["source"]), build_function(tree, keys), program, tree)


def _parse_serves(
    value: Mapping[str, Any] | None,
    scalars: Collection[str],
    alignments: Sequence[str],
    programs: Mapping[int, str],
) -> ScriptServes | None:
    """Return the rules of the sizes that programs may serve, expressions over `scalars`,
    `alignments` and the rules' columns; None without rules. Raises as `parse_description`."""
    if value is None:
        return None
    columns = {name: _parse_column(column, programs) for name, column in value["columns"].items()}
    rules = tuple(
        ServesRule(
            _check_text(rule["name"]),
            _check_text(rule["source"]),
            build_function(rule["when"], {*scalars, *alignments, *columns}),
            collect_names(rule["when"]) - columns.keys(),
        )
        for rule in value["rules"]
    )
    names = frozenset().union(*(rule.names for rule in rules))
    # In the order of the arguments, as the C dispatcher has them.
    used_alignments = [name for name in alignments if name in names]
    return ScriptServes(rules, columns, dict.fromkeys(used_alignments, MAX_ALIGNMENT))


def _parse_model(
    value: Mapping[str, Any] | None, keys: Collection[str], programs: Mapping[int, str]
) -> ScriptModel | None:
    """Return the cost model of `script.json`, an expression over the dispatch keys and the model's
    columns; None without one. Raises as `parse_description`."""
    if value is None:
        return None
    columns = {name: _parse_column(column, programs) for name, column in value["columns"].items()}
    return ScriptModel(
        _check_text(value["source"]), build_function(value["cost"], {*keys, *columns}), columns
    )


def _parse_column(values: object, programs: Mapping[int, str]) -> dict[int, Value]:
    """Return a column's values by program number; a value that is not known is None. Raise
    `ValueError` and `TypeError`."""
    if not isinstance(values, list) or len(values) != len(programs):
        raise ValueError("a column is not as long as the list of programs")
    if not all(value is None or isinstance(value, bool | int | float | str) for value in values):
        raise TypeError("a column holds something that is not a value")
    return dict(zip(programs, values, strict=True))


def _check_program_number(value: object, programs: Mapping[int, str]) -> int:
    # Checked here, so that a choice needs no check.
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
    """Return the function from a size to its bucket. `bucket` is "tilus", "pow2", "exact", a list
    of edges, or `{"every": step}`. Raises `ValueError` for any other value."""
    if isinstance(bucket, str) and bucket in _ROUNDINGS:
        return _ROUNDINGS[bucket]
    # By type, since JSON's `true` is an int in Python.
    if isinstance(bucket, list) and bucket and all(type(edge) is int for edge in bucket):
        edges: list[int] = list(bucket)
        if edges != sorted(set(edges)) or edges[0] < 1:
            raise ValueError(f"edges must rise from 1: {bucket!r:.80}")

        def round_to_edge(size: int) -> int:
            if size < 1:
                return size
            index = bisect_left(edges, size)
            return edges[min(index, len(edges) - 1)]

        return round_to_edge
    if isinstance(bucket, dict) and list(bucket) == ["every"]:
        step = bucket["every"]
        if type(step) is int and step >= 1:
            # Rounded up to a multiple: the floor of a negative number is its ceiling's opposite.
            return lambda size: -(-size // step) * step if size > 0 else size
    raise ValueError(f"no kind of bucket: {bucket!r:.80}")


def _round_like_tilus(size: int) -> int:
    # Two buckets an octave: 1, 2, 3, 4, 6, 8, 12, 16, 24 …
    block = 1 << max(size.bit_length() - 2, 0)
    return size if size < 1 else -(-size // block) * block


_ROUNDINGS: dict[str, Callable[[int], int]] = {
    "tilus": _round_like_tilus,
    "pow2": lambda size: size if size < 1 else 1 << (size - 1).bit_length(),
    "exact": lambda size: size,
}
