"""Units: the schedules of an instance whose kernels are compiled in one translation unit.

Schedules with the same values of the parameters in `group` have one source, since their template
sees no other parameter, and each is a kernel of its own in it. A unit is all of them, planned or
not: which of the others are built decides no program's hash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace

from tilusbuild.errors import Diagnostic, InputError
from tilusbuild.expr import Expr, Value, parse
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.space import Schedule, Space, SpaceError, SpaceSpec

MAX_KERNELS = 256
"""In one unit."""


@dataclass(slots=True)
class Grouping:
    """How the schedules of one instance are divided into units."""

    group: Collection[str]
    """The parameters whose values all kernels of a unit share; constants too, which say nothing."""
    spec: SpaceSpec
    names: Callable[[Mapping[str, Value]], tuple[str, ...]]
    """The kernels of a schedule, by its values."""
    fail: Callable[[Diagnostic], InputError]
    """Puts what is wrong at its place in the manifest."""
    _units: dict[tuple[Value, ...], tuple[str, ...]] = field(default_factory=dict)

    @property
    def shared(self) -> frozenset[str]:
        """The names of the space that have one value in a unit: what the source may depend on."""
        parameters = {name for each in self.spec.parameters for name in each.names}
        known = (parameters & set(self.group)) | self.spec.constants.keys()
        derived: dict[str, Expr] = dict(self.spec.derived)
        found = set(known)
        while more := {n for n, expr in derived.items() if n not in found and expr.names <= found}:
            found |= more
        return frozenset(found - self.spec.constants.keys())

    def key(self, values: Mapping[str, Value]) -> tuple[Value, ...]:
        """Return what distinguishes the unit of a schedule from others."""
        return tuple(values[name] for name in self.group if name in values)

    def kernels(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the kernels of the unit of a schedule, in the space's order. Raises
        `InputError`."""
        key = self.key(values)
        if key not in self._units:
            self._units[key] = self._enumerated(values)
        return self._units[key]

    def _enumerated(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        own = {name for each in self.spec.parameters for name in each.names} & set(self.group)
        rules = ((f"group {name}", parse(f"{name} == {values[name]!r}")) for name in sorted(own))
        spec = replace(self.spec, restrict=(*self.spec.restrict, *rules))
        try:
            space = Space(spec)
            if space.count > MAX_KERNELS:
                raise self.fail(_too_many(space.count))
            points: list[Schedule] = list(space)
        except SpaceError as error:
            raise self.fail(Diagnostic(error.message, None, error.hint)) from None
        named = (name for point in points for name in self.names(point.values))
        return tuple(dict.fromkeys(named))

    def explained(self, error: InputError) -> InputError:
        """Return a template's error, with the reason where it is a parameter that it cannot see."""
        hidden = {*(name for each in self.spec.parameters for name in each.names)}
        hidden |= {name for name, _ in self.spec.derived}
        hint = (
            "the kernels of a unit differ in it: name it in group, or pass it to the kernel, as in "
            'kernel = "scale<{{{{ {name} }}}}>"'
        )
        return InputError(
            *(
                replace(each, hint=hint.format(name=found[1]))
                if (found := _UNDEFINED.match(each.message)) and found[1] in hidden
                else each
                for each in error.diagnostics
            )
        )


_UNDEFINED = re.compile(r'"(\w+)" is undefined')


def _too_many(count: int) -> Diagnostic:
    return Diagnostic(
        f"{count} schedules would be one translation unit, more than {MAX_KERNELS}",
        hint="name more parameters in group: schedules that differ in one of these are compiled "
        "apart",
    )
