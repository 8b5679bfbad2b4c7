"""Prints and parses the names of scripts, instances and programs.

    SCRIPT[NAME=VALUE,…]/I TARGET      gemm[dtype=f16,bias=true]/12 sm_80

A printed name parses back to the same name. Constants are in the manifest's order. Values are
written as in TOML, but a string has quotes only if it would else parse as another value. In a typed
name every part but the script may be missing, and so may the names of constants; it then matches
all that fit. Values of parameters, as in `gemm[tile=64]`, stand for a number.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

# Patterns are compiled when something is parsed: a load that names a script does not import `re`.
# `gemm[dtype=f16]/12 sm_80`: script, text between brackets, number, target.
_NAME = r"([\w.-]+)(?:\[(.*)\])?(?:/([0-9]+))?(?:\s+(\S+))?"
# `dtype = f16`, `f16` or `dtype="f 16"`, up to a comma or the end: name, value.
_CONSTANT = r'\s*(?:(\w+)\s*=)?\s*("(?:[^"\\]|\\.)*"|[^"\s,=\[\]][^",=\[\]]*?)\s*(?=,|\Z)'
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-")
_BOOLEANS = ("true", "false")
_MAX_LINES = 12


def to_snake_case(name: str) -> str:
    """Return the directory name of a script, by Tilus' rule: `_` before each capital but the first,
    lower case.

    A `-` becomes `_` too, so that two scripts never differ by punctuation only.
    """
    parts = "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(name))
    return parts.lower().replace("-", "_")


def format_value(value: object) -> str:
    """Return a constant's value as text for a name. A string is quoted only where it would read as
    another value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    if value and _PLAIN.issuperset(value) and value not in _BOOLEANS:
        try:
            float(value)
        except ValueError:
            return value
    return json.dumps(value)


def format_instance_name(script: str, params: Mapping[str, object], target: str = "") -> str:
    """Return the name of an instance: `matmul[dtype=f16] h100`."""
    return format_program_name(script, params, index=None, target=target)


def format_program_name(
    script: str, params: Mapping[str, object], index: int | None, target: str = ""
) -> str:
    """Return the name of a program: `matmul[dtype=f16]/12 h100`."""
    constants = ",".join(f"{name}={format_value(value)}" for name, value in params.items())
    return _join_name(script, constants, index, target)


def _join_name(script: str, constants: str, index: int | None, target: str) -> str:
    brackets = f"[{constants}]" if constants else ""
    number = "" if index is None else f"/{index}"
    return f"{script}{brackets}{number} {target}".rstrip()


def name_functions(instances: Iterable[tuple[str, Mapping[str, object]]]) -> dict[str, str]:
    """Return the names of instances, pairs of script and constants, by the name of a function.

    A function has the script's name, followed by the constants when the script has several
    instances. Raises `ValueError` for a function name that two instances would have.
    """
    instance_of_label = {format_instance_name(*instance): instance for instance in instances}
    scripts = [script for script, _ in instance_of_label.values()]
    label_of_function: dict[str, str] = {}
    for label, (script, params) in instance_of_label.items():
        values = map(format_value, params.values()) if scripts.count(script) > 1 else ()
        words = "_".join([script, *values])
        function = "".join(letter if letter.isalnum() else "_" for letter in words)
        if function in label_of_function:
            earlier_label = label_of_function[function]
            raise ValueError(f"{earlier_label} and {label} would both be called {function!r}")
        label_of_function[function] = label
    return label_of_function


