"""Finds a directory's manifest and its cache tree: the rule of the builder, `load` and plugins.

- The manifest is the nearest `tilus.toml` in the directory or above it, up to the root of the git
  repository around it.
- The cache is the first of: the directory that a person names (`--cache-dir`, `tilusbuild.option`,
  `TILUSBUILD_CACHE_DIR`); `build.cache-dir` of that manifest; `.cache` at the root of the git
  repository; `~/.cache/tilus`. Manifests further up do not count.

A build runs the manifest's tools, and `load` runs the code in the cache. Every user may write into
a directory above such as `/tmp`, and so could decide. As with git's `safe.directory`, a discovered
file and its directory must belong to the user, to root, or to the caller of `sudo`. A path that a
person names is trusted.

Standard library only: a deployment has nothing else.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.regular import try_read_text, try_stat

MANIFEST_NAME = "tilus.toml"
CACHE_VARIABLE = "TILUSBUILD_CACHE_DIR"
SAFE_DIRECTORIES = "TILUSBUILD_SAFE_DIRECTORIES"
DEFAULT = "default"
MAX_MANIFEST = 2 << 20
"""Bytes. Reading a manifest takes time that is linear in them."""


class CacheDir(NamedTuple):
    """A cache tree's directory, and the reason for it."""

    path: str
    """Absolute."""
    source: str
    """The name of the setting: "--cache-dir", "tilusbuild.option", a variable, "tilus.toml" or
    "default"."""
    origin: str
    """The source in words, for an error of `load`."""
    deciders: tuple[str, ...] = ()
    """The discovered paths that decided: each must be trusted before code in the cache runs."""


def search_directories(start: str) -> Iterator[str]:
    """Yield the directories that may hold the manifest of a directory, the nearest first."""
    for directory in walk_up(start):
        yield directory
        if _is_git_root(directory):
            return


def find_manifest(start: str) -> str | None:
    """Return the path of the nearest `tilus.toml` of a directory; None without one."""
    paths = (os.path.join(directory, MANIFEST_NAME) for directory in search_directories(start))
    return next(filter(os.path.lexists, paths), None)


def find_named_cache(
    option: object, program: Mapping[str, object], environment: Mapping[str, str]
) -> CacheDir | None:
    """Return the cache that a person names, its path relative to the working directory; None
    without one. `option` is the command line's, `program` has the settings of `tilusbuild.option`.
    """
    for value, source in (
        (option, "--cache-dir"),
        (program.get("cache-dir"), "tilusbuild.option"),
        # An empty variable is how a shell unsets one for a single command.
        (environment.get(CACHE_VARIABLE) or None, CACHE_VARIABLE),
    ):
        if value is not None:
            path = os.path.abspath(os.path.expanduser(str(value)))
            return CacheDir(path, source, source)
    return None


def choose_project_cache(root: str, declared: str | None) -> CacheDir:
    """Return the cache of the project in a directory when no person names one. `declared` is the
    `build.cache-dir` of its manifest, relative to `root`."""
    if declared is not None:
        path = os.path.normpath(os.path.join(root, os.path.expanduser(declared)))
        manifest = os.path.join(root, MANIFEST_NAME)
        return CacheDir(path, MANIFEST_NAME, manifest, (manifest,))
    repository = next(filter(_is_git_root, walk_up(root)), None)
    if repository is None:
        return CacheDir(get_user_cache(), DEFAULT, "the user's cache")
    path = os.path.join(repository, ".cache")
    deciders = (os.path.join(repository, ".git"), path)
    return CacheDir(path, DEFAULT, "the git repository", deciders)


def find_project_cache(start: str) -> CacheDir:
    """Return the cache of the project around a directory, as a build there chooses it when no
    person names one. A manifest that cannot be read counts as one without `cache-dir`."""
    manifest = find_manifest(start)
    if manifest is None:
        return choose_project_cache(start, declared=None)
    # Not checked further: a build reports the mistakes of a manifest.
    table = read_toml(manifest).get("build")
    declared = table.get("cache-dir") if isinstance(table, dict) else None
    if not isinstance(declared, str):
        declared = None
    return choose_project_cache(os.path.dirname(manifest), declared)


