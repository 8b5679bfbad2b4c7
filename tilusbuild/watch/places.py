"""Where to wait for events: the folders of what is watched, few of them, and never the cache.

In the project a folder at its top is watched with everything below, so that what is moved away and
back, or made anew, is seen; one that holds the cache is not, but its parts that matter are. Outside
only the folders themselves are. Also here: which file systems tell nobody what happens on them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

MOST = 64
"""More places would cost more than they bring: what lies elsewhere is looked at in turn."""

_SILENT = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "drvfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "prl_fs",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
        "wekafs",
    )
)
"""Changes made elsewhere give no event here. Overlays are not among these: what is changed through
the mounted folder gives its events."""


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def places(
    paths: Iterable[str],
    root: str,
    cache: str,
    is_folder: Callable[[str], bool] = os.path.isdir,
    real: Callable[[str], str] = os.path.realpath,
) -> dict[str, bool]:
    """The folders to watch for `paths`, each with whether everything below counts too."""
    found = {root: False}
    outside: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        folders.add(path if is_folder(path) else os.path.dirname(path))
        if os.path.islink(path):
            folders.add(os.path.dirname(real(path)))
    for folder in sorted(folders):
        nearest = _nearest(folder, is_folder)
        for each in {nearest, real(nearest)}:
            if is_below(each, cache):
                continue
            if is_below(each, root):
                _inside(found, each, root, cache)
            else:
                outside.add(each)
    for folder in sorted(outside):
        if not any(below and is_below(folder, place) for place, below in found.items()):
            found[folder] = False
    return dict(list(found.items())[:MOST])


def _inside(found: dict[str, bool], folder: str, root: str, cache: str) -> None:
    parts = os.path.relpath(folder, root).split("/")
    if parts == ["."]:
        return
    top = os.path.join(root, parts[0])
    if not is_below(cache, top):
        found[top] = True
        return
    for depth in range(1, len(parts) + 1):
        found.setdefault(os.path.join(root, *parts[:depth]), False)


def _nearest(path: str, is_folder: Callable[[str], bool]) -> str:
    """The path if it is a folder, else the nearest folder around it that exists."""
    while not is_folder(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def mounted(path: str, mounts: str) -> str:
    """The type of the file system that a path is on, by the text of /proc/mounts; "" if unknown."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = fields[1].encode().decode("unicode_escape")
        # Of two mounts on one place the later one hides the earlier.
        if is_below(path, place) and len(place) >= len(best):
            best, kind = place, fields[2]
    return kind


def silent(kind: str) -> bool:
    """Whether a file system of this type has changes without events."""
    return kind in _SILENT or kind.startswith("fuse")


def why_poll(paths: Iterable[str], mounts: str) -> str | None:
    """Why events do not do for these paths, in words; None when they do."""
    for path in paths:
        if silent(kind := mounted(path, mounts)):
            return f"{path} is on {kind}, where changes give no events"
    return None
