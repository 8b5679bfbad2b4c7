"""Load a manifest: file → document → tables → checks → `Manifest`, or all its mistakes.

A document with mistakes is checked further: wrong values are removed, and the rest becomes a
manifest for the later checks, so that one run reports every mistake. Such a manifest never leaves
this package. Messages of pydantic are rewritten for people, each with its place.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tilusbuild.errors import (
    Diagnostic,
    InputError,
    Location,
    did_you_mean,
    find_nearest_word,
    input_error,
)
from tilusbuild.manifest.check_dispatch import check_dispatch
from tilusbuild.manifest.check_expressions import check_expressions
from tilusbuild.manifest.check_files import check_files
from tilusbuild.manifest.check_kernels import check_kernels
from tilusbuild.manifest.check_libraries import check_libraries
from tilusbuild.manifest.check_names import check_names
from tilusbuild.manifest.check_space import check_space
from tilusbuild.manifest.check_targets import NAMED, check_flags, check_targets
from tilusbuild.manifest.checks import MAX_MISTAKES, Checks, TooManyMistakesError
from tilusbuild.manifest.document import Document, read_document, shorten_path
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.names import MAX_NAME
from tilusbuild.manifest.reading import fill_from_templates
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script import KernelSection
from tilusbuild.manifest.settings import REMOTE_PREFIX, REMOTE_SECRETS, WHERE_SECRETS_ARE
from tilusbuild.manifest.shape import (
    NAME,
    find_table,
    format_header,
    format_key_example,
    list_tables,
)
from tilusbuild.manifest.table import ValueFault, check_table, describe_kind, format_toml, list_keys

# Likeness, 0 to 1, above which a key of another table is suggested. Keys are short, so that a lower
# one would suggest unrelated keys.
_ALIKE = 0.8
# Tables that a hint names; a key of more of them says little about what was meant.
_MAX_OWNERS = 4
_CHECKS = (
    check_names,
    check_targets,
    check_kernels,
    check_space,
    check_expressions,
    check_dispatch,
    check_flags,
    check_files,
    check_libraries,
)


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return the checked manifest. Raises `InputError` with every mistake, in order."""
    try:
        return _load_checked(os.fspath(path))
    except RecursionError:  # tables are descended by recursion, in tomllib too
        raise input_error(
            "nested too deeply", location=Location(shorten_path(os.fspath(path)))
        ) from None


def _load_checked(path: str) -> Manifest:
    """Return the checked manifest. Raises `InputError`, or `RecursionError` for deep nesting."""
    document = read_document(path)
    expand_kernels(document)
    reading, filled = fill_from_templates(document)
    manifest, diagnostics, misread_scripts = validate_structure(document)
    for name, mistakes in filled.mistakes.items():
        diagnostics += [] if name in misread_scripts else mistakes
    looked_for = set(reading.first_stamps)
    if manifest is not None:
        checks = Checks(
            document, manifest, diagnostics, filled.templates, filled.unread | misread_scripts
        )
        with suppress(TooManyMistakesError):
            for check in _CHECKS:
                check(checks)
        looked_for |= checks.looked_for | manifest.searched_directories
    if diagnostics or manifest is None:
        shown = sorted(diagnostics[:MAX_MISTAKES], key=_get_position)
        if len(diagnostics) > MAX_MISTAKES:
            hint = "they appear when you have fixed these"
            shown.append(Diagnostic("there are more mistakes", Location(document.shown), hint))
        raise InputError(*shown, looked_for=looked_for)
    return manifest.replace_values(_reading=reading).add_library_scripts()


# Keys that a script with kernels cannot have.
_KEYS_WITHOUT_KERNELS = ("kernel", "entry", "library")


