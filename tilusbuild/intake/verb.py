"""`tilusbuild import WHAT`: a manifest for a project that another system builds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.cli import options
from tilusbuild.cli.arguments import Common, Verb, flag, positional, repeated
from tilusbuild.cli.options import emit
from tilusbuild.report.jsonl import JsonLine

if TYPE_CHECKING:
    from tilusbuild.expr import Value
    from tilusbuild.intake.draft import Draft


_TIMEOUT, _MAX_COMMANDS = 60.0, 1 << 28
"""Seconds that ninja has, and bytes of what it prints."""
_A_SIGNAL = 128
"""Exit statuses above are those of a build that a signal ended."""


class ImportArgs(Common, frozen=True, kw_only=True):
    """What is imported."""

    what: str = positional(
        "WHAT",
        help="a folder of .cu files, compile_commands.json, build.ninja, a Kernel Tuner script"
        " (it is run), or a T1 file",
    )
    defines: tuple[str, ...] = repeated(
        "--define",
        metavar="NAME[=VALUE]",
        help="a macro of a folder's sources: its conditions then count; can be repeated",
    )
    stdout: bool = flag("--stdout", help="print the manifest, and write nothing")
    build: bool = flag("--build", help="build it, and leave out what does not compile")


class ImportedLine(JsonLine, frozen=True):
    """A manifest was made."""

    event: ClassVar[str] = "imported"
    manifest: str
    """Its path; its text where nothing was written."""
    sources: int
    kernels: int
    notes: tuple[str, ...]


def run(arguments: ImportArgs) -> int:
    """Write `tilus.toml` beside what was named, and say what was not understood."""
    from tilusbuild.errors import input_error
    from tilusbuild.intake.draft import Draft, manifest_text
    from tilusbuild.space import SpaceError

    what = os.path.abspath(arguments.what)
    root = what if os.path.isdir(what) else os.path.dirname(what)
    draft, files = Draft(_project_of(root)), dict[str, str]()
    try:
        root = _read(draft, what, root, files, _defines(arguments))
    except (OSError, ValueError, SyntaxError, RecursionError, SpaceError) as error:
        raise input_error(f"{arguments.what} cannot be imported: {error}") from None
    if not draft.libraries and not draft.kernels:
        raise input_error(
            f"nothing in {arguments.what} can be imported", hint="\n".join(draft.notes) or None
        )
    text = manifest_text(draft)
    path = os.path.join(root, "tilus.toml")
    if not arguments.stdout:
        if os.path.lexists(path):
            raise input_error(f"{path} already exists", hint="--stdout prints the new one")
        for name, source in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            options.write_to(os.path.join(root, name), source.encode())
        options.write_to(path, text.encode())
    status = 0
    if arguments.build and not arguments.stdout:
        status = _build(arguments, draft, root, path)
    _report(arguments, draft, text if arguments.stdout else path)
    return status


def _build(arguments: ImportArgs, draft: Draft, root: str, path: str) -> int:
    """Build what was written, with the flags that the compiler asks for, and take out of the
    manifest what does not compile. Return the exit status: of the last build, if that ended for
    another reason, or if nothing is left."""
    from tilusbuild.intake.complaints import asked_flags
    from tilusbuild.intake.draft import manifest_text

    while True:
        failed, status = _failed(arguments, root)
        if not failed or status > _A_SIGNAL:
            return status
        asked = [each for _, log in failed.values() for each in asked_flags(log)]
        asked = [each for each in dict.fromkeys(asked) if each not in draft.asked_flags]
        draft.asked_flags += asked
        for each in asked:
            draft.note(f"flag added, because the compiler asks for it: {each}")
        for library in draft.libraries:
            library.flags += asked
            if not asked:
                library.sources = [name for name in library.sources if name not in failed]
        if not asked:
            for source, (reason, _) in failed.items():
                draft.note(f"left out: {source} does not compile: {reason}")
        draft.libraries = [library for library in draft.libraries if library.sources]
        options.write_to(path, manifest_text(draft).encode())
        if not asked:
            return 0 if draft.libraries or draft.kernels else status


def _failed(arguments: ImportArgs, root: str) -> tuple[dict[str, tuple[str, str]], int]:
    """Build a project. Return of each source that does not compile the reason and the log, and the
    exit status."""
    from tilusbuild.builder.build import build
    from tilusbuild.builder.project import Project
    from tilusbuild.cache.entries import compiler_log, lookup
    from tilusbuild.cli.arguments import settings_of
    from tilusbuild.engine.running import BuildConfig
    from tilusbuild.manifest.sources import SOURCE
    from tilusbuild.plan.model import PlanSelection
    from tilusbuild.plan.planner import jobs
    from tilusbuild.status import Status

    failed: dict[str, tuple[str, str]] = {}
    project = Project.open(root, settings_of(arguments), os.environ)
    try:
        config = BuildConfig(jobs=project.settings.jobs.value)
        result = build(project, PlanSelection(), config, options.reporter(arguments))
        for job in jobs(project.plan(PlanSelection())):
            entry = lookup(project.cache, job.hash)
            source = job.schedule.values.get(SOURCE)
            if entry is not None and entry.status == Status.FAILED and source is not None:
                failed[str(source)] = (entry.reason, compiler_log(project.cache, job.hash))
    finally:
        project.close()
    return failed, result.summary.exit_status


def _defines(arguments: ImportArgs) -> dict[str, Value]:
    """Return the macros of the command line, as a manifest has them. Raises `InputError`."""
    from tilusbuild.errors import input_error

    if arguments.defines and not os.path.isdir(arguments.what):
        raise input_error(f"--define is for a folder; {arguments.what} says its macros itself")
    found: dict[str, Value] = {}
    for given in arguments.defines:
        name, equals, value = given.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise input_error(f"--define {given}: {name!r} is not the name of a macro")
        found[name] = value if equals else True
    return found


def _read(
    draft: Draft, what: str, root: str, files: dict[str, str], defines: Mapping[str, Value]
) -> str:
    """Read what was named into a draft, by what it is. Return the project's directory."""
    from tilusbuild.intake import commands, kernel_tuner, kernels
    from tilusbuild.runtime.regular import read_text

    name = os.path.basename(what)
    if os.path.isdir(what):
        _read_folder(draft, what, defines)
    elif name.endswith(".py"):
        kernel_tuner.read(draft, root, name, files)
    elif name.endswith(".ninja") or isinstance(entries := json.loads(read_text(what)), list):
        if name.endswith(".ninja"):
            found = ninja_commands(draft, root, name)
        else:
            found = list(_entries(draft, entries, root))
        root = _common(draft, root, commands.sources_of(found))
        commands.read(draft, root, iter(found))
    else:
        kernels.read_t1_file(draft, root, name)
    return root


