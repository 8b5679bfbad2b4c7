"""Triton's groups in a package, and what of a package of a foreign cache runs on a described host.

Groups, `__grp__NAME.json`, are the only files of a foreign cache that name their own place: the
files of their entry, by absolute paths. In a package each path is only its name, which must be that
of a listed file beside the group; installing makes paths of them again.
"""

from __future__ import annotations

import json
import os

import rfc8785

from tilusbuild.interop.listing import CHILD_PATHS, ListedEntry, cache_of
from tilusbuild.package.errors import cannot_pack
from tilusbuild.package.listing import ANY_MACHINE, FileList
from tilusbuild.package.preflight import DescribedHost, host_problems
from tilusbuild.runtime.device import DeviceVerdict, can_run
from tilusbuild.runtime.regular import read_text


def group_without_place(path: str) -> bytes:
    """Return a group of a cache as a package has it, with names only. Raises `PackageError`."""
    try:
        names = json.loads(read_text(path))[CHILD_PATHS]
        return rfc8785.dumps({CHILD_PATHS: {str(name): str(name) for name in names}})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise cannot_pack(f"{path} is not a group of Triton: {error}") from None


def group_with_place(data: bytes, directory: str) -> bytes:
    """Return a checked group as Triton reads it when the directory of its entry is `directory`."""
    names = json.loads(data)[CHILD_PATHS]
    placed = {name: os.path.join(directory, name) for name in names}
    return json.dumps({CHILD_PATHS: placed}).encode()


Judged = tuple[list[tuple[ListedEntry, DeviceVerdict]], list[str]]
"""Whether each entry runs on a machine, and what of the machine itself is not enough."""


def preflight(listing: FileList, host: DescribedHost) -> Judged:
    """Judge every entry for one machine. Raises `PackageError` for a list of another kind."""
    entries = [(entry, _judge(entry, host)) for entry in cache_of(listing).entries]
    anywhere = listing.needs.machine == ANY_MACHINE
    return entries, [] if anywhere else list(host_problems(listing.needs, host))


def _judge(entry: ListedEntry, host: DescribedHost) -> DeviceVerdict:
    if entry.machine not in (None, host.machine):
        reason = f"its host code is for {entry.machine}, and the host is {host.machine}"
        return DeviceVerdict(False, reason)
    if not entry.images:
        if entry.machine is None:
            return DeviceVerdict(False, "nothing is known of its code")
        return DeviceVerdict(True, "host code")
    verdicts = [can_run(image.arch, host.device.arch, image.kind) for image in entry.images]
    return next(filter(None, verdicts), verdicts[0])
