"""The page `docs/manifest.md`, made from the models: `python -m tilusbuild.manifest.reference`.

Everything about a key stands in its model. Run with a path, it writes the page there; without one,
it prints it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from tilusbuild.manifest.json_schema import schema
from tilusbuild.manifest.locate import Path
from tilusbuild.manifest.shape import NAME, keys_of, table_at, tables, toml_text
from tilusbuild.manifest.table import Table
from tilusbuild.state.files import write_atomic

_INTRODUCTION = """\
# The manifest: `tilus.toml`

<!-- Made by `python -m tilusbuild.manifest.reference docs/manifest.md`; edit the models. -->

A project is described by one file, `tilus.toml`, at its root. `tilus.toml.example` shows every key
in use, and `tilusbuild schema` prints a JSON schema for editors. Unknown keys are errors, and all
mistakes of a file are shown at once, each with its line and column.

Paths are relative to the manifest. A name of a parameter, a derived value or an argument is made
of letters, digits and `_`; none is declared twice in a script. In what follows, `NAME` is a name of
your own.

Two scripts must not have the same folder in the cache tree. A script's folder is its name in lower
case, with `_` before each capital but the first and in place of each `-`.

**Expressions** are strings in a small language with Python's operators and integers, and the
functions `min max abs cdiv align pow2 log2 divides gcd`. Each sees the names that are known where
it stands:

| where | params, space, derived | integer arguments |
|---|---|---|
| `derived`, `restrict`, `prune`, `when` of a parameter | yes | no |
| `launch`, `dispatch.model` | yes | yes |
| `when` of a rule in `dispatch.table` | params only | yes |

All of them also see `arch.NAME`, the limits of the target's architecture (of several, the least of
each), and `facts.NAME`, what the target declares.

**Overrides.** `[script.NAME.override.TARGET]` is laid over the script's own tables for one target,
entry by entry. An entry is replaced whole: `space.stages = { range = [3, 8] }` also drops the
`default` that `stages` had. `restrict.NAME = false` removes a rule. New entries come after the
script's. `flags` replaces the script's list, while the lists of `[build]` and of the target stay.

**Flags and macros.** A GPU target's compiler gets the flags of `[build]`, then the target's, then
the script's or its override's. A `cpu` target has another compiler, and gets the target's and the
override's only. Macros are merged by name over all of these for every target; the later wins, and
`false` leaves a macro out.

**Settings** that can be given elsewhere too (`cache-dir`, `jobs`, `load-average`, `nice`, `level`,
`device-compiler`) are taken from the command line, else from the environment
(`TILUSBUILD_CACHE_DIR`, …), else from here.
"""


def reference() -> str:
    """The page's text."""
    return "\n".join([_INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    definitions = schema()["$defs"]
    for path, table in tables().items():
        if _told_elsewhere(path):
            continue
        yield f"## {_title(path)}\n"
        yield f"{inspect.cleandoc(table.__doc__ or '')}\n"
        yield "| key | value | |\n|---|---|---|"
        for key, field in keys_of(table).items():
            node = _properties(definitions, table).get(key, {})
            yield f"| `{key}` | {_kind(node, definitions)}{_default(field)} | {_words(field)} |"
        yield ""


def _told_elsewhere(path: Path) -> bool:
    """Whether a table looks like another: an override's like the script's, and so on."""
    within_override = "override" in path and path[-2:] != ("override", NAME)
    return within_override or ("include-dirs" in path and path[0] == "script")


def _title(path: Path) -> str:
    names = [str(part) for part in path if not isinstance(part, int)]
    if not names:
        return "The top level"
    if isinstance(path[-1], int):
        return f"Items of `{names[-1]}` in `[{'.'.join(names[:-1])}]`"
    if names[-1] == NAME and len(names) > 2 and names[-2] != "override":
        return f"Entries of `[{'.'.join(names[:-1])}]`"
    return f"`[{'.'.join(names)}]`"


def _properties(definitions: Mapping[str, Any], table: type[Table]) -> Mapping[str, Any]:
    node = schema() if table is table_at(()) else definitions[table.__name__]
    for choice in (node, *node.get("anyOf", ())):
        if "properties" in choice:
            return choice["properties"]  # type: ignore[no-any-return]
    return {}


def _kind(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """A schema's node in words."""
    if "$ref" in node:
        return _kind(definitions[node["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in node:
        kinds = [
            _kind(choice, definitions) for choice in node["anyOf"] if choice != {"type": "null"}
        ]
        return " or ".join(dict.fromkeys(kinds))
    if "const" in node or "enum" in node:
        choices = node.get("enum", [node.get("const")])
        return ", ".join(f"`{toml_text(choice)}`" for choice in choices)
    kind = node.get("type")
    if isinstance(kind, list):
        return "value"
    if kind == "array":
        items = node.get("items") or (node.get("prefixItems") or [{}])[0]
        return f"array of {_plural(_kind(items, definitions))}"
    return {"object": "table", "number": "number"}.get(str(kind), str(kind))


def _plural(kind: str) -> str:
    if kind.startswith(("array", "`")):
        return kind.replace("array", "arrays", 1)
    return " or ".join(f"{word}s" if word.isalpha() else word for word in kind.split(" or "))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ", required"
    if field.default_factory is not None or field.default in (None, ()):
        return ""
    shown = f"{field.default:g}" if isinstance(field.default, float) else toml_text(field.default)
    return f"; without it `{shown}`"


def _words(field: FieldInfo) -> str:
    words = [field.description or ""]
    if field.examples:
        words.append("E.g. " + ", ".join(f"`{toml_text(example)}`" for example in field.examples))
    return " ".join(words).replace("|", "\\|")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_atomic(sys.argv[1], reference().encode())
    else:
        sys.stdout.write(reference())
