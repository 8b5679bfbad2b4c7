"""Emptying a cache tree of what `KernelCache` put there, and of nothing else."""

from __future__ import annotations

import os
import shutil

from tilusbuild.cache import layout
from tilusbuild.cache.cache import Cache
from tilusbuild.cache.garbage import alone, unread
from tilusbuild.jit.device_code import FOLDER
from tilusbuild.jit.source import SOURCES
from tilusbuild.runtime.places import JIT_ROOT_PREFIX


def clear(root: str) -> None:
    """Remove the scripts that only kernels in programs asked for, and the programs that only those
    have; not those that a process has loaded. Raises `CacheTrouble` and `CorruptFileError`."""
    cache = Cache(root)
    if not os.path.isdir(root) or not cache.tree.exists():
        return
    projects = cache.projects()
    ours = [name for name in projects if name.startswith(JIT_ROOT_PREFIX)]
    wanted = {pair for name in ours for pair in projects[name].scripts}
    others = {pair for name in projects if name not in ours for pair in projects[name].scripts}
    cache.forget(ours)
    names = [f"{layout.SCRIPTS}/{folder}/{digest}" for folder, digest in wanted - others]
    with alone(cache.tree, wait=True), unread(cache.tree, names) as read:
        gone = {pair for pair in wanted - others if "/".join((layout.SCRIPTS, *pair)) not in read}
        listed = {(each.folder, each.hash): each.programs for each in cache.scripts()}
        left = {p for pair, programs in listed.items() if pair not in gone for p in programs}
        for folder, digest in gone:
            cache.tree.take_away(cache.tree.script_path(folder, digest))
        for program in {p for pair in gone for p in listed.get(pair, ())} - left:
            cache.tree.take_away(cache.program_path(program))
    for name in (SOURCES, FOLDER):
        shutil.rmtree(os.path.join(cache.state_path, name), ignore_errors=True)
