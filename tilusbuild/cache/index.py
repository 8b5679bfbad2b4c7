"""`index.json`: what the last build of each project made, which is what garbage collection keeps.

It is changed under a lock, by one rename, and not at all when it already says so. One that does not
open is never taken for an empty one where something would be removed for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilusbuild.cache import layout
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.locks import LockRange
from tilusbuild.cache.scripts import read_script
from tilusbuild.cache.tree import Tree
from tilusbuild.runtime.sealed import CorruptFileError, seal, unseal

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Project:
    """A project's name, and the (directory, hash) of each of its scripts."""

    name: str
    scripts: tuple[tuple[str, str], ...]


def read_index(tree: Tree) -> dict[str, Project]:
    """Projects by the path of their manifest; empty when there is no index. Raises
    `CorruptFileError`."""
    try:
        with open(tree.path(layout.INDEX), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CorruptFileError(f"{layout.INDEX} cannot be read: {error.strerror}") from None
    try:
        return _projects(unseal(data))
    except CorruptFileError as error:
        raise CorruptFileError(f"{layout.INDEX} is damaged: {error}") from None


def record_build(
    tree: Tree,
    manifest: str,
    name: str,
    scripts: Sequence[tuple[str, str]],
    *,
    replace: bool = True,
) -> None:
    """Note what a build of a project made.

    Without `replace` the scripts come to those that are noted, in place of earlier ones of the same
    constants and target: a build of a part. An index that does not open is begun again. Raises
    `CacheError`.
    """
    found = _or_empty(tree)
    if _merged(tree, found, manifest, name, scripts, replace) == found:
        return
    with (
        tree.held(LockRange("use", shared=True), LockRange("index")),
        wrap_oserror(tree.path(layout.INDEX)),
    ):
        merged = _merged(tree, _or_empty(tree), manifest, name, scripts, replace)
        tree.put_file(tree.path(layout.INDEX), _sealed(merged))


def forget(tree: Tree, manifests: Sequence[str]) -> None:
    """Drop projects from the index, so that garbage collection may take what only they use.

    Raises `CorruptFileError`, `CacheError`.
    """
    with (
        tree.held(LockRange("use", shared=True), LockRange("index")),
        wrap_oserror(tree.path(layout.INDEX)),
    ):
        found = read_index(tree)
        kept = {path: project for path, project in found.items() if path not in manifests}
        if kept != found:
            tree.put_file(tree.path(layout.INDEX), _sealed(kept))


def _or_empty(tree: Tree) -> dict[str, Project]:
    try:
        return read_index(tree)
    except CorruptFileError:
        return {}


def _merged(
    tree: Tree,
    found: Mapping[str, Project],
    manifest: str,
    name: str,
    scripts: Sequence[tuple[str, str]],
    replace: bool,
) -> dict[str, Project]:
    before = () if replace or manifest not in found else found[manifest].scripts
    if before:
        made = {_instance(tree, script) for script in scripts}
        before = tuple(script for script in before if _instance(tree, script) not in made)
    return {**found, manifest: Project(name, tuple(sorted({*before, *scripts})))}


def _instance(tree: Tree, script: tuple[str, str]) -> tuple[str, ...]:
    """Return the directory, target and constants of a script: what it is one build of. A script
    that is not there is like no other."""
    directory, digest = script
    try:
        text = read_script(tree.script_path(directory, digest), digest)
    except (FileNotFoundError, CorruptFileError):
        return script
    return (directory, text.head.get("target", ""), *text.params)


def _sealed(projects: Mapping[str, Project]) -> bytes:
    return seal(
        {
            "schema": SCHEMA,
            "projects": {
                path: {"name": project.name, "scripts": [list(s) for s in project.scripts]}
                for path, project in projects.items()
            },
        }
    )


def _projects(value: Mapping[str, Any]) -> dict[str, Project]:
    if value.get("schema") != SCHEMA or not isinstance(value.get("projects"), dict):
        raise CorruptFileError(
            f"written in a form that this version does not read: {value.get('schema')!r}"
        )
    found = {}
    for path, project in value["projects"].items():
        try:
            scripts = tuple(
                (str(directory), str(digest)) for directory, digest in project["scripts"]
            )
            found[path] = Project(str(project["name"]), scripts)
        except (TypeError, KeyError, ValueError):
            raise CorruptFileError(f"what it says of {path!r} is malformed") from None
        if not all(layout.is_script_directory(f) and layout.is_hash(d) for f, d in scripts):
            raise CorruptFileError(f"what it says of {path!r} is malformed")
    return found
