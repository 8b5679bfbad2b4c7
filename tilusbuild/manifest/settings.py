"""Settings that may be given in several places: command line, then environment, then manifest.

Each keeps where it came from, for `doctor` and for messages. Imports nothing heavy: a build with
nothing to do comes through here, with what it remembers of the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from tilusbuild.errors import did_you_mean, input_error
from tilusbuild.manifest.find import git_root

if TYPE_CHECKING:
    from tilusbuild.manifest.model import Manifest

Kind = TypeVar("Kind")

DEVICE_COMPILERS = ("nvcc", "nvrtc")
LEVELS = (0, 1, 2)
_PREFIX = "TILUSBUILD_"


@dataclass(frozen=True, slots=True)
class Setting(Generic[Kind]):
    """A value, and where it came from: "--jobs", "TILUSBUILD_JOBS", "tilus.toml" or "default"."""

    value: Kind
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What a command runs with."""

    cache_dir: Setting[str]
    """Absolute."""
    jobs: Setting[int]
    level: Setting[int]
    device_compiler: Setting[str]


def settings(
    root: str,
    options: Mapping[str, str | int | None],
    environment: Mapping[str, str],
    manifest: Manifest | Mapping[str, str | int | None] | None = None,
) -> Settings:
    """Decide every setting.

    `root` is the folder of the manifest. `options` are those of the command line that were given,
    by their names without dashes: `cache-dir`, `jobs`, `level`, `device-compiler`. `manifest` is
    one, or what it says under those same names. Raises `InputError` that names the culprit.
    """
    said = manifest if isinstance(manifest, Mapping) or manifest is None else said_in(manifest)
    sources = (options, environment, said or {})
    return Settings(
        cache_dir=_cache_dir(root, *sources),
        jobs=_number("jobs", available_cores(), sources, least=1),
        level=_number("level", LEVELS[-1], sources, least=0, most=LEVELS[-1]),
        device_compiler=_word("device-compiler", DEVICE_COMPILERS, sources),
    )


def said_in(manifest: Manifest) -> dict[str, str | int | None]:
    """What a manifest says of the settings: what to remember for `settings`."""
    wrote_compiler = "device_compiler" in manifest.toolchain.model_fields_set
    return {
        "cache-dir": manifest.build.cache_dir,
        "jobs": manifest.build.jobs,
        "level": manifest.build.level,
        "device-compiler": manifest.toolchain.device_compiler if wrote_compiler else None,
    }


def default_cache_dir(root: str) -> str:
    """`.cache` at the root of the git repository that holds `root`, else `~/.cache/tilus`."""
    repository = git_root(root)
    if repository is not None:
        return os.path.join(repository, ".cache")
    return os.path.join(os.path.expanduser("~"), ".cache", "tilus")


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) or 1


Sources = tuple[Mapping[str, str | int | None], Mapping[str, str], Mapping[str, str | int | None]]


def _first(name: str, sources: Sources) -> Setting[str | int] | None:
    options, environment, said = sources
    variable = _PREFIX + name.replace("-", "_").upper()
    found = (
        (options.get(name), f"--{name}"),
        # An empty variable is how a shell unsets one for a single command.
        (environment.get(variable) or None, variable),
        (said.get(name), "tilus.toml"),
    )
    return next((Setting(value, source) for value, source in found if value is not None), None)


def _cache_dir(root: str, *sources: Mapping[str, str | int | None]) -> Setting[str]:
    options, environment, said = sources
    found = _first("cache-dir", (options, environment, said))  # type: ignore[arg-type]
    if found is None:
        return Setting(default_cache_dir(root), "default")
    # The manifest's is relative to the manifest; a person's to where that person is.
    base = root if found.source == "tilus.toml" else os.getcwd()
    path = os.path.join(base, os.path.expanduser(str(found.value)))
    if "\0" in path:
        raise input_error(f"{found.source}: the path holds a NUL character")
    return Setting(os.path.normpath(path), found.source)


def _number(
    name: str, default: int, sources: Sources, *, least: int, most: int | None = None
) -> Setting[int]:
    found = _first(name, sources)
    if found is None:
        return Setting(default, "default")
    try:
        number = int(found.value)
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        wanted = f"a number from {least} to {most}" if most is not None else f"at least {least}"
        raise input_error(f'{found.source} must be {wanted}, not "{found.value}"')
    return Setting(number, found.source)


def _word(name: str, words: tuple[str, ...], sources: Sources) -> Setting[str]:
    found = _first(name, sources)
    if found is None:
        return Setting(words[0], "default")
    if found.value not in words:
        raise input_error(
            f'{found.source} must be one of {", ".join(words)}, not "{found.value}"',
            hint=did_you_mean(str(found.value), words),
        )
    return Setting(str(found.value), found.source)
