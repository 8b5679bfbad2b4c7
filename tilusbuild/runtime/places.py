"""Where scripts are searched for: a place given, TILUSBUILD_CACHE_DIR, installed packages, the
project's own cache. The first that has the script is the one; nothing is written anywhere.

A place is a cache tree or a package: a directory with `scripts/` and `programs/` in it. Of a cache
tree, `index.json` says which script directories the last build of each project made; the others are
older and are not examined.

A Python package can hold its kernels in a directory of its own, `_kernels`. Where there is none, it
is installed in place, and its project's cache has them: `pyproject.toml` says where the manifest
is. The name of such a package comes before a directory of that name, because the working directory
is not the caller's choice where a package names itself.

A build runs what the `tilus.toml` that it finds says, and `load` runs the code in the cache that it
finds. Both look upwards from the working directory, so anybody who may write in a directory above,
as all may in `/tmp`, could answer. As with git's `safe.directory`, what is found so must belong to
the user, to root, or to who called `sudo`: the file and the directory that it is in. What is named,
by `where=` or a cache's path, is believed: whoever names it has looked.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tilusbuild.runtime import option
from tilusbuild.runtime.errors import CorruptCacheError, LoadError
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.runtime.sealed import CorruptFileError, unseal

ENTRY_POINTS = "tilusbuild.packages"
VARIABLE = "TILUSBUILD_CACHE_DIR"
KERNELS = "_kernels"
"""The directory of a Python package that holds its kernels."""
TABLES = (
    ("tool", "tilusbuild"),
    ("tool", "hatch", "build", "hooks", "tilusbuild"),
    ("tool", "hatch", "build", "targets", "wheel", "hooks", "tilusbuild"),
)
"""The tables of a `pyproject.toml` that declare such kernels."""
JIT_ROOT_PREFIX = "kernel-cache:"
LOST_ROOT = "lost index"
"""Who keeps the scripts that were there when an index was begun again."""
"""What names begin with in index.json that stand for a program which a program asked for by itself:
its script is not the one that a project has."""


class SearchPlace(NamedTuple):
    """A tree to look in, where it came from, and the directory of its project, if that is known."""

    path: str
    origin: str
    project: str | None = None

    def directories(self) -> list[str]:
        """Return the scripts' directories that there are."""
        return _names(os.path.join(self.path, "scripts"))

    def instances(self, directory: str, start: str) -> list[str]:
        """Return the paths of a script's current directories, of the project around `start` where
        several have it. Raises `LoadError`."""
        script_root = os.path.join(self.path, "scripts", directory)
        instances = [name for name in _names(script_root) if len(name) == 64]
        current = _current(self.path, directory, self.project or start) if instances else None
        kept = instances if current is None else [name for name in instances if name in current]
        return [f"{script_root}/{name}" for name in sorted(kept)]


def _current(root: str, directory: str, start: str) -> set[str] | None:
    """Return the hashes of a script's current directories by index.json; None without an index."""
    path = os.path.join(root, "index.json")
    try:
        projects = unseal(read_bytes(path))["projects"]
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
    listed = {m: found for m, found in by_manifest.items() if found}
    return _of_project(listed, directory, start) if listed else lost


def _of_project(by_manifest: Mapping[str, set[str]], directory: str, start: str) -> set[str]:
    """Of several projects in one cache, the one around `start`; else all, if they agree. Packages
    that were installed there, under names that are not paths, stand together like one project: each
    may bring another target."""
    around = [m for m in by_manifest if os.path.isabs(m) and is_within(start, os.path.dirname(m))]
    if around:
        return by_manifest[max(around, key=len)]
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


def is_within(path: str, directory: str) -> bool:
    """Return whether a path is a directory or lies in it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def places(where: object) -> Iterator[SearchPlace]:
    """Yield the places to look in, in order. Raises `LoadError` for a place that is none."""
    if where is not None:
        yield _given(where)
        return
    chosen, named = option.chosen().get("cache-dir"), os.environ.get(VARIABLE)
    if isinstance(chosen, str):
        yield SearchPlace(chosen, "tilusbuild.option")
    elif named:
        yield SearchPlace(os.path.abspath(named), VARIABLE)
    yield from _packages()
    yield SearchPlace(*project_cache(here()))


def get_cache_dir() -> str:
    """Return the directory, absolute, that a build or a load in the working directory would use:
    the one chosen, else that in `TILUSBUILD_CACHE_DIR`, else the project's own, else `.cache` at
    the root of the git repository around, else `~/.cache/tilus`."""
    named = option.chosen().get("cache-dir") or os.environ.get(VARIABLE)
    found = named if isinstance(named, str) else project_cache(os.getcwd())[0]
    return os.path.abspath(os.path.expanduser(found))


def here() -> str:
    """Return the working directory, or the root where it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def _given(where: Any) -> SearchPlace:
    if isinstance(where, str) and (place := _of_package(where)) is not None:
        return place
    path = directory_of(where)
    if getattr(where, "__path__", None) and (place := _kernels_of(path)) is not None:
        return place
    if not os.path.isdir(path):
        raise LoadError(f"{path} is not a directory")
    above = os.path.dirname(os.path.dirname(os.path.dirname(path)))
    if not os.path.isdir(os.path.join(path, "scripts")):
        # A project's directory stands for its cache, a script's own for the tree around it.
        if os.path.isfile(os.path.join(path, "tilus.toml")):
            return SearchPlace(*project_cache(path, named=True), path)
        if os.path.basename(os.path.dirname(os.path.dirname(path))) == "scripts":
            return SearchPlace(above, "where")
    return SearchPlace(path, "where")


def directory_of(where: Any) -> str:
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
        return directory_of(where())
    raise TypeError(f"where= is a path, a module or a package, not {type(where).__name__}")


