"""The arguments of the verbs: one frozen value for each, whose fields are its options.

A field states an option once: its type, flags, default and help; what makes the default is of no
type, so that the field alone has one. The parser is made from the fields and a verb receives its
value, so no name of an argument is written where mypy cannot check it.
A field may also name the setting that it overrides (`options.open_project`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

A = TypeVar("A", bound="Common")

TARGET_VARIABLE = "TILUSBUILD_TARGET"
_FALSE = ("", "0", "false", "no", "off")


class _Spec(Struct, frozen=True):
    """How a field becomes an argument of a parser. Also the default factory of the field."""

    default: Any
    add: Callable[..., None]
    """Add it to a parser or a group, under the field's name and with keywords that override."""
    setting: str | None = None
    variable: str | None = None
    """The environment variable that says what is not given."""

    def __call__(self) -> Any:
        return self.default


def option(
    *names: str,
    default: Any = None,
    setting: str | None = None,
    variable: str | None = None,
    **keywords: Any,
) -> Any:
    """Declare a field as an option with a value, or without `names` as a positional argument.

    `setting` and `variable` are as in `_Spec`. argparse's `add_argument` gets `keywords`.
    """

    def add_to_parser(parser: Any, name: str, **override: Any) -> None:
        merged_keywords = {"default": default, **keywords, **override}
        if names:
            parser.add_argument(*names, dest=name, **merged_keywords)
        else:  # of a positional argument the name is the destination
            parser.add_argument(name, **merged_keywords)

    # argparse appends to a list; `fill_arguments` makes a tuple of it.
    tuple_default = () if default == [] else default
    return field(default_factory=_Spec(tuple_default, add_to_parser, setting, variable))


flag = partial(option, default=False, action="store_true")
"""Return an option without a value."""
repeated = partial(option, default=[], action="append")
"""Return an option that may be given several times."""


def positional(metavar: str, **keywords: Any) -> Any:
    """Declare a positional argument that must be given."""
    return option(metavar=metavar, **keywords)


def optional(metavar: str, *, help: str) -> Any:
    """Declare a positional argument that may be left out."""
    return positional(metavar, help=help, nargs="?")


def positionals(metavar: str, *, help: str, at_least_one: bool = False) -> Any:
    """Declare an argument for all remaining words."""
    return positional(metavar, help=help, nargs="+" if at_least_one else "*", default=[])


def one_of(flags: Mapping[str, str]) -> Any:
    """Declare flags that exclude each other, with their help. The field's value is the name of the
    flag that is given, or None."""

    def add_to_parser(parser: Any, name: str) -> None:
        group = parser.add_mutually_exclusive_group()
        for flag_name, text in flags.items():
            group.add_argument(
                f"--{flag_name}", dest=name, action="store_const", const=flag_name, help=text
            )

    return field(default_factory=_Spec(None, add_to_parser))


# Options of several verbs.


def target_option(help: str) -> Any:
    """Declare the option for the one target of a verb."""
    return option(*("-t", "--target"), metavar="NAME", help=help, variable=TARGET_VARIABLE)


LEVEL: Any = option(
    "--level",
    type=int,
    choices=(0, 1, 2),
    help="how much of each space: 0 the default schedule, 1 a sample, 2 all",
    setting="level",
)
JOBS: Any = option(
    *("-j", "--jobs"),
    type=int,
    metavar="N",
    help="run N compilers at once (default: one per core)",
    setting="jobs",
)
SIZES_FROM: Any = option(
    "--sizes-from", metavar="FILE", help="the sizes that programs called, as TILUSBUILD_RECORD=FILE"
)
STRICT: Any = flag("--strict", help="fail when any schedule fails to build")
DIST: Any = option(
    *("-o", "--output"), metavar="DIR", default="dist", help="where to write it (default: dist)"
)
SIGN: Any = option(
    "--sign",
    metavar="KEY",
    help="attest and sign it with the private key in this PEM file, or `keyless`",
)


def list_specs(kind: type[Common]) -> dict[str, _Spec | None]:
    """Return how each field of a class becomes an argument; None for a field that is not one."""
    # `__struct_defaults__` has no entry for the fields without a default, which come first.
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    specs = [default.factory if hasattr(default, "factory") else None for default in defaults]
    missing_specs = [None] * (len(names) - len(specs))
    return dict(zip(names, [*missing_specs, *specs], strict=True))


class Common(Struct, frozen=True, kw_only=True):
    """The options of every verb, before its name or after it."""

    directory: str | None = option("-C", metavar="DIR", help="run as if started in DIR")
    cache_dir: str | None = option(
        "--cache-dir",
        metavar="DIR",
        help="use the cache in DIR (default: cache-dir in [build] of the manifest)",
        setting="cache-dir",
    )
    color: str = option(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour messages: always, never, or on a terminal (auto, the default); with auto,"
        " NO_COLOR and FORCE_COLOR decide if set",
    )
    progress: str = option(
        "--progress",
        choices=("auto", "plain", "none"),
        default="auto",
        help="show progress as lines (plain), not at all (none), or on a live display if stderr"
        " is a terminal (auto, the default)",
    )
    json: bool = flag("--json", help="print one JSON object per line")
    quiet: bool = flag("-q", "--quiet", help="print errors only")
    verbose: int = option(
        *("-v", "--verbose"),
        action="count",
        default=0,
        help="print more details: each command line of a build; -vv: the compilers' output, too",
        variable="TILUSBUILD_VERBOSE",
    )


