"""The files of a project that its libraries are written to (`output` of `[library.NAME]`).

An output follows from the cache and is no input of anything. It is a copy: a link would be changed
with the cache by whoever strips or signs it. One that has the library's bytes is left as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tilusbuild.builder.project import Project
from tilusbuild.cache.entries import product_of
from tilusbuild.manifest.methods import LinkMethods
from tilusbuild.plan.planner import Plan
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import write_atomic
from tilusbuild.status import Status


def paths(project: Project, plan: Plan) -> list[str]:
    """Return the outputs of the planned libraries."""
    return [path for path, _ in _outputs(project, plan)]


def write(project: Project, plan: Plan) -> None:
    """Bring the outputs of the planned libraries up to date, as far as those are built. Raises
    `OSError`."""
    for path, program in _outputs(project, plan):
        entry = project.cache.lookup(program)
        if entry is None or entry.status != Status.BUILT:
            continue
        made = read_bytes(os.path.join(entry.path, product_of(entry.meta)))
        if not os.path.isfile(path) or read_bytes(path) != made:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomic(path, made, mode=0o755 if path.endswith(".so") else 0o644)


def _outputs(project: Project, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield each output's path and the program that it is made of."""
    for instance in plan.instances:
        script = project.manifest.scripts[instance.script]
        if isinstance(script, LinkMethods) and script.owner.output is not None:
            name = script.owner.output.replace("{target}", instance.target.name)
            yield os.path.join(project.manifest.root, name), instance.programs[0]
