"""The trees that `load` searches for a script: one that is named by `where=`; else the cache that a
person names, the installed packages, the project's cache (`runtime.where`). The first that has the
script is the one; nothing is written anywhere.

A place is a cache tree or a package: a directory with `scripts/` and `programs/` in it. Of a cache
tree, `index.json` says which script directories the last build of each project made; the others are
older and are not examined.

A Python package can hold its kernels in a directory of its own, `_kernels`. Where there is none, it
is installed in place, and its project's cache has them: `pyproject.toml` says where the manifest
is. The name of such a package comes before a directory of that name, because the working directory
is not the caller's choice where a package names itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tilusbuild.runtime import option
from tilusbuild.runtime.errors import CorruptCacheError, LoadError
from tilusbuild.runtime.regular import read_bytes, try_list
from tilusbuild.runtime.sealed import CorruptFileError, unseal_json
from tilusbuild.runtime.where import (
    MANIFEST_NAME,
    CacheDir,
    check_trust,
    find_named_cache,
    find_project_cache,
    is_within,
    read_toml,
    walk_up,
)

ENTRY_POINTS = "tilusbuild.packages"
KERNELS = "_kernels"
"""The directory of a Python package that holds its kernels."""
TABLES = (
    ("tool", "tilusbuild"),
    ("tool", "hatch", "build", "hooks", "tilusbuild"),
    ("tool", "hatch", "build", "targets", "wheel", "hooks", "tilusbuild"),
)
"""The tables of a `pyproject.toml` that declare such kernels."""
JIT_ROOT_PREFIX = "kernel-cache:"
"""Begins the name, in index.json, of a request that a running program made: its script is not a
project's."""
LOST_ROOT = "lost index"
"""The name, in index.json, under which scripts are kept whose projects a damaged index named."""


class SearchRoot(NamedTuple):
    """A tree to look in, where it came from, and the directory of its project, if that is known."""

    path: str
    origin: str
    project: str | None = None

    def list_script_names(self) -> list[str]:
        """Return the scripts' directories that there are."""
        return try_list(os.path.join(self.path, "scripts"))

    def list_instances(self, directory: str, start: str) -> list[str]:
        """Return the paths of a script's current directories, of the project around `start` where
        several have it. Raises `LoadError`."""
        script_root = os.path.join(self.path, "scripts", directory)
        instances = [name for name in try_list(script_root) if len(name) == 64]
        current = (
            _read_current_hashes(self.path, directory, self.project or start) if instances else None
        )
        listed = instances if current is None else [name for name in instances if name in current]
        return [f"{script_root}/{name}" for name in sorted(listed)]


