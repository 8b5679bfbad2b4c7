"""The errors of loading and choosing a kernel.

    LoadError              there is no kernel to load
      CorruptCacheError    a file is cut short, malformed or not what was built
    DriverError            the CUDA driver is missing, or a call of it failed

Each message says what would help. What a library reports about a call's arguments (`TypeError`,
`ValueError`) is passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable


class LoadError(RuntimeError):
    """There is no kernel to load; the text gives a reason for each candidate."""

    def __init__(self, message: str, reasons: Iterable[str] = ()) -> None:
        super().__init__("\n  ".join([message, *reasons]))


class CorruptCacheError(LoadError):
    """A file of the tree is cut short, malformed, or not what was built."""


class DriverError(RuntimeError):
    """The CUDA driver is missing or refused a call; the text names the function and the error."""


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return a hint that names the nearest known word, or lists them all when they are few."""
    words = sorted(set(known))
    import difflib  # only for a mistake

    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if near:
        return f'did you mean "{near[0]}"?'
    if 0 < len(words) <= 24:
        return "known: " + ", ".join(words)
    return None
