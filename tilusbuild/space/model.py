"""A checked space: domains, derived values in the order of computation, and rules.

Constants are folded into the expressions. A top-level `and` of a rule is split, so that each side
can be applied as early as possible. A condition (`when`) becomes a rule over its parameter, so that
a point with a false condition exists once. The parameters that an expression needs include those of
the derived values in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any, TypeAlias

from msgspec import Struct, field

from tilusbuild.expr import Expr, ExprError, Value
from tilusbuild.expr.parser import parse_value
from tilusbuild.expr.tree import Logic, format_canonical, is_boolean


class Domain(Struct, frozen=True):
    """The rows of a parameter: the declared ones, then `else` if it is not one of them.

    `declared` counts the declared rows. `pinned` is the position of `else`, None for a parameter
    without a condition. `default` is the position of the default row.
    """

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    declared: int = 0
    pinned: int | None = None
    default: int | None = None

    @property
    def columns(self) -> dict[str, tuple[Value, ...]]:
        """The values of each name, row by row."""
        return dict(zip(self.names, zip(*self.rows, strict=True), strict=True))

    def find_rows(self, values: Mapping[int, Value]) -> set[int]:
        """Return the positions of the rows with these values. A key is the index of a value in a
        row."""
        # 1, 1.0 and True are equal for Python, and three values for a template.
        typed = [(index, type(value), value) for index, value in values.items()]
        return {
            position
            for position, row in enumerate(self.rows)
            if all(type(row[index]) is kind and row[index] == value for index, kind, value in typed)
        }

    def find_row(self, row: Row) -> int | None:
        """Return the position of a row, or None."""
        return min(self.find_rows(dict(enumerate(row))), default=None)


class Derived(Struct, frozen=True):
    """A value computed at each point. `needs` are the positions of its parameters."""

    name: str
    expr: Expr
    needs: frozenset[int]


class Rule(Struct, frozen=True):
    """A condition that every valid point meets.

    `position` is the restriction's number, -1 for a parameter's `when`. `pinned_parameter` is the
    position of the parameter with this `when`: where `expr` is true only its declared rows are
    valid, elsewhere only its pinned row.
    """

    name: str
    position: int
    expr: Expr
    needs: frozenset[int]
    pinned_parameter: int | None = None


class Model(Struct, frozen=True):
    """A space with everything that the enumeration needs."""

    domains: tuple[Domain, ...]
    positions: Mapping[str, int]
    """The position of each name's parameter."""
    constants: Mapping[str, Value]
    derived: tuple[Derived, ...]
    derived_names: tuple[str, ...]
    rules: tuple[Rule, ...]
    rule_names: tuple[str, ...]
    never: tuple[int, ...]
    """Positions of the restrictions that the constants alone make false."""

    @property
    def cartesian(self) -> int:
        """The number of combinations of declared values, restricted by nothing."""
        return math.prod(domain.declared for domain in self.domains)

    def format_names(self, members: Sequence[int]) -> str:
        """Return the names of the parameters at these positions, for messages."""
        return ", ".join(name for position in members for name in self.domains[position].names)


def build_model(spec: SpaceSpec) -> Model:
    """Check `spec` and return its model. Raises `SpaceError` that names the mistake.

    The manifest's checks and `t1` have already ensured that all rows of a parameter have its
    length and differ, and that each condition has an `else`.
    """
    positions = _map_positions(spec)
    domains = tuple(_make_domain(parameter) for parameter in spec.parameters)
    _check_names(spec, positions)
    constants, derived = _order_derived(spec, positions)
    needs = {name: frozenset((position,)) for name, position in positions.items()}
    needs |= {value.name: value.needs for value in derived}
    rules = list(_make_condition_rules(spec, constants, needs))
    never = []
    for position, (name, expr) in enumerate(spec.restrict):
        folded = _fold_rule(name, expr, constants)
        for part in _split_conjuncts(folded):
            if part.names:
                rules.append(Rule(name, position, part, _union_needs(part, needs)))
            elif not _evaluate_constant(name, part):
                # One false part is enough, and `never` has each restriction once.
                never.append(position)
                break
    return Model(
        domains=domains,
        positions=positions,
        constants=constants,
        derived=derived,
        derived_names=tuple(name for name, _ in spec.derived),
        rules=tuple(rules),
        rule_names=tuple(name for name, _ in spec.restrict),
        never=tuple(never),
    )


