"""What a tuning space is declared to be: parameters, derived values, restrictions and constants.

Plain values, checked for nothing: `space.model` reads them and raises `SpaceError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilusbuild.expr import Expr, Value


class SpaceError(Exception):
    """A space that has no points, too many, or no meaning.

    `rule` names the restriction, derived value or parameter at fault; `column` (from 1) is a place
    in its expression; `hint` says what would be right.
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


Row = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter, or several linked ones that take their values together, a row at a time.

    While `when` is false the parameter is pinned to `otherwise`, which need not be among `values`.
    """

    names: tuple[str, ...]
    values: tuple[Row, ...]
    when: Expr | None = None
    otherwise: Row | None = None
    default: Row | None = None


@dataclass(frozen=True, slots=True)
class SpaceSpec:
    """A whole space. `constants` are what expressions see besides: params, arch.X and facts.X.

    `derived` may stand in any order; a point is valid when every expression of `restrict` is true.
    """

    parameters: tuple[Parameter, ...]
    constants: Mapping[str, Value] = field(default_factory=dict)
    derived: tuple[tuple[str, Expr], ...] = ()
    restrict: tuple[tuple[str, Expr], ...] = ()
