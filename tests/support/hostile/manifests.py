"""Manifests: a right one that grows by its schema, changed in its values by what each place may
hold, and in its text."""

import json
import random
from typing import Any

from support import scale
from support.hostile.grown import grow
from support.hostile.trial import Trial

TEMPLATE = scale.TEMPLATE.encode()
BASE: dict[str, Any] = {
    "edition": 1,
    "project": {"name": "p", "version": "0.1.0"},
    "build": {"cache-dir": ".cache", "flags": ["-O2"], "defines": {"A": "1"}, "timeout": "10m"},
    "toolchain": {"std": "c++17"},
    "target": {"cpu": {"arch": "cpu"}},
    "script": {
        "scale": {
            "template": "scale.cu.j2",
            "kernel": "scale",
            "args": {"a": "f32", "x": "f32*[n]", "y": {"type": "f32*[n]", "out": True}, "n": "i64"},
            "params": {"flag": 1, "word": "f16"},
            "launch": {"grid": ["cdiv(n, 256)"], "block": [256], "smem": "unroll * 4"},
            "default": {"unroll": 1},
            "space": {"unroll": {"range": [1, 3]}, "m, k": [[1, 2], [3, 4]]},
            "derived": {"d": "unroll * flag"},
            "restrict": {"small": "unroll != 3"},
            "prune": {"max-registers": 255},
            "tune": {"sizes": [{"n": 8}]},
            "dispatch": {"keys": ["n"], "table": [{"when": "n < 4", "use": {"unroll": 1}}]},
        }
    },
    "package": {"one": {}},
}
EVIL = (
    *("\x00", "\x1b[31m", "\u202e", "../../outside", "/etc/passwd"),
    *("$(touch @CANARY@)", "`touch @CANARY@`"),
)
ODD: tuple[Any, ...] = (
    *EVIL,
    *("", " ", "a" * 5000, "é", "{{ x }}", "{cxx}", "%s", "-x", "**/**/**", "~", ".", "/", "\n"),
    *(0, -1, 1, 2**31, 2**63 - 1, -(2**63), 2**63, 10**30, 0.5, -0.0, 1e308, 5e-324),
    *(float("inf"), float("nan"), True, False, [], {}, [[]], [{}], {"": 1}, {"a": {"b": {}}}),
    *("25d", "1e9d", "0s", "99TB", "sm_999", "native", "i64", "f32*[n, n]", "f32*[]", "i65"),
)
_NAMES = ("unroll", "flag", "m", "k", "word", "n", "arch.threads_per_warp", "arch", "facts.x", "d")
_LEAVES = (
    *("0", "1", "-1", "2", "62", "63", "9223372036854775807", "-9223372036854775808", "1_000"),
    *("0b11", "0xff", "1e308", "5e-324", "0.5", "True", "False", "'f16'", "''", "9" * 40, "1j"),
    *("()", "(1, 2)", "[1]", "None", "...", "'\\x00'"),
)
_BINARY = (
    *("+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "and", "or"),
    *("==", "!=", "<", "<=", ">", ">=", "in", "is", "@"),
)
_CALLS = ("min", "max", "abs", "cdiv", "align", "divides", "gcd", "pow2", "log2", "print", "pow")


def expression(rng: random.Random, depth: int = 4) -> str:
    """Return an expression of the language, or nearly."""
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        return rng.choice(_NAMES) if rng.random() < 0.5 else rng.choice(_LEAVES)
    deeper = [expression(rng, depth - 1) for _ in range(3)]
    if kind < 0.6:
        return f"({deeper[0]} {rng.choice(_BINARY)} {deeper[1]})"
    if kind < 0.75:
        return f"{rng.choice(_CALLS)}({', '.join(deeper[: rng.randint(0, 3)])})"
    if kind < 0.85:
        return f"({deeper[0]} if {deeper[1]} else {deeper[2]})"
    if kind < 0.9:
        return f"({deeper[0]} {rng.choice(('in', 'not in'))} ({deeper[1]}, {deeper[2]}))"
    if kind < 0.95:
        return f"({rng.choice(('-', '~', 'not ', '+')) * rng.choice((1, 1, 60, 300))}{deeper[0]})"
    return "(" * 150 + deeper[0] + ")" * 150


def toml(value: Any) -> str:
    """Return a value as TOML, tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool | float) else str(value)


def _key(name: str) -> str:
    return json.dumps(name).replace("\x7f", "\\u007f")


def text(data: dict[str, Any]) -> str:
    """Return a manifest."""
    return "".join(f"{_key(key)} = {toml(value)}\n" for key, value in data.items())


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    paths = [path] if path else []
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for name, inner in items:
        paths += _places(inner, (*path, name))
    return paths


def copied(value: Any) -> Any:
    """Return a copy of which no two places share a value."""
    return json.loads(json.dumps(value))


def mutated(rng: random.Random) -> dict[str, Any]:
    """Return the base, grown by some keys that its models know, with up to four changes."""
    data: dict[str, Any] = copied(BASE)
    for _ in range(rng.choice((0, 1, 2, 5))):
        grow(rng, data)
    data = copied(data)  # no two places share a value of the schema
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        *path, last = rng.choice(_places(data))
        node: Any = data
        for part in path:
            node = node[part]
        kind = rng.random()
        if kind < 0.35:
            node[last] = copied(rng.choice(ODD))
        elif kind < 0.65:
            node[last] = expression(rng)
        elif kind < 0.75 and isinstance(node, dict):
            node[str(rng.choice((*EVIL, "k", "a, b", "unroll", "flag", "override")))] = node.pop(
                last
            )
        elif kind < 0.85:
            del node[last]
        elif isinstance(node, list):
            most = _MAX_COUNT // (1 + len(_places(node[last])))
            node[last : last + 1] = [copied(node[last])] * min(most, rng.choice((2, 10, 2000)))
        else:
            # What is below is written by recursion, three frames a level.
            deepest = max(1, _DEEPEST - len(path))
            node[last] = _deep(rng, min(deepest, rng.choice((3, 40, 300))))
    return data


def _deep(rng: random.Random, depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


_COMMANDS: tuple[tuple[str, ...], ...] = (
    *(("plan",), ("plan", "--json"), ("plan", "-v"), ("plan", "--space"), ("build", "-n")),
    *(("explain",), ("dispatch", "show", "scale"), ("compdb",)),
)
_MAX_COUNT = 4000
"""Values of a list that is made longer."""
_DEEPEST = 310
"""Levels of a value, with those that lead to it."""
_RARELY = 0.01
"""`doctor` starts every tool that there is."""


def trial(rng: random.Random) -> Trial:
    """Return a command with a manifest that is wrong, odd, or by chance right."""
    written = text(mutated(rng)).encode("utf-8", "surrogatepass")
    if rng.random() < 0.2:
        written = damaged(rng, written)
    words = ("doctor",) if rng.random() < _RARELY else rng.choice(_COMMANDS)
    return Trial(
        words,
        {"project/tilus.toml": written, "project/scale.cu.j2": TEMPLATE},
        places=("tilus.toml", "scale.cu.j2", "scale is not built", "cache-dir"),
    )


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return bytes with a few of them changed, cut, doubled or put in."""
    content = bytearray(data)
    for _ in range(rng.randint(1, 5)):
        offset, length = rng.randrange(len(content) + 1), rng.choice((1, 1, 4, 64))
        kind = rng.random()
        if kind < 0.3:
            content[offset : offset + length] = rng.randbytes(length)
        elif kind < 0.5:
            del content[offset : offset + length]
        elif kind < 0.7:
            content[offset:offset] = content[offset : offset + length] * rng.choice((1, 2, 500))
        elif kind < 0.9:
            odd = (b"\0", b"\xff", b"\x1b[31m", b"[[", b"{", b'"""', b"=", b"\n", b"9" * 400)
            content[offset:offset] = rng.choice(odd)
        else:
            del content[offset:]
    return bytes(content)
