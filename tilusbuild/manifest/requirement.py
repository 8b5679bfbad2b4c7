"""Requirements on a version: `>=12.4,<14`.

Clauses joined by commas, all of which must hold. A version is numbers joined by points; missing
numbers are zeros, so `12.4` equals `12.4.0`. `==12.4.*` fixes a prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+){0,3})(\.\*)?")
_VERSION = re.compile(r"\d+(\.\d+){0,3}")


class RequirementError(ValueError):
    """A text that is no requirement; `hint` says what would be right."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison. `prefix` is the `.*` of `==12.4.*` and `!=12.4.*`."""

    operator: str
    version: tuple[int, ...]
    prefix: bool

    def accepts(self, version: tuple[int, ...]) -> bool:
        length = max(len(version), len(self.version))
        ours, theirs = _padded(self.version, length), _padded(version, length)
        if self.prefix:
            theirs, ours = theirs[: len(self.version)], self.version
        return {
            ">=": theirs >= ours,
            "<=": theirs <= ours,
            ">": theirs > ours,
            "<": theirs < ours,
            "==": theirs == ours,
            "!=": theirs != ours,
        }[self.operator]


@dataclass(frozen=True, slots=True)
class Requirement:
    """All clauses of a requirement; `text` as written."""

    text: str
    clauses: tuple[Clause, ...]

    def accepts(self, version: str) -> bool:
        """Whether a version such as "13.0.88" meets it. Raises `ValueError` for no version."""
        if not _VERSION.fullmatch(version):
            raise ValueError(f"no version: {version!r}")
        numbers = tuple(int(number) for number in version.split("."))
        return all(clause.accepts(numbers) for clause in self.clauses)


def parse_requirement(text: str) -> Requirement:
    """Read a requirement. Raises `RequirementError`."""
    if _VERSION.fullmatch(text.strip()):
        version = text.strip()
        raise RequirementError(
            "lacks a comparison", f'write ">={version}" for that or later, "=={version}.*" for that'
        )
    clauses = []
    for part in text.split(","):
        match = _CLAUSE.fullmatch(part.strip())
        if not match or (match.group(3) and match.group(1) not in ("==", "!=")):
            raise RequirementError(
                f'is no requirement on a version, and no path: "{part.strip()}"',
                'as in ">=12.4", ">=12.4,<14", "==13.0.*", or a path such as "/opt/cuda/bin/nvcc"',
            )
        version_numbers = tuple(int(number) for number in match.group(2).split("."))
        clauses.append(Clause(match.group(1), version_numbers, bool(match.group(3))))
    return Requirement(text, tuple(clauses))


def _padded(version: tuple[int, ...], length: int) -> tuple[int, ...]:
    return version + (0,) * (length - len(version))
