"""The directories that a script's headers are searched in, named as in the copy of a compile.

Where a directory lies outside of the project enters no hash: only its last name does.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tilusbuild.errors import Place, input_error
from tilusbuild.manifest.names import PACKAGE
from tilusbuild.render.closure import Root, inside
from tilusbuild.toolchain import package_dir

if TYPE_CHECKING:
    from tilusbuild.manifest import IncludeDir, Manifest

PROJECT = "project"


def roots_of(manifest: Manifest, script: str, template: str) -> tuple[Root, ...]:
    """Return the header directories in search order: the template's own (for `#include "…"`
    only), the script's, the project's, torch's. Raises `InputError` for a directory or a package
    that is not there."""
    roots = [_beside(manifest, script, template)]
    own = len(manifest.scripts[script].include_dirs)
    taken: dict[str, str] = {PROJECT: manifest.root}
    for number, declared in enumerate(manifest.include_dirs_for(script)):
        place = (
            manifest.place("script", script, "include-dirs", number)
            if number < own
            else manifest.place("build", "include-dirs", number - own)
        )
        roots.append(root_of(manifest.root, declared, place, taken))
    asked = manifest.place_of_torch(script)
    if asked is not None:
        from tilusbuild.plan import torch

        roots += torch.roots(asked)
    return tuple(dict.fromkeys(roots))


def _beside(manifest: Manifest, script: str, template: str) -> Root:
    """Return the template's own directory."""
    if not template.startswith(PACKAGE):
        return inside(PROJECT, manifest.root, os.path.dirname(template), quoted_only=True)
    package, _, name = template.removeprefix(PACKAGE).partition("/")
    directory = os.path.dirname(name)
    try:
        path = package_dir(package, directory)
    except LookupError as error:
        place = manifest.place("script", script, "template")
        raise input_error(str(error), place=place) from None
    return inside(package, _base(path, directory), directory, quoted_only=True)


def root_of(project: str, declared: IncludeDir, place: Place, taken: dict[str, str]) -> Root:
    """Return a declared directory; `taken` are the names that are in use. Raises `InputError`."""
    if declared.package is not None:
        try:
            path = package_dir(declared.package, declared.path)
        except LookupError as error:
            raise input_error(str(error), place=place) from None
        return inside(declared.package, _base(path, declared.path), declared.path)
    path = os.path.normpath(os.path.join(project, os.path.expanduser(declared.path)))
    if not os.path.isdir(path):
        raise input_error(f"there is no directory {declared.path}", place=place)
    relative = os.path.relpath(path, project)
    if relative != ".." and not relative.startswith("../"):
        return inside(PROJECT, project, relative)
    # Where it lies must not enter a hash, so only its last name does, numbered when it comes twice.
    name = os.path.basename(path) or "headers"
    number = 1
    while taken.setdefault(name, path) != path:
        number += 1
        name = f"{os.path.basename(path)}-{number}"
    return inside(name, path)


def _base(path: str, below: str) -> str:
    """Return the directory from which `below` leads to `path`."""
    for part in os.path.normpath(below).split("/"):
        path = os.path.dirname(path) if part != "." else path
    return path
