"""The digest memory of a project's cache: what `StatMemory` knows, kept from one run to the next.

Nothing rests on it: a file that is damaged, or cannot be written, costs reading again.
"""

from __future__ import annotations

import os

from tilusbuild.engine.state import StateFile
from tilusbuild.toolchain import StatMemory

_KEY = "memory"


class KeptMemory:
    """A `StatMemory` in a file of the folder `state`."""

    def __init__(self, state: str) -> None:
        self._file = StateFile(os.path.join(state, "digests"), "digests")
        self.memory = StatMemory.from_state(self._file.get(_KEY))
        self._before = self.memory.state()

    def save(self) -> None:
        """Write what is new, without what is gone; silently nothing where that is not possible."""
        for path in [path for path in self.memory.files if not os.path.exists(path)]:
            del self.memory.files[path]
        state = self.memory.state()
        if state != self._before and os.path.isdir(os.path.dirname(self._file.path or "")):
            self._file.put(_KEY, state)
            self._file.save()
            self._before = state
