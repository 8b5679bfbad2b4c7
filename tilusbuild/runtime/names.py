"""How a script's name becomes its directory's, and what a mistyped name was meant to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def snake_case(name: str) -> str:
    """Return the directory of a script, as Tilus makes it: `_` before each capital but the first,
    lower case.

    A `-` becomes `_` too, so that two scripts never differ by punctuation only.
    """
    parts = "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(name))
    return parts.lower().replace("-", "_")


def instance_label(script: str, params: Mapping[str, object], target: str = "") -> str:
    """Return what a person calls an instance: `matmul[dtype=f16] h100`."""
    fixed = ", ".join(f"{name}={value}" for name, value in params.items())
    return f"{script}[{fixed}] {target}".rstrip() if fixed else f"{script} {target}".rstrip()


def suggestion(word: str, known: Iterable[str]) -> str:
    """Words to add to an error: the nearest known name, or all of them; "" when there is none."""
    import difflib

    words = sorted(set(known))
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if near:
        return f'did you mean "{near[0]}"?'
    return f"there is {', '.join(words[:24])}" if words else ""
