"""The commands of another build, from its own tool: ninja, make, or a setup.py that is run.

Nothing is compiled. A Makefile and a setup.py run as their author runs them, and are trusted as by
their author.
"""

from __future__ import annotations

import importlib.util
import itertools
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
from tilusbuild.runtime.regular import read_text, try_read_text
from tilusbuild.state.files import write_atomic
from tilusbuild.state.temporary import TemporaryDirectory

Commands = list[tuple[str, list[str]]]
"""The directory and the arguments of each command, its program the first."""

_TIMEOUT, _MAX_OUTPUT = 600.0, 1 << 28
"""Seconds that another program has, and bytes of its output."""
_MAX_LINES = 20
"""Lines of a script's error that are shown."""
# Such as `make[1]: Entering directory '/src/lib'`.
_ENTERING = re.compile(r"make(?:\[\d+\])?: (Entering|Leaving) directory '(.*)'")
_WRITTEN_LIST = re.compile(r"^echo (.*) > (\S+)$", re.MULTILINE)
_READ_LIST = re.compile(r"(?:\$\(|`)cat (\S+)[)`]")
_ASSIGNMENT = re.compile(r"^(\w+)[ \t]*:{0,3}=", re.MULTILINE)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?: .*\n)+", re.MULTILINE)
_SHELL = re.compile(r"(ba|da|k|z)?sh")
_SHELL_KEYWORDS = frozenset(["if", "then", "else", "elif", "do", "while", "!", "{", "exec", "eval"])


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
        # A copy of a file that a setup.py makes is named as the file.
        original = os.path.basename(name)
        raise input_error(f"{original} cannot be imported: {message.replace(name, original)}")
    return text


def read_ninja_commands(
    draft: ManifestDraft, root: str, name: str, targets: Sequence[str] = ()
) -> Commands:
    """Return the commands of the targets in a ninja file; of its default targets, without any.
    Raises `InputError`."""
    ninja = shutil.which("ninja") or shutil.which("ninja", path=sysconfig.get_path("scripts"))
    if ninja is None:
        raise input_error(
            f"{name} cannot be imported: it needs ninja, which is not installed",
            hint="`pip install ninja`; or name the build's compile_commands.json",
        )
    tool = ("-f", name, "-t")
    built = {*_read_output(name, root, ninja, *tool, "commands", *targets).splitlines()}
    # Both list all commands in one order; with -x, a response file's words are in its place.
    listed = json.loads(_read_output(name, root, ninja, *tool, "compdb"))
    expanded = json.loads(_read_output(name, root, ninja, *tool, "compdb", "-x"))
    pairs = zip(listed, expanded, strict=True)
    entries = [entry for written, entry in pairs if written["command"] in built]
    return read_compile_entries(draft, entries, root)


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


def read_make_commands(
    draft: ManifestDraft, root: str, name: str, words: Sequence[str] = ()
) -> Commands:
    """Return the commands of a Makefile's first goal, or of the goals in `words`, with the
    variables there, from `make -n`. A variable of the environment that the Makefile sets becomes a
    note of the draft. Raises `InputError`."""
    # With -B, as if nothing were built: make prints no command of a file that is up to date. What
    # it prints is read, and must be in English.
    make = ("env", "LC_ALL=C", "make", "-n", "-B", "-w", "-f", name, *words)
    if b"', needed by '" in _run_command(root, *make).output:
        # One make needs a file that another would have made. With this rule, which reaches each of
        # them, all that has no other rule is taken to be there.
        make += ("--eval=.DEFAULT: ;",)
    text = _read_output(name, root, *make)
    command_variables = {word.partition("=")[0] for word in words}
    for variable in _ASSIGNMENT.findall(read_text(os.path.join(root, name), "replace")):
        if variable in os.environ.keys() - command_variables - {"PATH", "SHELL"}:
            setting = f"{variable}={os.environ[variable]}"
            draft.add_note(
                f"{name} sets {variable}: to override it, tilusbuild import {name} {setting}"
            )
    # A list of objects may go through a file, as in `echo $^ > list` and `g++ $(cat list)`.
    lists = {path: words for words, path in _WRITTEN_LIST.findall(text)}
    text = _READ_LIST.sub(lambda match: lists.get(match[1], match[0]), text)
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


