"""`tilusbuild import WHAT`: a manifest for a project that another system builds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.cli import options
from tilusbuild.cli.arguments import Common, Verb, flag, positional
from tilusbuild.cli.options import emit
from tilusbuild.report.jsonl import JsonLine

if TYPE_CHECKING:
    from tilusbuild.intake.draft import Draft


_TIMEOUT, _MAX_COMMANDS = 60.0, 1 << 28
"""Seconds that ninja has, and bytes of what it prints."""


class ImportArgs(Common, frozen=True, kw_only=True):
    """What is imported."""

    what: str = positional(
        "WHAT",
        help="compile_commands.json, build.ninja, or a Kernel Tuner script (it is run)",
    )
    stdout: bool = flag("--stdout", help="print the manifest, and write nothing")


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

    what = os.path.abspath(arguments.what)
    if os.path.isdir(what):
        raise input_error(
            f"{arguments.what} is a folder, which does not say how its sources are compiled",
            hint="name its compile_commands.json or build.ninja; or write"
            ' `sources = ["**/*.cu"]` in [library.NAME] of a tilus.toml',
        )
    root = os.path.dirname(what)
    draft, files = Draft(_project_of(root)), dict[str, str]()
    try:
        root = _read(draft, what, root, files)
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
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
    _report(arguments, draft, text if arguments.stdout else path)
    return 0


def _read(draft: Draft, what: str, root: str, files: dict[str, str]) -> str:
    """Read what was named into a draft, by what it is. Return the project's directory."""
    from tilusbuild.intake import commands, kernel_tuner
    from tilusbuild.runtime.regular import read_text

    name = os.path.basename(what)
    if name.endswith(".py"):
        kernel_tuner.read(draft, root, name, files)
        return root
    if name.endswith(".ninja"):
        found = ninja_commands(draft, root, name)
    elif isinstance(entries := json.loads(read_text(what)), list):
        found = list(_entries(draft, entries, root))
    else:
        raise ValueError("it lists no commands; a T1 file is for space-file of a script")
    root = _common(draft, root, commands.sources_of(found))
    commands.read(draft, root, iter(found))
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
            f"{name} cannot be imported: it needs ninja, which is not installed",
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
        print(f"{manifest}: {what}; next: tilusbuild build")
        for note in draft.notes:
            print(f"  {note}")


VERB = Verb(ImportArgs, run, (ImportedLine,))
