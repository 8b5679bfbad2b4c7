"""`tilusbuild import WHAT`: a manifest for a project that another system builds."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import TYPE_CHECKING

from tilusbuild.cli import options
from tilusbuild.cli.arguments import Common, Verb, flag, option, positional, positionals
from tilusbuild.cli.options import emit_line
from tilusbuild.errors import InputError, input_error
from tilusbuild.report.jsonl import declare_line
from tilusbuild.runtime.where import MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilusbuild.intake.draft import ManifestDraft


class ImportArgs(Common, frozen=True, kw_only=True):
    """The build to import, and the directory for its manifest."""

    what: str = positional(
        "WHAT",
        help="setup.py or a Kernel Tuner script (which are run), kernels of Triton, TileLang or "
        "Tilus, Makefile, build.ninja, compile_commands.json",
    )
    words: tuple[str, ...] = positionals(
        "WORD",
        help="a variable, as in GPU=1, or a goal: as make and ninja take them; setup.py gets"
        " variables in its environment",
    )
    output: str | None = option(
        *("-o", "--output"), metavar="DIR", help="the project's directory, which gets tilus.toml"
    )
    stdout: bool = flag("--stdout", help="print the manifest, and write nothing")


ImportedLine = declare_line(
    "imported", manifest=str, sources=int, kernels=int, notes=tuple[str, ...]
)
"""A manifest was made."""


def run_import(arguments: ImportArgs) -> int:
    """Write `tilus.toml` for the named build, and the sources that a script holds as text; with
    `--stdout`, print the manifest and write nothing. Return the exit status. Raises `InputError`,
    also if the manifest exists."""
    from tilusbuild.intake.draft import ManifestDraft, format_manifest
    from tilusbuild.manifest.check_files import make_missing_file_error

    source_path = os.path.abspath(arguments.what)
    if not os.path.exists(source_path):
        raise InputError(make_missing_file_error(os.getcwd(), arguments.what))
    if hint := _find_hint(source_path):
        kind = "a folder, which" if os.path.isdir(source_path) else "a file that"
        raise input_error(
            f"{arguments.what} is {kind} does not say how its sources are compiled", hint=hint
        )
    output = arguments.output and os.path.abspath(arguments.output)
    if not arguments.stdout:
        # Before the build is read, which may take minutes; its sources may be in another directory.
        _check_absent(output or _find_root(os.path.dirname(source_path), []))
    draft = ManifestDraft(_name_project(output or os.path.dirname(source_path)))
    files: dict[str, str] = {}
    try:
        root = _read_into_draft(draft, source_path, arguments.words, output, files)
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise input_error(f"{arguments.what} cannot be imported: {reason}") from None
    if not draft.libraries and not draft.kernels:
        raise input_error(
            f"nothing in {arguments.what} can be imported", hint="\n".join(draft.notes) or None
        )
    text = format_manifest(draft)
    manifest_path = os.path.join(root, MANIFEST_NAME)
    if not arguments.stdout:
        _check_absent(root)
        for name, source in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            options.write_file(os.path.join(root, name), source.encode())
        os.makedirs(root, exist_ok=True)
        options.write_file(manifest_path, text.encode())
    _print_result(arguments, draft, text if arguments.stdout else manifest_path)
    return 0


def _check_absent(root: str) -> None:
    """Raise `InputError` if a directory has a manifest."""
    manifest_path = os.path.join(root, MANIFEST_NAME)
    if os.path.lexists(manifest_path):
        raise input_error(f"{manifest_path} already exists", hint="--stdout prints the new one")


_COMPILER_VARIABLES = "CPATH CPLUS_INCLUDE_PATH LIBRARY_PATH NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS"
"""Variables that compilers of other builds read, and those of tilusbuild do not get."""

_NINJA_HINT = "{}; tilusbuild import build/build.ninja"
_HINT_BY_FILE_NAME = {
    "CMakeLists.txt": _NINJA_HINT.format("cmake -S . -B build -G Ninja"),
    "meson.build": _NINJA_HINT.format("meson setup build"),
    "pyproject.toml": "python -m build, and import what its build directory has",
}
"""Hints for files that only another build system reads."""


def _find_hint(path: str) -> str | None:
    """Return a hint that names the file to import, for a directory or for a file that holds no
    build. Return None for a file that can be imported."""
    name = os.path.basename(path)
    if not os.path.isdir(path) and (name in _HINT_BY_FILE_NAME or _is_build(name)):
        return _HINT_BY_FILE_NAME.get(name)
    return (
        "name its setup.py, compile_commands.json, build.ninja or Makefile; of CMake: "
        f"{_HINT_BY_FILE_NAME['CMakeLists.txt']}; or write"
        ' `sources = ["**/*.cu"]` in [library.NAME] of a tilus.toml'
    )


def _is_build(name: str) -> bool:
    """Return whether a file with this name can be imported."""
    return name.endswith((".py", ".json", ".ninja", ".mk")) or "makefile" in name.lower()


def _read_into_draft(
    draft: ManifestDraft,
    path: str,
    words: Sequence[str],
    output: str | None,
    files: dict[str, str],
) -> str:
    """Read the build in the file at `path` into the draft, with the variables and goals in `words`.
    Return the project's directory: `output` or one that contains the sources.

    The file's name and content decide how it is read: a Python file is run, and `files` gets the
    sources that it holds as text. Raises `InputError`, `OSError` and `ValueError`.
    """
    from tilusbuild.intake import builds, kernel_tuner, languages, libraries
    from tilusbuild.runtime.regular import read_text

    directory, name = os.path.split(path)
    text = read_text(path, "replace")
    if name == "compile_commands.json" and os.path.isfile(f"{directory}/CMakeCache.txt"):
        # The file lists also what the default target does not build, and no links.
        tools = {"build.ninja": "ninja", "Makefile": "make"}
        usable_names = [n for n in tools if os.path.isfile(f"{directory}/{n}")]
        name = next((n for n in usable_names if shutil.which(tools[n])), name)
    is_python, is_json = name.endswith(".py"), name.endswith(".json")
    is_build = not is_python and not is_json
    if words and not (is_build or (is_python and all("=" in word for word in words))):
        raise ValueError("words after its name are for ninja and make, variables for setup.py, too")
    if is_python:
        # A setup.py may have another name: it calls `setup()`. A tuning script may do so, too.
        calls_setup = "kernel_tuner" not in text and re.search(r"\bsetup\(", text)
        if name != "setup.py" and not calls_setup:
            if output is not None:
                raise ValueError("-o is for builds; the manifest of a script is beside it")
            if "kernel_tuner" not in text and re.search(
                r"^\s*(import|from) (triton|tilelang|tilus)\b", text, re.MULTILINE
            ):
                languages.read_kernels(draft, directory, name)
                return directory
            kernel_tuner.read_tuning_script(draft, directory, name, files)
            return directory
        commands = builds.record_setup_commands(draft, directory, name, words)
    elif is_build:
        commands = builds.read_build_commands(draft, directory, name, words)
    else:
        entries = json.loads(text)
        if not isinstance(entries, list):
            raise ValueError("it lists no commands; a T1 file is for space-file of a script")
        commands = builds.read_compile_entries(draft, entries, directory)
    root = output or _find_root(directory, libraries.list_sources(commands))
    draft.project = _name_project(root)
    libraries.add_libraries(draft, root, commands)
    for key in filter(os.environ.get, _COMPILER_VARIABLES.split()):
        draft.add_note(f"left out: {key}={os.environ[key]}: no compile gets that from the shell")
    return root


def _find_root(directory: str, sources: list[str]) -> str:
    """Return the nearest directory that contains the build's `directory` and all sources in its
    repository. For a build directory of CMake, return CMake's source directory."""
    from tilusbuild.intake.libraries import find_repository
    from tilusbuild.runtime.regular import read_text
    from tilusbuild.runtime.where import is_within

    cmake_cache = os.path.join(directory, "CMakeCache.txt")
    if os.path.isfile(cmake_cache):
        text = read_text(cmake_cache, "replace")
        cmake_home = re.search(r"^CMAKE_HOME_DIRECTORY:\w+=(.+)$", text, re.MULTILINE)
        if cmake_home and os.path.isfile(os.path.join(cmake_home[1], "CMakeLists.txt")):
            return cmake_home[1]
    # A source outside of the repository, such as one of an installed package, is left out, because
    # it would move the root up to `/`.
    repository = find_repository(directory)
    parents = [os.path.dirname(source) for source in sources if is_within(source, repository)]
    return os.path.commonpath([directory, *parents])


def _name_project(directory: str) -> str:
    """Return the project's name, made of its directory's."""
    from tilusbuild.intake.draft import make_table_name

    return make_table_name(os.path.basename(directory)).replace("_", "-")


def _print_result(arguments: ImportArgs, draft: ManifestDraft, manifest: str) -> None:
    """Print the manifest or its path, the counts, and the notes."""
    from tilusbuild.report.text import format_count

    sources = len({source for library in draft.libraries for source in library.sources})
    kernels = len(draft.kernels)
    if arguments.json:
        emit_line(ImportedLine(manifest, sources, kernels, tuple(draft.notes)))
    elif arguments.stdout:
        print(manifest, end="")
    elif not arguments.quiet:
        count = format_count(kernels, "kernel") if kernels else format_count(sources, "source")
        print(f"{manifest}: {count}; next: tilusbuild build")
        for note in draft.notes:
            print(f"  {note}")


VERB = Verb(ImportArgs, run_import, (ImportedLine,))
