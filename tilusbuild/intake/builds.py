"""The commands of another build, as its own tools say them: ninja, make, or a setup.py that is run.

Nothing is compiled. A Makefile and a setup.py run as their author runs them, and are trusted so.
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
from tilusbuild.intake.draft import Draft
from tilusbuild.process.base import Command, CompletedCommand
from tilusbuild.process.local import LocalRunner
from tilusbuild.runtime.regular import read_text
from tilusbuild.state.temporary import TemporaryDirectory

Commands = list[tuple[str, list[str]]]
"""The directory and the words of each."""

_TIMEOUT, _MAX_OUTPUT = 600.0, 1 << 28
"""Seconds that another program has, and bytes of what it prints."""
_MAX_LINES = 15
"""Lines of a script's error that are shown."""
_ENTERING = re.compile(r"make(?:\[\d+\])?: (Entering|Leaving) directory '(.*)'")


def _run(directory: str, *argv: str) -> CompletedCommand:
    with LocalRunner() as runner:
        environment = dict(os.environ)
        return runner.run(
            Command(argv, directory, environment, timeout=_TIMEOUT, output_limit=_MAX_OUTPUT)
        )


def _asked(name: str, directory: str, *argv: str) -> str:
    """Return what a program prints about a file. Raises `InputError`."""
    ended = _run(directory, *argv)
    text = ended.output.decode(errors="replace")
    if not ended.ok:
        said = text.strip() or f"{os.path.basename(argv[0])} failed"
        raise input_error(f"{name} cannot be imported: {said}")
    return text


def of_ninja(draft: Draft, root: str, name: str) -> Commands:
    """Return the commands of a ninja file, as ninja itself reads that. Raises `InputError`."""
    ninja = shutil.which("ninja") or shutil.which("ninja", path=sysconfig.get_path("scripts"))
    if ninja is None:
        raise input_error(
            f"{name} cannot be imported: it needs ninja, which is not installed",
            hint="`pip install ninja`; or name the build's compile_commands.json",
        )
    return of_entries(
        draft, json.loads(_asked(name, root, ninja, "-f", name, "-t", "compdb")), root
    )


def of_entries(draft: Draft, entries: Sequence[object], root: str) -> Commands:
    """Return the commands of the entries of compile_commands.json."""
    found: Commands = []
    for number, entry in enumerate(entries, 1):
        said = entry if isinstance(entry, dict) else {}
        listed, command = said.get("arguments"), said.get("command")
        directory = os.path.join(root, str(said.get("directory", ".")))
        if isinstance(listed, list):
            found.append((directory, [str(word) for word in listed]))
        elif isinstance(command, str):
            found += _of_shell(directory, command)
        else:
            draft.note(f"left out: entry {number} has no command")
    return found


def of_make(root: str, name: str) -> Commands:
    """Return the commands of a Makefile's first goal. Raises `InputError`."""
    text = _asked(name, root, "make", "-n", "-B", "-w", "-f", name)
    found: Commands = []
    directories = [root]
    for line in text.replace("\\\n", " ").splitlines():
        if entered := _ENTERING.fullmatch(line):
            directories = (
                [*directories, entered[2]] if entered[1] == "Entering" else directories[:-1]
            )
        else:
            found += _of_shell(directories[-1], line)
    return found


def _of_shell(directory: str, line: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a shell's line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = [*lexer]
    except ValueError:
        words = line.split()
    while words:
        end = next((n for n, word in enumerate(words) if not word.strip(";&|")), len(words))
        command, words = words[:end], words[end + 1 :]
        if len(command) == 2 and command[0] == "cd":
            directory = os.path.join(directory, command[1])
        elif command:
            yield directory, command


def of_setup(draft: Draft, root: str, name: str) -> Commands:
    """Run a setup.py, and return what it would have compiled and linked. Raises `InputError`."""
    if importlib.util.find_spec("setuptools") is None:
        raise input_error(
            f"{name} cannot be imported: it needs setuptools, which is not installed",
            hint="`pip install setuptools`, where tilusbuild is installed",
        )
    with TemporaryDirectory("import") as made:
        build = ("build", "--force", "--build-lib", made.path, "build_ext", "--inplace")
        lines = recorded(draft, root, name, spy.__file__, build, ("compiled anything", "command"))
        below = made.path + "/"
    places = {each["built"]: each["inplace"] for each in lines if "built" in each}
    entries = [each for each in lines if "arguments" in each or "command" in each]
    found: Commands = []
    for directory, words in of_entries(draft, entries, root):
        moved = (
            places.get(word) or os.path.join(root, word.removeprefix(below))
            if word.startswith(below)
            else word
            for word in words
        )
        found.append((directory, [*moved]))
    for assumed in (each["assumed"] for each in lines if "assumed" in each):
        draft.note(f"assumed, because there is no GPU to ask: {assumed}")
    return found


def recorded(
    draft: Draft,
    root: str,
    name: str,
    recorder: str,
    arguments: Sequence[str],
    what: tuple[str, str],
) -> list[dict[str, Any]]:
    """Run a script with what records it, and return what that wrote down, each line once; `what`
    names the effect that is recorded. Raises `InputError` of a script that fails before the first.
    """
    with TemporaryDirectory("import") as made:
        record = os.path.join(made.path, "record")
        ended = _run(root, sys.executable, recorder, record, name, *arguments)
        lines = read_text(record).splitlines() if os.path.exists(record) else []
    if not ended.ok:
        how = f"has not ended after {_TIMEOUT:.0f} s" if ended.timed_out else "failed"
        said = ended.output.decode(errors="replace").strip().splitlines()
        if not lines:
            end = "\n".join(said[-_MAX_LINES:])
            raise input_error(f"{name} was run, and {how} before it {what[0]}", hint=end)
        last = said[-1] if said else "it printed nothing"
        draft.note(f"{name} was run, and {how} after its {what[1]} {len(lines)}: {last}")
    return [json.loads(line) for line in dict.fromkeys(lines)]
