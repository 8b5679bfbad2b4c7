"""What can be wrong with an expression: its text, its names, or its value at one point.

Every error carries a column of the source when it has one, and the name of the rule that the
expression stands for once somebody who knows that name has caught it.
"""

from __future__ import annotations


class ExprError(Exception):
    """An expression that cannot be read or has no value. `column` counts from 1 in the source."""

    def __init__(self, message: str, column: int | None = None, rule: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.rule = rule

    def named(self, rule: str) -> ExprError:
        """Return the same error, said of `rule`."""
        return ExprError(self.message, self.column, rule)

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}" if self.rule else self.message