def locate_error(
    name: str, kind: str, error: ExprError, *, point: str | None = None, hint: str | None = None
) -> SpaceError:
    """Return a `SpaceError` for an error of the expression `name`, at a point if it has one there.
    `kind` is "the rule" and the like."""
    message = f'{kind} "{name}": {error.message}' + (f", at {point}" if point else "")
    return SpaceError(message, rule=name, column=error.column, hint=hint)


def _map_positions(spec: SpaceSpec) -> dict[str, int]:
    """Return the position of each name's parameter. Raises `SpaceError` for a name with two
    meanings, which the manifest's checks do not see in a T1 file."""
    names = [*spec.parameter_names, *spec.constants, *(name for name, _ in spec.derived)]
    for name, count in Counter(names).items():
        if count > 1:
            raise SpaceError(f'"{name}" is declared twice', rule=name)
    return {
        name: position
        for position, parameter in enumerate(spec.parameters)
        for name in parameter.names
    }


def _make_domain(parameter: Parameter) -> Domain:
    """Return a parameter's domain. Raises `SpaceError` for a value that no space may have."""
    title = ", ".join(parameter.names)
    if not parameter.values:
        raise SpaceError(f'the parameter "{title}" has no values', rule=title)
    rows, default, pinned = parameter.values, None, None
    for row in (*rows, parameter.otherwise, parameter.default):
        if row is not None:
            _check_row(title, row)
    # This domain has the declared rows only: the default and the `else` are looked for in it.
    declared_domain = Domain(parameter.names, rows)
    if parameter.default is not None:
        default = declared_domain.find_row(parameter.default)
        if default is None:
            raise make_outside_error(declared_domain, parameter.default)
    if parameter.otherwise is not None:
        pinned = declared_domain.find_row(parameter.otherwise)
        # A new row is appended, so that the declared rows keep their positions.
        if pinned is None:
            pinned = len(rows)
            rows = (*rows, parameter.otherwise)
    return Domain(
        parameter.names, rows, declared=len(parameter.values), pinned=pinned, default=default
    )


_MAX_LISTED = 24
"""Rows of a parameter that an error lists."""


def make_outside_error(domain: Domain, row: Row) -> SpaceError:
    """Return the error for a default that is not among a parameter's values."""
    title = ", ".join(domain.names)
    listed_values = ", ".join(format_row(row) for row in domain.rows[:_MAX_LISTED])
    more = ", …" if len(domain.rows) > _MAX_LISTED else ""
    return SpaceError(
        f'the default {format_row(row)} of "{title}" is outside its space',
        rule=title,
        hint=f"its values are {listed_values}{more}",
    )


def format_row(row: Row) -> str:
    """Return the text of a row as it is written in a manifest."""
    # TOML spells a bool in lower case.
    texts = [str(value).lower() if isinstance(value, bool) else _quote_text(value) for value in row]
    return texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"


def _quote_text(value: Value) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def format_point(values: Mapping[str, Value], domains: Iterable[Domain]) -> str:
    """Return the text of a point, of the parameters of `domains`."""
    names = (name for domain in domains for name in domain.names)
    return ", ".join(f"{name} = {format_row((values[name],))}" for name in names)


def _check_row(title: str, row: Row) -> None:
    """Raise `SpaceError` for a number that is not finite or beyond 64 bits."""
    for value in row:
        try:
            if not isinstance(value, str):
                parse_value(value)
        except ExprError as error:
            raise SpaceError(f'"{title}": {error.message}', rule=title) from None


def _check_names(spec: SpaceSpec, positions: Mapping[str, int]) -> None:
    """Raise `SpaceError` for the first expression with a name that the space does not have."""
    # This is checked before any expression is folded: folding `true or misspelt` would drop the
    # name that is wrong.
    known_names = {*positions, *spec.constants, *(name for name, _ in spec.derived)}
    for name, kind, expr in _list_expressions(spec):
        try:
            expr.check_names(known_names)
        except ExprError as error:
            raise locate_error(name, kind, error) from None


