"""Find a project's manifest, and decide the settings of a command.

Settings come from the command line, the running program (`tilusbuild.option`), the environment and
the manifest; the first of these that has a setting decides it. Each setting keeps its source, for
`doctor` and for messages. This module imports nothing heavy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_args

from msgspec import Meta, Struct, ValidationError, convert

from tilusbuild.errors import InputError, did_you_mean, input_error
from tilusbuild.manifest.sections import DeviceCompiler
from tilusbuild.manifest.values import parse_size
from tilusbuild.process.machine import count_usable_cores
from tilusbuild.runtime.where import (
    DEFAULT,
    MANIFEST_NAME,
    choose_project_cache,
    explain_distrust,
    find_manifest,
    find_named_cache,
    search_directories,
)

if TYPE_CHECKING:
    from tilusbuild.manifest.model import Manifest


def find_project_manifest(start: str) -> str:
    """Return the absolute path of the manifest of a directory, by the rule of `runtime.where`.

    Raises `InputError` with the directories that were searched, and for another user's manifest.
    """
    manifest = find_manifest(start)
    if manifest is None:
        raise input_error(
            f"no {MANIFEST_NAME} here or above",
            hint="searched in:\n"
            + "".join(f"  {directory}\n" for directory in search_directories(start))
            + "`tilusbuild init` makes a project to start from; -C DIR runs elsewhere",
        )
    # A build runs what the manifest says: see `runtime.where`.
    distrust = explain_distrust(manifest)
    if distrust is not None:
        message, _, remedy = distrust.partition("\n")
        raise input_error(message, hint=remedy.strip())
    return manifest


Kind = TypeVar("Kind")

BY_DEFAULT = (MANIFEST_NAME, DEFAULT)
"""The sources of a setting that is not chosen for this command alone."""
DEVICE_COMPILERS = get_args(DeviceCompiler)
_PREFIX = "TILUSBUILD_"
REMOTE_PREFIX = "TILUSBUILD_REMOTE_"
"""Prefix of the variables with settings of the remote cache."""
REMOTE_OFF = "off"
"""This address in the environment turns the manifest's remote cache off."""
REMOTE_ADDRESSES = ("cache", "executor")
"""The keys of `[remote]` that are addresses."""
REMOTE_SECRETS = ("headers", "credential-helper", "tls-ca", "tls-certificate", "tls-key")
"""The keys of `[remote]` that are allowed in the user's settings only."""
WHERE_SECRETS_ARE = "~/.config/tilusbuild/config.toml"
SWITCH = {"1": True, "true": True, "yes": True, "on": True}
SWITCH |= {"0": False, "false": False, "no": False, "off": False}


class Setting(Struct, Generic[Kind], frozen=True):
    """A value and its source: "--jobs", "tilusbuild.option", "TILUSBUILD_JOBS", "tilus.toml" or
    "default"."""

    value: Kind
    source: str


class Settings(Struct, frozen=True):
    """The settings of a command."""

    cache_dir: Setting[str]
    """The absolute path of the cache tree."""
    cache_max_size: Setting[int | None]
    """The bytes to which a build that adds programs reduces the cache; None: no limit."""
    jobs: Setting[int]
    load_average: Setting[float | None]
    """The load average at which no further compiler starts; None: no limit."""
    nice: Setting[int]
    """Niceness of the compilers, 0 to 19."""
    level: Setting[int]
    device_compiler: Setting[str]
    dump_ir: Setting[bool]
    """Whether to keep the output of each step of a compile."""
    disable_ptxas_opt: Setting[bool]
    bench_warmup: Setting[int | None]
    """Calls before each sample of a tuning; None: chosen by the tuning."""
    bench_repeat: Setting[int | None]
    """Samples of each program that is nearly the best; None: chosen by the tuning."""


def decide_settings(
    root: str,
    options: Mapping[str, str | float | None],
    environment: Mapping[str, str],
    manifest: Manifest | Mapping[str, str | float | None] | None = None,
    program: Mapping[str, str | float] | None = None,
) -> Settings:
    """Return the settings of a command. Raises `InputError` for a wrong value, with its source.

    `root` is the directory of the manifest. `options` are the options on the command line, by their
    names without dashes (`load-average`). `manifest` is a manifest, or settings by these names.
    `program` has the choices of `tilusbuild.option`.
    """
    declared = manifest if isinstance(manifest, Mapping | None) else read_settings(manifest)
    sources = (options, program or {}, environment, declared or {})
    defaults: dict[str, Any] = dict.fromkeys(_KINDS) | {
        "jobs": count_usable_cores(),
        "nice": 0,
        "level": 2,
        "device-compiler": DEVICE_COMPILERS[0],
        "dump-ir": False,
        "disable-ptxas-opt": False,
    }
    decided = {
        name.replace("-", "_"): _decide_setting(name, default, sources)
        for name, default in defaults.items()
    }
    return Settings(cache_dir=_decide_cache_dir(root, sources), **decided)