class DeviceCompilerArgs(Common, frozen=True, kw_only=True):
    """Which compiler makes the device code: the two make different programs."""

    device_compiler: str | None = option(
        "--device-compiler",
        metavar="NAME",
        help="compile device code with nvcc or nvrtc (default: device-compiler in [toolchain])",
        setting="device-compiler",
    )


class SelectionArgs(DeviceCompilerArgs, frozen=True, kw_only=True):
    """Scripts, targets and level."""

    scripts: tuple[str, ...] = positionals(
        "SCRIPT",
        help="a script, an instance as 'SCRIPT[NAME=VALUE]', a program as SCRIPT/I; each with or"
        " without its target after it (default: all)",
    )
    targets: tuple[str, ...] = repeated(
        *("-t", "--target"),
        metavar="NAME",
        help="use this target, or those of this architecture, only; can be repeated",
        variable=TARGET_VARIABLE,
    )
    level: int | None = LEVEL


class CompilingArgs(SelectionArgs, frozen=True, kw_only=True):
    """How many compilers run at once, and when to stop."""

    jobs: int | None = JOBS
    load_average: str | None = option(
        *("-l", "--load-average"),
        metavar="N",
        help="start no further compiler while the load average is N or more",
        setting="load-average",
    )
    nice: int | None = option(
        "--nice", type=int, metavar="N", help="niceness of the compilers, 0 to 19", setting="nice"
    )
    keep_going: int | None = option(
        *("-k", "--keep-going"),
        type=int,
        metavar="N",
        help="go on until N programs have failed to build; 0: build all that can be built."
        " Without it, a build goes on too, but leaves an instance whose first schedules fail alike",
    )


class LimitArgs(Common, frozen=True, kw_only=True):
    """How much a package may ask for."""

    max_size: str | None = option(
        "--max-size",
        metavar="SIZE",
        help="refuse packages that unpack to more than this, as in 10GB (default: 64GB)",
    )


class SignedArgs(LimitArgs, frozen=True, kw_only=True):
    """Whose signature a package must have."""

    key: str | None = option("--key", metavar="PEM", help="require a signature by this public key")
    identity: str | None = option(
        "--identity", metavar="WHO", help="require a signature by this identity, through Sigstore"
    )
    issuer: str | None = option(
        "--issuer", metavar="URL", help="the OpenID Connect issuer that vouches for --identity"
    )


def add_arguments(parser: argparse.ArgumentParser, kind: type[Common]) -> None:
    """Add the fields of `kind` to a parser, those of every verb in a group of their own."""
    group = parser.add_argument_group("options of every verb")
    for name, spec in list_specs(kind).items():
        # A field without a spec is given by the caller of `parse_command`.
        if spec is None:
            continue
        spec.add(group if name in Common.__struct_fields__ else parser, name)


def fill_arguments(
    kind: type[A], namespace: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> A:
    """Return the parsed arguments as a value of `kind`. An option that is not given has the value
    of its environment variable, if it declares one."""
    values: dict[str, Any] = {}
    for name, spec in list_specs(kind).items():
        # A field without an option keeps its default, unless the caller gave it.
        if spec is None and not hasattr(namespace, name):
            continue
        value = getattr(namespace, name)
        if spec is not None and spec.variable is not None and not value:
            value = _parse_variable(value, environment.get(spec.variable, ""))
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _parse_variable(absent_value: object, word: str) -> object:
    """Return the value `word` of an environment variable, converted to the type of the option's
    `absent_value`; `absent_value` itself for "" and "auto" of an option with text."""
    if isinstance(absent_value, bool):
        return word.lower() not in _FALSE
    if isinstance(absent_value, int):
        return int(word) if word.isdecimal() else int(word.lower() not in _FALSE)
    # The "auto" of a KernelCache means the same as no --target.
    if word in ("", "auto"):
        return absent_value
    return [word] if isinstance(absent_value, list) else word


def collect_settings(arguments: Common) -> dict[str, Any]:
    """Return the value of each option that overrides a setting, by the setting's name; None for an
    option that is not given."""
    settings = {}
    for name, spec in list_specs(type(arguments)).items():
        if spec is not None and spec.setting is not None:
            value = getattr(arguments, name)
            # A flag that is not given leaves the setting to the manifest: it is not turned off.
            settings[spec.setting] = None if value is False else value
    return settings


class Verb(Struct, Generic[A], frozen=True):
    """The declaration of a verb in its module: arguments, function, and lines of `--json`."""

    arguments: type[A]
    run: Callable[[A], int]
    """Returns the exit status."""
    emits: tuple[Callable[..., object], ...] = ()
    """The makers of its lines: classes, or functions from `declare_line`."""
    help: str = ""
    """Of an action of `cache`; that of a verb is in `parser.VERBS`, which imports no verb."""
