"""The part of a ninja file that says how sources are compiled, as PyTorch's extensions write it.

Variables, rules and edges are read; `include`, `subninja` and pools are not followed, and noted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from tilusbuild.intake.draft import Draft
from tilusbuild.intake.words import words_of

_VARIABLE = re.compile(r"\$(?:(?P<escaped>[$ :\n])|\{(?P<long>[\w.-]+)\}|(?P<name>[\w-]+))")
_ASSIGNMENT = re.compile(r"(\s*)([\w.-]+)\s*=\s*(.*)")
_MAX_NESTED, _MAX_LENGTH = 20, 1 << 20


def commands(draft: Draft, text: str, directory: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the directory and the words of each edge's command."""
    globals_: dict[str, str] = {}
    rules: dict[str, dict[str, str]] = {}
    edges: list[tuple[list[str], list[str], dict[str, str]]] = []
    scope = globals_
    for line in re.sub(r"\$\n\s*", "", text).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if match := _ASSIGNMENT.fullmatch(line):
            (scope if match[1] else globals_)[match[2]] = match[3]
        elif line.startswith("rule "):
            scope = rules.setdefault(line.split()[1], {})
        elif line.startswith("build "):
            made, _, rest = line.removeprefix("build ").partition(": ")
            edges.append((_paths(rest), _paths(made), scope := {}))
        elif line.startswith(("include ", "subninja ")):
            draft.note(f"not followed: {line.strip()}")
        else:
            scope = {}
    for (rule, *inputs), outputs, own in edges:
        if command := rules.get(rule, {}).get("command"):
            values = {**globals_, **rules[rule], **own}
            known = {"in": _quoted(inputs, values), "out": _quoted(outputs, values)}
            yield directory, words_of(_filled(command, values, known))


def _paths(text: str) -> list[str]:
    """Return the explicit paths of an edge's side, still escaped; its rule is the first of them."""
    return re.split(r"(?<!\$) +", text.split(" | ")[0].split(" || ")[0].strip())


def _quoted(paths: Sequence[str], values: dict[str, str]) -> str:
    """Return paths as ninja gives them to a shell. Raises `ValueError`."""
    return " ".join(shlex.quote(_filled(path, values, {})) for path in paths)


def _filled(text: str, values: dict[str, str], known: dict[str, str], depth: int = 0) -> str:
    """Return a text with its variables filled in; `known` are those that were. Raises
    `ValueError`."""
    if depth > _MAX_NESTED:
        raise ValueError("its variables are nested too deeply")

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "" if match["escaped"] == "\n" else match["escaped"]
        name = match["long"] or match["name"]
        if name not in known:
            known[name] = _filled(values.get(name, ""), values, known, depth + 1)
        return known[name]

    filled = _VARIABLE.sub(value, text)
    if len(filled) > _MAX_LENGTH:
        raise ValueError(f"a command has more than {_MAX_LENGTH:,} characters")
    return filled
