"""A command as an Action of the Remote Execution API: its directory as a Merkle tree, its words and
environment, and what it makes.

A private directory is small and is read as it is. A link to a published header directory is that
directory, whose tree is worked out once a build; any other link names a tool, which the worker has
at the same place.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from typing import Any

from tilusbuild.cache import layout
from tilusbuild.process.base import Command
from tilusbuild.reapi import reapi_pb2 as reapi
from tilusbuild.reapi.backend import digest
from tilusbuild.remote.record import Blob, Sources, blob_for
from tilusbuild.runtime.regular import read_bytes

WORKING = "w"
"""The command's directory on a worker, which may be below the root of its file system. No system
has a directory of that name there."""


class Actions:
    """Makes Actions. May be used from several threads."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._headers: dict[str, tuple[Blob, Sources]] = {}
        """The trees of header directories, by their real paths."""
        self._platform = reapi.Platform()
        for name, value in sorted(properties.items()):
            self._platform.properties.add(name=name, value=value)

    def of(self, command: Command, *, cached: bool = True) -> tuple[Blob, Sources]:
        """Return the digest of a command's Action, and all of its blobs. Raises `OSError`."""
        sources: Sources = {}
        more = {} if command.on_worker is None else command.on_worker.files
        inside = self._directory(command.cwd, sources, more)
        root = reapi.Directory()
        root.directories.add(name=WORKING, digest=digest(inside))
        there = command.on_worker
        environment = command.env if there is None else there.env
        about = reapi.Command(
            arguments=command.argv if there is None else there.argv,
            output_paths=sorted(command.outputs),
            working_directory=WORKING,
            platform=self._platform,
        )
        for name, value in sorted(environment.items()):
            about.environment_variables.add(name=name, value=value)
        action = reapi.Action(
            command_digest=digest(_add(about, sources)),
            input_root_digest=digest(_add(root, sources)),
            platform=self._platform,
            do_not_cache=not cached,
        )
        if command.timeout is not None:
            action.timeout.seconds = math.ceil(command.timeout)
        return _add(action, sources), sources

    def _directory(
        self, path: str, sources: Sources, more: Mapping[str, str] | None = None
    ) -> Blob:
        """Return the tree of a directory, with `more` files by their names in it."""
        found = reapi.Directory()
        files = {**{name: os.path.join(path, name) for name in os.listdir(path)}, **(more or {})}
        for name, inside in sorted(files.items()):
            if os.path.islink(inside):
                self._link(inside, name, found, sources)
            elif os.path.isdir(inside):
                blob = self._directory(inside, sources)
                found.directories.add(name=name, digest=digest(blob))
            else:
                data = read_bytes(inside)
                blob = blob_for(data)
                sources[blob] = data
                runs = os.access(inside, os.X_OK)
                found.files.add(name=name, digest=digest(blob), is_executable=runs)
        return _add(found, sources)

    def _link(self, path: str, name: str, found: reapi.Directory, sources: Sources) -> None:
        target = os.readlink(path)
        if not os.path.isfile(os.path.join(path, layout.MANIFEST)):
            found.symlinks.add(name=name, target=target)
            return
        with self._lock:
            if target not in self._headers:
                held: Sources = {}
                self._headers[target] = self._directory(target, held), held
            blob, held = self._headers[target]
        sources.update(held)
        found.directories.add(name=name, digest=digest(blob))


def _add(message: Any, sources: Sources) -> Blob:
    data = message.SerializeToString(deterministic=True)
    blob = blob_for(data)
    sources[blob] = data
    return blob
