"""A compilation database: for each program, the command that compiles its source.

The file of an entry is the `source.cu` that lies in the cache; a program that was never compiled
has none, and no entry. The include directories are the project's own and not the copies that a
compile sees, all that the script declares, those too that no program needs yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilusbuild.build.project import Project
from tilusbuild.compile.commands import clang_command, compile_command
from tilusbuild.errors import input_error
from tilusbuild.plan.planner import Plan, ProgramJob, jobs, roots_of


@dataclass(frozen=True, slots=True)
class CompileCommand:
    """One entry; all paths are absolute."""

    label: str
    program: str
    directory: str
    file: str
    arguments: tuple[str, ...]

    @property
    def entry(self) -> dict[str, object]:
        """What compile_commands.json holds of it."""
        return {
            "directory": self.directory,
            "file": self.file,
            "arguments": list(self.arguments),
        }


@dataclass(frozen=True, slots=True)
class Database:
    """Every command, and how many programs have no source yet."""

    commands: tuple[CompileCommand, ...]
    missing: int


def database(project: Project, plan: Plan, *, every: bool, clang: bool) -> Database:
    """Return the commands of each instance's default schedule, or of `every` one. Raises
    `InputError`."""
    wanted = {job.hash: job for job in jobs(plan) if every or _stands_for_all(job)}
    directory = project.cache.program_path
    sources = {name: os.path.join(directory(name), "module", "source.cu") for name in wanted}
    there = [job for name, job in wanted.items() if os.path.isfile(sources[name])]
    commands = tuple(_commands(project, there, sources, clang=clang))
    return Database(commands, len(wanted) - len(commands))


def _stands_for_all(job: ProgramJob) -> bool:
    """Return whether it has the default schedule, or the first where none is the default."""
    return job.index == (job.planned.default or 0)


def _commands(
    project: Project, wanted: list[ProgramJob], sources: dict[str, str], *, clang: bool
) -> Iterator[CompileCommand]:
    command = clang_command if clang else compile_command
    for job in wanted:
        roots = roots_of(project.manifest, job.script)
        named = tuple((root.name, root.quoted_only) for root in roots)
        recipe = replace(job.render().recipe, include_roots=named)
        directories = {root.name: root.path for root in roots}
        try:
            words = command(recipe, job.script_instance.toolchain, sources[job.hash], directories)
        except ValueError as error:
            raise input_error(
                f"{job.label}: {error}",
                hint="--clang writes commands for clangd; --device-compiler nvcc those of nvcc",
            ) from None
        yield CompileCommand(job.label, job.hash, project.manifest.root, sources[job.hash], words)
