"""From the manifest's tables to a tuning space, and the memory of what was chosen of it.

One instance of a script has one space for each target. A mistake in a space is reported at its
place in the manifest. The schedules of a level follow from the space's spec, from what is asked of
it, and from our own code: `SpaceCache` keeps them under the digest of these, so that a space is
enumerated only when it changed. Its files only save work (`tilusbuild.state.envelope`).

A hand rule of `dispatch` names some values of a schedule. It is a mistake when no schedule of any
instance has them, of any target and constants, planned or not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Raw, Struct, msgpack
from msgspec.structs import replace

from tilusbuild.errors import Diagnostic, InputError, Place, input_error
from tilusbuild.expr import Expr, Value
from tilusbuild.expr.tree import Compare, Const, Name
from tilusbuild.manifest.table import format_toml
from tilusbuild.plan.model import (
    PlanSelection,
    Target,
    list_instances,
    list_target_constants,
    make_targets,
    select_script_targets,
)
from tilusbuild.runtime.naming import format_command, format_instance_name
from tilusbuild.runtime.regular import read_text
from tilusbuild.space import (
    SAMPLE_BUDGET,
    EmptySpaceError,
    Schedule,
    Schedules,
    Space,
    SpaceError,
    SpaceSpec,
    select_schedules,
)
from tilusbuild.space.model import build_model
from tilusbuild.space.space import Size
from tilusbuild.space.t1 import T1Space, read_t1
from tilusbuild.state.envelope import Envelope
from tilusbuild.state.files import sha256_text

if TYPE_CHECKING:
    from tilusbuild.manifest.model import Manifest
    from tilusbuild.space.report import SpaceReport


ChosenSchedules: TypeAlias = tuple[Schedules, Schedule | None]
"""The schedules of a level, and the declared default, if there is one."""


def make_space_spec(
    manifest: Manifest, script: str, target: Target, params: Mapping[str, Value]
) -> SpaceSpec:
    """Return the space of one instance as the manifest and its T1 file declare it. Raises
    `InputError`."""
    owner = manifest.scripts[script]
    imported = read_imported_space(manifest, script)
    # A target's override may declare a parameter of the file again.
    declared = tuple(owner.space_for(target.name).values())
    declared_names = {name for parameter in declared for name in parameter.names}
    imported_parameters = (
        [p for p in imported.parameters if declared_names.isdisjoint(p.names)] if imported else []
    )
    # A rule of the manifest replaces one of the same name in the file.
    rules = dict(imported.restrict) if imported else {}
    return SpaceSpec(
        constants={**list_target_constants(target), **params},
        parameters=(*imported_parameters, *declared),
        derived=tuple(owner.derived_for(target.name).items()),
        restrict=tuple({**rules, **owner.restrict_for(target.name)}.items()),
    )


def read_imported_space(manifest: Manifest, script: str) -> T1Space | None:
    """Return the space in the script's T1 file; None if it names none. Raises `InputError`."""
    name = manifest.scripts[script].space_file
    if name is None:
        return None
    place = manifest.locate_value("script", script, "space-file")
    try:
        return read_t1(read_text(os.path.join(manifest.root, name)))
    except SpaceError as error:
        raise input_error(f"{name}: {error.message}", place=place, hint=error.hint) from None
    except OSError as error:
        raise input_error(f"{name} cannot be read: {error}", place=place) from None


def choose_schedules(
    manifest: Manifest, script: str, target: Target, space: Space, level: int
) -> ChosenSchedules:
    """Return the schedules of a level, and the declared default or None. Raises `InputError`."""
    owner = manifest.scripts[script]
    default_values = collect_default_values(manifest, script, target)
    try:
        default = space.complete_point(default_values) if default_values else None
        schedules = select_schedules(
            space,
            level,
            sample=owner.levels.sample,
            default=default_values,
            seed=owner.levels.seed,
        )
    except SpaceError as error:
        raise locate_space_error(manifest, script, target.name, error) from None
    return schedules, default


def format_question(manifest: Manifest, script: str, target: Target, level: int) -> str:
    """Return, as a text, all that decides what `choose_schedules` returns for a space. Raises
    `InputError`."""
    levels = manifest.scripts[script].levels
    return repr(
        (level, levels.sample, levels.seed, collect_default_values(manifest, script, target))
    )


def collect_default_values(manifest: Manifest, script: str, target: Target) -> dict[str, Value]:
    """Return the declared values of a script's default schedule: those of its T1 file, with the
    manifest's in their place. Raises `InputError`."""
    imported = read_imported_space(manifest, script)
    declared = manifest.scripts[script].default_for(target.name)
    return {**(imported.default if imported else {}), **declared}


