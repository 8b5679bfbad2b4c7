"""A program on its way into the cache: a private directory that becomes an entry by one rename.

The compile writes into `path`; `publish_program` adds the texts and, last, `meta.json`, syncs
everything, and renames the directory into place. Who comes second to a whole entry discards its
own.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from typing import Any

from tilusbuild.cache import layout
from tilusbuild.cache.entries import SCHEMA, Entry, find_entry, read_entry
from tilusbuild.cache.errors import wrap_oserror
from tilusbuild.cache.tree import Private, Tree
from tilusbuild.runtime.sealed import CorruptFileError, seal
from tilusbuild.state.hashing import sha256_file, sha256_text
from tilusbuild.status import RECORDED, Status


class Stage:
    """Publish it or discard it. After either, whatever was raised, the directory is no longer
    ours."""

    def __init__(self, tree: Tree, private: Private) -> None:
        self._tree = tree
        self._private: Private | None = private
        self.path = private.path

    def publish_program(
        self, program: str, program_txt: str, options_txt: str, meta: Mapping[str, Any], /
    ) -> Entry:
        """Make the entry with this hash, durably; the entry is ours or, if one was there, that.

        `meta` has a "status" and whatever is known of the program; "schema", "program" and "files"
        are added. Raises `CacheError`, and `ValueError` for what cannot be an entry: a hash that
        is not the texts', no library in what was built, anything but files and directories.
        """
        if self._private is None:
            raise ValueError("this stage was published or discarded")
        final = self._tree.program_path(program)
        try:
            if sha256_text(program_txt + options_txt) != program:
                raise ValueError(f"the texts are not those of program {program}")
            if meta.get("status") not in RECORDED:
                raise ValueError(f"{meta.get('status')!r} is no answer to publish")
            with wrap_oserror(final):
                self._fill(program, program_txt, options_txt, meta)
                return self._move(program, final)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove it."""
        private, self._private = self._private, None
        if private is not None:
            private.discard()

    def _fill(
        self, program: str, program_txt: str, options_txt: str, meta: Mapping[str, Any]
    ) -> None:
        disk = self._tree.disk
        for name, text in ((layout.PROGRAM_TXT, program_txt), (layout.OPTIONS_TXT, options_txt)):
            disk.write(os.path.join(self.path, name), text.encode("utf-8", "surrogateescape"))
        files: dict[str, dict[str, Any]] = {}
        for name in layout.files_below(self.path):
            path = os.path.join(self.path, name)
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{name} is no ordinary file")
            runs = found.st_mode & stat.S_IXUSR or name.endswith(".sh")
            disk.set_mode(path, 0o755 if runs else 0o644)
            files[name] = {"size": found.st_size, "sha256": sha256_file(path)}
        if meta["status"] == Status.BUILT and layout.LIBRARY not in files:
            raise ValueError(f"what was built has a {layout.LIBRARY}")
        whole = {**meta, "schema": SCHEMA, "program": program, "files": files}
        disk.write(os.path.join(self.path, layout.META), seal(whole))
        disk.sync([os.path.join(self.path, name) for name in (*files, layout.META)])
        for directory in sorted({os.path.dirname(name) for name in (*files, "")}, reverse=True):
            disk.sync_directory(os.path.join(self.path, directory))

    def _move(self, program: str, final: str) -> Entry:
        there = find_entry(final, program)
        if there is not None:
            return there
        self._tree.disk.make_directory(os.path.dirname(final))
        self._tree.move(self.path, final)
        try:
            return read_entry(final, program)
        except (FileNotFoundError, CorruptFileError) as error:
            raise OSError(errno.EIO, f"damaged as soon as written: {error}", final) from None
