"""The errors of loading and choosing a kernel.

    LoadError              there is no kernel to load
      CorruptCacheError    a file is cut short, malformed or not what was built
    DriverError            the CUDA driver is missing, or a call of it failed

Each message has a remedy. A library's own errors about a call's arguments (`TypeError`,
`ValueError`) are passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class LoadError(RuntimeError):
    """There is no kernel to load; the text gives a reason for each candidate."""

    def __init__(self, message: str, reasons: Iterable[str] = ()) -> None:
        super().__init__("\n  ".join([message, *reasons]))


class CorruptCacheError(LoadError):
    """A file of the tree is cut short, malformed, or not what was built."""


class DriverError(RuntimeError):
    """The CUDA driver is missing or refused a call; the text names the function and the error."""


def check_types(**arguments: tuple[Any, ...]) -> None:
    """Raise `TypeError` for an argument whose value, the first item, has none of the types, the
    others. None stands for its type."""
    for name, (value, *types) in arguments.items():
        known_types = tuple(type(None) if kind is None else kind for kind in types)
        if not isinstance(value, known_types):
            words = " or ".join(getattr(kind, "__name__", "None") for kind in types)
            raise TypeError(f"{name} takes {words}, not {type(value).__name__}")


MAX_LISTED = 24
"""Known words that a hint lists."""


def did_you_mean(
    word: str, known: Iterable[str], *, likeness: float = 0.6, max_listed: int = MAX_LISTED
) -> str | None:
    """Return a hint: the nearest known word, else a list of all if there are at most `max_listed`;
    None otherwise. A word is near when difflib's ratio is at least `likeness`."""
    candidates = sorted(set(known))
    near = find_nearest_word(word, candidates, likeness)
    if near is not None:
        return f'did you mean "{near}"?'
    return "known: " + ", ".join(candidates) if 0 < len(candidates) <= max_listed else None


def find_nearest_word(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word with the highest ratio of difflib, at least `likeness`; None without
    one."""
    # Imported after a mistake only: it takes milliseconds.
    import difflib

    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=likeness)), None)