def _read_current_hashes(root: str, directory: str, start: str) -> set[str] | None:
    """Return the hashes of a script's current directories by index.json; None without an index."""
    path = os.path.join(root, "index.json")
    try:
        projects = unseal_json(read_bytes(path))["projects"]
        by_manifest = {
            manifest: {digest for name, digest in project["scripts"] if name == directory}
            for manifest, project in projects.items()
            if not manifest.startswith(JIT_ROOT_PREFIX)
        }
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CorruptCacheError(f"{path} cannot be read: {error.strerror}") from None
    except (CorruptFileError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptCacheError(f"{path} is damaged: {error}") from None
    lost = by_manifest.pop(LOST_ROOT, set())
    hashes_by_manifest = {m: found for m, found in by_manifest.items() if found}
    return _select_hashes(hashes_by_manifest, directory, start) if hashes_by_manifest else lost


def _select_hashes(by_manifest: Mapping[str, set[str]], directory: str, start: str) -> set[str]:
    """Of several projects in one cache, the one around `start`; else all, if they agree. Packages
    that were installed there, under names that are not paths, stand together like one project: each
    may bring another target."""
    surrounding = [
        m for m in by_manifest if os.path.isabs(m) and is_within(start, os.path.dirname(m))
    ]
    if surrounding:
        return by_manifest[max(surrounding, key=len)]
    packages = [found for m, found in by_manifest.items() if not os.path.isabs(m)]
    groups = {frozenset(found) for m, found in by_manifest.items() if os.path.isabs(m)}
    groups |= {frozenset(set().union(*packages))} if packages else set()
    if len(groups) > 1:
        named = ", ".join(sorted(by_manifest))
        raise LoadError(
            f"several projects have a script {directory}: {named}\n"
            "  call from within one of them, or build it into a cache of its own"
        )
    return set().union(*by_manifest.values())


def find_search_roots(where: object) -> Iterator[SearchRoot]:
    """Yield the places to look in, in order. Raises `LoadError` for a place that is none."""
    if where is not None:
        yield _resolve_where(where)
        return
    named = _find_named_cache()
    if named is not None:
        yield SearchRoot(named.path, named.origin)
    yield from _list_installed_packages()
    cache = _find_trusted_cache(get_working_directory())
    yield SearchRoot(cache.path, cache.origin)


def get_cache_dir() -> str:
    """Return the directory, absolute, that a build or a load in the working directory would use.
    Raises `LoadError` when files of another user decide."""
    return (_find_named_cache() or _find_trusted_cache(os.getcwd())).path


def _find_named_cache() -> CacheDir | None:
    return find_named_cache(None, option.chosen(), os.environ)


def _find_trusted_cache(start: str) -> CacheDir:
    cache = find_project_cache(start)
    check_trust(cache)
    return cache


def get_working_directory() -> str:
    """Return the working directory, or the root where it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def _resolve_where(where: Any) -> SearchRoot:
    if isinstance(where, str) and (root := _find_package(where)) is not None:
        return root
    path = find_directory(where)
    if getattr(where, "__path__", None) and (root := _find_package_kernels(path)) is not None:
        return root
    if not os.path.isdir(path):
        raise LoadError(f"{path} is not a directory")
    above = os.path.dirname(os.path.dirname(os.path.dirname(path)))
    if not os.path.isdir(os.path.join(path, "scripts")):
        # A project's directory stands for its cache, a script's own for the tree around it.
        if os.path.isfile(os.path.join(path, MANIFEST_NAME)):
            cache = _find_named_cache() or find_project_cache(path)
            return SearchRoot(cache.path, cache.origin, path)
        if os.path.basename(os.path.dirname(os.path.dirname(path))) == "scripts":
            return SearchRoot(above, "where")
    return SearchRoot(path, "where")


def find_directory(where: Any) -> str:
    """Return the directory that a path, module, or object with `path` means. Raises `TypeError`."""
    if isinstance(where, str | os.PathLike):
        return os.path.abspath(os.fspath(where))
    value = getattr(where, "path", None)
    if isinstance(value, str | os.PathLike):
        return os.path.abspath(os.fspath(value))
    if getattr(where, "__path__", None):
        return os.path.abspath(str(next(iter(where.__path__))))
    if isinstance(file := getattr(where, "__file__", None), str):
        return os.path.dirname(os.path.abspath(file))
    if callable(where):
        return find_directory(where())
    raise TypeError(f"where= is a path, a module or a package, not {type(where).__name__}")


def _find_package(name: str) -> SearchRoot | None:
    """Return the place of the kernels of a Python package by its name, or of one around it; None
    for a name of no package with kernels."""
    while name and all(part.isidentifier() for part in name.split(".")):
        from importlib.util import find_spec

        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            spec = None
        # One without `__init__.py` may be any directory of this name, in the working directory too.
        locations = spec.submodule_search_locations if spec is not None and spec.origin else None
        for directory in locations or ():
            if (root := _find_package_kernels(os.path.abspath(directory))) is not None:
                return root
        name = name.rpartition(".")[0]
    return None


def _find_package_kernels(directory: str) -> SearchRoot | None:
    """Return the place of the kernels of the Python package in a directory; None without any."""
    inside = os.path.join(directory, KERNELS)
    if os.path.isdir(os.path.join(inside, "scripts")):
        return SearchRoot(inside, f"package {os.path.basename(directory)}")
    for above in walk_up(directory):
        path = os.path.join(above, "pyproject.toml")
        if os.path.isfile(path):
            break
    else:
        return None
    _, table = find_declaration(read_toml(path))
    if table is None:
        return None
    manifest = table.get("manifest", MANIFEST_NAME)
    project = os.path.dirname(os.path.join(above, manifest if isinstance(manifest, str) else ""))
    cache = _find_named_cache() or find_project_cache(project)
    return SearchRoot(cache.path, path, project)


def find_declaration(document: Any) -> tuple[tuple[str, ...], dict[str, Any] | None]:
    """Return the keys of the table that declares a package's kernels, in what a `pyproject.toml`
    holds, and the table; None without one."""
    for keys in TABLES:
        table = document
        for key in keys:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict):
            return keys, table
    return TABLES[0], None


def _list_installed_packages() -> Iterator[SearchRoot]:
    """Yield what is installed."""
    from importlib import metadata

    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS)):
        try:
            directory = find_directory(entry.load())
        except Exception as error:
            raise CorruptCacheError(f"package {entry.name} ({entry.value}): {error}") from error
        yield SearchRoot(directory, f"package {entry.name}")
