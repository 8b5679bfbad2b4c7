"""`python spy.py RECORD SETUP.PY ARGUMENT…` runs a setup.py and records its compile commands.

`builds.py` starts it. Compilers, linkers, archivers and ninja are not started: each of their
commands is a line of JSON in RECORD, as in compile_commands.json; of a nested build, its directory,
targets, and the name and text of its file. A command that asks a compiler something, or that tries
it on a temporary file, runs. Imports nothing of tilusbuild.
"""

from __future__ import annotations

import itertools
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

_RECORD_PATH = os.path.abspath(sys.argv[1]) if __name__ == "__main__" else ""
_PROJECT = os.path.realpath(os.getcwd())
_TEMPORARY = os.path.realpath(tempfile.gettempdir())
_HARMLESS_COMMAND = [shutil.which("true") or "/bin/true"]
BEFORE = re.compile(r"ccache|sccache|distcc|nice|time|env|\w+=.*")
"""Programs and assignments that may stand before a compiler."""
COMPILER = re.compile(r".*(cc|cxx|\+\+|clang|icp?x|nvcc_wrapper)(-[\d.]+)?")
_QUERY_OPTION = re.compile(r"-[EMS]|-MM|-###|--?(dryrun|fsyntax-only|preprocess)")
_SOURCE_NAME = re.compile(r".*\.(cu|c|cc|cpp|cxx|C|s|S)")
_OPTIONS_WITH_VALUE = frozenset(["-C", "-f", "-j", "-k", "-l", "-w", "-d", "-o", "-W", "-I"])
"""Options of ninja and make that are followed by a value."""
_original_popen_init = subprocess.Popen.__init__


