"""Which script folders are known to say what is the case, so that they are not worked out again.

A folder follows from its instance, from what the manifest says of the script, from the statuses of
its programs, and from our own code. When all of these are what they were when it was last checked,
and the folder, its files and its two folders of links have their size, mtime, ctime and inode, it
says what it should. Whatever is not known is worked out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from tilusbuild.cache.tree import Tree
from tilusbuild.manifest import Manifest
from tilusbuild.noop.record import COARSE_TICK, snapshot
from tilusbuild.plan.model import PlannedInstance
from tilusbuild.state.hashing import sha256_text
from tilusbuild.state.log import StateFile

_PARTS = ("", "script.txt", "script.json", "schedule.txt", "programs", "failed")


class Published:
    """The folders of one project in one cache. `code` stands for what writes them."""

    def __init__(self, tree: Tree, manifest: Manifest, code: str) -> None:
        self._tree = tree
        self._manifest = manifest
        self._code = code
        self._file = StateFile(os.path.join(tree.root, "state", "published"), "published")

    def is_current(self, instance: PlannedInstance, statuses: Mapping[str, str]) -> bool:
        """Whether the folder of an instance says all it should."""
        if self._manifest.scripts[instance.script].dispatch is not None:
            return False  # its dispatcher is made from what lies beside it, too
        known = self._file.get(instance.hash)
        if not isinstance(known, list) or len(known) != 3 or not isinstance(known[2], int):
            return False
        stamps = self._stamps(instance)
        newest = max(time for stamp in stamps for time in stamp[1:3])
        return known[:2] == [self._says(instance, statuses), stamps] and (
            known[2] > newest + COARSE_TICK
        )

    def note(self, instance: PlannedInstance, statuses: Mapping[str, str]) -> None:
        """Remember that the folder was found right, or made right, just now."""
        self._file.put(
            instance.hash,
            [self._says(instance, statuses), self._stamps(instance), time.time_ns()],
        )

    def save(self) -> None:
        """Write what is new; silently nothing where that is not possible."""
        self._file.save(keep=self._is_there)

    def _is_there(self, digest: str) -> bool:
        scripts = self._tree.path("scripts")
        folders = os.listdir(scripts)
        return any(os.path.isdir(os.path.join(scripts, name, digest)) for name in folders)

    def _says(self, instance: PlannedInstance, statuses: Mapping[str, str]) -> str:
        manifest = self._manifest
        parts = (
            self._code,
            repr(manifest.scripts[instance.script]),
            repr(manifest.targets[instance.target.name]),
            *(statuses.get(program, "") for program in instance.programs),
        )
        return sha256_text("\n".join(parts))

    def _stamps(self, instance: PlannedInstance) -> list[list[int]]:
        folder = self._tree.script_path(instance.folder, instance.hash)
        return [list(snapshot(os.path.join(folder, part))) for part in _PARTS]
