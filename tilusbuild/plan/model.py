"""The plan as values, and which part of a project is planned.

A plan is pure: the same manifest, templates, headers and toolchain give the same plan, and making
it writes nothing. It holds no rendered source; a program is a hash and a place in its instance's
space, so that memory stays small with a hundred thousand of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.arch import Arch, combine_limits, parse_arch
from tilusbuild.errors import Diagnostic, InputError, did_you_mean, input_error
from tilusbuild.expr import Expr, ExprError, Value
from tilusbuild.manifest.library import SOURCE, SourcesScript
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.names import split_linked_names
from tilusbuild.runtime.naming import (
    NamePattern,
    format_instance_name,
    format_names,
    parse_name,
)


class Target(Struct, frozen=True):
    """What to compile for, as the manifest names it."""

    name: str
    archs: tuple[Arch, ...]
    ptx: bool
    facts: Mapping[str, Value]
    compress: bool = False

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""
        return "cpu" if self.archs[0].name == "cpu" else "cuda"

    @property
    def arch(self) -> str:
        """The architectures as one word: "sm_90a", or "sm_80+sm_90a", with "+ptx" when embedded."""
        return "+".join([*(arch.name for arch in self.archs), *(["ptx"] if self.ptx else [])])


class PlanSelection(Struct, frozen=True):
    """Which part of a project to plan; empty means all."""

    scripts: tuple[str | NamePattern, ...] = ()
    """Names of scripts, or of instances: `gemm[dtype=f16] h100`."""
    targets: tuple[str, ...] = ()
    level: int = 2

    @property
    def is_whole(self) -> bool:
        """Return whether the whole project is selected."""
        return not self.scripts and not self.targets

    @property
    def names(self) -> tuple[NamePattern, ...]:
        """Return the parsed names of `scripts`. Raises `InputError`."""
        return tuple(
            parse_program_name(name) if isinstance(name, str) else name for name in self.scripts
        )

    def add_objects(self, manifest: Manifest) -> PlanSelection:
        """Return the selection with the objects of its libraries added. A script that stands for
        several kernels is replaced by one script for each kernel. Raises `InputError`."""
        kernel_names = tuple(
            separate_schedule(manifest, name._replace(script=kernel))
            for name in self.names
            for kernel in manifest.list_script_kernels(name.script) or (name.script,)
        )
        # The libraries below are looked for by the kernels' own names, so start again with these.
        if kernel_names != self.names:
            return replace(self, scripts=kernel_names).add_objects(manifest)
        # A library without its objects could not be linked, so naming it selects them.
        objects = [
            NamePattern(script, target=name.target)
            for name in self.names
            for library in manifest.libraries
            if name.matches_script(library)
            for script in manifest.list_library_objects(library)
        ]
        return replace(self, scripts=(*self.scripts, *objects)) if objects else self

    def has_instance(self, script: str, params: Mapping[str, Value], target: str) -> bool:
        """Return whether the names select an instance."""
        names = self.names
        return not names or any(name.matches_instance(script, params, target) for name in names)


def parse_program_name(text: str) -> NamePattern:
    """Return the parsed name. Raises `InputError`."""
    try:
        return parse_name(text)
    except ValueError as error:
        raise input_error(f'"{text}": {error}') from None


def separate_schedule(manifest: Manifest, name: NamePattern) -> NamePattern:
    """Return `name` with the values of parameters moved from `constants` to `schedule`; unchanged
    if the manifest has no such script."""
    # `gemm[block_m=64]`: only the script knows which of its names are constants.
    matching = (script for key, script in manifest.scripts.items() if name.matches_script(key))
    owner = next(matching, None)
    if owner is None or not name.constants:
        return name
    overrides = [*owner.override.values()]
    constant_keys = (*owner.params, *(key for table in overrides for key in table.params))
    parameter_keys = (*owner.space, *(key for table in overrides for key in table.space))
    # A key may declare several linked names: `"block_m, block_n" = [[64, 32], [128, 64]]`.
    constants = {constant for key in constant_keys for constant in split_linked_names(key)}
    parameters = {parameter for key in parameter_keys for parameter in split_linked_names(key)}
    if isinstance(owner, SourcesScript):
        parameters = {SOURCE}
    if owner.space_file is not None:
        # The file is not read here: each name that is not a constant may be one of its parameters.
        parameters |= {constant for constant, _ in name.constants if constant}
    return name.split_schedule(parameters, constants)


def find_script(manifest: Manifest, name: NamePattern) -> str:
    """Return the script of a name, as the manifest spells it. Raises `InputError`."""
    if (problem := _find_name_problem(manifest, name)) is not None:
        raise InputError(problem)
    return next(script for script in manifest.scripts if name.matches_script(script))


def find_called_script(manifest: Manifest, name: NamePattern) -> str:
    """Return the script of a name, whose programs can be called. Raises `InputError`."""
    script = find_script(manifest, name)
    if manifest.scripts[script].form not in ("kernel", "entry"):
        raise input_error(
            f"{script} is a library, or an object of one, and cannot be called",
            location=manifest.locate_key("script", script),
        )
    return script


def list_instances(manifest: Manifest, script: str, target: str) -> Iterator[dict[str, Value]]:
    """Yield the constants of each instance, in declared order; the last list varies fastest.

    Constants that a rule over constants excludes are left out. If rules exclude all of them,
    all are yielded: the error is then that the space is empty.
    """
    constants = manifest.scripts[script].list_constants(target)
    combinations: list[dict[str, Value]] = []
    # A constant may be several linked names, whose values come as rows.
    for rows in itertools.product(*(constant.values for constant in constants)):
        params: dict[str, Value] = {}
        for constant, row in zip(constants, rows, strict=True):
            params |= zip(constant.names, row, strict=True)
        combinations.append(params)
    names = {name for constant in constants for name in constant.names}
    target_names = list_target_constants(make_target(manifest, target))
    rules = [
        rule
        for rule in manifest.scripts[script].parse_rules(target).values()
        # A rule over the target alone is left to the space, whose error then names it.
        if rule.names & names and rule.names <= names | target_names.keys()
    ]
    allowed_combinations = [
        params
        for params in combinations
        if all(_is_rule_met(rule, {**target_names, **params}) for rule in rules)
    ]
    yield from allowed_combinations or combinations


def _is_rule_met(rule: Expr, values: Mapping[str, Value]) -> bool:
    """Return whether a rule is true for these constants; True for a rule without a value, which
    the space reports."""
    try:
        return bool(rule.evaluate(values))
    except ExprError:
        return True


def list_target_constants(target: Target) -> dict[str, Value]:
    """Return the constants that all expressions of a target can read: `arch.*` and `facts.*`."""
    limits = {f"arch.{name}": value for name, value in combine_limits(target.archs).items()}
    return {**limits, **{f"facts.{name}": value for name, value in target.facts.items()}}


def make_targets(manifest: Manifest) -> dict[str, Target]:
    """Return every declared target, by name."""
    return {name: make_target(manifest, name) for name in manifest.targets}


def make_target(manifest: Manifest, name: str) -> Target:
    """Return a declared target."""
    declared = manifest.targets[name]
    return Target(
        name=name,
        archs=_sort_archs(declared.list_archs()),
        ptx=declared.ptx,
        facts=dict(declared.facts),
        compress=declared.compress,
    )


def select_archs(manifest: Manifest, script: str, target: Target) -> Target:
    """Return the target with the architectures of a script: those that a part of a library names
    itself, which the library then has, too."""
    owner = manifest.scripts[script]
    if target.kind == "cpu":
        return target
    if isinstance(owner, SourcesScript):
        names, ptx = owner.owner.arch, owner.owner.ptx
        archs = _sort_archs(map(parse_arch, names))
        return replace(target, archs=archs, ptx=ptx) if names else target
    parts = [part for part in manifest.libraries.values() if part.library == script]
    part_archs = {parse_arch(name) for part in parts for name in part.arch}
    return replace(target, archs=_sort_archs(part_archs.union(target.archs)))


def _sort_archs(archs: Iterable[Arch]) -> tuple[Arch, ...]:
    """Return architectures in one order: that of the manifest must not change a hash."""
    return tuple(sorted(archs, key=lambda arch: (arch.number, arch.suffix)))


def resolve_target_word(manifest: Manifest, word: str) -> tuple[str, ...]:
    """Return the target of this name, else those of this architecture, else the word itself."""
    if word in manifest.targets:
        return (word,)
    targets_of_arch = (name for name, target in manifest.targets.items() if word in target.arch)
    return tuple(targets_of_arch) or (word,)


def select_script_targets(
    manifest: Manifest, selection: PlanSelection
) -> Iterator[tuple[str, Target]]:
    """Yield each selected script with each of its selected targets, in the manifest's order. A
    target is selected by its name or its architecture. Raises `InputError` for an unknown name,
    and when nothing is selected."""
    names = selection.names
    target_names = [
        name for word in selection.targets for name in resolve_target_word(manifest, word)
    ]
    problems = [
        # All names are checked, so that all mistakes of a command line are reported at once.
        *(problem for name in names if (problem := _find_name_problem(manifest, name)) is not None),
        *(
            _make_unknown_target_error(manifest, name)
            for name in target_names
            if name not in manifest.targets
        ),
    ]
    if problems:
        raise InputError(*problems)
    targets = make_targets(manifest)

    def is_selected(script: str, target: str) -> bool:
        if target_names and target not in target_names:
            return False
        return not names or any(
            name.matches_script(script) and name.target in (None, target) for name in names
        )

    pairs = [
        (script, select_archs(manifest, script, targets[target]))
        for script in manifest.scripts
        for target in manifest.list_script_targets(script)
        if is_selected(script, target)
    ]
    # If no target is selected there is always a pair, because a name that matches nothing is one of
    # the problems above.
    if target_names and not pairs:
        raise InputError(
            Diagnostic(
                f"none of the selected scripts is built for {', '.join(selection.targets)}",
                hint="`targets` of [script.NAME] says what each is built for",
            )
        )
    yield from pairs


def _make_unknown_target_error(manifest: Manifest, name: str) -> Diagnostic:
    """Return the error for a target that the manifest does not have."""
    # sm_90 is not a misspelt sm_80, nor gpu a cpu: only a word that is very near is one.
    hint = did_you_mean(name, manifest.targets, likeness=0.84)
    return Diagnostic(f'no target "{name}" in {manifest.path}', hint=hint)


def _find_name_problem(manifest: Manifest, name: NamePattern) -> Diagnostic | None:
    """Return the error for a name that matches no instance; None for a good one.

    A name is wrong if its script stands for several kernels, if there is no such script or target,
    or if no instance of the script has its constants and its target.
    """
    scripts = [script for script in manifest.scripts if name.matches_script(script)]
    if not scripts and (kernels := manifest.list_script_kernels(name.script)):
        kernel_names = format_names(str(name._replace(script=kernel)) for kernel in kernels)
        message = f'"{name}" names {len(kernels)} scripts, one per kernel'
        return Diagnostic(message, hint=f"name one of them:\n{kernel_names}")
    if not scripts:
        hint = did_you_mean(name.script, manifest.scripts)
        if name.script in manifest.targets:
            hint = f"it is a target: `--target {name.script}`"
        return Diagnostic(f'no script "{name.script}" in {manifest.path}', hint=hint)
    if not name.constants and name.target is None:
        return None
    if name.target is not None and name.target not in manifest.targets:
        return _make_unknown_target_error(manifest, name.target)
    instances = [
        (script, params, target)
        for script in scripts
        for target in manifest.list_script_targets(script)
        for params in list_instances(manifest, script, target)
    ]
    if any(name.matches_instance(*instance) for instance in instances):
        return None
    hint = "there are:\n" + format_names(format_instance_name(*instance) for instance in instances)
    return Diagnostic(f'no instance of {scripts[0]} is "{name}"', hint=hint)