def _write_record(line: object) -> None:
    """Append a line of JSON to the record."""
    with open(_RECORD_PATH, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _record_or_start(self: Any, args: Any, *rest: Any, **options: Any) -> None:
    """Replace `Popen.__init__`. Record a command that makes a file, and start `true` in its place.
    Start any other command."""
    try:
        is_recorded = _record_command(_to_argv(args), os.path.abspath(options.get("cwd") or "."))
    except (ValueError, TypeError):
        # `Popen` refuses such arguments, too, and the script gets its error.
        is_recorded = False
    if is_recorded:
        args, options["shell"] = _HARMLESS_COMMAND, False
        options.pop("executable", None)
    _original_popen_init(self, args, *rest, **options)


def _to_argv(args: Any) -> list[str]:
    if isinstance(args, str | bytes):
        return shlex.split(os.fsdecode(args))
    return [*map(os.fsdecode, args)]


def _record_command(argv: list[str], cwd: str) -> bool:
    """Record a compile, a link, an archive or a nested build. Return True if it must not run: it
    was recorded, or is an installation by CMake. Questions to a compiler, and trials on temporary
    files, are not recorded."""
    tool_index = next(
        (n for n, word in enumerate(argv) if not BEFORE.fullmatch(get_tool_name(word))), 0
    )
    tool, arguments = get_tool_name(argv[tool_index]), argv[tool_index + 1 :]
    if tool in ("ninja", "make", "cmake"):
        return _record_nested_build(tool, arguments, cwd)
    if tool.endswith("ar"):
        makes_file = any(word.endswith(".a") for word in arguments)
    else:
        is_query = any(_QUERY_OPTION.fullmatch(word) for word in arguments)
        names_output = not {"-c", "-dc", "-o"}.isdisjoint(arguments)
        makes_file = not is_query and names_output and COMPILER.fullmatch(tool) is not None
    if not makes_file or _is_compiler_trial(arguments, cwd):
        return False
    _write_record({"directory": cwd, "arguments": argv})
    return True


def get_tool_name(word: str) -> str:
    """Return the base name of a program; an assignment `NAME=VALUE` as it is."""
    return word if "=" in word else os.path.basename(word)


def _is_compiler_trial(argv: list[str], cwd: str) -> bool:
    """Return whether all sources of a command are temporary files outside of the project, as when a
    script tries a compiler's options. A command without sources is not one."""
    sources = [os.path.realpath(os.path.join(cwd, w)) for w in argv if _SOURCE_NAME.fullmatch(w)]
    # The project itself may be in a temporary directory, into which pip has unpacked it.
    return bool(sources) and all(
        path.startswith(_TEMPORARY + "/") and not path.startswith(_PROJECT + "/")
        for path in sources
    )


def _record_nested_build(tool: str, argv: list[str], cwd: str) -> bool:
    """Record what ninja, make or CMake would build in a directory of the project. Return True if
    the tool must not run: its build was recorded, or CMake would install files."""
    # CMake runs to configure, which writes the commands. It must not install, because the files
    # that it would copy were not built.
    if tool == "cmake" and "--build" not in argv:
        return "--install" in argv
    option = "--build" if tool == "cmake" else "-C"
    directory_name = argv[argv.index(option) + 1] if option in argv[:-1] else "."
    directory = os.path.join(cwd, directory_name)
    if not f"{os.path.realpath(directory)}/".startswith(f"{_PROJECT}/"):
        # torch's load() builds outside of the project, and the script imports the result.
        return False
    if tool == "ninja" and any(word.startswith(("--version", "-t", "-h")) for word in argv):
        return False
    names = ("build.ninja",) if tool == "ninja" else ("build.ninja", "Makefile")
    name = next((n for n in names if os.path.exists(os.path.join(directory, n))), None)
    # What make does beside CMake is not known: it may make what the script reads next.
    if name is None or (tool == "make" and not os.path.exists(f"{directory}/CMakeCache.txt")):
        return False
    if tool == "cmake":
        target_option = next((word for word in argv if word in ("--target", "-t")), None)
        after = argv[argv.index(target_option) + 1 :] if target_option else []
        targets = [*itertools.takewhile(lambda word: not word.startswith("-"), after)]
    else:
        pairs = zip(["", *argv], argv, strict=False)
        words = [word for before, word in pairs if before not in _OPTIONS_WITH_VALUE]
        targets = [word for word in words if not word.startswith("-")]
    with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as file:
        # torch writes one file for each extension, each over the one before.
        record = {"build": name, "directory": directory, "targets": targets, "text": file.read()}
    _write_record(record)
    return True


def _record_extension_paths(command: Any) -> None:
    """Record the path of each extension module in the build directory and in the project. In place
    of the step of setuptools that copies the modules, which do not exist."""
    # setuptools gives the path in the project only if `inplace` is set, else the one in the build
    # directory.
    for extension in command.extensions:
        project_path = os.path.abspath(command.get_ext_fullpath(extension.name))
        command.inplace = 0
        built_path = os.path.abspath(command.get_ext_fullpath(extension.name))
        command.inplace = 1
        _write_record({"built": built_path, "inplace": project_path})


def _assume_architecture() -> None:
    """Set `TORCH_CUDA_ARCH_LIST` and record that, if there is no GPU to ask and no list."""
    # Only a setup.py that has imported torch's extension builder asks for a GPU.
    torch: Any = sys.modules.get("torch.utils.cpp_extension") and sys.modules.get("torch")
    if not torch or not torch.version.cuda or os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return
    if not torch.cuda.device_count():
        os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0+PTX"
        _write_record({"assumed": "TORCH_CUDA_ARCH_LIST=8.0+PTX"})


def _run_setup() -> None:
    """Replace the functions of `subprocess`, `os` and setuptools that start compilers or copy their
    results by those that record, and run the setup.py. Nothing is put back."""
    recorder = os.path.join(os.path.dirname(__file__), "recorder.py")
    run_script = runpy.run_path(recorder)["run_script"]
    subprocess.Popen.__init__ = _record_or_start  # type: ignore[method-assign]
    # `os.system` starts its process without `Popen`.
    os.system = lambda command: subprocess.call(command, shell=True)  # noqa: S602
    sys.path[0] = _PROJECT
    from setuptools.command.build_ext import build_ext
    from setuptools.dist import Distribution

    original_run_commands = Distribution.run_commands

    def run_commands(self: Any) -> None:
        _assume_architecture()
        original_run_commands(self)

    Distribution.run_commands = run_commands
    build_ext.copy_extensions_to_source = _record_extension_paths
    run_script(sys.argv[2], sys.argv[3:])


if __name__ == "__main__":
    _run_setup()
