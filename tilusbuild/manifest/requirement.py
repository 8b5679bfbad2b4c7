"""A requirement on nvcc's version, such as `>=12.4,<14`: Python's version specifiers (PEP 440).

`~=` and `===` are refused: a reader who does not know Python's packaging cannot guess them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

# `packaging` is imported where a requirement is read: it takes some 10 ms and loads `subprocess`,
# and most builds have no requirement.

_REFUSED = ("~=", "===")


class RequirementError(ValueError):
    """A text that is not a requirement; `hint` says what would be right."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def parse_requirement(text: str) -> SpecifierSet:
    """Read a requirement; `version in requirement` asks it. Raises `RequirementError`."""
    from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet

    version = text.strip()
    if _is_version(version):
        hint = f'write ">={version}" for that or later, "=={version}.*" for that'
        raise RequirementError("is missing a comparison", hint)
    for part in text.split(","):
        try:
            refused = Specifier(part.strip()).operator in _REFUSED
        except InvalidSpecifier:
            refused = True
        if refused:
            raise RequirementError(
                f'is neither a requirement on a version nor a path: "{part.strip()}"',
                'as in ">=12.4", ">=12.4,<14", "==13.0.*", or a path such as "/opt/cuda/bin/nvcc"',
            )
    return SpecifierSet(text)


def _is_version(text: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