class NamePattern(NamedTuple):
    """A parsed name. It matches every instance or program that has all of its parts."""

    script: str
    constants: tuple[tuple[str, str], ...] = ()
    """Pairs of name and value as text; a name may be ""."""
    program: int | None = None
    target: str | None = None
    schedule: tuple[tuple[str, str], ...] = ()
    """The pairs that `split_schedule` moves from `constants`: parameters of the space."""

    def __str__(self) -> str:
        pairs = (*self.constants, *self.schedule)
        constants = ",".join(f"{name}={text}" if name else text for name, text in pairs)
        return _join_name(self.script, constants, self.program, self.target or "")

    def matches_instance(
        self, script: str, params: Mapping[str, object], target: str | None = None
    ) -> bool:
        """Return whether an instance has this name. Without a `target` the target is not compared.
        A script also matches by its directory's name."""
        return (
            self.matches_script(script)
            and (target is None or self.target in (None, target))
            and all(_has_constant(params, name, text) for name, text in self.constants)
        )

    def split_schedule(
        self, parameters: Collection[str], constants: Collection[str]
    ) -> NamePattern:
        """Return the name with the values of `parameters` moved from `constants` to `schedule`."""
        # A constant takes precedence: it may hide a parameter of the same name.
        schedule_names = set(parameters).difference(constants)
        kept = tuple(pair for pair in self.constants if pair[0] not in schedule_names)
        moved = tuple(pair for pair in self.constants if pair[0] in schedule_names)
        return self._replace(constants=kept, schedule=(*self.schedule, *moved))

    def matches_program(self, number: int, values: Mapping[str, object]) -> bool:
        """Return whether a program of a matching instance has the number and the parameter values
        of this name."""
        return self.program in (None, number) and all(
            name in values and matches_value(text, values[name]) for name, text in self.schedule
        )

    def matches_script(self, script: str) -> bool:
        """Return whether the name begins with this script's name or directory name."""
        return self.script == script or to_snake_case(self.script) == to_snake_case(script)


def _has_constant(params: Mapping[str, object], name: str, text: str) -> bool:
    # A typed name may leave the constant's name out: then any constant may have the value.
    if not name:
        return any(matches_value(text, value) for value in params.values())
    return name in params and matches_value(text, params[name])


def matches_value(text: str, value: object) -> bool:
    """Return whether a text is the spelling of a value. A string may go without quotes."""
    return text == format_value(value) or (not text.startswith('"') and text == str(value))


@lru_cache(maxsize=256)
def parse_name(text: str) -> NamePattern:
    """Return the pattern of a name such as `gemm[tile=64]/3 sm_80`. Raises `ValueError` for a text
    of another form."""
    import re

    match = re.fullmatch(_NAME, text.strip(), re.DOTALL)
    if match is None:
        raise ValueError("a name is SCRIPT, SCRIPT/I or SCRIPT[NAME=VALUE]/I TARGET")
    script, inside, index, target = match.groups()
    constants = tuple(_parse_constants(inside)) if inside is not None else ()
    return NamePattern(script, constants, None if index is None else int(index), target)


def _parse_constants(inside: str) -> Iterable[tuple[str, str]]:
    """Yield (name, value as text) of each constant in the text between brackets; the name is "" if
    it is left out. Raises `ValueError`."""
    import re

    pattern = re.compile(_CONSTANT)
    offset = 0
    # `<=`: the loop is entered for an empty text, too, where nothing matches: empty brackets are an
    # error.
    while offset <= len(inside):
        match = pattern.match(inside, offset)
        if match is None:
            raise ValueError(f"[{inside}] is not a list of NAME=VALUE with commas between")
        name, value = match[1] or "", match[2]
        if value.startswith('"'):
            try:
                # Needless quotes are removed, so that equal names have equal texts.
                value = format_value(json.loads(value))
            except ValueError:
                raise ValueError(f"{value} is not a string in quotes") from None
        yield name, value
        offset = match.end() + 1  # behind the comma


def join_targets(words: Sequence[str], targets: Collection[str]) -> list[str]:
    """Return the names in the words of a command line. A target's name belongs to the name before
    it: a shell splits `gemm sm_80` when it is not quoted."""
    names: list[str] = []
    for word in words:
        has_target = bool(names) and (" " in names[-1] or names[-1] in targets)
        if names and word in targets and not has_target:
            names[-1] += f" {word}"
        else:
            names.append(word)
    return names


def format_names(names: Iterable[str]) -> str:
    """Return names for a hint, quoted for a shell, one a line, at most 12."""
    return format_hint_lines(map(quote_name, names))


def quote_name(name: str) -> str:
    """Return a name quoted for a shell. A space alone needs no quotes: `join_targets` joins the
    words."""
    import shlex

    return shlex.quote(name) if "[" in name else name


def format_command(*words: object) -> str:
    """Return a command line of tilusbuild, each word quoted for a shell."""
    import shlex

    return shlex.join(["tilusbuild", *map(str, words)])


def format_hint_lines(lines: Iterable[str]) -> str:
    """Return the distinct lines of a hint, at most 12, and the count of the rest."""
    distinct_lines = list(dict.fromkeys(lines))
    shown_lines = distinct_lines[:_MAX_LINES]
    surplus = len(distinct_lines) - len(shown_lines)
    if surplus:
        shown_lines.append(f"and {surplus} more")
    return "\n".join(shown_lines)