def _list_expressions(spec: SpaceSpec) -> Iterator[tuple[str, str, Expr]]:
    """Yield each expression with its name and its kind, which is as in `locate_error`."""
    for parameter in spec.parameters:
        if parameter.when is not None:
            yield ", ".join(parameter.names), "the condition of", parameter.when
    yield from ((name, "the derived value", expr) for name, expr in spec.derived)
    yield from ((name, "the rule", expr) for name, expr in spec.restrict)


def _fold_rule(name: str, expr: Expr, constants: Mapping[str, Value]) -> Expr:
    """Return the expression with values in place of constants. Raises `SpaceError`."""
    try:
        return expr.substitute(constants)
    except ExprError as error:
        raise locate_error(name, "the rule", error) from None


def _order_derived(
    spec: SpaceSpec, positions: Mapping[str, int]
) -> tuple[dict[str, Value], tuple[Derived, ...]]:
    """Return the values of all constants by name, and the derived values in the order of
    computation. A derived value of constants alone is a constant. Raises `SpaceError` for a cycle,
    and for a constant without a value."""
    exprs = dict(spec.derived)
    # Sorted, so that the order, and the cycle in a message, do not depend on the hashes of texts.
    graph = {name: sorted(expr.names & exprs.keys()) for name, expr in exprs.items()}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        # graphlib lists each name before those that need it; a reader follows a name to its needs.
        names_in_cycle = error.args[1]
        cycle = " → ".join(reversed(names_in_cycle))
        message = f"the derived values go in a circle: {cycle}"
        raise SpaceError(message, rule=names_in_cycle[0]) from None
    constants = dict(spec.constants)
    # A derived value needs the parameters in its expression, and those of the derived values in it.
    needs = {name: frozenset((position,)) for name, position in positions.items()}
    derived = []
    for name in order:
        expr = _fold_rule(name, exprs[name], constants)
        if not expr.names:
            try:
                constants[name] = expr.evaluate({})
            except ExprError as error:
                raise locate_error(name, "the derived value", error) from None
            continue
        needs[name] = _union_needs(expr, needs)
        derived.append(Derived(name, expr, needs[name]))
    return constants, tuple(derived)


def _make_condition_rules(
    spec: SpaceSpec, constants: Mapping[str, Value], needs: Mapping[str, frozenset[int]]
) -> Iterator[Rule]:
    """Yield a rule for each parameter with a condition. Raises `SpaceError`."""
    for position, parameter in enumerate(spec.parameters):
        if parameter.when is None:
            continue
        title = ", ".join(parameter.names)
        expr = _to_bool(_fold_rule(title, parameter.when, constants))
        condition_needs = _union_needs(expr, needs)
        if position in condition_needs:
            raise SpaceError(f'the condition of "{title}" depends on "{title}" itself', rule=title)
        # The parameter's own row decides, too: the pinned one where the condition is false.
        rule_needs = condition_needs | {position}
        yield Rule(title, position=-1, expr=expr, needs=rule_needs, pinned_parameter=position)