def locate_space_error(
    manifest: Manifest,
    script: str,
    target: str,
    error: SpaceError,
    params: Mapping[str, Value] = MappingProxyType({}),
) -> InputError:
    """Return a space's error as one of the manifest, at the place of its rule, parameter or
    table."""
    return InputError(
        Diagnostic(
            f"{format_instance_name(script, params)} for {target}: {error.message}",
            _find_rule_place(manifest, script, target, error.rule),
            error.hint,
        )
    )


def _find_rule_place(manifest: Manifest, script: str, target: str, rule: str | None) -> Place:
    """Return the place of a rule or parameter in the manifest; that of the space without one."""
    owner = manifest.scripts[script]
    # In this order, since a rule of the manifest may have the name of a parameter.
    tables = {
        "restrict": owner.restrict_for(target),
        "derived": owner.derived_for(target),
        "space": owner.space_for(target),
        "params": owner.params,
    }
    for table, names in tables.items():
        if rule is not None and rule in names:
            return manifest.locate_key(*manifest.resolve_override(script, target, table, rule))
    return manifest.locate_key(*manifest.resolve_override(script, target, "space"))


def report_spaces(
    manifest: Manifest, selection: PlanSelection
) -> Iterator[tuple[str, SpaceReport]]:
    """Yield for each selected instance its name and a report of what the rules remove from its
    space. Raises `InputError`."""
    # It imports NumPy, which most verbs do not need.
    from tilusbuild.space.report import report_space

    for script, target in select_script_targets(manifest, selection):
        for params in list_instances(manifest, script, target.name):
            if not selection.has_instance(script, params, target.name):
                continue
            spec = make_space_spec(manifest, script, target, params)
            name = format_instance_name(script, params, target.name)
            try:
                yield name, report_space(build_model(spec))
            except SpaceError as error:
                raise locate_space_error(manifest, script, target.name, error, params) from None


_ENVELOPE = Envelope("spaces")
_MAX_VALUES = 5_000_000
"""Of more, reading them would take as long as enumerating."""
_SPARE = 16
"""So many spaces of a script are kept though no plan asked for them: of another target or constant,
or of values that may come back."""


class KnownSpace(Struct, frozen=True, array_like=True):
    """The schedules that were chosen of one space. `columns` are the values of `names`, schedule by
    schedule; `indices` the places of the schedules, None for all; `default` is a place, too."""

    count: int | None
    cartesian: int
    question: str
    default: int | None
    indices: list[int] | None
    names: list[str]
    columns: list[list[Value]]

    def restore_schedules(self) -> ChosenSchedules:
        """Return the schedules and the default as the space had given them."""
        indices = range(self.count or 0) if self.indices is None else self.indices
        schedules = Schedules(indices, dict(zip(self.names, self.columns, strict=True)))
        if self.default is None:
            return schedules, None
        return schedules, schedules[indices.index(self.default)]


