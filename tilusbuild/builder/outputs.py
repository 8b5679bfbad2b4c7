"""The files of a project that its libraries are written to (`output` of `[library.NAME]`).

An output is not an input of the build that writes it: a reader would get the library of the build
before. It is a copy: to strip or sign a link would change the cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from tilusbuild.builder.project import Project
from tilusbuild.cache.entries import get_product, lookup_entry
from tilusbuild.errors import Diagnostic, InputError, Location
from tilusbuild.manifest.library import SOURCES, LinkScript
from tilusbuild.plan.planner import Plan
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import write_atomic
from tilusbuild.status import Status

_OWN_FILE = "an output is a file of its own"


class _Output(NamedTuple):
    """An output file, with the library, the target and the program that it is written from."""

    path: str
    library: str
    target: str
    program: str


def check_outputs(project: Project, plan: Plan) -> None:
    """Raise `InputError` for an output in the cache, or one that would replace another output, the
    manifest or an input of the build."""
    by_path: dict[str, _Output] = {}
    diagnostics: list[Diagnostic | None] = []
    for output in list_outputs(project, plan):
        location = project.manifest.locate_value("library", output.library, "output")
        # The first output with this path, which may be this one.
        earlier = by_path.setdefault(os.path.realpath(output.path), output)
        if earlier is output:
            diagnostics.append(_find_overwritten(project, plan, output, location))
        elif output.library != earlier.library:
            message = f'library "{earlier.library}" is written to the same file'
            diagnostics.append(Diagnostic(message, location, _OWN_FILE))
        else:
            message = f'the library of target "{output.target}" would replace that of'
            hint = "add {target} to its name: each gets its own"
            diagnostics.append(Diagnostic(f'{message} "{earlier.target}"', location, hint))
    mistakes = [diagnostic for diagnostic in diagnostics if diagnostic is not None]
    if mistakes:
        raise InputError(*mistakes)


def _find_overwritten(
    project: Project, plan: Plan, output: _Output, location: Location
) -> Diagnostic | None:
    """Return the mistake if an output would replace the manifest, a part of the cache or a file
    that an instance reads; else None. `location` is that of the output in the manifest."""
    library = output.library
    real_path = os.path.realpath(output.path)
    if real_path == os.path.realpath(project.manifest.path):
        return Diagnostic("the output would replace the manifest", location, _OWN_FILE)
    if real_path.startswith(os.path.realpath(project.cache.root) + "/"):
        return Diagnostic("the output would be in the cache", location, _OWN_FILE)
    for instance in plan.instances:
        if instance.inputs.paths.isdisjoint((output.path, real_path)):
            continue
        # The sources of a library are a script of their own, with a suffix.
        reader = instance.script.removesuffix(SOURCES)
        message = f'"{reader}" reads this file, which library "{library}" would write after that'
        hint = _OWN_FILE
        if reader != library:
            build_library = format_command("build", library)
            build_reader = format_command("build", reader)
            hint = f"build it first: {build_library}; {build_reader}"
        return Diagnostic(message, location, hint)
    return None


def write_outputs(project: Project, plan: Plan) -> None:
    """Write the outputs of the planned libraries that are built. Raises `OSError` with the output's
    path."""
    for output in list_outputs(project, plan):
        entry = lookup_entry(project.cache, output.program)
        if entry is None or entry.status != Status.BUILT:
            continue
        library = read_bytes(os.path.join(entry.path, get_product(entry.meta).name))
        try:
            update_file(output.path, library)
        except OSError as error:
            # The error may name the temporary file, which the user does not know.
            raise OSError(error.errno, error.strerror, output.path) from None


def update_file(path: str, content: bytes) -> None:
    """Write a file and its directory, unless the file has this content. Raises `OSError`."""
    # An equal file keeps its time, so that what is built from it is not built again.
    if not os.path.isfile(path) or read_bytes(path) != content:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomic(path, content, mode=0o755 if path.endswith(".so") else 0o644)


def list_outputs(project: Project, plan: Plan) -> Iterator[_Output]:
    """Yield the output of each planned library that declares one; `{target}` in its name is
    replaced."""
    for instance in plan.instances:
        script = project.manifest.scripts[instance.script]
        if isinstance(script, LinkScript) and script.owner.output is not None:
            target = instance.target.name
            name = script.owner.output.replace("{target}", target)
            path = os.path.normpath(os.path.join(project.manifest.root, name))
            yield _Output(path, instance.script, target, instance.programs[0])