def _union_needs(expr: Expr, needs: Mapping[str, frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*(needs[name] for name in expr.names))


def _split_conjuncts(expr: Expr) -> Iterator[Expr]:
    """Yield the sides of a top-level `and`, also of nested ones, each with a bool for its value."""
    tree = expr.tree
    if isinstance(tree, Logic) and tree.op == "and":
        for item in tree.items:
            yield from _split_conjuncts(Expr(format_canonical(item), item))
    else:
        yield _to_bool(expr)


def _to_bool(expr: Expr) -> Expr:
    """Return an expression with the truth of `expr` as its value, a bool."""
    if is_boolean(expr.tree):
        return expr
    # A rule may be a number (`m % 8`): the value of an `and` with one side is its truth, a bool.
    return Expr(expr.source, Logic("and", (expr.tree,), column=expr.tree.column))


def _evaluate_constant(name: str, expr: Expr) -> bool:
    try:
        return bool(expr.evaluate({}))
    except ExprError as error:
        raise locate_error(name, "the rule", error) from None


class SpaceError(Exception):
    """A space that has no points, too many, or no meaning.

    `rule` names the restriction, derived value or parameter at fault. `column` (from 1) is a
    position in its expression. `hint` says what would be right.
    """

    def __init__(
        self,
        message: str,
        *,
        rule: str | None = None,
        hint: str | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rule = rule
        self.hint = hint
        self.column = column


class DefaultError(SpaceError):
    """The default schedule is not a point of the space."""


class EmptySpaceError(SpaceError):
    """No point is valid."""


Row = tuple[Value, ...]


class Parameter(Struct, frozen=True):
    """One parameter, or several linked parameters that take their values together, row by row.

    Where `when` is false the parameter has the row `otherwise`, which need not be among `values`.
    """

    names: tuple[str, ...]
    values: tuple[Row, ...]
    when: Expr | None = None
    otherwise: Row | None = None
    default: Row | None = None


class SpaceSpec(Struct, frozen=True):
    """A space as it is declared. `constants` are params, arch.X and facts.X for expressions.

    `derived` may be in any order. A point is valid if every expression of `restrict` is true.
    """

    parameters: tuple[Parameter, ...]
    constants: Mapping[str, Value] = field(default_factory=dict)
    derived: tuple[tuple[str, Expr], ...] = ()
    restrict: tuple[tuple[str, Expr], ...] = ()

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The names of all parameters, in order."""
        return tuple(name for parameter in self.parameters for name in parameter.names)


def make_rule_error(model: Model, rule: Rule, digits: Mapping[int, int]) -> SpaceError:
    """Return the error of a rule that has no value at a point; the message shows the point.

    `digits` has the row of each parameter of the rule, by position.
    """
    env = dict(model.constants)
    domains = {position: model.domains[position] for position in sorted(rule.needs)}
    for position, domain in domains.items():
        env.update(zip(domain.names, domain.rows[digits[position]], strict=True))
    point = format_point(env, domains.values())
    kind = "the rule" if rule.pinned_parameter is None else "the condition of"
    try:
        for derived in model.derived:
            if derived.needs <= rule.needs:
                # The value may be an `ExprError`, which is raised only if the rule reaches the
                # name.
                env[derived.name] = _evaluate_or_error(derived, env)
        rule.expr.evaluate_lazily(env)
    except ExprError as error:
        hint = "a rule that excludes the point, or `… == 0 or …` in front, guards it"
        return locate_error(rule.name, kind, error, point=point, hint=hint)
    raise AssertionError(f"{rule.name} has a value at {point}")


def _evaluate_or_error(derived: Derived, env: Mapping[str, Any]) -> Any:
    try:
        return derived.expr.evaluate_lazily(env)
    except ExprError as error:
        return ExprError(f'{error.message}, which is the derived value "{derived.name}"')


CHUNK = 4096  # schedules made at a time


class Schedule(Struct, frozen=True):
    """One point: its index in the space, and the values of all parameters and derived values."""

    index: int
    values: Mapping[str, Value]


Column: TypeAlias = Any
"""The values of one name. A slice of a column is a list of Python values. So the columns of an
enumeration and those that are read from a file without NumPy are used alike."""


class Schedules(Sequence[Schedule]):
    """A sequence of schedules. `indices` are their indices in the space, `columns` their values by
    name. Each `Schedule` is made at its use."""

    __slots__ = ("columns", "indices")

    def __init__(self, indices: Sequence[int], columns: Mapping[str, Column]) -> None:
        self.indices = indices
        self.columns = columns

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        """Return the schedule at a position; slices are not supported."""
        position = range(len(self))[index]
        return next(self._make_schedules(position, position + 1))

    def __iter__(self) -> Iterator[Schedule]:
        for start in range(0, len(self), CHUNK):
            yield from self._make_schedules(start, min(start + CHUNK, len(self)))

    def _make_schedules(self, start: int, stop: int) -> Iterator[Schedule]:
        """Yield the schedules at the positions from `start` to before `stop`."""
        # A slice of each column makes many Python values at once, which is faster than one at a
        # time.
        part = slice(start, stop)
        names = tuple(self.columns)
        columns = [column[part] for column in self.columns.values()]
        # A space without parameters has one point and no columns: `zip` would give no row for it.
        rows = zip(*columns, strict=True) if columns else iter([()] * (stop - start))
        for index, row in zip(self.indices[part], rows, strict=True):
            # Read-only: a schedule stands for a program's hash, and is passed to many users.
            yield Schedule(index, MappingProxyType(dict(zip(names, row, strict=True))))
