"""The directories that a script's headers are searched in, named as in the copy of a compile.

Where a directory lies outside of the project enters no hash: only its last name does.

Of an installed torch, its headers, macros and libraries are used: they are what `import torch` has
loaded before one of ours is loaded, and take gigabytes. So the libraries are named by their sonames
and not linked: neither their content nor their place is in a hash, and a patch release of torch
changes no library. What its headers say is, as of any other headers.
"""

from __future__ import annotations

import glob
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from tilusbuild.errors import Location, input_error
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.names import PACKAGE
from tilusbuild.manifest.sections import Directory
from tilusbuild.render.closure import MANIFEST, Root, make_root
from tilusbuild.runtime.regular import read_bytes, try_read_text
from tilusbuild.toolchain import find_package_directory

PROJECT = "project"


def find_roots(manifest: Manifest, script: str, template: str) -> tuple[Root, ...]:
    """Return the header directories in search order: the template's own (for `#include "…"`
    only), the script's, the project's, torch's. Raises `InputError` for a directory or a
    package that is not there."""
    # The order decides: a compiler takes a header from the first directory that has it.
    roots = [_find_template_root(manifest, script, template)]
    script_count = len(manifest.scripts[script].include_dirs)
    for number, declared in enumerate(manifest.list_include_dirs(script)):
        location = (
            manifest.locate_key("script", script, "include-dirs", number)
            if number < script_count
            else manifest.locate_key("build", "include-dirs", number - script_count)
        )
        roots.append(_find_root(manifest.root, declared, location))
    torch_location = manifest.locate_torch(script)
    if torch_location is not None:
        roots += _find_torch_roots(torch_location)
    return _name_apart(manifest.root, roots)


def _name_apart(project: str, roots: Iterable[Root]) -> tuple[Root, ...]:
    """Return the directories, those of each tree by a name that no other tree has. A directory that
    is there twice, by any link, counts at its first place, as for a compiler."""
    used_names = {PROJECT: os.path.abspath(project), MANIFEST: ""}
    root_of_directory: dict[str, Root] = {}
    named_roots = []
    for root in roots:
        tree = choose_free_name(root.tree, root.base[1], used_names)
        named_root = replace(root, name=tree + root.name[len(root.tree) :])
        first_root = root_of_directory.setdefault(os.path.realpath(root.path), named_root)
        named_roots.append(replace(first_root, quoted_only=root.quoted_only))
    return tuple(dict.fromkeys(named_roots))


def _find_template_root(manifest: Manifest, script: str, template: str) -> Root:
    """Return the directory that contains the template: of the project, or of a Python package for a
    template `package:NAME/PATH`. Raises `InputError` if the package is not installed."""
    if not template.startswith(PACKAGE):
        return make_root(PROJECT, manifest.root, os.path.dirname(template), quoted_only=True)
    package, _, name = template.removeprefix(PACKAGE).partition("/")
    directory = os.path.dirname(name)
    try:
        path = find_package_directory(package, directory)
    except LookupError as error:
        location = manifest.locate_key("script", script, "template")
        raise input_error(str(error), location=location) from None
    return make_root(package, _strip_path(path, directory), directory, quoted_only=True)


def find_link_roots(
    manifest: Manifest, script: str, link_dirs: Sequence[Directory]
) -> tuple[Root, ...]:
    """Return the directories that a script's link is to search. Raises `InputError` for a
    directory or a package that is not there."""
    roots = []
    for number, declared in enumerate(link_dirs):
        location = manifest.locate_key("script", script, "link-dirs", number)
        roots.append(_find_root(manifest.root, declared, location))
    return _name_apart(manifest.root, roots)


def _find_root(project: str, declared: Directory, location: Location) -> Root:
    """Return a directory that the manifest declares. Raises `InputError`, at `location`, if
    there is no such directory or package."""
    if declared.package is not None:
        try:
            path = find_package_directory(declared.package, declared.path)
        except LookupError as error:
            raise input_error(str(error), location=location) from None
        return make_root(declared.package, _strip_path(path, declared.path), declared.path)
    path = os.path.normpath(os.path.join(project, os.path.expanduser(declared.path)))
    if not os.path.isdir(path):
        raise input_error(f"there is no directory {declared.path}", location=location)
    relative = os.path.relpath(path, project)
    # A path inside the project is the same on every machine, so it may be in a hash.
    if relative != ".." and not relative.startswith("../"):
        return make_root(PROJECT, project, relative)
    # A path outside is another one on each machine. So only its last name is in a hash, with a
    # number if two directories have this name.
    return make_root(os.path.basename(path), path)


