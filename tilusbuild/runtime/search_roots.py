"""Finds the trees in which `load` searches for a script, and a script's directories in them.

With `where=` one tree is searched, else these in order: the named cache or the project's
(`runtime.where`), the installed packages, and behind a named cache the project's. Nothing is
written.

A search root is a cache tree or a package: a directory with `scripts/` and `programs/`. In a cache
tree, `index.json` lists the script directories that the last build of each project made; older ones
are not examined.

A path does not say who a project is: containers with one cache can each have another at one path,
and a copy is the same one elsewhere. So the index has the origin of each. A project is in a
directory whose files are all equal, or in that very directory if one of its files is equal: after
an edit `load` returns what was built last.

A Python package can hold its kernels in its directory `_kernels`. Without one it is installed in
place, and the cache of its project has them: `pyproject.toml` names the manifest. The name of a
Python package takes precedence over a directory of that name in the working directory, which is not
chosen by the package that calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tilusbuild.runtime import option
from tilusbuild.runtime.errors import CorruptCacheError, LoadError, make_read_error
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.regular import read_bytes, sha256_text, try_read_bytes, try_stat
from tilusbuild.runtime.sealed import CorruptFileError, unseal_json
from tilusbuild.runtime.where import (
    MANIFEST_NAME,
    CacheDir,
    check_trust,
    explain_distrust,
    find_manifest,
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
"""The tables of a `pyproject.toml` that declare a package's kernels."""
JIT_ROOT_PREFIX = "kernel-cache:"
"""The prefix, in index.json, of the names of requests by running programs without a project."""
LOST_ROOT = "lost index"
"""The name, in index.json, of the scripts whose projects a damaged index listed."""


PACKAGE_ROOT = "package:"
"""The prefix, in index.json, of the names of installed packages."""


class Place(NamedTuple):
    """The directories of a script that one project or package put into a tree. `is_first` says that
    it takes precedence: it is the project around the working directory, or a person named the tree.
    `remedy` is what makes it, or another, the only place."""

    is_first: bool
    remedy: str
    root: SearchRoot
    paths: list[str]


class SearchRoot(NamedTuple):
    """A tree to search, the reason for it in words, and the directory of its project if known."""

    path: str
    origin: str
    project: str | None = None
    is_named: bool = False

    def list_script_names(self) -> list[str]:
        """Return the names of the scripts' directories."""
        return _list_names(os.path.join(self.path, "scripts"))

    def list_instances(self, directory: str, start: str) -> list[str]:
        """Return the paths in the places that take precedence; of all places without one. Raises as
        `list_places`."""
        places = self.list_places(directory, start)
        return [path for group in places if group[0] == places[0][0] for path in group.paths]

    def list_places(self, directory: str, start: str) -> list[Place]:
        """Return the places with directories of a script that the last builds made, the project
        around `start` first. Raises `LoadError`.

        `directory` is the script's name in snake case.
        """
        script_root = os.path.join(self.path, "scripts", directory)
        # 64 digits: a sha256. Temporary directories have other names.
        hashes = {name for name in _list_names(script_root) if len(name) == 64}
        # The index is read only now: a damaged one must not fail a root without the script.
        listed = _read_places(self, directory, self.project or start) if hashes else None
        if listed is None:
            listed = [(self.is_named, f"where={self.path!r}  # {self.origin}", hashes)]
        places = (
            Place(first, remedy, self, [f"{script_root}/{name}" for name in sorted(names & hashes)])
            for first, remedy, names in listed
        )
        return [group for group in places if group.paths]


def _list_names(directory: str) -> list[str]:
    """Return the sorted names in a directory; none of a missing one. Raises `LoadError`s."""
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return []
    except OSError as error:
        raise make_read_error(directory, error) from None


