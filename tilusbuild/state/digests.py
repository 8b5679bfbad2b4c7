"""The digest memory that lasts: `StatMemory`, kept in the cache between runs and safe for threads.

When a remembered digest may be believed is `StatMemory`'s matter; here is only where it is kept.
Nothing is written when nothing new was learned, so that a build with nothing to do stays silent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from tilusbuild.state.log import StateFile
from tilusbuild.state.stat_digests import StatMemory, walk

_KINDS = ("files", "trees", "answers")


class RememberedDigests:
    """A `toolchain.digests.DigestMemory` in the file `digests` of `state_dir`, a cache's folder for
    state; with None it lasts as long as the process. `save` writes what is new."""

    def __init__(self, state_dir: str | None) -> None:
        path = os.path.join(state_dir, "digests") if state_dir is not None else None
        self._file = StateFile(path, "digests")
        self._guard = threading.Lock()
        tables: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
        for key, value in self._file.items():
            kind, _, name = key.partition(":")
            if kind in tables:
                tables[kind][name] = value
        self._memory = StatMemory.from_state(tables)
        self._files: set[str] = set()
        self._trees: dict[tuple[str, str], Callable[[str], bool]] = {}

    def digest(self, path: str) -> str:
        """The sha256 of a file's content. Raises `OSError`."""
        with self._guard:
            self._files.add(os.path.abspath(path))
            return self._memory.digest(path)

    def tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        """One digest of the selected files under `root`. Raises `OSError`."""
        with self._guard:
            self._trees[os.path.abspath(root), label] = select
            return self._memory.tree(root, label, select)

    def recall(self, key: str) -> str | None:
        """A text recorded under `key`, or None."""
        with self._guard:
            return self._memory.recall(key)

    def record(self, key: str, text: str) -> None:
        """Remember a text that `key` determines."""
        with self._guard:
            self._memory.record(key, text)

    def asked(self) -> set[str]:
        """Every file that was asked for in this process, and every folder below a root that was:
        as long as all of them are what they are, all answers would be the same."""
        with self._guard:
            found = set(self._files)
            for (root, _), select in self._trees.items():
                found.add(root)
                for _, path in walk(root, select):
                    found.update((path, os.path.dirname(path)))
            return found

    def save(self) -> None:
        """Write what is new; silently nothing where that is not possible."""
        with self._guard:
            for kind, table in self._memory.state().items():
                for name, value in table.items():
                    key = f"{kind}:{name}"
                    if self._file.get(key) != value:
                        self._file.put(key, value)
            self._file.save(keep=_still_there)


def _still_there(key: str) -> bool:
    """Whether a record is of a file or folder that exists; a tree's key ends with its root."""
    kind, _, name = key.partition(":")
    return kind == "answers" or os.path.exists(name.rpartition("\n")[2])
