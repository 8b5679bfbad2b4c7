"""What is wrong with a tuning space: which rule or value, and what would be right."""

from __future__ import annotations


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