def read_settings(manifest: Manifest) -> dict[str, str | float | None]:
    """Return the settings that a manifest has, in the form that `decide_settings` takes. A setting
    that it does not set is None."""
    names = ("cache-dir", "cache-max-size", "jobs", "load-average", "nice", "level")
    settings = {name: getattr(manifest.build, name.replace("-", "_")) for name in names}
    # The toolchain has a default of its own, which is not a choice of the manifest.
    return settings | {"device-compiler": manifest.toolchain.given.get("device_compiler")}


SettingValues = Mapping[str, str | float | None]
SettingSources = tuple[SettingValues, Mapping[str, str | float], Mapping[str, str], SettingValues]
"""Settings of the command line, the program, the environment and the manifest."""


def format_variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return _PREFIX + name.replace("-", "_").upper()


OF_KERNEL_CACHE = {
    "TILUSBUILD_TARGET": "auto",
    "TILUSBUILD_EXECUTION_BACKEND": "tvm_ffi",
    "TILUSBUILD_VERBOSE": "0",
}
"""Variables that only a `KernelCache` reads, with their defaults."""


def _find_setting(name: str, sources: SettingSources) -> Setting[str | float] | None:
    """Return the first value of a setting and its source; None if no source has the setting."""
    options, program, environment, declared = sources
    values = (
        # `tune` has `--repeat` for bench-repeat.
        (options.get(name), f"--{name.removeprefix('bench-')}"),
        (program.get(name), "tilusbuild.option"),
        # An empty variable is how a shell unsets one for a single command.
        (environment.get(format_variable(name)) or None, format_variable(name)),
        (declared.get(name), MANIFEST_NAME),
    )
    return next((Setting(value, source) for value, source in values if value is not None), None)


def _decide_cache_dir(root: str, sources: SettingSources) -> Setting[str]:
    """Return the directory of the cache: the first that a source names, else the default."""
    options, program, environment, declared = sources
    # `tilusbuild.load` decides by these two functions: with `_find_setting` they could disagree.
    cache = find_named_cache(options.get("cache-dir"), program, environment)
    if cache is None:
        declared_directory = declared.get("cache-dir")
        cache = choose_project_cache(
            root, None if declared_directory is None else str(declared_directory)
        )
    return Setting(cache.path, cache.source)


# The type of each setting, and its description in messages.
_KINDS: dict[str, tuple[Any, str]] = {
    "cache-max-size": (Annotated[int, Meta(ge=1)], 'a size such as "20GB"'),
    "jobs": (Annotated[int, Meta(ge=1)], "at least 1"),
    "load-average": (Annotated[float, Meta(gt=0, le=sys.float_info.max)], "a number above 0"),
    "nice": (Annotated[int, Meta(ge=0, le=19)], "a number from 0 to 19"),
    "level": (Annotated[int, Meta(ge=0, le=2)], "a number from 0 to 2"),
    "device-compiler": (DeviceCompiler, f"one of {', '.join(DEVICE_COMPILERS)}"),
    **dict.fromkeys(("dump-ir", "disable-ptxas-opt"), (bool, "1 or 0")),
    "bench-warmup": (Annotated[int, Meta(ge=0)], "at least 0"),
    "bench-repeat": (Annotated[int, Meta(ge=1)], "at least 1"),
}


def _decide_setting(name: str, default: Kind, sources: SettingSources) -> Setting[Kind]:
    """Return the value of a setting, or the default. Raises `InputError` for a wrong one."""
    setting = _find_setting(name, sources)
    if setting is None:
        return Setting(default, DEFAULT)
    kind, description = _KINDS[name]
    # msgspec takes "true" and "1", but not the other words that people write for a switch.
    value = SWITCH.get(str(setting.value).lower()) if kind is bool else setting.value
    if name == "cache-max-size":
        with suppress(InputError):
            value = parse_size(str(value))
    try:
        return Setting(convert(value, kind, strict=False), setting.source)
    except (ValidationError, UnicodeError):  # of a string that is not UTF-8
        raise input_error(
            f'{setting.source} must be {description}, not "{setting.value}"',
            hint=did_you_mean(str(value), DEVICE_COMPILERS) if name == "device-compiler" else None,
        ) from None
