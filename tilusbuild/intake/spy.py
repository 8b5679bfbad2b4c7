"""`python spy.py RECORD SETUP.PY ARGUMENT…` runs a setup.py and writes down what it compiles.

`builds.py` starts it. Compilers, linkers, archivers and ninja are not started: each of their
commands is a line of JSON in RECORD, as in compile_commands.json. A command that asks a compiler
something, or that tries it on a temporary file, runs. Imports nothing of tilusbuild.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Any

_RECORD = os.path.abspath(sys.argv[1]) if __name__ == "__main__" else ""
_PROJECT = os.path.realpath(os.getcwd())
_TEMPORARY = os.path.realpath(tempfile.gettempdir())
_INSTEAD = [shutil.which("true") or "/bin/true"]
BEFORE = re.compile(r"ccache|sccache|distcc|nice|time|env|\w+=.*")
"""What may stand before a compiler."""
COMPILER = re.compile(r".*(cc|\+\+|clang|icpx)(-[\d.]+)?")
_QUESTION = re.compile(r"-[EMS]|-MM|-###|--?(dryrun|fsyntax-only|preprocess)")
_SOURCE = re.compile(r".*\.(cu|c|cc|cpp|cxx|C|s|S)")
_start = subprocess.Popen.__init__


def _write(line: object) -> None:
    with open(_RECORD, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _popen(self: Any, args: Any, *rest: Any, **named: Any) -> None:
    """Start a process, or write down what it would make and start one that does nothing."""
    try:
        known = _recorded(_words(args), os.path.abspath(named.get("cwd") or "."))
    except (ValueError, TypeError):
        known = False
    if known:
        args, named["shell"] = _INSTEAD, False
        named.pop("executable", None)
    _start(self, args, *rest, **named)


def _words(args: Any) -> list[str]:
    if isinstance(args, str | bytes):
        return shlex.split(os.fsdecode(args))
    return [os.fsdecode(each) for each in args]


def _recorded(words: list[str], cwd: str) -> bool:
    """Return whether a command makes something, which is then written down."""
    at = next((n for n, word in enumerate(words) if not BEFORE.fullmatch(tool_of(word))), 0)
    tool, rest = tool_of(words[at]), words[at + 1 :]
    if tool in ("ninja", "make", "cmake"):
        return _build(tool, rest, cwd)
    if tool.endswith("ar"):
        makes = any(word.endswith(".a") for word in rest)
    else:
        asks = any(_QUESTION.fullmatch(word) for word in rest)
        makes = not asks and bool(COMPILER.fullmatch(tool) and {"-c", "-dc", "-o"} & {*rest})
    if not makes or _tries(rest, cwd):
        return False
    _write({"directory": cwd, "arguments": words})
    return True


def tool_of(word: str) -> str:
    return word if "=" in word else os.path.basename(word)


def _tries(words: list[str], cwd: str) -> bool:
    """Return whether all sources of a command are temporary files."""
    named = [os.path.realpath(os.path.join(cwd, w)) for w in words if _SOURCE.fullmatch(w)]
    return bool(named) and all(
        each.startswith(_TEMPORARY + "/") and not each.startswith(_PROJECT + "/") for each in named
    )


def _build(tool: str, words: list[str], cwd: str) -> bool:
    """Write down what another build system would make, where it says so."""
    if tool == "cmake" and "--build" not in words:
        return "--install" in words
    after = "--build" if tool == "cmake" else "-C"
    named = words[words.index(after) + 1] if after in words[:-1] else "."
    directory = os.path.join(cwd, named)
    if not f"{os.path.realpath(directory)}/".startswith(f"{_PROJECT}/"):
        return False  # torch's load(): the script asks what it makes
    listed = os.path.join(directory, "compile_commands.json")
    if tool == "ninja" and any(word.startswith(("--version", "-t", "-h")) for word in words):
        return False
    if os.path.exists(os.path.join(directory, "build.ninja")):
        ask = ("ninja", "-C", directory, "-t", "compdb")
        asked = subprocess.check_output(ask, text=True)
        entries = json.loads(asked[asked.index("[\n") :])
    elif os.path.exists(listed) and tool != "ninja":
        with open(listed, encoding="utf-8") as file:
            entries = json.load(file)
    else:
        return False
    for entry in entries:
        _write(entry)
    return True


def _places(command: Any) -> None:
    """Write down where extension modules go; in place of copying them there."""
    for extension in command.extensions:
        inplace = os.path.abspath(command.get_ext_fullpath(extension.name))
        command.inplace = 0
        built = os.path.abspath(command.get_ext_fullpath(extension.name))
        command.inplace = 1
        _write({"built": built, "inplace": inplace})


def _architecture() -> None:
    """Name an architecture for torch, which has none without a GPU and a list of the user's."""
    torch: Any = sys.modules.get("torch.utils.cpp_extension") and sys.modules.get("torch")
    if not torch or not torch.version.cuda or os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return
    if not torch.cuda.device_count():
        os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0+PTX"
        _write({"assumed": "TORCH_CUDA_ARCH_LIST=8.0+PTX"})


def _main() -> None:
    run = runpy.run_path(os.path.join(os.path.dirname(__file__), "recorder.py"))["run"]
    subprocess.Popen.__init__ = _popen  # type: ignore[method-assign]
    os.system = lambda command: subprocess.call(command, shell=True)  # noqa: S602
    os.environ["CMAKE_EXPORT_COMPILE_COMMANDS"] = "ON"
    sys.path[0] = _PROJECT
    from setuptools.command.build_ext import build_ext
    from setuptools.dist import Distribution

    commands = Distribution.run_commands

    def run_commands(self: Any) -> None:
        _architecture()
        commands(self)

    Distribution.run_commands = run_commands
    build_ext.copy_extensions_to_source = _places
    run(sys.argv[2], sys.argv[3:])


if __name__ == "__main__":
    _main()