def choose_free_name(name: str, path: str, used_names: dict[str, str]) -> str:
    """Return a name for the directory `path` that no other path has: `name`, `name-2`, and so on.

    The name is added to `used_names`, which maps names to paths.
    """
    name = name or "headers"
    number = 1
    candidate = name
    # `setdefault` returns the path that has the name. If there was none it adds ours, so a path
    # that comes again gets the same name.
    while used_names.setdefault(candidate, path) != path:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def _strip_path(path: str, relative: str) -> str:
    """Return the directory from which `relative` leads to `path`: `/a` of `/a/b/c` and `b/c`."""
    for part in os.path.normpath(relative).split("/"):
        # An empty `relative` is `.` here, which leads nowhere.
        if part != ".":
            path = os.path.dirname(path)
    return path


_TORCH = "torch"
_TORCH_INCLUDES = ("include", "include/torch/csrc/api/include")
_ABI_FLAG = re.compile(r"-D(_GLIBCXX_USE_CXX11_ABI)=(\d)")
_IMPORTED_LIBRARIES = ("libtorch_python.so", "libtorch.so")
"""The libraries that `import torch` loads. Their dependencies are then loaded, too."""


def _find_torch_roots(location: Location) -> Iterator[Root]:
    """Yield the header directories of torch, of NVIDIA's wheels (cusparse.h), and of Python. The
    wheel of the CUDA runtime is left out: the toolkit has its headers. Raises `InputError`."""
    directory = _find_torch_directory("", location)
    for path in _TORCH_INCLUDES:
        yield make_root(_TORCH, directory, path)
    nvidia = os.path.join(os.path.dirname(directory), "nvidia")
    for path in sorted(glob.glob(f"{glob.escape(nvidia)}/*/include")):
        # The wheel of the CUDA runtime is left out: the toolkit's headers may be another version.
        if not os.path.exists(os.path.join(path, "cuda_runtime.h")):
            yield make_root("nvidia", nvidia, os.path.relpath(path, nvidia))
    python = sysconfig.get_path("include")
    # Debian's Python has no headers unless python3-dev is installed.
    if os.path.isdir(python):
        yield make_root(os.path.basename(python), python)


def find_torch_defines(location: Location) -> dict[str, str]:
    """Return the macros that torch's own extensions are compiled with. Until torch 2.7, its C++
    ABI may differ from the compiler's default. Raises `InputError`."""
    config = os.path.join(
        _find_torch_directory("", location), "share/cmake/Torch/TorchConfig.cmake"
    )
    match = _ABI_FLAG.search(try_read_text(config) or "")
    return {match[1]: match[2]} if match else {}


def find_torch_libraries(location: Location) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (sonames, paths): `paths` are the libraries that `import torch` loads; `sonames` are
    the dependencies of these that torch itself ships, sorted. Raises `InputError`."""
    from tilusbuild.binary.elf import BinaryError, read_needs

    directory = _find_torch_directory("lib", location)
    paths = tuple(os.path.join(directory, name) for name in _IMPORTED_LIBRARIES)
    try:
        sonames = [name for path in paths for name in read_needs(read_bytes(path)).libraries]
    except (OSError, BinaryError) as error:
        raise input_error(f"torch's libraries cannot be read: {error}", location=location) from None
    own_sonames = {name for name in sonames if os.path.isfile(os.path.join(directory, name))}
    return tuple(sorted(own_sonames)), paths


def _find_torch_directory(path: str, location: Location) -> str:
    """Return a directory of the installed torch. Raises `InputError`."""
    try:
        return find_package_directory(_TORCH, path)
    except LookupError as error:
        hint = "pip install torch, in the environment that tilusbuild runs in"
        raise input_error(str(error), location=location, hint=hint) from None