def expand_kernels(document: Document) -> None:
    """Replace each script that has kernels by one script for each kernel, in `document.data`.

    This comes before all checks, so that the rest of the builder knows scripts only. A mistaken
    table of kernels stays as it is, for the checks to report.
    """
    scripts = document.data.get("script")
    if not isinstance(scripts, dict):
        return
    # A new dictionary: kernels come where their script stands, and the order is the build's.
    expanded: dict[str, Any] = {}
    for name, script in scripts.items():
        kernels: Any = script.get("kernels") if isinstance(script, dict) else None
        is_mistaken = (
            not _are_kernel_tables(kernels)
            or not script.keys().isdisjoint(_KEYS_WITHOUT_KERNELS)
            or any(f"{name}.{kernel}" in scripts for kernel in kernels)
        )
        if is_mistaken:
            expanded[name] = script
            continue
        shared = {key: value for key, value in script.items() if key != "kernels"}
        for kernel, table in kernels.items():
            # The table's name is the kernel's, unless the table has the key itself.
            expanded[f"{name}.{kernel}"] = {**shared, "kernel": kernel, **table}
    document.data["script"] = expanded


def _are_kernel_tables(kernels: Any) -> bool:
    """Return whether a value of `kernels` is a table of one or more tables with known keys."""
    known = KernelSection.map_fields_by_key().keys()
    return (
        isinstance(kernels, dict)
        and bool(kernels)
        and all(isinstance(table, dict) and table.keys() <= known for table in kernels.values())
    )


def _get_position(diagnostic: Diagnostic) -> tuple[int, int]:
    location = diagnostic.location
    return (location.line or 0, location.column or 0) if location else (0, 0)


_KIND_WORDS = {
    "bool_type": "a boolean: true or false",
    "dict_type": "a table",
    "float_type": "a number",
    "int_type": "an integer",
    "mapping_type": "a table",
    "string_type": "a string",
    "tuple_type": "an array",
}
_LIMIT_WORDS = {
    "greater_than_equal": ("ge", "must be at least"),
    "greater_than": ("gt", "must be more than"),
    "less_than_equal": ("le", "must be at most"),
}
# What takes the place of a mistake in a required table of the top level.
_PLACEHOLDERS: Mapping[str, Any] = {"edition": 1, "project": {"name": "unnamed", "version": "0"}}
# The keys of a script that decide what is read from its template.
_READ_KEYS = [
    (key,) for key in ("template", "generator", "kernel", "kernels", "entry", "library", "args")
]
# Words that other tools have for a key.
_OTHER_WORDS = {
    **dict.fromkeys(("constants", "parameters"), "params"),
    **dict.fromkeys(("constraints", "restrictions", "rules"), "restrict"),
    **dict.fromkeys(("file", "source", "path", "src"), "template"),
    **dict.fromkeys(("inplace", "in-place", "in_out"), "inout"),
    **dict.fromkeys(("shared", "shared-memory", "shared_memory"), "smem"),
    **dict.fromkeys(("dtype", "shape"), "type"),
    **dict.fromkeys(("gpu", "sm", "compute-capability"), "arch"),
    "reference": "ref",
    "cuda": "nvcc",
    "macros": "defines",
    "output": "out",
}
# A removed value may leave a mistake in the table around it, and tables are at most so deep.
_MAX_ROUNDS = 8


def validate_structure(
    document: Document,
) -> tuple[Manifest | None, list[Diagnostic], set[str]]:
    """Return the manifest without its mistaken values, the mistakes, and the names of the scripts
    that an unknown key keeps from being read: it may be a misspelt one that they need.

    The manifest is None if no rest without mistakes was found.
    """
    diagnostics: list[Diagnostic] = []
    unread: set[str] = set()
    # A copy: the checks ask the document what the file says, also of removed values.
    data: dict[str, Any] = copy.deepcopy(document.data)
    # A removed value can uncover a further error, of a table that is too short for example. Only
    # the first round's errors are the user's mistakes.
    for round_number in range(_MAX_ROUNDS):
        validated = _validate_tables(data)
        if isinstance(validated, Manifest):
            return validated.replace_values(_document=document), diagnostics, unread
        if round_number == 0:
            # By the path in the text: all kernels of a script have the mistake of a key they share.
            causes = {
                (document.find_written_path(detail["loc"]), detail["type"]): detail
                for detail in _drop_consequences(document, validated)
            }
            # One more than are shown says that there are more.
            diagnostics = [
                _make_diagnostic(document, path, detail)
                for (path, _), detail in islice(causes.items(), MAX_MISTAKES + 1)
            ]
            unread = _list_unread_scripts(document, validated)
        # All paths are found before a value is removed: once an array is gone, the path of a second
        # mistake in it would lead to the table around.
        for path in {_find_existing_path(data, tuple(detail["loc"])) for detail in validated}:
            _remove_value(data, path)
    return None, diagnostics, unread


