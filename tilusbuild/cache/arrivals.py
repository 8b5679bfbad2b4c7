"""Entries whose files are known byte for byte before they are written: of a remote cache, or of
another tree.

Who hands them over has checked them: nothing is read back. Several are written before the disk is
waited for, and only then renamed to their places, so that each is whole or not there, as one that
was compiled here. They are there when `commit` returns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from tilusbuild.cache import layout
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.entries import find_entry
from tilusbuild.cache.includes import make_directories
from tilusbuild.cache.tree import Private, Tree

if TYPE_CHECKING:
    from typing_extensions import Self


class Arrivals:
    """Use as a context manager: what was not committed by its end is removed. The caller holds the
    programs' locks. Everything raises `CacheError`."""

    def __init__(self, cache: Tree) -> None:
        self._tree = cache
        self._private: Private | None = None
        self._made: dict[str, str] = {}
        """Where each program's directory is, until it is in its place."""
        self._files: list[str] = []
        self._directories: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._private is not None:
            self._private.discard()

    def add(self, program: str, files: Mapping[str, bytes], meta: bytes) -> None:
        """Write a program's files, by name, and its meta.json."""
        if self._private is None:
            self._private = self._tree.private()
        place = os.path.join(self._private.path, program)
        disk = self._tree.disk
        with wrap_oserror(self._tree.program_path(program)):
            made = {""}
            disk.make_directory(place)
            for name, data in (*files.items(), (layout.META, meta)):
                make_directories(self._tree, place, os.path.dirname(name), made)
                path = os.path.join(place, name)
                # As `Stage` leaves them: a library as linkers do.
                runs = name.endswith(".sh") or name == layout.LIBRARY
                disk.write(path, data, 0o755 if runs else 0o644)
                self._files.append(path)
            self._directories += [os.path.join(place, n) for n in sorted(made, reverse=True)]
        self._made[program] = place

    def commit(self) -> None:
        """Put what was added into its place, durably. What is there and whole stays."""
        tree = self._tree
        made, self._made = self._made, {}
        files, self._files = self._files, []
        directories, self._directories = self._directories, []
        if not made:
            return
        with wrap_oserror(tree.path(layout.PROGRAMS)):
            tree.disk.sync(files)
            for directory in directories:
                tree.disk.sync_directory(directory)
            for program, place in made.items():
                self._move(program, place)
            tree.disk.sync_directory(tree.path(layout.PROGRAMS))

    def _move(self, program: str, place: str) -> None:
        final = self._tree.program_path(program)

        def stays() -> bool:
            return find_entry(final, program) is not None

        self._tree.disk.make_directory(os.path.dirname(final))
        self._tree.move(place, final, durable=False, stays=stays)