class SpaceCache:
    """The chosen schedules of one project's spaces: a file for each script in `directory`, read
    when it is needed and written by `save_changes` only. `code` is the digest of our own code."""

    def __init__(self, directory: str, owner: str, code: str) -> None:
        self._directory = directory
        self._owner = owner
        self._code = code
        self._scripts: dict[str, dict[str, Raw]] = {}
        self._used: set[str] = set()
        self._changed: set[str] = set()

    def find_size(self, script: str, spec: SpaceSpec) -> Size | None:
        """Return the remembered numbers of valid points and of all combinations; None if the space
        is not remembered. The first number is None for a space that was sampled and not counted."""
        known = self._find_known(script, self._digest_space(spec))
        return None if known is None else (known.count, known.cartesian)

    def find_schedules(
        self, script: str, space: Space, text: str, choose: Callable[[], ChosenSchedules]
    ) -> ChosenSchedules:
        """Return the schedules that answer the question `text` of `format_question`: remembered
        ones, or else those that `choose` returns, which are then remembered."""
        key, question = self._digest_space(space.spec), sha256_text(text)
        known = self._find_known(script, key)
        if known is None or known.question != question:
            schedules, default = choose()
            # One schedule of a known space is found again faster than it is read.
            if known is None or len(schedules) > 1:
                self._remember_schedules(script, key, question, schedules, default, space.size)
            return schedules, default
        return known.restore_schedules()

    def save_changes(self) -> None:
        """Write what changed; do nothing where the directory cannot be written."""
        for script in self._changed:
            spaces = self._scripts[script]
            # A dict keeps the order of insertion: the oldest go first.
            spare = [key for key in spaces if key not in self._used][:-_SPARE]
            used_spaces = {key: text for key, text in spaces.items() if key not in spare}
            _ENVELOPE.save_value(self._name_file(script), used_spaces)
        self._changed.clear()

    def _digest_space(self, spec: SpaceSpec) -> str:
        """Return the digest of a space and of tilusbuild's code."""
        expressions = [expr for _, expr in (*spec.derived, *spec.restrict)]
        expressions += [
            parameter.when for parameter in spec.parameters if parameter.when is not None
        ]
        # `repr` has the sources of the expressions, of which equal ones may be spelled differently.
        texts = (self._code, repr(spec), *(expr.canonical for expr in expressions))
        return sha256_text("\n".join(texts))

    def _find_known(self, script: str, key: str) -> KnownSpace | None:
        """Return the remembered space with this digest, or None. Marks it as used."""
        if script not in self._scripts:
            self._scripts[script] = (
                _ENVELOPE.load_value(self._name_file(script), dict[str, Raw]) or {}
            )
        self._used.add(key)
        text = self._scripts[script].get(key)
        # Decoded one by one: a file has the spaces of all targets and constants.
        return None if text is None else msgpack.decode(text, type=KnownSpace)

    def _remember_schedules(
        self,
        script: str,
        key: str,
        question: str,
        schedules: Schedules,
        default: Schedule | None,
        size: Size,
    ) -> None:
        """Remember the chosen schedules, unless they are more than `_MAX_VALUES` values or the
        default is not one of them."""
        columns, indices = schedules.columns, list(schedules.indices)
        if len(indices) * (len(columns) + 1) > _MAX_VALUES:
            return
        if default is not None and default.index not in indices:
            return  # the default is remembered as one of the schedules, by its index
        known = KnownSpace(
            *size,
            question=question,
            default=None if default is None else default.index,
            indices=None if indices == list(range(size[0] or 0)) else indices,
            names=[*columns],
            columns=[column[:] for column in columns.values()],
        )
        self._scripts[script][key] = Raw(msgpack.encode(known))
        self._changed.add(script)

    def _name_file(self, script: str) -> str:
        return os.path.join(self._directory, sha256_text(f"{self._owner}\0{script}\0points"))


def find_unmet_rules(
    manifest: Manifest, planned: Mapping[str, Sequence[Sequence[Schedule]]]
) -> Iterator[Diagnostic]:
    """Yield an error for each row of a dispatch table whose values (`use`) no schedule has.

    `planned` are the schedules of each planned instance, by script. They are searched first. If
    none fits, the spaces of all instances are searched for one point with these values.
    """
    for script, instances in planned.items():
        dispatch = manifest.scripts[script].dispatch
        for number, row in enumerate(dispatch.table if dispatch else ()):
            # Planned schedules are there already; a space is searched only if none of them fits.
            required = row.use.items()
            is_planned = any(
                all(schedule.values.get(name) == value for name, value in required)
                for schedules in instances
                for schedule in schedules
            )
            if is_planned or any(
                _has_schedule(spec, row.use) for spec in _list_space_specs(manifest, script)
            ):
                continue
            values = ", ".join(f"{name} = {format_toml(value)}" for name, value in required)
            yield Diagnostic(
                f'the rule "{row.when}" of {script} can never be followed: no schedule has'
                f" {values}",
                manifest.locate_key("script", script, "dispatch", "table", number),
                "give values that one schedule has, or relax what excludes it:"
                f" `{format_command('plan', script, '--space')}` shows what each rule removes",
            )


def _list_space_specs(manifest: Manifest, script: str) -> Iterator[SpaceSpec]:
    """Yield the spaces of all instances of a script, planned or not."""
    targets = make_targets(manifest)
    for target in manifest.targets_of(script):
        for params in list_instances(manifest, script, target):
            yield make_space_spec(manifest, script, targets[target], params)


def _has_schedule(spec: SpaceSpec, use: Mapping[str, Value]) -> bool:
    """Return whether a space may have a schedule with these values.

    True for a space with another mistake: planning the instance reports that one.
    """
    if not use.keys() <= {*spec.parameter_names, *(name for name, _ in spec.derived)}:
        return False
    rules = tuple(
        (name, Expr(name, Compare(Name(name), (("==", Const(value)),))))
        for name, value in use.items()
    )
    try:
        # With a budget, since one point is enough: an open space is not proven to be empty.
        Space(replace(spec, restrict=(*spec.restrict, *rules)), budget=SAMPLE_BUDGET)
    except EmptySpaceError:
        return False
    except SpaceError:
        return True
    return True
