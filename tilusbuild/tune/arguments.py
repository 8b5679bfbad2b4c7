"""What `run` and `tune` declare of their command lines: shared options, and the line of a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from tilusbuild.cli.arguments import option, repeated
from tilusbuild.errors import input_error
from tilusbuild.expr import Value
from tilusbuild.report.jsonl import JsonLine, Scalar

SIZE: Any = repeated(
    "--size",
    metavar="NAME=N[,NAME=N…]",
    help="call kernels at these sizes instead of the manifest's; can be repeated",
)
CACHE: Any = option(
    "--cache",
    choices=("cold", "warm"),
    default="cold",
    help="time with caches that hold none of the data (cold, the default) or all of it (warm)",
)
SEED: Any = option(
    "--seed", type=int, default=0, help="random seed for inputs and search (default: 0)"
)


class CallLine(JsonLine, frozen=True):
    """The calls of a program at one size, as `run` makes them."""

    event: ClassVar[str] = "call"
    program: str
    """Its hash."""
    sizes: Mapping[str, Scalar]
    seconds: float
    """The time of a call: the lower quartile of its samples."""
    calls: int
    """How many samples that is of."""
    bytes: int
    """Of all tensors, once."""
    max_error: float | None
    """The largest absolute error; None where nothing was compared."""
    mismatch: str | None
    """What is wrong, in words."""


def parse_pair(word: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE. Raises `InputError`."""
    name, equals, value = word.partition("=")
    if not equals or not name or not value:
        raise input_error(f'"{word}" is not of the form NAME=VALUE')
    return name, value


def parse_sizes(options: Iterable[str]) -> list[dict[str, Value]]:
    """Return the sizes by name of each --size. Raises `InputError`."""
    sizes = []
    for word in options:
        size: dict[str, Value] = {}
        for name, text in map(parse_pair, word.split(",")):
            if name in size:
                hint = "repeat --size for one more size"
                raise input_error(f"--size {word}: {name} is given twice", hint=hint)
            size[name] = parse_number(f"--size {word}", text)
        sizes.append(size)
    return sizes


def check_seed(number: int) -> int:
    """Return the number of --seed. Raises `InputError` for a negative one."""
    if number < 0:
        raise input_error(f"--seed {number}: a seed is 0 or more")
    return number


def parse_number(option: str, text: str) -> Value:
    """Return `text` as an integer, else as a float; `1e6` is an integer. Raises `InputError` for
    any other text; the message has the `option` with its value."""
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        number = float(text)
        return int(number) if number.is_integer() and "." not in text else number
    raise input_error(f"{option}: {text} is not a number")
