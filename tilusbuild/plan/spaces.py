"""From the manifest's tables to a tuning space: constants, parameters, derived values and rules.

One instance of a script has one space for each target. What is wrong with a space is told at the
place in the manifest that says it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tilusbuild.arch import combined
from tilusbuild.errors import Diagnostic, InputError, Place, input_error
from tilusbuild.expr import Value
from tilusbuild.manifest import Manifest
from tilusbuild.plan.model import Target
from tilusbuild.plan.selection import Selection, chosen_pairs
from tilusbuild.runtime.names import instance_label
from tilusbuild.space import Schedule, Space, SpaceError, SpaceSpec, select
from tilusbuild.space.model import build
from tilusbuild.space.t1 import T1Space, read_t1

if TYPE_CHECKING:
    from tilusbuild.space.report import SpaceReport


def instances_of(manifest: Manifest, script: str, target: str) -> Iterator[dict[str, Value]]:
    """Yield the constants of each instance, in declared order; the last list varies fastest."""
    constants = manifest.scripts[script].params_for(target)
    for rows in itertools.product(*(constant.values for constant in constants)):
        yield {
            name: value
            for constant, row in zip(constants, rows, strict=True)
            for name, value in zip(constant.names, row, strict=True)
        }


def target_constants(target: Target) -> dict[str, Value]:
    """Return what every expression of a target sees: `arch.*` and `facts.*`."""
    limits = {f"arch.{name}": value for name, value in combined(target.archs).items()}
    return {**limits, **{f"facts.{name}": value for name, value in target.facts.items()}}


def spec_of(
    manifest: Manifest, script: str, target: Target, params: Mapping[str, Value]
) -> SpaceSpec:
    """Return what the manifest, and its T1 file where it names one, declare the space of one
    instance to be. Raises `InputError`."""
    owner = manifest.scripts[script]
    imported = imported_space(manifest, script)
    declared = tuple(owner.space_for(target.name).values())
    own = {name for parameter in declared for name in parameter.names}
    kept = [p for p in imported.parameters if own.isdisjoint(p.names)] if imported else []
    rules = dict(imported.restrict) if imported else {}
    return SpaceSpec(
        constants={**target_constants(target), **params},
        parameters=(*kept, *declared),
        derived=tuple(owner.derived_for(target.name).items()),
        restrict=tuple({**rules, **owner.restrict_for(target.name)}.items()),
    )


def imported_space(manifest: Manifest, script: str) -> T1Space | None:
    """Return the space in the script's T1 file; None when it names none. Raises `InputError`."""
    name = manifest.scripts[script].space_file
    if name is None:
        return None
    place = manifest.place_of_value("script", script, "space-file")
    try:
        with open(os.path.join(manifest.root, name), encoding="utf-8") as file:
            return read_t1(file.read())
    except SpaceError as error:
        raise input_error(f"{name}: {error.message}", place=place, hint=error.hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise input_error(f"{name} cannot be read: {error}", place=place) from None


def space_of(
    manifest: Manifest,
    script: str,
    target: str,
    spec: SpaceSpec,
    size: tuple[int, int] | None = None,
) -> Space:
    """Return the tuning space of one instance; `size` as for `Space`. Raises `InputError`."""
    try:
        return Space(spec, size)
    except SpaceError as error:
        raise located(manifest, script, target, error) from None


def chosen(
    manifest: Manifest, script: str, target: Target, space: Space, level: int
) -> tuple[tuple[Schedule, ...], Schedule | None]:
    """Return the schedules of a level, and the default that the manifest declares, if it declares
    one. Raises `InputError`."""
    owner = manifest.scripts[script]
    defaults = _defaults(manifest, script, target)
    try:
        default = space.complete(defaults) if defaults else None
        schedules = select(
            space,
            level,
            sample=owner.levels.sample,
            default=defaults,
            seed=owner.levels.seed,
        )
    except SpaceError as error:
        raise located(manifest, script, target.name, error) from None
    return schedules, default


def question(manifest: Manifest, script: str, target: Target, level: int) -> str:
    """Return all that decides, besides the space, what `chosen` gives. Raises `InputError`."""
    levels = manifest.scripts[script].levels
    return repr((level, levels.sample, levels.seed, _defaults(manifest, script, target)))


def _defaults(manifest: Manifest, script: str, target: Target) -> dict[str, Value]:
    imported = imported_space(manifest, script)
    own = manifest.scripts[script].default_for(target.name)
    return {**(imported.default if imported else {}), **own}


def located(manifest: Manifest, script: str, target: str, error: SpaceError) -> InputError:
    """Return a space's complaint at the rule, the parameter or the table that it is about."""
    return InputError(
        Diagnostic(
            f"{script} for {target}: {error.message}",
            _place(manifest, script, target, error.rule),
            error.hint,
        )
    )


def _place(manifest: Manifest, script: str, target: str, rule: str | None) -> Place:
    owner = manifest.scripts[script]
    if rule is not None:
        for table in ("restrict", "derived", "space", "params"):
            names = {
                "restrict": owner.restrict_for(target),
                "derived": owner.derived_for(target),
                "space": owner.space_for(target),
                "params": owner.params,
            }[table]
            if rule in names:
                return manifest.place(*manifest.written(script, target, table, rule))
    return manifest.place(*manifest.written(script, target, "space"))


def reports(manifest: Manifest, selection: Selection) -> Iterator[tuple[str, SpaceReport]]:
    """Yield what the rules of each selected instance's space remove, also where nothing is left.

    Raises `InputError`.
    """
    from tilusbuild.space.report import report

    for script, target in chosen_pairs(manifest, selection):
        for params in instances_of(manifest, script, target.name):
            spec = spec_of(manifest, script, target, params)
            try:
                yield instance_label(script, params, target.name), report(build(spec))
            except SpaceError as error:
                raise located(manifest, script, target.name, error) from None