def get_user_cache() -> str:
    """Return the cache of projects outside of any git repository."""
    return os.path.join(os.path.expanduser("~"), ".cache", "tilus")


def _is_git_root(directory: str) -> bool:
    # A directory in a clone, a file in a worktree or a submodule.
    return os.path.exists(os.path.join(directory, ".git"))


def read_toml(path: str) -> dict[str, Any]:
    """Return the tables of a TOML file. Return none of a file that is not TOML, and none without a
    parser: Python 3.10 has one only where the builder, and with it tomli, is installed."""
    try:
        parser = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        tables: dict[str, Any] = parser.loads(try_read_text(path, limit=MAX_MANIFEST) or "")
    except (ImportError, ValueError):
        return {}
    return tables


def walk_up(directory: str) -> Iterator[str]:
    """Yield a directory and those above it."""
    directory = os.path.abspath(directory)
    yield directory
    # The root is its own parent.
    while (parent := os.path.dirname(directory)) != directory:
        directory = parent
        yield directory


def is_within(path: str, directory: str) -> bool:
    """Return whether a path is a directory or lies in it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def check_trust(cache: CacheDir) -> None:
    """Raise `LoadError` when a file of another user decided on a cache."""
    for path in cache.deciders:
        reason = explain_distrust(path)
        if reason is not None:
            raise LoadError(reason)


def explain_distrust(path: str) -> str | None:
    """Return why a file or directory that was found is not trusted: a message, and a second line
    with the remedy. Return None when it is trusted or missing."""
    path = os.path.abspath(path)
    directory = os.path.dirname(path)
    for checked in (path, directory):
        owner = find_foreign_owner(checked)
        if owner is not None and not _is_declared_safe(directory):
            safe_directories = [*os.environ.get(SAFE_DIRECTORIES, "").split(os.pathsep), directory]
            # This user's repository chooses the default cache, and would be the next error.
            repository = next(filter(_is_git_root, walk_up(directory)), directory)
            if find_foreign_owner(os.path.join(repository, ".git")) == owner:
                safe_directories.append(repository)
            safe = os.pathsep.join(dict.fromkeys(filter(None, safe_directories)))
            return (
                f"{checked} belongs to another user, {owner}, and can run programs\n"
                f"  {SAFE_DIRECTORIES}={safe} trusts it: directories, separated by `:`;"
                " /* after one means all below it, * all"
            )
    return None


def find_foreign_owner(path: str) -> str | None:
    """Return the name of the user who owns a file, a directory, or the link to it; None for a
    trusted user."""
    # The owner of a link decides which file is read, so both must be trusted.
    for status in (try_stat(path, follow=False), try_stat(path)):
        if status is not None and not is_trusted(status.st_uid):
            return _format_user(status.st_uid)
    return None


def is_trusted(owner: int) -> bool:
    """Return whether files of a user id are trusted."""
    user = os.geteuid()
    # A command under `sudo` is root's, and works on files of the user who called `sudo`.
    is_sudo_caller = user == 0 and os.environ.get("SUDO_UID") == str(owner)
    return owner in (user, 0) or is_sudo_caller


def _is_declared_safe(directory: str) -> bool:
    """Return whether `TILUSBUILD_SAFE_DIRECTORIES` lists `directory`, or with `/*` the same or a
    directory above it, or `*`."""
    for entry in os.environ.get(SAFE_DIRECTORIES, "").split(os.pathsep):
        if entry == "*":
            return True
        if not os.path.isabs(entry):
            continue
        if os.path.normpath(entry) == directory:
            return True
        # "/srv/*" trusts /srv and all directories below it: one entry for a mounted project.
        prefix = entry.removesuffix("/*")
        if prefix != entry and f"{directory}/".startswith(f"{prefix}/"):
            return True
    return False


def _format_user(owner: int) -> str:
    import pwd  # only for the message

    try:
        return f"{pwd.getpwuid(owner).pw_name} (uid {owner})"
    except KeyError:
        return f"uid {owner}"
