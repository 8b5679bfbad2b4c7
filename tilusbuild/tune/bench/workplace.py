"""The directory in TMPDIR in which a worker works, and its socket is.

Who has one holds a lock of it, which the system drops however the holder ends. So the next one to
make a directory knows what a killed tuning left, and removes it: directories of this name, of this
user, that nobody holds."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from contextlib import ExitStack, suppress

from tilusbuild.state.directories import below, remove

_PREFIX = "tilusbuild-tune-"
_MADE = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")


class Workplace:
    """A directory of its own, open as `handle`. Making one raises `OSError`."""

    def __init__(self) -> None:
        _sweep()
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX)
            self._held = ExitStack()
            self.handle = self._held.enter_context(below(*os.path.split(self.path)))
            fcntl.flock(self.handle, fcntl.LOCK_EX)
            # Another one may have swept it before it was held.
            if os.path.exists(self.path):
                return
            self._held.close()

    def close(self) -> None:
        """Remove it. What cannot be removed waits for the next one's sweep."""
        with suppress(OSError):
            remove(self.path)
        self._held.close()


def _sweep() -> None:
    top = tempfile.gettempdir()
    with suppress(OSError):
        for name in filter(_MADE.fullmatch, os.listdir(top)):
            # Held by nobody, and this user's.
            with suppress(OSError), below(top, name) as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(handle).st_uid == os.geteuid():
                    remove(os.path.join(top, name))
