"""The error of a point where a rule has no value: the rule is evaluated again there, for its
words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilusbuild.expr import ExprError
from tilusbuild.space.model import Derived, Model, Rule, SpaceError, located, show


def fault_at(model: Model, rule: Rule, digits: Mapping[int, int]) -> SpaceError:
    """Return the error that `rule` makes at the point of `digits` (position → row), with the
    point."""
    env = dict(model.constants)
    for position in sorted(rule.needs):
        domain = model.domains[position]
        env.update(zip(domain.names, domain.rows[digits[position]], strict=True))
    point = ", ".join(
        f"{name} = {show((env[name],))}"
        for position in sorted(rule.needs)
        for name in model.domains[position].names
    )
    what = "the rule" if rule.pins is None else "the condition of"
    try:
        for derived in model.derived:
            if derived.needs <= rule.needs:
                env[derived.name] = _value_or_error(derived, env)
        rule.expr.evaluate_carefully(env)
    except ExprError as error:
        found = located(rule.name, what, error)
        found.message += f", at {point}"
        found.args = (found.message,)
        found.hint = "a rule that excludes the point, or `… == 0 or …` in front, guards it"
        return found
    raise AssertionError(f"{rule.name} has a value at {point}")


def _value_or_error(derived: Derived, env: Mapping[str, Any]) -> Any:
    try:
        return derived.expr.evaluate_carefully(env)
    except ExprError as error:
        return ExprError(f'{error.message}, which is the derived value "{derived.name}"')
