"""Directories of ours in TMPDIR, or beside the file or directory that is made in them.

The owner of one holds a lock of it, which the system drops however the owner ends. So the next one
to make a directory knows what a killed command left, and removes it: directories of our names, of
this user, without an owner. Where the file system has no locks, nothing is removed.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from contextlib import suppress

from tilusbuild.runtime.regular import try_list
from tilusbuild.state.directories import open_below, remove_tree

_PREFIX = "tilusbuild-tmp-"
_NAME = re.compile(rf"\.?{_PREFIX}[a-z]+-[a-z0-9_]{{8}}", re.ASCII)


def find_temporary_root() -> str:
    """Return the first directory in which this user may make files: of TMPDIR, TEMP, TMP, `/tmp`
    and `/var/tmp`, else the current one."""
    # Not `tempfile.gettempdir`: it creates a probe file in each, which a kill could leave behind.
    variables = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for directory in (*filter(None, variables), "/tmp", "/var/tmp"):  # noqa: S108
        if os.access(os.path.join(directory, ""), os.W_OK | os.X_OK):
            return os.path.abspath(directory)
    return os.path.abspath(os.curdir)


class TemporaryDirectory:
    """A private directory `path`; use it as a context manager. `purpose` is part of its name, in
    lower-case letters. It is in TMPDIR, or hidden in `parent`, from which a rename stays on one
    file system. Making one removes those whose owners have died. Raises `OSError`."""

    def __init__(self, purpose: str, parent: str | None = None) -> None:
        top = find_temporary_root() if parent is None else parent
        dot = "" if parent is None else "."  # a name that begins with a dot is hidden
        _sweep_abandoned(top)
        while True:
            self.path = tempfile.mkdtemp(prefix=f"{dot}{_PREFIX}{purpose}-", dir=top)
            # Another process may sweep the directory before it is locked: then a new one is made.
            with suppress(FileNotFoundError):
                try:
                    self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                except OSError:  # such as no more descriptors
                    os.rmdir(self.path)
                    raise
                with suppress(OSError):  # no locks on this file system: nothing is swept there
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                if os.path.exists(self.path):
                    return
                os.close(self._lock)

    def __enter__(self) -> TemporaryDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the directory. When that fails, the next sweep removes it."""
        with suppress(OSError):
            remove_tree(self.path)
        os.close(self._lock)


def _sweep_abandoned(top: str) -> None:
    """Remove directories of ours in `top` whose owner has died: this user's, with a lock that is
    free."""
    # This user may write to `top`, but perhaps not list it.
    for name in filter(_NAME.fullmatch, try_list(top)):
        # An error for one directory, which is locked or a link, must not end the sweep of others.
        with suppress(OSError), open_below(top, name) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_uid == os.geteuid():
                remove_tree(os.path.join(top, name))
