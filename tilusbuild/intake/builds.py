"""The commands of another build, from its own tool: ninja, make, or a setup.py that is run.

Nothing is compiled. A Makefile and a setup.py run as their author runs them, and are trusted as by
their author.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from typing import Any

from tilusbuild.errors import input_error
from tilusbuild.intake import spy
from tilusbuild.intake.draft import ManifestDraft
from tilusbuild.process.base import Command, CompletedCommand
from tilusbuild.process.local import LocalRunner
from tilusbuild.runtime.regular import read_text
from tilusbuild.state.temporary import TemporaryDirectory

Commands = list[tuple[str, list[str]]]
"""The directory and the arguments of each command, its program the first."""

_TIMEOUT, _MAX_OUTPUT = 600.0, 1 << 28
"""Seconds that another program has, and bytes of its output."""
_MAX_LINES = 15
"""Lines of a script's error that are shown."""
# Such as `make[1]: Entering directory '/src/lib'`.
_ENTERING = re.compile(r"make(?:\[\d+\])?: (Entering|Leaving) directory '(.*)'")


def _run_command(directory: str, *argv: str) -> CompletedCommand:
    """Run a program in a directory, with this process's environment, for at most 600 s. Return its
    status and output, also if it failed."""
    with LocalRunner() as runner:
        environment = dict(os.environ)
        return runner.run(
            Command(argv, directory, environment, timeout=_TIMEOUT, output_limit=_MAX_OUTPUT)
        )


def _read_output(name: str, directory: str, *argv: str) -> str:
    """Run a program that reads the build file `name`, for at most 600 s. Return its output. Raises
    `InputError` if it fails."""
    completed = _run_command(directory, *argv)
    text = completed.output.decode(errors="replace")
    if not completed.ok:
        message = text.strip() or f"{os.path.basename(argv[0])} failed"
        raise input_error(f"{name} cannot be imported: {message}")
    return text


def read_ninja_commands(draft: ManifestDraft, root: str, name: str) -> Commands:
    """Return the commands of a ninja file, from `ninja -t compdb`. Raises `InputError`."""
    ninja = shutil.which("ninja") or shutil.which("ninja", path=sysconfig.get_path("scripts"))
    if ninja is None:
        raise input_error(
            f"{name} cannot be imported: it needs ninja, which is not installed",
            hint="`pip install ninja`; or name the build's compile_commands.json",
        )
    compdb_text = _read_output(name, root, ninja, "-f", name, "-t", "compdb")
    return read_compile_entries(draft, json.loads(compdb_text), root)


def read_compile_entries(draft: ManifestDraft, entries: Sequence[object], root: str) -> Commands:
    """Return the commands of entries of compile_commands.json. An entry without a command becomes a
    note of the draft."""
    commands: Commands = []
    for number, entry in enumerate(entries, 1):
        fields = entry if isinstance(entry, dict) else {}
        argv, command = fields.get("arguments"), fields.get("command")
        directory = os.path.join(root, str(fields.get("directory", ".")))
        if isinstance(argv, list):
            commands.append((directory, [*map(str, argv)]))
        elif isinstance(command, str):
            commands += _split_shell_line(directory, command)
        else:
            draft.add_note(f"left out: entry {number} has no command")
    return commands


def read_make_commands(root: str, name: str) -> Commands:
    """Return the commands of a Makefile's first goal, from `make -n`. Raises `InputError`."""
    # With -B, as if nothing were built: make prints no command of a file that is up to date.
    text = _read_output(name, root, "make", "-n", "-B", "-w", "-f", name)
    commands: Commands = []
    # A stack, whose last directory is that of the make that prints the line.
    directories = [root]
    for line in text.replace("\\\n", " ").splitlines():
        if match := _ENTERING.fullmatch(line):
            # `make -w` prints such a line before and after each recursive make.
            is_entering, directory = match[1] == "Entering", match[2]
            directories = [*directories, directory] if is_entering else directories[:-1]
        else:
            commands += _split_shell_line(directories[-1], line)
    return commands


