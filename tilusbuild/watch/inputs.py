"""The paths that a watched plan follows from, and the parts of the project that a change concerns.

The paths are those of the no-op record (`builder.noop_record`), the tools, and the Python
references, which `--exec` may run. Of a directory only the names in it count, and of those only the
ones that a script's includes, or a toolchain, ask for: saving an unrelated file beside a template
plans nothing again. A change of any other file counts for nothing, also while something is wrong:
`watch` may write its own output into the project.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from tilusbuild.builder.noop_record import list_input_paths, list_tool_directories
from tilusbuild.builder.project import Project
from tilusbuild.manifest.script_sections import split_function
from tilusbuild.plan.planner import Plan, ProgramJob, iterate_jobs
from tilusbuild.runtime.where import is_within
from tilusbuild.watch import events
from tilusbuild.watch.change_detector import Change

if TYPE_CHECKING:
    from tilusbuild.manifest.model import Manifest

TOOLS = "tools"
"""The part that a change of a compiler, or of a directory of PATH, concerns."""
# Names of tools, and of directories that hold some, without the version at their end.
_TOOL_NAMES = frozenset((
    "nvcc", "g++", "gcc", "c++", "cc", "clang++", "clang", "ld", "as", "ptxas", "cicc",
    "fatbinary", "nvlink", "cudafe++", "cuda", "cuda_nvcc", "cu", "nvidia",
))  # fmt: skip
_MAX_SHOWN = 5


class PlanState(Struct, frozen=True):
    """A plan, and the project that it is of."""

    project: Project
    plan: Plan
    renders: int
    """How many programs were rendered for it."""
    previous_programs: frozenset[str] | None
    """The hashes of the plan before; None where there was none."""

    @property
    def programs(self) -> frozenset[str]:
        """The hashes of its programs."""
        instances = self.plan.instances
        return frozenset(program for instance in instances for program in instance.programs)

    def list_new_jobs(self) -> list[ProgramJob]:
        """Return the programs that the plan before did not have, if there was one."""
        previous = self.previous_programs
        if previous is None:
            return []
        return [job for job in iterate_jobs(self.plan) if job.hash not in previous]


class WatchList:
    """The watched files and directories, `paths`; some may not exist yet."""

    def __init__(
        self, project: Project, state: PlanState | None, looked_for: Iterable[str] = ()
    ) -> None:
        """`state` has the latest correct plan. After a failed attempt to make another one,
        `looked_for` are the paths that the attempt read or missed, and `project` is its project."""
        self._manifest = project.manifest
        self._instances = () if state is None else state.plan.instances
        self._references = frozenset(_list_references(project.manifest))
        projects = [project] if state is None else [project, state.project]
        toolchains = [toolchain for owner in projects for toolchain in owner.toolchains.values()]
        self._tools = {path for toolchain in toolchains for path in toolchain.list_watched_paths()}
        self._tool_directories = list_tool_directories(project.environment)
        self._looked_for = frozenset(looked_for)
        self.paths: frozenset[str] = self._looked_for.union(
            self._references,
            self._tools,
            list_input_paths(project, None if state is None else state.plan),
        )

    def describe_changes(self, changes: Mapping[str, Change]) -> events.Changed | None:
        """Return the event that reports changes of watched paths; None when no part of the project
        is affected. Paths in the project are relative to its directory; the first few are named."""
        root = self._manifest.root
        changed_paths: dict[str, None] = {}
        parts: dict[str, None] = {}
        for change in changes.values():
            affected = list(self._list_affected_parts(change))
            # A path that a failed plan looked for belongs to no instance yet.
            if not affected and change.names is None and change.path in self._looked_for:
                affected = ["the project"]
            parts.update(dict.fromkeys(affected))
            for path in change.paths if affected else ():
                shown_path = os.path.relpath(path, root) if is_within(path, root) else path
                changed_paths[shown_path] = None
        if not parts:
            return None
        paths = tuple(changed_paths)
        hidden = max(0, len(paths) - _MAX_SHOWN)
        return events.Changed(paths[:_MAX_SHOWN], hidden, tuple(parts))

    def _list_affected_parts(self, change: Change) -> Iterator[str]:
        """Yield "manifest", "tools", "references" or "SCRIPT TARGET" for each part of the project
        that a change affects. A name that came to a directory, or went from it, affects a script
        only if an include of the script asks for the name."""
        manifest, path = self._manifest, change.path
        if path == manifest.path or path in manifest.searched_directories:
            yield "manifest"
        if path in self._tools or (path in self._tool_directories and self._concerns_tool(change)):
            yield TOOLS
        if path in self._references:
            yield "references"
        for instance in self._instances:
            script, inputs = instance.script, instance.inputs
            is_data = script in manifest.scripts and path in manifest.list_data_files(script)
            if is_data or (path in inputs.paths and change.concerns_any(inputs.names)):
                yield f"{script} {instance.target.name}"

    def _concerns_tool(self, change: Change) -> bool:
        """Return whether a tool may have come to a directory, or gone from it: a name of the change
        is a tool's, but for a version at its end, or the change has no names."""
        if change.names is None:
            return True
        tool_names = _TOOL_NAMES.union(map(os.path.basename, self._tools))
        # "g++-12" is a tool as "g++" is, and so is "cuda-12.8".
        names_without_version = {name.rstrip("-.0123456789") for name in change.names}
        return not tool_names.isdisjoint(change.names | names_without_version)


def _list_references(manifest: Manifest) -> Iterator[str]:
    """Yield the files of Python references. No program follows from them, but what `--exec` runs
    may."""
    for script in manifest.scripts.values():
        for name in script.tune.judge_names if script.tune is not None else ():
            yield os.path.join(manifest.root, split_function(name)[0])
