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

from tilusbuild.errors import Diagnostic, InputError, input_error
from tilusbuild.expr import Expr, Value
from tilusbuild.expr.tree import Compare, Const, Name
from tilusbuild.manifest.scanner import Path
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
from tilusbuild.space.model import (
    DefaultError,
    EmptySpaceError,
    Schedule,
    Schedules,
    SpaceError,
    SpaceSpec,
    build_model,
)
from tilusbuild.space.space import SAMPLE_BUDGET, Size, Space, select_schedules
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
    # A target's override may declare a parameter of the file again: the override's counts.
    declared = tuple(owner.list_tuning_parameters(target.name).values())
    declared_names = {name for parameter in declared for name in parameter.names}
    imported_parameters = (
        [p for p in imported.parameters if declared_names.isdisjoint(p.names)] if imported else []
    )
    # A rule of the manifest replaces one of the same name in the file.
    rules = dict(imported.restrict) if imported else {}
    return SpaceSpec(
        constants={**list_target_constants(target), **params},
        parameters=(*imported_parameters, *declared),
        derived=tuple(owner.parse_derived_values(target.name).items()),
        restrict=tuple({**rules, **owner.parse_rules(target.name)}.items()),
    )


def read_imported_space(manifest: Manifest, script: str) -> T1Space | None:
    """Return the space in the script's T1 file; None if it names none. Raises `InputError`."""
    name = manifest.scripts[script].space_file
    if name is None:
        return None
    location = manifest.locate_value("script", script, "space-file")
    try:
        return read_t1(read_text(os.path.join(manifest.root, name)))
    except SpaceError as error:
        raise input_error(f"{name}: {error.message}", location=location, hint=error.hint) from None
    except OSError as error:
        raise input_error(f"{name} cannot be read: {error.strerror}", location=location) from None


def choose_schedules(
    manifest: Manifest,
    script: str,
    params: Mapping[str, Value],
    target: Target,
    space: Space,
    level: int,
) -> ChosenSchedules:
    """Return the schedules of a level, and the declared default or None. `params` name the instance
    in an error. Raises `InputError`."""
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
        raise locate_space_error(manifest, script, target.name, error, params) from None
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
    declared = manifest.scripts[script].merge_default(target.name)
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
    owner, keys = manifest.scripts[script], _find_rule(manifest, script, target, error.rule)
    of_instance = f"{format_instance_name(script, params)} for {target}: "
    # The script's own default is one mistake, whichever targets it is for.
    message = error.message if keys[2] == "default" else of_instance + error.message
    # The whole table: which of its values is wrong depends on the others.
    if isinstance(error, DefaultError) and (owner.default or owner.get_override(target).default):
        keys = manifest.resolve_override(script, target, "default")
    return input_error(message, location=manifest.locate_key(*keys), hint=error.hint)


def _find_rule(manifest: Manifest, script: str, target: str, rule: str | None) -> Path:
    """Return the keys of a rule or parameter in the manifest; for None those of the space."""
    owner = manifest.scripts[script]
    # In this order, since a rule of the manifest may have the name of a parameter. A parameter of a
    # T1 file may be named by a default alone.
    tables = {
        "restrict": owner.parse_rules(target),
        "derived": owner.parse_derived_values(target),
        "space": owner.list_tuning_parameters(target),
        "params": owner.params,
        "default": owner.merge_default(target),
    }
    for table, names in tables.items():
        if rule is not None and rule in names:
            return manifest.resolve_override(script, target, table, rule)
    return manifest.resolve_override(script, target, "space")


def report_spaces(
    manifest: Manifest, selection: PlanSelection
) -> Iterator[tuple[str, SpaceReport]]:
    """Yield for each selected instance its name and a report of what the rules remove from its
    space. Raises `InputError`."""
    # Imported here, because it imports NumPy, which most verbs do not need.
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
"""Values of a space that is remembered: reading more would take as long as enumerating them."""
_MAX_UNUSED = 16
"""Spaces of a script that are kept though this plan did not ask for them: of another target or
constant, or of values that may come back."""


class KnownSpace(Struct, frozen=True, array_like=True):
    """The schedules that were chosen of one space. `indices` are their numbers in the space, None
    for all. `columns` are the values of each of `names`, in the order of `indices`."""

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
        # `default` is an index in the space: its position among the chosen schedules is needed.
        position = indices.index(self.default)
        return schedules, schedules[position]


