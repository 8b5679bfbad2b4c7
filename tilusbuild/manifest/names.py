"""The names that a manifest may declare: the types of the keys of its open tables."""

import keyword
import re
from collections.abc import Callable
from typing import Annotated

from tilusbuild.arch import LIMITS
from tilusbuild.expr.tree import FUNCTIONS
from tilusbuild.manifest.table import Key, ValueFault

PACKAGE = "package:"
"""The prefix of a template in an installed package, as in `package:NAME/kernels/a.cu.j2`."""
COSTS = ("model", "bytes", "flops")
"""The expressions of a script's `dispatch` that say what a call costs."""

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
MAX_NAME = 100
"""Characters of a name that becomes a part of a file's name, which may have 255 bytes: a script's
gets a `_` before each capital, a package's has the project's name, its version and a platform."""
_HEADER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\.(h|hh|hpp|cuh|inc|inl)")

RESERVED = FUNCTIONS.keys() | {
    *("arch", "args", "derived", "facts", "launch", "params", "resources", "schedule", "script"),
    "space",
    *("target", "project", "tilusbuild"),
    # Jinja2's own names.
    *("caller", "cycler", "dict", "joiner", "kwargs", "lipsum", "loop", "namespace", "none"),
    *("range", "self", "super", "varargs", "true", "false"),
}
"""Names that already have a meaning in templates or expressions."""

_LETTERS = "a name is made of letters, digits and _"


def _make_check(pattern: re.Pattern[str], hint: str) -> Callable[[str], str]:
    """Return a function that returns a name of this pattern, and raises `ValueFault` for others."""

    def check_name(name: str) -> str:
        if not pattern.fullmatch(name):
            raise ValueFault("cannot be a name", hint)
        if len(name) > MAX_NAME:
            raise ValueFault("is too long for a name", f"a name has at most {MAX_NAME} characters")
        return name

    return check_name


_check_letters = _make_check(IDENTIFIER, f"{_LETTERS}, and does not start with a digit")


def _check_identifier(name: str) -> str:
    """Return the name of an argument, a parameter or a derived value. Raises `ValueFault`."""
    _check_letters(name)
    if keyword.iskeyword(name):
        raise ValueFault("cannot be a name", "it is a word of the expression language")
    if name in FUNCTIONS:
        raise ValueFault("cannot be a name", "it is a function of the expression language")
    if name in RESERVED:
        raise ValueFault("cannot be a name", "templates and expressions already use this name")
    return name


def _check_limit(name: str) -> str:
    """Return the name of an architecture's limit. Raises `ValueFault`."""
    if name not in LIMITS:
        raise ValueFault("is not a limit", f"a limit is one of {', '.join(LIMITS)}")
    return name


def _check_linked_names(key: str) -> str:
    """Return a key that declares one or several parameters. Raises `ValueFault`."""
    for name in split_linked_names(key):
        _check_identifier(name)
    return key


# A file name of the cache tree, and a word on the command line.
TableName = Annotated[
    str, Key(after=_make_check(TABLE_NAME, f"{_LETTERS}, - and ., and does not start with - or ."))
]
LimitName = Annotated[str, Key(after=_check_limit)]
FactName = Annotated[str, Key(after=_check_letters)]
MacroName = Annotated[
    str, Key(after=_make_check(IDENTIFIER, f"{_LETTERS}; macros with arguments belong in a header"))
]
# The header is put beside the source, so it cannot have the source's name, or a tool's.
HeaderName = Annotated[
    str,
    Key(after=_make_check(_HEADER, "as in config.h: .h, .hh, .hpp, .cuh, .inc or .inl, and no /")),
]
DeclaredName = Annotated[str, Key(after=_check_identifier)]
"""The name of an argument or a derived value."""
LinkedNames = Annotated[str, Key(after=_check_linked_names)]
"""The name of a parameter, or of several linked ones."""


def split_declared_names(section: str, key: str) -> tuple[str, ...]:
    """Return the names that a key of a section declares; only parameters are linked."""
    return split_linked_names(key) if section in ("params", "space") else (key,)


def split_linked_names(key: str) -> tuple[str, ...]:
    """Return the parameters that a key of `space` or `params` declares: `"m, n"` declares two."""
    return tuple(name.strip() for name in key.split(","))