def _list_unread_scripts(document: Document, details: list[ErrorDetails]) -> set[str]:
    """Return the names of the scripts that cannot be read: for an unknown key in their own table or
    at the top level, a wrong value of one of their keys, or a table of a similar name without a
    template."""
    scripts = document.data.get("script")
    names = [*scripts] if isinstance(scripts, dict) else []
    unknown_keys = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
    unread = {n for n in names for key in unknown_keys if len(key) == 1 or key[:2] == ("script", n)}
    for detail in details:
        if detail["type"] == "missing" and detail["loc"][2:] == ("template",):
            unread.update(_find_similar_script(document, detail["loc"]))
        elif detail["loc"][0] == "script" and detail["loc"][2:] in _READ_KEYS:
            unread.add(str(detail["loc"][1]))
    return unread


def _find_similar_script(document: Document, path: Path) -> list[str]:
    """Return the name of another script that the table of `path` may belong to; [] if no name is
    near."""
    others = [name for name in document.data["script"] if name != path[1]]
    nearest_name = find_nearest_word(str(path[1]), others)
    return [nearest_name] if nearest_name else []


def _validate_tables(data: dict[str, Any]) -> Manifest | list[ErrorDetails]:
    """Return the manifest in the data, or pydantic's errors."""
    try:
        return check_table(Manifest, _freeze_arrays(data))
    except ValidationError as error:
        return error.errors(include_url=False)