def _split_shell_line(directory: str, line: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (directory, arguments) of each command in a line of shell, which starts in `directory`.
    `cd` itself is not yielded: it changes the directory of the commands after it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        tokens = [*lexer]
    except ValueError:
        # An apostrophe in a text that make prints, as `echo don't`, opens no quotation.
        tokens = line.split()
    while tokens:
        # A token of `;`, `&` and `|` alone ends the command.
        end = next((n for n, token in enumerate(tokens) if not token.strip(";&|")), len(tokens))
        command, tokens = tokens[:end], tokens[end + 1 :]
        if len(command) == 2 and command[0] == "cd":
            directory = os.path.join(directory, command[1])
        elif command:
            yield directory, command


def record_setup_commands(draft: ManifestDraft, root: str, name: str) -> Commands:
    """Run a setup.py that starts no compiler, and return its commands to compile and to link.

    Paths in its build directory become those in the project. An assumed architecture becomes a note
    of the draft. Raises `InputError`.
    """
    if importlib.util.find_spec("setuptools") is None:
        raise input_error(
            f"{name} cannot be imported: it needs setuptools, which is not installed",
            hint="`pip install setuptools`, where tilusbuild is installed",
        )
    # A new directory, so that its paths are recognized in the commands.
    with TemporaryDirectory("import") as build_directory:
        build_step = ("build", "--force", "--build-lib", build_directory.path)
        build_arguments = (*build_step, "build_ext", "--inplace")
        effect = ("compiled anything", "command")
        records = run_recorded(draft, root, name, spy.__file__, build_arguments, effect)
        build_prefix = build_directory.path + "/"
    inplace_by_built = {
        record["built"]: record["inplace"] for record in records if "built" in record
    }

    def to_project_path(argument: str) -> str:
        if not argument.startswith(build_prefix):
            return argument
        # setuptools names the place of an extension module; everything else keeps its name.
        inplace = inplace_by_built.get(argument)
        return inplace or os.path.join(root, argument.removeprefix(build_prefix))

    entries = [record for record in records if "arguments" in record or "command" in record]
    commands = [
        (directory, [*map(to_project_path, argv)])
        for directory, argv in read_compile_entries(draft, entries, root)
    ]
    for assumption in (record["assumed"] for record in records if "assumed" in record):
        draft.add_note(f"assumed, because there is no GPU to ask: {assumption}")
    return commands


def run_recorded(
    draft: ManifestDraft,
    root: str,
    name: str,
    recorder: str,
    arguments: Sequence[str],
    recorded_effect: tuple[str, str],
) -> list[dict[str, Any]]:
    """Run a script below a recorder, for at most 600 s. Return the JSON lines that the recorder
    wrote, without repetitions.

    `recorded_effect` has the words for messages, such as ("called tune_kernel", "call"). If the
    script fails after the first line, add a note to the draft. Raises `InputError` if it fails
    before.
    """
    with TemporaryDirectory("import") as directory:
        record = os.path.join(directory.path, "record")
        completed = _run_command(root, sys.executable, recorder, record, name, *arguments)
        lines = read_text(record).splitlines() if os.path.exists(record) else []
    effect, effect_noun = recorded_effect
    if not completed.ok:
        outcome = f"has not ended after {_TIMEOUT:.0f} s" if completed.timed_out else "failed"
        output_lines = completed.output.decode(errors="replace").strip().splitlines()
        if not lines:
            last_lines = "\n".join(output_lines[-_MAX_LINES:])
            message = f"{name} was run, and {outcome} before it {effect}"
            raise input_error(message, hint=last_lines)
        last_line = output_lines[-1] if output_lines else "it printed nothing"
        draft.add_note(
            f"{name} was run, and {outcome} after its {effect_noun} {len(lines)}: {last_line}"
        )
    # Equal lines come of a script that tunes one kernel in a loop over devices or sizes.
    return [json.loads(line) for line in dict.fromkeys(lines)]
