"""Chooses the instance of a script for a device, and the program for a call's sizes.

Every instance gets a verdict with a reason. Refused are unknown architectures, host code of another
machine, and code that a newer CUDA toolkit made than the driver supports.

Of the programs, the first source that has an answer decides:

    table       a rule by hand, at the exact sizes
    measured    the bucket was measured on this device
    fitted      the least fitted cost at the exact sizes (`dispatch fit`)
    nearest     the nearest bucket that was: least sum over the keys of the difference in log2
    model       the least cost by the manifest's model, at the sizes of the bucket
    default     the declared default schedule, else the first program

A program that was not built, or that a package left out, is never chosen. Nor is a refused one
(`runtime/table_file.py`): nearest and model choose among the others. When a person's rule or the
default names a refused program, that is an error. `dispatch.c` decides in the same way.

Nor is a program that by a rule of the manifest's `serves` does not serve the sizes of the call. A
rule or default that names it does not count. Of a measured bucket the best program that serves them
is taken, else that of the least fitted cost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from tilusbuild.runtime.device import CodeKind, Device, can_run, parse_arch_number, rank_image
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.script import Code, DispatchRule, Script
from tilusbuild.runtime.semantics import INT64_MAX, NoValueError, Number, Value, to_number
from tilusbuild.runtime.tables import DeviceTable, TableEntry

# Bits behind the point of a logarithm in fixed point.
_FRACTION = 16
# A server may be called with any sizes: its memory must not grow with them.
_MAX_CACHED = 4096


class Choice(NamedTuple):
    """The program for some sizes: its number, the source of the decision ("table", "measured",
    "fitted", "nearest", "model" or "default"), and its parameters."""

    program: int
    source: str
    why: str
    schedule: Mapping[str, Value]


class Chooser:
    """Chooses a program of one script by the sizes of a call, among the programs that are
    available."""

    def __init__(
        self,
        script: Script,
        table: DeviceTable | None,
        available: frozenset[int],
        refused: Mapping[int, str] | None = None,
    ) -> None:
        """`table` is that of the device. `available` are the numbers of programs that can be
        launched. `refused` has the reason for each program that is chosen nowhere."""
        self._script = script
        self.refused: Mapping[int, str] = refused or {}
        """Why programs are chosen nowhere, by their numbers."""
        self.available = available
        """Those that can be launched, refused ones too."""
        self._usable = available - self.refused.keys()
        # Rules that name a refused program stay: at their sizes a call must fail.
        nameable = available | self.refused.keys()
        self._rules = [rule for rule in script.rules if rule.program in nameable]
        entries, fitted = (table.entries, table.fitted) if table else ((), ())
        self._rows = {entry.key: entry for entry in entries if entry.program in self._usable}
        self._fitted = [cost for cost in fitted if cost.program in self._usable]
        self._choose_for_bucket_cached = lru_cache(maxsize=_MAX_CACHED)(self._choose_for_bucket)
        # A program is chosen in int64, as the C dispatcher does it, where a greater u64 would be
        # another size.
        u64 = {argument.name for argument in script.arguments if argument.dtype == "u64"}
        self._u64_names = [name for name in script.chosen_by if name in u64]

    @property
    def is_constant(self) -> bool:
        """Return whether all sizes get the default program, and no program is refused."""
        script = self._script
        by_size = (self._rules, self._rows, self._fitted, script.model, script.serves)
        return not (any(by_size) or self._u64_names)

    def choose_program(self, sizes: Mapping[str, Value]) -> Choice:
        """Return the program for the sizes of a call; missing alignments are the largest. A rule
        without a value does not hold. Raises `LoadError` when a rule names a refused program,
        `ValueError` for a size above int64."""
        if self._script.serves is not None:
            sizes = {**self._script.serves.alignments, **sizes}
        for name in self._u64_names:
            if to_number(sizes.get(name, 0)) > INT64_MAX:
                reason = "the choice of a program depends on it, and it is above"
                raise ValueError(f'{self._script.name}: argument "{name}": {reason} {INT64_MAX}')
        for rule in self._rules:
            if _holds(rule, sizes) and self._serves(rule.program, sizes):
                self._check_not_refused(rule.program, f"the dispatch rule {rule.source!r}")
                return self._make_choice(rule.program, "table", f"rule: {rule.source}")
        bucket = self._script.find_bucket(sizes)
        # Costs see what a bucket hides, such as one more wave of blocks.
        exact = tuple(int(sizes[key]) for key in self._script.keys) if self._fitted else bucket
        choice = self._choose_for_bucket_cached(bucket, exact)
        if not self._serves(choice.program, sizes):
            choice = self._choose_serving(bucket, exact, sizes, choice)
        if choice.source == "nearest":
            # The cached choice names the bucket's sizes, and the caller knows those of the call.
            call_sizes = _format_sizes({key: sizes[key] for key in self._script.keys})
            return choice._replace(why=f"nothing is measured for {call_sizes}; {choice.why}")
        return choice

    def _check_not_refused(self, program: int, decision: str) -> None:
        """Raise `LoadError` for a refused program. `decision` is the user's rule or default
        that names it."""
        why = self.refused.get(program)
        if why is not None:
            raise LoadError(
                f"{self._script.label}: {decision} chooses program {program}, which was {why};"
                " it is not chosen until it is rebuilt"
            )

    def _serves(self, program: int, sizes: Mapping[str, Value]) -> bool:
        """Return whether a program serves the sizes of a call."""
        return self._script.explain_refusal(program, sizes) is None

    def _choose_serving(
        self,
        bucket: tuple[int, ...],
        exact: tuple[int, ...],
        sizes: Mapping[str, Value],
        choice: Choice,
    ) -> Choice:
        """Return the choice for a call that the program of `choice` does not serve: the next by the
        bucket's table, else that of the model, else the first, of those that serve it. Raise
        `LoadError` when none does."""
        serving = frozenset(i for i in self._usable if self._serves(i, sizes))
        call_sizes = {name: sizes[name] for name in self._script.chosen_by}
        if not serving:
            rules = self._script.serves.rules if self._script.serves else ()
            raise LoadError(
                f"{self._script.label} has no program that serves {_format_sizes(call_sizes)}",
                [f"{rule.name}: {rule.source}" for rule in rules],
            )
        refusal = self._script.explain_refusal(choice.program, sizes)
        note = f"; program {choice.program} does not serve {_format_sizes(call_sizes)}: {refusal}"
        for by_table in self._list_table_choices(bucket, exact):
            if by_table.program in serving:
                return by_table._replace(why=by_table.why + note)
        if (by_model := self._choose_by_model(bucket, serving)) is not None:
            return by_model._replace(why=by_model.why + note)
        if self._script.default in serving:
            why = "the default schedule"
            return self._make_choice(self._script.default, "default", why + note)
        return self._make_choice(min(serving), "default", f"the first program that serves it{note}")

    def _choose_for_bucket(self, bucket: tuple[int, ...], exact: tuple[int, ...]) -> Choice:
        """Return the choice for a bucket by the first of: its table, the model, the default. The
        costs of the table see the sizes `exact`. Raises `LoadError`."""
        by_table = next(self._list_table_choices(bucket, exact), None)
        return by_table or self._choose_by_model(bucket, self._usable) or self.choose_default()

    def _list_table_choices(
        self, bucket: tuple[int, ...], exact: tuple[int, ...]
    ) -> Iterator[Choice]:
        """Yield the choices for a bucket, the best first: of its row, of the fitted costs, and,
        if the bucket was not measured, of the nearest row."""
        row = self._rows.get(bucket)
        if row is not None:
            yield from self._list_row_choices(row, "measured", "measured at {}")
        sizes = dict(zip(self._script.keys, exact, strict=True))
        costs = []
        for index, fitted in enumerate(self._fitted):
            with suppress(NoValueError):
                costs.append((float(to_number(fitted.cost(sizes))), index))
        for cost, index in sorted(costs):
            fitted = self._fitted[index]
            why = f"least fitted cost {cost:.4g} by {fitted.source}"
            yield self._make_choice(fitted.program, "fitted", why)
        if row is None and self._rows:
            nearest = self._rows[find_nearest_bucket(bucket, self._rows)]
            yield from self._list_row_choices(nearest, "nearest", "{} is nearest")

    def _list_row_choices(self, row: TableEntry, source: str, why: str) -> Iterator[Choice]:
        """Yield the choices of a row, the best first. `why` is formatted with its sizes."""
        sizes = dict(zip(self._script.keys, row.sizes, strict=True))
        text = why.format(_format_sizes(sizes) + row.origin_text)
        for program in (row.program, *row.others):
            yield self._make_choice(program, source, text)

    def _choose_by_model(
        self, bucket: tuple[int, ...], candidates: frozenset[int]
    ) -> Choice | None:
        """Return the candidate of least cost by the model; None without a model, or when the model
        knows no program."""
        model = self._script.model
        if model is None:
            return None
        sizes = dict(zip(self._script.keys, bucket, strict=True))
        best_program: int | None = None
        least_cost: Number = 0
        for program in sorted(candidates):
            values = {name: column[program] for name, column in model.columns.items()}
            # A program whose resources are not known, or whose cost has no value, is not compared.
            if None in values.values():
                continue
            try:
                cost = to_number(model.cost({**sizes, **values}))
            except NoValueError:
                continue
            if best_program is None or cost < least_cost:
                best_program, least_cost = program, cost
        if best_program is None:
            return None
        why = f"least cost {least_cost:g} by {model.source}"
        return self._make_choice(best_program, "model", why)

    def choose_default(self) -> Choice:
        """Return the default program; the first usable program when no default is declared, or the
        default is not available. Raises `LoadError` for a refused default, and when no program is
        usable."""
        default, why = self._script.default, "no default is declared"
        if default is not None:
            self._check_not_refused(default, "the default schedule")
            if default in self.available:
                return self._make_choice(default, "default", "the default schedule")
            why = f"the default, {default}, is missing"
        if not self._usable:
            reasons = tuple(f"program {i} is refused: {why}" for i, why in self.refused.items())
            raise LoadError(f"{self._script.label} has no program that can be used", reasons)
        return self._make_choice(min(self._usable), "default", f"the first program: {why}")

    def _make_choice(self, program: int, source: str, why: str) -> Choice:
        return Choice(program, source, why, self._script.get_schedule(program))


def _holds(rule: DispatchRule, sizes: Mapping[str, Value]) -> bool:
    """Return whether a rule holds at some sizes. A rule without a value does not."""
    try:
        return bool(rule.when(sizes))
    except NoValueError:
        # Such as `n % m == 0` for a batch of none: all programs compute the same.
        return False


def find_nearest_bucket(
    bucket: Sequence[int], measured: Iterable[tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the measured bucket with the least sum of log2 distances; of several, the smallest."""
    logs = [_compute_log2(size) for size in bucket]

    def measure_distance(candidate: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        pairs = zip(logs, candidate, strict=True)
        return sum(abs(log - _compute_log2(size)) for log, size in pairs), candidate

    return min(measured, key=measure_distance)


def _compute_log2(size: int) -> int:
    """Return log2 of a size in fixed point, linear between powers of two."""
    # In integers, so that C and Python agree on every machine.
    size = max(size, 1)
    exponent = size.bit_length() - 1
    shift = exponent - _FRACTION
    mantissa = size >> shift if shift > 0 else size << -shift  # 1.0 is 1 << _FRACTION
    return (exponent << _FRACTION) + mantissa - (1 << _FRACTION)


def _format_sizes(sizes: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sizes.items())


class Evaluation(NamedTuple):
    """The verdict on one instance. `rank` is None when it does not run on the device; the least
    rank is the best."""

    script: Script
    rank: tuple[int, int] | None
    reason: str

    def __str__(self) -> str:
        verdict = "suits" if self.rank else "refused"
        return f"{self.script.label} ({self.script.arch}): {verdict}: {self.reason}"


def evaluate_instance(script: Script, device: Device, machine: str | None = None) -> Evaluation:
    """Return the verdict on an instance for a device and a machine (as `uname -m`; None: this
    one)."""
    machine = machine or os.uname().machine
    if script.code.machine != machine:
        return Evaluation(
            script, rank=None, reason=f"made for {script.code.machine}, not {machine}"
        )
    if script.kind != device.kind:
        reason = f"{script.kind} code, and the device is {device}"
        return Evaluation(script, rank=None, reason=reason)
    if script.kind == "cuda":
        problem = _explain_driver_refusal(script.code, device)
        if problem:
            return Evaluation(script, rank=None, reason=problem)
    return Evaluation(script, *rank_code(script.code.archs, script.code.ptx, device))


def rank_code(
    archs: Sequence[str], ptx: bool, device: Device
) -> tuple[tuple[int, int] | None, str]:
    """Return (rank, reason) of code for these architectures on a device. The least rank is the
    best; it is None when the code does not run."""
    ranked_reasons = []
    refusals = []
    for arch, kind in list_images(archs, ptx):
        verdict = can_run(arch, device.arch, kind)
        if verdict:
            # Negative: of two images with one rank the newer architecture is better.
            rank = (rank_image(arch, device.arch, kind), -parse_arch_number(arch))
            ranked_reasons.append((rank, verdict.reason))
        else:
            refusals.append(verdict.reason)
    if ranked_reasons:
        return min(ranked_reasons)
    return None, "; ".join(refusals) or "it holds no code"


def list_images(archs: Sequence[str], ptx: bool) -> list[tuple[str, CodeKind]]:
    """Return (arch, kind) of each image in a library for these architectures. PTX is of the newest
    portable one."""
    code_images: list[tuple[str, CodeKind]] = [(arch, "sass") for arch in archs]
    if ptx:
        # PTX of an `a` or `f` architecture would run nowhere else.
        portable = [arch for arch in archs if arch[-1:].isdigit()]
        code_images += [(arch, "ptx") for arch in sorted(portable, key=parse_arch_number)[-1:]]
    return code_images


def _explain_driver_refusal(code: Code, device: Device) -> str | None:
    """Return why a device's driver refuses the code; None when it does not."""
    # A driver takes code of its own major CUDA version and of older ones, but PTX only up to its
    # own version (CUDA Compatibility Guide, "Minor Version Compatibility").
    if code.toolkit is None:
        return "which CUDA toolkit made it is not known"
    try:
        major, minor = (int(word) for word in code.toolkit.split(".")[:2])
    except ValueError:
        return f"which CUDA toolkit made it is not known: {code.toolkit!r}"
    driver_major, driver_minor = divmod(device.driver // 10, 100)  # 13020 is 13.2
    supported = f"the driver supports CUDA {driver_major}.{driver_minor}"
    if driver_major < major:
        return f"made with CUDA {major}.{minor}, and {supported}"
    runs_only_as_ptx = not any(can_run(arch, device.arch) for arch in code.archs)
    if code.ptx and runs_only_as_ptx and (driver_major, driver_minor) < (major, minor):
        return f"its PTX is of CUDA {major}.{minor}, and {supported}"
    return None


def choose_instance(
    scripts: Sequence[Script], device: Device, machine: str | None = None
) -> tuple[Script, tuple[Evaluation, ...]]:
    """Return the instance with the best rank, and the verdicts on all. Raises `LoadError` when none
    runs on the device, or two have the best rank."""
    evaluations = tuple(evaluate_instance(script, device, machine) for script in scripts)
    best_rank = min((e.rank for e in evaluations if e.rank is not None), default=None)
    if best_rank is None:
        name = scripts[0].name if scripts else "the script"
        raise LoadError(f"{name} has no program for {device}", map(str, evaluations))
    best_scripts = [e.script for e in evaluations if e.rank == best_rank]
    if len(best_scripts) > 1:
        labels = [f"{script.label} in {script.root}" for script in best_scripts]
        remedy = "choose one with target=… or where=…"
        raise LoadError(f"several suit {device} equally well", [*labels, remedy])
    return best_scripts[0], evaluations
