"""`cache merge`: the caches of several machines become one, as if one machine had built it all.

Programs first, then the scripts' directories, then the index: at no instant does anything point to
what is not there, and a merge that was killed is completed by doing it again. Nothing is taken that
does not verify, and nothing of ours is lost to what is taken.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from tilusbuild.builder.project import Project
from tilusbuild.cache import layout, merging
from tilusbuild.cache.index import instance_of, read_index, record_build
from tilusbuild.cache.merging import Merged, RefusedEntry
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch import dispatcher, joining
from tilusbuild.dispatch.tables import is_measured
from tilusbuild.engine.history import History
from tilusbuild.errors import InputError
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.runtime.tables import read_dispatch
from tilusbuild.state.files import write_atomic

ScriptKey = tuple[str, str]
"""A script's directory and hash."""


def merge(cache: Tree, paths: Sequence[str], project: Project | None) -> Merged:
    """Bring what the caches at `paths` hold into `cache`; `project` is the one around it.

    Raises `InputError` for a path that is not a cache, `CacheError`.
    """
    trees = merging.sources(cache, paths)
    with cache.in_use():
        taken = merging.take(cache, trees)
        joined, unjoined = joining.join(cache, trees)
        roots, refused = _roots(trees, project)
        for (manifest, name), scripts in roots.items():
            record_build(cache, manifest, name, scripts, replace=False)
        current = {digest for scripts in roots.values() for _, digest in scripts}
        if project is not None:
            whole = [s for s in joined if s.hash in current and not _missing(s)]
            _refresh(cache, project, whole)
        for tree in trees:
            _join_state(cache, tree)
    taken.scripts = len(joined)
    taken.incomplete = {s.label: _missing(s) for s in joined if _missing(s)}
    taken.refused += (*unjoined, *refused)
    return taken


def _missing(script: Script) -> int:
    return sum(why == "missing" for why in script.not_built.values())


def _roots(
    trees: Sequence[Tree], project: Project | None
) -> tuple[dict[tuple[str, str], list[ScriptKey]], list[RefusedEntry]]:
    """Return the scripts of the sources' last builds, by manifest and name. A project of our name
    is taken for ours, whatever its path; two builds of one instance from different inputs are
    refused."""
    found: dict[tuple[str, str], dict[tuple[str, ...], ScriptKey]] = {}
    refused = []
    for tree in trees:
        try:
            index = read_index(tree)
        except CorruptFileError as error:
            refused.append(RefusedEntry(tree.root, layout.INDEX, str(error)))
            continue
        for manifest, built in index.items():
            ours = project is not None and built.name == project.manifest.project.name
            at = project.manifest.path if project is not None and ours else manifest
            scripts = found.setdefault((at, built.name), {})
            for script in built.scripts:
                instance = instance_of(tree, script)
                if instance is not None and scripts.setdefault(instance, script) != script:
                    refused.append(
                        RefusedEntry(tree.root, "/".join((layout.SCRIPTS, *script)), _TWO)
                    )
    return {key: sorted(scripts.values()) for key, scripts in found.items()}, refused


_TWO = "the shards disagree on this script: they were not built from the same inputs"


def _refresh(cache: Tree, project: Project, scripts: Sequence[Script]) -> None:
    """Make the dispatchers of whole scripts again; without a compiler, the next build does."""
    declared = project.manifest.scripts
    for script in scripts:
        owner = declared.get(script.name)
        wanted = owner is not None and owner.dispatch is not None
        if wanted or is_measured(read_dispatch(script)):
            with suppress(InputError):
                toolchain = project.toolchain(cuda=False)
                dispatcher.refresh(cache, script, toolchain, project.runner)


def _join_state(cache: Tree, tree: Tree) -> None:
    """Add the other trees' compile times and tuning samples to the state."""
    theirs = os.path.join(tree.root, layout.STATE)
    with suppress(OSError):
        history = History(cache.state_path)
        history.absorb(History(theirs))
        history.save()
    with suppress(OSError):
        tuned = os.path.join(theirs, layout.TUNED)
        for name in layout.files_below(tuned):
            ours = os.path.join(cache.state_path, layout.TUNED, name)
            _join_log(os.path.join(tuned, name), ours)


def _join_log(theirs: str, ours: str) -> None:
    """Add the lines that are not there yet. Raises `OSError`."""
    our_lines = _lines(ours)
    known = set(our_lines)
    new = [line for line in _lines(theirs) if line not in known]
    if new:
        os.makedirs(os.path.dirname(ours), exist_ok=True)
        write_atomic(ours, b"".join(line + b"\n" for line in (*our_lines, *new)))


def _lines(path: str) -> list[bytes]:
    try:
        return [line for line in read_bytes(path).split(b"\n") if line]
    except FileNotFoundError:
        return []
