"""`tilusbuild compdb [SCRIPT…]`: compile_commands.json, for clangd and other editors: for each
program, the command that compiles its source.

The file of an entry is the `source.cu` that lies in the cache; a program that was never compiled
has none, and no entry. The include directories are the project's own and not the copies that a
compile sees, all that the script declares, those too that no program needs yet. The command is the
pipeline's own first one with these directories in place of their copies, so that an editor that
follows an include opens the user's file; for clangd, which knows few of nvcc's options and none of
NVRTC's, there is an equivalent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from tilusbuild.builder.project import Project
from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb, flag, option
from tilusbuild.cli.options import CountsLine, emit_line, print_message
from tilusbuild.compile.model import HERE, SOURCE, Includes, Recipe
from tilusbuild.compile.steps import collect_tools, format_defines
from tilusbuild.errors import input_error
from tilusbuild.plan.instance import is_source
from tilusbuild.plan.planner import Plan, ProgramJob, iterate_jobs
from tilusbuild.plan.rendering import get_source_file
from tilusbuild.plan.roots import find_roots
from tilusbuild.report.jsonl import JsonLine, dump_json
from tilusbuild.report.text import format_count

if TYPE_CHECKING:
    from tilusbuild.toolchain import Toolchain


class CompdbArgs(SelectionArgs, frozen=True, kw_only=True):
    all: bool = flag("--all", help="include every schedule, not only the default ones")
    clang: bool = flag("--clang", help="write clang's options, as clangd reads them")
    output: str | None = option(
        *("-o", "--output"), metavar="FILE", help="write to FILE instead of stdout"
    )


class CommandLine(JsonLine, frozen=True):
    """The command that compiles a program, with absolute paths."""

    event: ClassVar[str] = "command"
    label: str
    program: str
    directory: str
    file: str
    arguments: tuple[str, ...]


def run(arguments: CompdbArgs) -> int:
    """Print the database, or write it to a file. Print to stderr how many programs have no source
    yet. Return 0. Writes nothing to the tree."""
    with options.open_project(arguments) as project:
        selection = options.make_selection(arguments, project)
        commands, missing = collect_commands(
            project, project.make_plan(selection), every=arguments.all, clang=arguments.clang
        )
    if arguments.output is not None:
        options.write_file(arguments.output, _format_database(commands).encode())
    if arguments.json:
        for command in commands:
            emit_line(command)
        emit_line(CountsLine({"commands": len(commands), "missing": missing}))
    elif arguments.output is None:
        sys.stdout.write(_format_database(commands))
    if missing and not arguments.quiet:
        programs = format_count(missing, "program")
        print_message(f"{programs} without a source yet: run `tilusbuild build` first\n")
    return 0


def _format_database(commands: Sequence[CommandLine]) -> str:
    entries = (
        {"directory": command.directory, "file": command.file, "arguments": list(command.arguments)}
        for command in commands
    )
    return dump_json(list(entries), indent=2) + "\n"


def collect_commands(
    project: Project, plan: Plan, *, every: bool, clang: bool
) -> tuple[list[CommandLine], int]:
    """Return the commands of all programs or of the default ones, and how many have no source yet.
    Raises `InputError`."""
    compiled_jobs = (job for job in iterate_jobs(plan) if not job.needs)
    selected_jobs = {job.hash: job for job in compiled_jobs if every or _represents_instance(job)}
    sources = {name: _find_source(project, job) for name, job in selected_jobs.items()}
    jobs_with_source = [job for name, job in selected_jobs.items() if os.path.isfile(sources[name])]
    commands = list(_make_commands(project, jobs_with_source, sources, clang=clang))
    # A program without a source has its directory all the same: one of a cubin.
    missing = [name for name in sources if not os.path.isdir(os.path.dirname(sources[name]))]
    return commands, len(missing)


def _represents_instance(job: ProgramJob) -> bool:
    """Return whether a job is its instance's default or first one, or a source of a library."""
    return is_source(job.planned.spec.owner) or job.index == job.planned.first_number


def _find_source(project: Project, job: ProgramJob) -> str:
    """Return the path of a job's source: of the project, or in the cache."""
    if is_source(job.planned.spec.owner):
        return os.path.join(project.manifest.root, get_source_file(job.schedule))
    return os.path.join(project.cache.program_path(job.hash), "module", "source.cu")