def _of_package(name: str) -> SearchPlace | None:
    """Return the place of the kernels of a Python package by its name, or of one around it; None
    for a name of no package with kernels."""
    while name and all(part.isidentifier() for part in name.split(".")):
        from importlib.util import find_spec

        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            spec = None
        # One without `__init__.py` may be any directory of this name, in the working directory too.
        found = spec.submodule_search_locations if spec is not None and spec.origin else None
        for directory in found or ():
            if (place := _kernels_of(os.path.abspath(directory))) is not None:
                return place
        name = name.rpartition(".")[0]
    return None


def _kernels_of(directory: str) -> SearchPlace | None:
    """Return the place of the kernels of the Python package in a directory; None without any."""
    inside = os.path.join(directory, KERNELS)
    if os.path.isdir(os.path.join(inside, "scripts")):
        return SearchPlace(inside, f"package {os.path.basename(directory)}")
    for above in upwards(directory):
        path = os.path.join(above, "pyproject.toml")
        if os.path.isfile(path):
            break
    else:
        return None
    _, table = declared(_toml(path))
    if table is None:
        return None
    said = table.get("manifest", "tilus.toml")
    project = os.path.dirname(os.path.join(above, said if isinstance(said, str) else ""))
    chosen = option.chosen().get("cache-dir") or os.environ.get(VARIABLE)
    if isinstance(chosen, str):
        return SearchPlace(os.path.abspath(chosen), path, project)
    return SearchPlace(project_cache(project, named=True)[0], path, project)


def declared(document: Any) -> tuple[tuple[str, ...], dict[str, Any] | None]:
    """Return the keys of the table that declares a package's kernels, in what a `pyproject.toml`
    holds, and the table; None without one."""
    for keys in TABLES:
        table = document
        for key in keys:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict):
            return keys, table
    return TABLES[0], None


def _packages() -> Iterator[SearchPlace]:
    """Yield what is installed."""
    from importlib import metadata

    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS)):
        try:
            directory = directory_of(entry.load())
        except Exception as error:
            raise CorruptCacheError(f"package {entry.name} ({entry.value}): {error}") from error
        yield SearchPlace(directory, f"package {entry.name}")


def project_cache(start: str, *, named: bool = False) -> tuple[str, str]:
    """Return the cache of the project around a directory, as a build there chooses it. `named`:
    an option said that it is this project. Raises `LoadError` when another user's files
    decide, and no option names them."""
    for directory in upwards(start):
        manifest = os.path.join(directory, "tilus.toml")
        table = _toml(manifest).get("build") if os.path.isfile(manifest) else None
        said = table.get("cache-dir") if isinstance(table, dict) else None
        if isinstance(said, str):
            found = os.path.join(directory, os.path.expanduser(said))
            return _believed(found, (manifest,), named=named), manifest
        git = os.path.join(directory, ".git")
        if os.path.exists(git):
            found = os.path.join(directory, ".cache")
            return _believed(found, (git, found), named=named), "the git repository"
    return os.path.join(os.path.expanduser("~"), ".cache", "tilus"), "the user's cache"


def _believed(cache: str, decide: Iterable[str], *, named: bool) -> str:
    for path in () if named else decide:
        why = distrust(path)
        if why is not None:
            raise LoadError(why)
    return cache


def _toml(path: str) -> dict[str, Any]:
    """Return a file's tables; none of one that is not TOML, or when this Python reads no TOML: 3.10
    does so where the builder, and with it tomli, is installed."""
    try:
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        found: dict[str, Any] = toml.loads(read_text(path, limit=MAX_MANIFEST))
    except (ImportError, OSError, ValueError):
        return {}
    return found


def upwards(start: str) -> Iterator[str]:
    """Yield a directory and those above it."""
    directory = os.path.abspath(start)
    while True:
        yield directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return
        directory = parent


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


MAX_MANIFEST = 2 << 20
"""Bytes of a manifest, for who reads one: all that is read of it is linear in them."""
SAFE_DIRECTORIES = "TILUSBUILD_SAFE_DIRECTORIES"


def distrust(path: str) -> str | None:
    """Return why a file or directory that was found, and not named, is not believed, in words; None
    when it is, or is not there."""
    path = os.path.abspath(path)
    directory = os.path.dirname(path)
    for each in (path, directory):
        owner = stranger(each)
        if owner is not None:
            if _is_safe(directory):
                return None
            return (
                f"{each} belongs to another user, {owner}, and can run programs\n"
                f"  {SAFE_DIRECTORIES}={directory} trusts it: directories, separated by `:`;"
                " /* after one means all below it, * all"
            )
    return None


def stranger(path: str) -> str | None:
    """Return who owns a file or a directory, or the link to it, if that is another user."""
    for status in (os.lstat, os.stat):
        try:
            owner = status(path).st_uid
        except OSError:
            continue
        if not is_trusted(owner):
            return _user_name(owner)
    return None


def is_trusted(owner: int) -> bool:
    """Return whether a user's files are believed."""
    own = os.geteuid()
    if owner in (own, 0):
        return True
    return own == 0 and os.environ.get("SUDO_UID") == str(owner)


def _is_safe(directory: str) -> bool:
    for word in os.environ.get(SAFE_DIRECTORIES, "").split(os.pathsep):
        below = word.removesuffix("/*")
        if word == "*" or (os.path.isabs(word) and os.path.normpath(word) == directory):
            return True
        if below != word and os.path.isabs(word) and f"{directory}/".startswith(f"{below}/"):
            return True
    return False


def _user_name(owner: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(owner).pw_name} (uid {owner})"
    except KeyError:
        return f"uid {owner}"
