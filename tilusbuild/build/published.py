"""Which script directories are known to be right, so that they are not worked out again.

A script directory follows from its instance, from what the manifest says of the script, from the
statuses of its programs, and from our own code. When all of these are what they were when it was
last checked, and the directory, its files and its two directories of links have their stamps, it is
right. Whatever is not known is worked out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from tilusbuild.cache.tree import Tree
from tilusbuild.manifest import Manifest
from tilusbuild.plan.model import PlannedInstance
from tilusbuild.state.hashing import sha256_text
from tilusbuild.state.log import StateFile
from tilusbuild.state.stamp import is_settled, stamp_of

_PARTS = ("", "script.txt", "script.json", "schedule.txt", "programs", "failed")


class Published:
    """The script directories of one project in one cache. `code` stands for what writes them."""

    def __init__(self, tree: Tree, manifest: Manifest, code: str) -> None:
        self._tree = tree
        self._manifest = manifest
        self._code = code
        self._file = StateFile(os.path.join(tree.root, "state", "published"), "published")

    def is_current(self, instance: PlannedInstance, statuses: Mapping[str, str]) -> bool:
        """Return whether the directory of an instance is known to be right."""
        if self._manifest.scripts[instance.script].dispatch is not None:
            return False  # its dispatcher follows from the results of tuning, too
        known = self._file.get(instance.hash)
        if not isinstance(known, list) or len(known) != 3 or not isinstance(known[2], int):
            return False
        stamps, newest = self._stamps(instance)
        right = known[:2] == [self._says(instance, statuses), stamps]
        return right and is_settled(newest, known[2])

    def note(self, instance: PlannedInstance, statuses: Mapping[str, str]) -> None:
        """Remember that the directory was found right, or made right, just now."""
        self._file.put(
            instance.hash,
            [self._says(instance, statuses), self._stamps(instance)[0], time.time_ns()],
        )

    def save(self) -> None:
        """Write what is new; do nothing where that is not possible."""
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

    def _stamps(self, instance: PlannedInstance) -> tuple[list[list[int]], int]:
        """Return the stamps of a script directory's parts, and when the last of them changed."""
        directory = self._tree.script_path(instance.folder, instance.hash)
        stamps = [stamp_of(os.path.join(directory, part)) for part in _PARTS]
        return [list(stamp) for stamp in stamps], max(stamp.newest for stamp in stamps)