def _make_commands(
    project: Project, jobs_with_source: list[ProgramJob], sources: dict[str, str], *, clang: bool
) -> Iterator[CommandLine]:
    """Yield the command of each job, of which `sources` has the source's path by the job's hash.
    Raises `InputError` for a recipe that has no such command."""
    make_command = make_clang_command if clang else make_compile_command
    for job in jobs_with_source:
        # Rendered, as the include directories depend on where the template is.
        rendered = job.render()
        roots = find_roots(project.manifest, job.script, rendered.templates[0])
        root_names = tuple((root.name, root.quoted_only) for root in roots)
        recipe = replace(rendered.recipe, includes=Includes(roots=root_names))
        directories = {root.name: root.path for root in roots}
        try:
            argv = make_command(recipe, job.planned.spec.toolchain, sources[job.hash], directories)
        except ValueError as error:
            raise input_error(
                f"{job.label}: {error}",
                hint="--clang writes commands for clangd; --device-compiler nvcc those of nvcc",
            ) from None
        yield CommandLine(job.label, job.hash, project.manifest.root, sources[job.hash], argv)


# As in `-DN=1` or `-D N=1`; the others have their value in the next word only.
_ONE_WORD_OR_TWO = ("-D", "-U", "-I")
_TWO_WORDS = ("-isystem", "-include")


def make_compile_command(
    recipe: Recipe, toolchain: Toolchain, source: str, directories: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the command that compiles a source, with paths of this machine and without `-o`.

    `directories` has the recipe's include roots by name. Raises `ValueError` for a recipe without a
    command.
    """
    argv = recipe.pipeline.find_source_command(recipe)
    # The command has the paths of a compile's private directory: they become the project's own.
    paths = {SOURCE: source}
    for name, directory in directories.items():
        paths[f"{HERE}/include/{name}"] = directory
    for link, linked_directory in recipe.pipeline.list_include_links(recipe).items():
        name = linked_directory.removeprefix("include/")
        if name in directories:  # the others are of the link
            paths[f"{HERE}/{link}"] = directories[name]
    # Without `-o FILE`: clangd wants no output, and the cache has no place for one.
    output = argv.index("-o")
    argv = collect_tools(toolchain).fill_placeholders((*argv[:output], *argv[output + 2 :]))
    return tuple(paths.get(word, word) for word in argv)


def make_clang_command(
    recipe: Recipe, toolchain: Toolchain, source: str, directories: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a command for clang that reads the source as `make_compile_command` does.

    Of the user's flags only definitions, include directories and included files remain.
    """
    if not recipe.pipeline.launcher.cuda:
        # A host compiler's command is one that clangd reads.
        return make_compile_command(recipe, toolchain, source, directories)
    root = _find_toolkit(toolchain)
    roots = (
        word
        for name, quoted_only in recipe.includes.roots
        for word in ("-iquote" if quoted_only else "-I", directories[name])
    )
    return (
        "clang++",
        "-x",
        "cuda",
        *([f"--cuda-path={root}"] if root else []),
        # Editors parse the host's side anyway, and no clang knows every architecture: Debian 12's
        # refuses all that came after sm_86.
        "--cuda-host-only",
        "-nocudalib",
        "-Wno-unknown-cuda-version",
        f"-std={recipe.options.std}",
        *format_defines(recipe),
        *roots,
        *_select_common_flags(recipe.options.flags),
        "-fsyntax-only",
        source,
    )


def _find_toolkit(toolchain: Toolchain) -> str | None:
    """Return the root of the CUDA toolkit, else the directory around NVRTC's headers; None without
    either."""
    if toolchain.cuda is not None:
        return toolchain.cuda.root
    headers = toolchain.nvrtc.include_dir if toolchain.nvrtc is not None else None
    return os.path.dirname(headers) if headers else None


def _select_common_flags(flags: tuple[str, ...]) -> list[str]:
    """Return the flags that nvcc and clang both know: definitions, include directories and included
    files, with their values."""
    common_flags: list[str] = []
    remaining = iter(flags)
    for word in remaining:
        if word in (*_ONE_WORD_OR_TWO, *_TWO_WORDS):
            common_flags += [word, next(remaining, "")]
        elif word.startswith(_ONE_WORD_OR_TWO):
            common_flags.append(word)
    return common_flags


VERB = Verb(CompdbArgs, run, (CommandLine, CountsLine))