def _drop_consequences(document: Document, details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Return the errors without consequences: an array is too short without its wrong items, a key
    is missing where it, or a table around it, is misspelt or another key stands for it, and nothing
    in `[script]` is right where the name of the script is missing."""
    wrong_items = {detail["loc"][:-1] for detail in details}
    unknown_keys = [d["loc"] for d in details if d["type"] == "extra_forbidden"]
    # Of the keys in a section without a name the first one is reported.
    nameless = {d["loc"][0]: d["loc"] for d in reversed(details) if _is_nameless(d)}

    def is_misspelt(path: Path) -> bool:
        if path[:1] + path[2:] == ("script", "template"):
            script = document.data["script"][path[1]]
            if isinstance(script, dict) and "generator" in script:
                return True
        return any(
            path[: len(key) - 1] == key[:-1]
            and (
                find_nearest_word(str(key[-1]), [str(path[len(key) - 1])])
                or _find_missing_key(document, key) == path
            )
            for key in unknown_keys
            if len(key) <= len(path)
        )

    return [
        detail
        for detail in details
        if not (detail["type"] == "too_short" and detail["loc"] in wrong_items)
        and not (detail["type"] == "missing" and is_misspelt(detail["loc"]))
        and nameless.get(detail["loc"][0], detail["loc"]) == detail["loc"]
    ]


def _is_nameless(detail: ErrorDetails) -> bool:
    """Return whether a value stands where the table of a name is: `template` in `[script]`."""
    section, key = detail["loc"] if len(detail["loc"]) == 2 else ("", "")
    table = find_table((section, NAME)) if find_table((section,)) is None else None
    return table is not None and key in list_keys(table)


def _find_missing_key(document: Document, path: Path) -> Path | None:
    """Return the path of the required key that an unknown one stands for: its table has no key that
    is near, and a key that it needs is missing; else None."""
    table = find_table(path[:-1]) if path[1:] else None
    if table is None or find_nearest_word(str(path[-1]), list_keys(table), _ALIKE):
        return None
    required = ((*path[:-1], name) for name, key in list_keys(table).items() if key.is_required)
    return next((keys for keys in required if keys not in document.locations.keys), None)


def _freeze_arrays(value: Any) -> Any:
    """Return a value with tuples in place of its lists, at all depths."""
    # In strict mode pydantic takes no list for a tuple.
    if isinstance(value, list):
        return tuple(_freeze_arrays(item) for item in value)
    if isinstance(value, dict):
        return {key: _freeze_arrays(item) for key, item in value.items()}
    return value


def _find_existing_path(data: dict[str, Any], location: Path) -> Path:
    """Return the longest prefix of an error's path that consists of keys in the data."""
    path: Path = ()
    table: Any = data
    for part in location:
        if not isinstance(table, dict) or part not in table:
            break
        path = (*path, part)
        table = table[part]
    return path


def _remove_value(data: dict[str, Any], path: Path) -> None:
    """Remove the value at `path`, or put a placeholder in a required table of the top level."""
    if not path or path[0] in _PLACEHOLDERS:
        key = str(path[0]) if path else "edition"
        data[key] = copy.deepcopy(_PLACEHOLDERS[key])
        return
    table: Any = data
    for part in path[:-1]:
        table = table.get(part, {})  # a value around it may be removed already
    table.pop(path[-1], None)


def _make_diagnostic(document: Document, path: Path, detail: ErrorDetails) -> Diagnostic:
    """Return pydantic's error in the key at `path` of the file as a diagnostic with its place."""
    kind = detail["type"]
    if _is_nameless(detail):
        header, named = format_header(path[:1]), format_header((path[0], NAME))
        return Diagnostic(
            f"{header} is without a name", document.locate_key(*path), f"write {named}"
        )
    if kind == "extra_forbidden":
        return _explain_unknown_key(document, path, detail["input"])
    if kind == "missing":
        return _explain_missing_key(document, path)
    if path == ("edition",):
        return Diagnostic(
            f"edition {format_toml(detail['input'])} is not supported",
            document.locate_value("edition"),
            "this tilusbuild reads edition = 1",
        )
    # pydantic's mark of an error in the key, and not in its value.
    locate = document.locate_key if path[-1:] == ("[key]",) else document.locate_value
    written = document.find_longest_path(path)
    message, hint = _explain_error(detail, written)
    return Diagnostic(f"{_quote_key(written)} {message}", locate(*path), hint)


def _quote_key(path: Path) -> str:
    """Return the key of an error in quotes, with the number of an array's item."""
    name = next((part for part in reversed(path) if isinstance(part, str)), "the manifest")
    if path and isinstance(path[-1], int):
        return f'item {path[-1] + 1} of "{name}"'
    # The line below the message has a name that is too long.
    return f'"{name}"' if len(name) <= MAX_NAME else f'"{name[:40]}…"'


def _explain_error(detail: ErrorDetails, path: Path) -> tuple[str, str | None]:
    """Return the message and the hint of an error in a known key."""
    kind, value = detail["type"], detail["input"]
    context = detail.get("ctx", {})
    hint = _format_example(path)
    if kind == "value_error":
        error: ValueFault = context["error"]
        return error.message, error.hint or hint
    if kind in _KIND_WORDS:
        hint = _suggest_kind(kind, value, path) or hint
        return f"must be {_KIND_WORDS[kind]}, not {describe_kind(value)}", hint
    if kind in _LIMIT_WORDS:
        limit, words = _LIMIT_WORDS[kind]
        return f"{words} {context[limit]:g}, not {format_toml(value)}", None
    if kind == "literal_error":
        # pydantic has the choices only as a text: "'nvcc' or 'nvrtc'".
        choices = re.findall(r"'(.*?)'", context["expected"])
        hint = did_you_mean(value, choices) if isinstance(value, str) else None
        return f"must be {context['expected'].replace(chr(39), chr(34))}", hint
    if kind == "string_pattern_mismatch":
        return f"cannot be {format_toml(value)}", hint
    if kind == "too_short":
        return f"needs at least {_count_items(context['min_length'])}", hint
    if kind == "string_too_long":
        return f"takes at most {context['max_length']} characters", hint
    if kind == "too_long":
        return f"takes at most {_count_items(context['max_length'])}", hint
    if kind == "missing_positional_only_argument":
        return "is missing an item", hint
    return f"is wrong: {detail['msg']}", hint


def _count_items(number: int) -> str:
    return "1 item" if number == 1 else f"{number} items"


def _format_example(path: Path) -> str | None:
    example = format_key_example(path)
    if not example and find_table((*path, NAME)):
        example = format_header((*path, NAME))
    return f"as in: {example}" if example else None


def _suggest_kind(kind: str, value: Any, path: Path) -> str | None:
    """Return the probable meaning of a value of the wrong kind, as a line to write, or None."""
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    meaning: Any = None
    if kind == "tuple_type" and isinstance(value, str):
        meaning = value.split() if key in ("flags", "launcher") else [value]
    elif kind == "bool_type" and value in ("true", "false", 0, 1):
        meaning = value in ("true", 1)
    elif kind == "int_type" and isinstance(value, str) and value.strip().isdigit():
        meaning = int(value)
    elif kind == "string_type" and key == "version" and isinstance(value, (int, float)):
        meaning = str(value)
    return None if meaning is None else f"write {key} = {format_toml(meaning)}"


def _explain_missing_key(document: Document, path: Path) -> Diagnostic:
    """Return the diagnostic of a required key that is missing, at the place of its table."""
    *table, key = path
    if not table:
        subject = "the manifest"
    elif isinstance(table[-1], int):
        subject = _quote_key(tuple(table))
    else:
        subject = format_header(tuple(table))
    hint = _format_example(path)
    if path[0] == "script" and path[2:] == ("template",):
        for name in _find_similar_script(document, path):
            hint = f"did you mean {format_header(('script', name))}?"
    return Diagnostic(f'{subject} is missing "{key}"', document.locate_key(*table), hint)


def _explain_unknown_key(document: Document, path: Path, value: object) -> Diagnostic:
    """Return the diagnostic of a key that its table does not have, with the key that was probably
    meant. The line of a secret is not shown."""
    *outer, last = path
    key = str(last)
    if outer == ["remote"] and key in REMOTE_SECRETS:
        location = document.locate_key(*path)._replace(text=None)  # the line may hold a secret
        variable = REMOTE_PREFIX + key.upper().replace("-", "_")
        where = f"[remote] of {WHERE_SECRETS_ARE} has it, or {variable}"
        return Diagnostic(f'a manifest cannot hold "{key}"', location, where)
    table = find_table(tuple(outer))
    table_keys = list(list_keys(table)) if table else []
    # Tried in turn: another word for a key of this table or its beginning, a slip in one, the key
    # that is missing, a key of another table, any key that is near.
    meant = (n for n in table_keys if n == _OTHER_WORDS.get(key) or n.startswith(f"{key}-"))
    word = next(meant, key)
    hint = did_you_mean(word, table_keys, likeness=_ALIKE, max_listed=0)
    if not hint and (missing := _find_missing_key(document, path)):
        # `kind = "cpu"` is meant as `arch = "cpu"`.
        example = format_key_example(missing, value)
        hint = f'"{missing[-1]}" is missing' + (f", as in: {example}" if example else "")
    hint = hint or _suggest_other_table(key) or did_you_mean(key, table_keys)
    # A table in [toolchain], as in [toolchain.other], is meant as a further toolchain.
    if outer == ["toolchain"] and isinstance(value, Mapping):
        hint = f"another toolchain is declared as {format_header((*NAMED, key))}"
    where = f"in {format_header(tuple(outer))}" if outer else "at the top level"
    return Diagnostic(f'unknown key "{key}" {where}', document.locate_key(*path), hint)


def _suggest_other_table(key: str) -> str | None:
    """Return a hint with the tables that have this key or, if none has it, the one spelt most
    nearly so. Return None if no key is near, or more than `_MAX_OWNERS` tables have it."""
    keys_by_header = {
        format_header(path): list_keys(table)
        for path, table in list_tables().items()
        # The keys of these tables are keys of a script, or of `[toolchain]`, too. The path of a
        # table in an array, such as `include-dirs`, has a 0.
        if not {"override", "kernels", "named", 0} & {*path}
    }
    all_keys = {name for keys in keys_by_header.values() for name in keys}
    nearest_key = find_nearest_word(key, sorted(all_keys), _ALIKE)
    owners = [header for header, keys in keys_by_header.items() if nearest_key in keys]
    if nearest_key is None or len(owners) > _MAX_OWNERS:
        return None
    names = " and ".join(owners)
    if nearest_key == key:
        return f'"{key}" is a key of {names}'
    return f'did you mean "{nearest_key}" of {names}?'