class SpaceCache:
    """The chosen schedules of one project's spaces: a file for each script in `directory`, read
    when it is needed and written by `save_changes` only. `code` is the digest of our own code."""

    def __init__(self, directory: str, owner: str, code: str) -> None:
        self._directory = directory
        self._owner = owner
        self._code = code
        self._spaces_by_script: dict[str, dict[str, Raw]] = {}
        self._used_digests: set[str] = set()
        self._changed_scripts: set[str] = set()

    def find_size(self, script: str, spec: SpaceSpec) -> Size | None:
        """Return the remembered numbers of valid points and of all combinations; None if the space
        is not remembered. The first number is None for a space that was sampled and not counted."""
        remembered = self._find_remembered(script, self._digest_space(spec))
        return None if remembered is None else (remembered.count, remembered.cartesian)

    def find_schedules(
        self, script: str, space: Space, question: str, choose: Callable[[], ChosenSchedules]
    ) -> ChosenSchedules:
        """Return the schedules that answer a question of `format_question`: remembered ones, or
        else those that `choose` returns, which are then remembered."""
        key = self._digest_space(space.spec)
        question_digest = sha256_text(question)
        remembered = self._find_remembered(script, key)
        if remembered is not None and remembered.question == question_digest:
            return remembered.restore_schedules()
        schedules, default = choose()
        # A single schedule (level 0) is chosen again faster than it is read. It does not replace
        # the remembered answer to another question, and is remembered only for the space's size.
        if remembered is None or len(schedules) > 1:
            size = space.size
            self._remember_schedules(script, key, question_digest, schedules, default, size)
        return schedules, default

    def save_changes(self) -> None:
        """Write what changed; do nothing where the directory cannot be written."""
        for script in self._changed_scripts:
            spaces = self._spaces_by_script[script]
            # A dict keeps the order of insertion, so the last ones are the newest.
            unused_keys = [key for key in spaces if key not in self._used_digests]
            dropped_keys = unused_keys[:-_MAX_UNUSED]
            kept_spaces = {key: text for key, text in spaces.items() if key not in dropped_keys}
            _ENVELOPE.save_value(self._name_file(script), kept_spaces)
        self._changed_scripts.clear()

    def _digest_space(self, spec: SpaceSpec) -> str:
        """Return the digest of a space and of tilusbuild's code."""
        expressions = [expr for _, expr in (*spec.derived, *spec.restrict)]
        expressions += [
            parameter.when for parameter in spec.parameters if parameter.when is not None
        ]
        # `repr` shows an expression by its source only: the canonical text is that of its tree.
        texts = (self._code, repr(spec), *(expr.canonical for expr in expressions))
        return sha256_text("\n".join(texts))

    def _find_remembered(self, script: str, key: str) -> KnownSpace | None:
        """Return the remembered space with this digest, or None. Marks it as used."""
        if script not in self._spaces_by_script:
            self._spaces_by_script[script] = (
                _ENVELOPE.load_value(self._name_file(script), dict[str, Raw]) or {}
            )
        self._used_digests.add(key)
        text = self._spaces_by_script[script].get(key)
        # Only this space is decoded: a file has those of all targets and constants.
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
        # The default is remembered by its index only: its values are those of a schedule.
        if default is not None and default.index not in indices:
            return
        count, cartesian = size
        is_whole_space = indices == list(range(count or 0))
        known_space = KnownSpace(
            count=count,
            cartesian=cartesian,
            question=question,
            default=None if default is None else default.index,
            indices=None if is_whole_space else indices,
            names=[*columns],
            columns=[column[:] for column in columns.values()],
        )
        self._spaces_by_script[script][key] = Raw(msgpack.encode(known_space))
        self._changed_scripts.add(script)

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
            required_values = row.use.items()
            is_planned = any(
                all(schedule.values.get(name) == value for name, value in required_values)
                for schedules in instances
                for schedule in schedules
            )
            if is_planned:
                continue
            specs = _list_space_specs(manifest, script)
            if any(_has_schedule(spec, row.use) for spec in specs):
                continue
            values = ", ".join(f"{name} = {format_toml(value)}" for name, value in required_values)
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
    for target in manifest.list_script_targets(script):
        for params in list_instances(manifest, script, target):
            yield make_space_spec(manifest, script, targets[target], params)


def _has_schedule(spec: SpaceSpec, use: Mapping[str, Value]) -> bool:
    """Return whether a space may have a schedule with these values.

    True for a space with another mistake: planning the instance reports that one.
    """
    if not use.keys() <= {*spec.parameter_names, *(name for name, _ in spec.derived)}:
        return False
    # A rule `name == value` for each value: the space with these is empty if no schedule has them.
    rules = tuple(
        (name, Expr(name, Compare(Name(name), (("==", Const(value)),))))
        for name, value in use.items()
    )
    try:
        # One point is enough, so a large space is not enumerated beyond the budget: it is then
        # taken to have one.
        Space(replace(spec, restrict=(*spec.restrict, *rules)), budget=SAMPLE_BUDGET)
    except EmptySpaceError:
        return False
    except SpaceError:
        return True
    return True