def read_build_commands(
    draft: ManifestDraft, root: str, name: str, words: Sequence[str]
) -> Commands:
    """Return the commands of a ninja file or a Makefile, for the targets or goals in `words`, or
    for the default. Raises `InputError`."""
    if name.endswith(".ninja"):
        return read_ninja_commands(draft, root, name, words)
    return read_make_commands(draft, root, name, words)


def _split_shell_line(directory: str, line: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (directory, arguments) of each command in a line of shell, which starts in `directory`.
    `cd` itself is not yielded: it changes the directory of the commands after it."""
    line = re.sub(r"^\s*\((.*)\)\s*$", r"\1", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        # shlex leaves the backslash in "\\$ORIGIN", as CMake writes it.
        tokens = [token.replace("\\$", "$") for token in lexer]
    except ValueError:
        # An apostrophe in a text that make prints, as `echo don't`, opens no quotation.
        tokens = line.split()
    outputs: set[str | None] = set()
    while tokens:
        # A token of `;`, `&` and `|` alone ends the command.
        end = next((n for n, token in enumerate(tokens) if not token.strip(";&|")), len(tokens))
        command, tokens = tokens[:end], tokens[end + 1 :]
        while command and command[0] in _SHELL_KEYWORDS:
            del command[0]
        if len(command) == 2 and command[0] == "cd":
            directory = os.path.join(directory, command[1])
        elif command:
            # `then` and `else` may make one file: the first that makes it is taken.
            output = dict(itertools.pairwise(command)).get("-o")
            if output is None or output not in outputs:
                outputs.add(output)
                yield from _open_command(directory, command)


def _open_command(directory: str, command: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (directory, arguments) of a command, or of those in the line that a shell gets, or in
    the file that CMake runs to link."""
    if _SHELL.fullmatch(os.path.basename(command[0])):
        # The line comes after `-c`, which may be among other letters, as in `-ec`.
        index = next((n for n, word in enumerate(command) if re.fullmatch(r"-\w*c", word)), None)
        text = "" if index is None else "".join(command[index + 1 : index + 2])
    elif command[1:3] == ["-E", "cmake_link_script"]:
        text = try_read_text(os.path.join(directory, *command[3:4])) or ""
    else:
        yield directory, command
        return
    for line in text.splitlines():
        yield from _split_shell_line(directory, line)


def record_setup_commands(
    draft: ManifestDraft, root: str, name: str, variables: Sequence[str] = ()
) -> Commands:
    """Run a setup.py that starts no compiler, with more `variables` (NAME=VALUE) in its
    environment, and return its commands to compile and to link, also those of builds within.

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
        spied = (spy.__file__, build_arguments, effect, variables)
        records = run_recorded(draft, root, name, *spied)
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

    commands: Commands = []
    for record in records:
        if "build" in record:
            name, directory, targets = record["build"], record["directory"], record["targets"]
            with TemporaryDirectory("import") as copies:
                # What CMake has written for make is still there, and names files beside it.
                if name.endswith(".ninja"):
                    name = os.path.join(copies.path, name)
                    write_atomic(name, record["text"].encode())
                commands += read_build_commands(draft, directory, name, targets)
        elif "arguments" in record:
            commands.append((record["directory"], record["arguments"]))
    commands = [(directory, [*map(to_project_path, argv)]) for directory, argv in commands]
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
    variables: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Run a script below a recorder, for at most 600 s. Return the JSON lines that the recorder
    wrote, without repetitions.

    `recorded_effect` has the words for messages, such as ("called tune_kernel", "call"). If the
    script fails after the first line, add a note to the draft. Raises `InputError` if it fails
    before.
    """
    with TemporaryDirectory("import") as directory:
        record = os.path.join(directory.path, "record")
        python = ("env", *variables, sys.executable)
        completed = _run_command(root, *python, recorder, record, name, *arguments)
        lines = read_text(record).splitlines() if os.path.exists(record) else []
    effect, effect_noun = recorded_effect
    if not completed.ok:
        outcome = f"has not ended after {_TIMEOUT:.0f} s" if completed.timed_out else "failed"
        # A program that the script starts, such as cmake, has its say before Python's frames.
        output = _TRACEBACK.sub("", completed.output.decode(errors="replace"))
        output_lines = [line for line in output.splitlines() if line.strip()]
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