def _read_places(
    tree: SearchRoot, directory: str, start: str
) -> list[tuple[bool, str, set[str]]] | None:
    """Return (`is_first`, `remedy`, hashes of directories) of the places of a script in index.json;
    None without an index. Raises `CorruptCacheError` for a damaged one."""
    path = os.path.join(tree.path, "index.json")
    try:
        projects = unseal_json(read_bytes(path))["projects"]
        hashes_by_key = {
            key: {digest for name, digest in project["scripts"] if name == directory}
            for key, project in projects.items()
            if not key.startswith(JIT_ROOT_PREFIX)
        }
        # A lost index leaves scripts of unknown projects: they count only if no known project has
        # the script.
        lost_hashes = hashes_by_key.pop(LOST_ROOT, set())
        keys = [key for key, hashes in hashes_by_key.items() if hashes]
        manifests = {key: projects[key].get("origin", {}) for key in keys if os.path.isabs(key)}
        is_own, selected = select_projects(tree, manifests, start)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise make_read_error(path, error) from None
    except (CorruptFileError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptCacheError(f"{path} is damaged: {error}") from None
    if not keys:
        return [(tree.is_named, f"where={tree.path!r}", lost_hashes)]
    is_first = is_own or tree.is_named
    places = [(is_first, f"where={os.path.dirname(key)!r}", hashes_by_key[key]) for key in selected]
    for name in (key.removeprefix(PACKAGE_ROOT) for key in keys if key.startswith(PACKAGE_ROOT)):
        command = format_command("install", "--remove", name, "--cache-dir", tree.path)
        remedy = f"package {name}, which `{command}` removes"
        places.append((tree.is_named and not is_own, remedy, hashes_by_key[PACKAGE_ROOT + name]))
    return places


def select_projects(
    tree: SearchRoot, origins: Mapping[str, Mapping[str, str]], start: str
) -> tuple[bool, list[str]]:
    """Return whether the project around `start`, the innermost one, is among projects with these
    origins, and its key; without it the keys of those that can be meant there."""
    around = [key for key in origins if is_within(start, os.path.dirname(key))]
    for key in sorted(around, key=lambda key: len(os.path.dirname(key)), reverse=True):
        if _is_from(origins[key], os.path.dirname(key)):
            return True, [key]
    others = [key for key in origins if key not in around]
    manifest = find_manifest(start) if tree.origin != "where" else None
    if manifest is None:
        return False, others
    copies = [key for key in others if _is_from(origins[key], os.path.dirname(manifest))]
    # In a project that was not built, others do not count, except for its neighbours in the git
    # repository whose cache this is.
    neighbours = [key for key in others if is_within(key, os.path.dirname(tree.path))]
    return bool(copies), copies[:1] or ([] if tree.is_named else neighbours)


def _is_from(origin: Mapping[str, str], directory: str) -> bool:
    """Return whether the project with this origin is the one in a directory."""
    is_equal = (
        digest_file(os.path.join(directory, name)) == digest
        for name, digest in origin.items()
        if name
    )
    # The very directory is not enough: its numbers are given to another one after its removal.
    return any(is_equal) if origin.get("") == identify_directory(directory) else all(is_equal)


def describe_origin(directory: str, paths: Iterable[str]) -> dict[str, str]:
    """Return the origin of a project in a directory: the digest of each of its files in `paths`, by
    its relative name, and the identity of the directory by "". Other files do not matter."""
    digests = {p[len(directory) + 1 :]: digest_file(p) for p in paths if is_within(p, directory)}
    files = {name: digest for name, digest in digests.items() if digest is not None}
    return {**files, "": identify_directory(directory)}


def identify_directory(directory: str) -> str:
    """Return the inode and device of a directory, which no other has at the same time; "" without
    one."""
    status = try_stat(directory)
    return "" if status is None else f"{status.st_ino} {status.st_dev}"


def digest_file(path: str) -> str | None:
    """Return 16 digits of the sha256 of a file; None for one that cannot be read."""
    data = try_read_bytes(path)
    return None if data is None else sha256_text(data)[:16]


def find_search_roots(where: object) -> Iterator[SearchRoot]:
    """Yield the trees to search, in order. Raises `LoadError`, and `TypeError` for a
    `where` of another type."""
    if where is not None:
        yield _resolve_where(where)
        return
    named_cache = _find_named_cache()
    first_cache = named_cache or find_project_cache(get_working_directory())
    is_trusted = not any(map(explain_distrust, first_cache.deciders))
    if is_trusted:
        is_named = named_cache is not None
        yield SearchRoot(first_cache.path, first_cache.origin, is_named=is_named)
    yield from _list_installed_packages()
    # The project's cache comes behind a named one. If it is not trusted, its error comes last:
    # packages can be loaded in such a directory.
    if named_cache or not is_trusted:
        cache = _find_trusted_cache(get_working_directory())
        yield SearchRoot(cache.path, cache.origin)


def get_cache_dir() -> str:
    """Return the directory, absolute, that a build or a load in the working directory would use.
    Raises `LoadError` when files of another user decide."""
    return (_find_named_cache() or _find_trusted_cache(os.getcwd())).path


def _find_named_cache() -> CacheDir | None:
    return find_named_cache(option=None, program=option.chosen(), environment=os.environ)


def _find_trusted_cache(start: str) -> CacheDir:
    cache = find_project_cache(start)
    check_trust(cache)
    return cache


def get_working_directory() -> str:
    """Return the working directory; the root if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        # A named tree can still be loaded from.
        return "/"


def _resolve_where(where: Any) -> SearchRoot:
    """Return the tree that `where` means: the kernels of a Python package, the cache of a project,
    the tree around a script's directory, else the directory itself. Raises `LoadError` for a
    missing directory, `TypeError` as `find_directory`."""
    root = _find_package(where) if isinstance(where, str) else None
    if root is not None:
        return root
    path = find_directory(where)
    if getattr(where, "__path__", None):
        root = _find_package_kernels(path)
        if root is not None:
            return root
    _list_names(os.path.join(path, "scripts"))  # one that may not be read is not a missing one
    if not os.path.isdir(path):
        raise LoadError(f"{path} is not a directory")
    if not os.path.isdir(os.path.join(path, "scripts")):
        # A project's directory means its cache, and a script's own directory the tree around it.
        if os.path.isfile(os.path.join(path, MANIFEST_NAME)):
            return _make_project_root(path)
        scripts = os.path.dirname(os.path.dirname(path))
        if os.path.basename(scripts) == "scripts":
            return SearchRoot(os.path.dirname(scripts), "where")
    return SearchRoot(path, "where")


def _make_project_root(project: str, origin: str | None = None) -> SearchRoot:
    cache = _find_named_cache() or find_project_cache(project)
    return SearchRoot(cache.path, origin or cache.origin, project)


def find_directory(where: Any) -> str:
    """Return the absolute directory of a path, a module, an object with the attribute `path`, or
    the result of a function. Raises `TypeError` for any other object."""
    value = where if isinstance(where, str | os.PathLike) else getattr(where, "path", None)
    if isinstance(value, str | os.PathLike):
        return os.path.abspath(os.fsdecode(value))
    # A package without `__init__.py` has no file.
    if getattr(where, "__path__", None):
        return os.path.abspath(str(next(iter(where.__path__))))
    file = getattr(where, "__file__", None)
    if isinstance(file, str):
        return os.path.dirname(os.path.abspath(file))
    if callable(where):
        return find_directory(where())
    raise TypeError(f"where= is a path, a module or a package, not {type(where).__name__}")


def _find_package(name: str) -> SearchRoot | None:
    """Return the tree with the kernels of a Python package, by its name, or of a package around it;
    None without one."""
    # From `a.b.c` up to `a`: a module stands for the package that it is in.
    while name and all(part.isidentifier() for part in name.split(".")):
        from importlib.util import find_spec

        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            spec = None
        # A package without `__init__.py` has no origin. It is left out: it may be any directory of
        # this name, in the working directory too.
        locations = spec.submodule_search_locations if spec is not None and spec.origin else None
        for directory in locations or ():
            root = _find_package_kernels(os.path.abspath(directory))
            if root is not None:
                return root
        name = name.rpartition(".")[0]
    return None


def _find_package_kernels(directory: str) -> SearchRoot | None:
    """Return the tree with the kernels of the Python package in a directory; None without any."""
    kernels = os.path.join(directory, KERNELS)
    if os.path.isdir(os.path.join(kernels, "scripts")):
        return SearchRoot(kernels, f"package {os.path.basename(directory)}")
    # Only the nearest `pyproject.toml` is read: one further up is another project's.
    paths = (os.path.join(above, "pyproject.toml") for above in walk_up(directory))
    path = next(filter(os.path.isfile, paths), None)
    if path is None:
        return None
    _, table = find_declaration(read_toml(path))
    if table is None:
        return None
    manifest = table.get("manifest", MANIFEST_NAME)
    # A manifest of another type counts as one beside the `pyproject.toml`: a build reports it.
    relative = manifest if isinstance(manifest, str) else ""
    manifest_path = os.path.join(os.path.dirname(path), relative)
    return _make_project_root(os.path.dirname(manifest_path), origin=path)


def find_declaration(document: Any) -> tuple[tuple[str, ...], dict[str, Any] | None]:
    """Return (keys, table) of the first of `TABLES` in a `pyproject.toml`. Without one return the
    first keys and None."""
    for keys in TABLES:
        table = document
        for key in keys:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict):
            return keys, table
    return TABLES[0], None


def _list_installed_packages() -> Iterator[SearchRoot]:
    """Yield the trees of installed packages. Raises `CorruptCacheError` for a broken one."""
    # Imported late: it takes 10 ms, and most loads find the script before.
    from importlib import metadata

    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS)):
        try:
            directory = find_directory(entry.load())
        except Exception as error:  # importing a package may raise anything
            raise CorruptCacheError(f"package {entry.name} ({entry.value}): {error}") from error
        yield SearchRoot(directory, f"package {entry.name}")
