"""Which names a manifest may declare."""

from __future__ import annotations

import keyword
import re

from tilusbuild.expr.tree import FUNCTIONS

PACKAGE = "package:"
"""What the name of a template of an installed package begins with; `PACKAGE/PATH` follows."""
COSTS = ("model", "bytes", "flops")
"""The expressions of a script's `dispatch` that say what a call costs."""

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A script's, target's or package's: safe as a file name and on a command line."""

RESERVED = FUNCTIONS.keys() | {
    *("arch", "args", "derived", "facts", "launch", "params", "resources", "schedule", "script"),
    "space",
    *("target", "project", "tilusbuild"),
    # Jinja2's own names.
    *("caller", "cycler", "dict", "joiner", "kwargs", "lipsum", "loop", "namespace", "none"),
    *("range", "self", "super", "varargs", "true", "false"),
}
"""Names that a template or an expression already means something by."""


def explain_identifier(name: str) -> str | None:
    """Return why `name` cannot name a parameter, derived value or argument; or None."""
    if not IDENTIFIER.fullmatch(name):
        return "a name is made of letters, digits and _, and does not start with a digit"
    if keyword.iskeyword(name):
        return "it is a word of the expression language"
    if name in FUNCTIONS:
        return "it is a function of the expression language"
    if name in RESERVED:
        return "templates and expressions already use this name"
    return None


def split_declared_names(section: str, key: str) -> tuple[str, ...]:
    """Return the names that a key of a section declares; only parameters are linked."""
    return split_linked_names(key) if section in ("params", "space") else (key,)


def split_linked_names(key: str) -> tuple[str, ...]:
    """Return the parameters that a key of `space` or `params` declares: `"m, n"` declares two."""
    return tuple(name.strip() for name in key.split(","))
