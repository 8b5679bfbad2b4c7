"""Which scripts of the cache a package is made of: what the project would build now.

All of it must be there. The plan is made anew and compared with the cache, so that a package never
holds what an edit has left behind. With `as_built` it is not: then the package is what the last
build made, whatever has changed since, and no toolchain is needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilusbuild.build.project import Project
from tilusbuild.cache.cache import Cache
from tilusbuild.cache.scripts import read_script
from tilusbuild.manifest import Manifest
from tilusbuild.package.errors import CannotPack
from tilusbuild.plan.model import PlannedInstance
from tilusbuild.plan.selection import Selection, chosen_pairs
from tilusbuild.runtime import script as described
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.names import snake_case
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.status import Status

_BUILD = "run `tilusbuild build` first; `tilusbuild explain` says what is out of date, and why"


def current(project: Project, selection: Selection) -> tuple[tuple[str, str], ...]:
    """(folder, hash) of the selected scripts as they are planned now. Raises `InputError`, and
    `CannotPack` when not all of it was built."""
    instances = project.plan(selection).instances
    missing = [
        f"{instance.script}/{index} {instance.target.name}"
        for instance in instances
        for index, program in enumerate(instance.programs)
        if project.cache.lookup(program) is None
    ]
    if missing:
        total = sum(len(instance.programs) for instance in instances)
        named = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise CannotPack(
            f"{len(missing)} of {total} programs are not built, or out of date: {named}",
            hint=_BUILD,
        )
    for instance in instances:
        _check(project.cache, instance)
    return tuple((instance.folder, instance.hash) for instance in instances)


def _check(cache: Cache, instance: PlannedInstance) -> None:
    """The script's folder says what its programs are."""
    try:
        found = described.read_script(cache.tree.script_path(instance.folder, instance.hash))
    except LoadError as error:
        raise CannotPack(f"{instance.label} is not published: {error}", hint=_BUILD) from None
    for index, program in enumerate(instance.programs):
        entry = cache.lookup(program)
        if entry is None or (entry.status == Status.BUILT) == (index in found.not_built):
            raise CannotPack(
                f"what is published of {instance.label} is older than its programs", hint=_BUILD
            )


def as_built(cache: Cache, manifest: Manifest, selection: Selection) -> tuple[tuple[str, str], ...]:
    """(folder, hash) of the selected scripts as the last build made them: here, or elsewhere, when
    all builds of a project of this name made the same. Raises `CannotPack` and `InputError`."""
    try:
        projects = cache.projects()
    except CorruptFileError as error:
        raise CannotPack(str(error), hint=_BUILD) from None
    having = projects.get(manifest.path)
    named = {each for each in projects.values() if each.name == manifest.project.name}
    if having is None and len(named) == 1:
        (having,) = named
    if having is None:
        several = (
            f", and {len(named)} different ones of other {manifest.project.name}" if named else ""
        )
        raise CannotPack(f"{cache.root} has no build of {manifest.path}{several}", hint=_BUILD)
    pairs = {
        (snake_case(script), target.name) for script, target in chosen_pairs(manifest, selection)
    }
    return tuple(_selected(cache, having.scripts, pairs))


def _selected(
    cache: Cache, scripts: Iterable[tuple[str, str]], pairs: set[tuple[str, str]]
) -> Iterable[tuple[str, str]]:
    for folder, digest in scripts:
        try:
            head = read_script(cache.tree.script_path(folder, digest), digest).head
        except (CorruptFileError, FileNotFoundError) as error:
            raise CannotPack(f"scripts/{folder}/{digest}: {error}", hint=_BUILD) from None
        if (folder, head.get("target", "")) in pairs:
            yield folder, digest
