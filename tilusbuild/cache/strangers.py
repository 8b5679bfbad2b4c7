"""What is in a tree and not ours, and what killed builders left: known by names, kinds, locks.

Nothing here is removed. A file that tilusbuild did not write is never removed; it is reported.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator

from tilusbuild.cache import layout
from tilusbuild.cache.locks import LockName
from tilusbuild.cache.tree import Tree
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.runtime.reader_lock import LOCKS
from tilusbuild.state.directories import is_directory, mounts_below


@dataclass(frozen=True, slots=True)
class Stranger:
    """Something in a tree that tilusbuild did not put there. `name` is relative to the tree."""

    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name} {self.what}"


def strangers(tree: Tree) -> list[Stranger]:
    """Return what is not ours, without what is in the entries, in the order of names."""
    found = {name: Stranger(name, "is a mount point") for name in mounts_below(tree.root)}
    for name in _strange_names(tree):
        found.setdefault(name, Stranger(name, "is unknown"))
    return [found[name] for name in sorted(found)]


def _strange_names(tree: Tree) -> Iterator[str]:
    yield from (name for name in tree.names() if name not in layout.TOP)
    for each in tree.names(layout.STAGING):
        if not layout.is_staging(each):
            yield f"{layout.STAGING}/{each}"
    for each in tree.names(LOCKS):
        if _is_strange(tree, f"{LOCKS}/{each}", layout.is_lock(each), stat.S_ISREG):
            yield f"{LOCKS}/{each}"
    for directory in (layout.PROGRAMS, layout.INCLUDE):
        yield from _strange_entries(tree, directory)
    for script in tree.names(layout.SCRIPTS):
        name = f"{layout.SCRIPTS}/{script}"
        if _is_strange(tree, name, layout.is_script_directory(script)):
            yield name
        else:
            yield from _strange_entries(tree, layout.SCRIPTS, script)


def _strange_entries(tree: Tree, *directory: str) -> Iterator[str]:
    for each in tree.names(*directory):
        name = "/".join((*directory, each))
        if _is_strange(tree, name, layout.is_hash(each)):
            yield name


def _is_strange(
    tree: Tree, name: str, is_named: bool, is_kind: Callable[[int], bool] = stat.S_ISDIR
) -> bool:
    """Return whether it is something else than what we make, which has the right name and kind."""
    try:
        mode = os.lstat(tree.path(name)).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False  # another process has removed it since its name was read
    except OSError:
        return True
    return not (is_named and is_kind(mode))


def is_entry(tree: Tree, *names: str) -> bool:
    """Return whether this can be an entry: a directory of its own that is named by a digest."""
    return layout.is_hash(names[-1]) and is_directory(tree.path(*names))


def entries(tree: Tree, *directory: str) -> list[str]:
    """Return the names of the entries in a directory of the tree."""
    return [name for name in tree.names(*directory) if is_entry(tree, *directory, name)]


def script_entries(tree: Tree) -> list[tuple[str, str]]:
    """Return (directory, hash) of the scripts."""
    return [
        (directory, digest)
        for directory in filter(layout.is_script_directory, tree.names(layout.SCRIPTS))
        for digest in entries(tree, layout.SCRIPTS, directory)
    ]


def litter(tree: Tree) -> list[str]:
    """Return the private directories without a holder: what killed builds and collections left.
    Raises `OSError`."""
    return [
        f"{layout.STAGING}/{name}"
        for name in filter(layout.is_staging, tree.names(layout.STAGING))
        if tree.locks.is_free(LockName("stage", name))
    ]