def ninja_commands(draft: Draft, root: str, name: str) -> list[tuple[str, list[str]]]:
    """Return the directory and the words of each command of a ninja file, as ninja itself reads
    that. Raises `InputError`."""
    import shutil
    import sysconfig

    from tilusbuild.errors import input_error
    from tilusbuild.process.base import Command
    from tilusbuild.process.local import LocalRunner

    ninja = shutil.which("ninja") or shutil.which("ninja", path=sysconfig.get_path("scripts"))
    if ninja is None:
        raise input_error(
            f"{name} cannot be imported: ninja, which reads it, is not there",
            hint="`pip install ninja`; or name the build's compile_commands.json",
        )
    with LocalRunner() as runner:
        argv = (ninja, "-f", name, "-t", "compdb")
        ended = runner.run(
            Command(argv, root, dict(os.environ), timeout=_TIMEOUT, output_limit=_MAX_COMMANDS)
        )
    text = ended.output.decode(errors="replace")
    if not ended.ok:
        raise input_error(f"{name} cannot be imported: {text.strip() or 'ninja failed'}")
    return list(_entries(draft, json.loads(text), root))


def _entries(draft: Draft, entries: list[object], root: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the directory and the words of each entry of compile_commands.json."""
    from tilusbuild.intake.commands import words_of

    for number, entry in enumerate(entries, 1):
        said = entry if isinstance(entry, dict) else {}
        listed, command = said.get("arguments"), said.get("command")
        if not isinstance(listed, list) and not isinstance(command, str):
            draft.note(f"left out: entry {number} has no command")
            continue
        words = listed if isinstance(listed, list) else words_of(str(command))
        yield os.path.join(root, str(said.get("directory", "."))), [str(w) for w in words]


def _common(draft: Draft, root: str, sources: list[str]) -> str:
    """Return the directory that holds the record and all sources; the project has its name."""
    common = os.path.commonpath([root, *map(os.path.dirname, sources)])
    draft.project = _project_of(common)
    return common


def _project_of(directory: str) -> str:
    from tilusbuild.intake.draft import name_of

    return name_of(os.path.basename(directory)).replace("_", "-")


def _read_folder(draft: Draft, root: str, defines: Mapping[str, Value]) -> None:
    """Read a folder, with the compilers that are there."""
    from tilusbuild.errors import InputError
    from tilusbuild.intake import folder
    from tilusbuild.intake.complaints import preprocessor
    from tilusbuild.intake.draft import DEFAULT_ARCH
    from tilusbuild.process.local import LocalRunner
    from tilusbuild.toolchain import DigestMemory, ToolchainRequest, discover

    with LocalRunner() as runner:
        for cuda in (True, False):
            try:
                request = ToolchainRequest(needs_cuda=cuda)
                found = discover(request, dict(os.environ), runner, DigestMemory())
            except InputError:
                continue
            headers = found.headers(cuda=cuda)
            system = [*headers.toolkit, *headers.compiler, *headers.system]
            preprocess = preprocessor(found, runner, DEFAULT_ARCH, "c++17", defines)
            return folder.read(draft, root, system, preprocess, defines)
    return folder.read(draft, root, [], defines=defines)


def _report(arguments: ImportArgs, draft: Draft, manifest: str) -> None:
    from tilusbuild.report.text import counted

    sources = sum(len(library.sources) for library in draft.libraries)
    kernels = len(draft.kernels)
    if arguments.json:
        emit(ImportedLine(manifest, sources, kernels, tuple(draft.notes)))
    elif arguments.stdout:
        print(manifest, end="")
    elif not arguments.quiet:
        what = counted(kernels, "kernel") if kernels else counted(sources, "source")
        following = "; next: tilusbuild build" if sources or kernels else ""
        print(f"{manifest}: {what}{following}")
        for note in draft.notes:
            print(f"  {note}")


VERB = Verb(ImportArgs, run, (ImportedLine,))
