"""`tilusbuild import WHAT`: a manifest for a project that another system builds."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from tilusbuild.cli import options
from tilusbuild.cli.arguments import Common, Verb, flag, option, positional
from tilusbuild.cli.options import emit_line
from tilusbuild.report.jsonl import declare_line

if TYPE_CHECKING:
    from tilusbuild.intake.draft import Draft


class ImportArgs(Common, frozen=True, kw_only=True):
    """What is imported."""

    what: str = positional(
        "WHAT",
        help="setup.py or a Kernel Tuner script (which are run), Makefile, build.ninja, "
        "compile_commands.json",
    )
    output: str | None = option(
        *("-o", "--output"), metavar="DIR", help="the project's directory, which gets tilus.toml"
    )
    stdout: bool = flag("--stdout", help="print the manifest, and write nothing")


ImportedLine = declare_line(
    "imported", manifest=str, sources=int, kernels=int, notes=tuple[str, ...]
)
"""A manifest was made."""


def run(arguments: ImportArgs) -> int:
    """Write `tilus.toml` for what was named, and say what was not understood."""
    from tilusbuild.errors import input_error
    from tilusbuild.intake.draft import Draft, manifest_text

    what = os.path.abspath(arguments.what)
    if hint := _pointed(what):
        kind = "a folder, which" if os.path.isdir(what) else "a file that"
        raise input_error(
            f"{arguments.what} is {kind} does not say how its sources are compiled", hint=hint
        )
    output = arguments.output and os.path.abspath(arguments.output)
    draft, files = Draft(_project_of(output or os.path.dirname(what))), dict[str, str]()
    try:
        root = _read(draft, what, output, files)
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
            options.write_file(os.path.join(root, name), source.encode())
        os.makedirs(root, exist_ok=True)
        options.write_file(path, text.encode())
    _report(arguments, draft, text if arguments.stdout else path)
    return 0


_OF_THE_SHELL = "CPATH CPLUS_INCLUDE_PATH LIBRARY_PATH NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS"
"""Variables that other builds' compilers read, and ours do not get."""

_BY_NINJA = "{}; tilusbuild import build/build.ninja"
_POINTERS = {
    "CMakeLists.txt": _BY_NINJA.format("cmake -S . -B build -G Ninja"),
    "meson.build": _BY_NINJA.format("meson setup build"),
    "pyproject.toml": "python -m build, and import what its build directory has",
}
"""What to do with files that only other builds read."""


def _pointed(what: str) -> str | None:
    """Return what serves instead of a folder, or of a file that only another build reads."""
    if not os.path.isdir(what):
        return _POINTERS.get(os.path.basename(what))
    return (
        "name its setup.py, compile_commands.json, build.ninja or Makefile; of CMake: "
        f"{_POINTERS['CMakeLists.txt']}; or write"
        ' `sources = ["**/*.cu"]` in [library.NAME] of a tilus.toml'
    )


def _read(draft: Draft, what: str, output: str | None, files: dict[str, str]) -> str:
    """Read what was named into a draft, by what it is. Return the project's directory."""
    from tilusbuild.intake import builds, kernel_tuner, libraries
    from tilusbuild.runtime.regular import read_text

    directory, name = os.path.split(what)
    text = read_text(what, "replace")
    if name.endswith(".py"):
        sets_up = "kernel_tuner" not in text and re.search(r"\bsetup\(", text)
        if name != "setup.py" and not sets_up:
            if output is not None:
                raise ValueError("-o is for builds; the manifest of a script is beside it")
            kernel_tuner.read(draft, directory, name, files)
            return directory
        found = builds.of_setup(draft, directory, name)
    elif name.endswith(".ninja"):
        found = builds.of_ninja(draft, directory, name)
    elif name.endswith(".mk") or "makefile" in name.lower():
        found = builds.of_make(directory, name)
    elif isinstance(entries := json.loads(text), list):
        found = builds.of_entries(draft, entries, directory)
    else:
        raise ValueError("it lists no commands; a T1 file is for space-file of a script")
    root = output or _root(directory, libraries.sources_of(found))
    draft.project = _project_of(root)
    libraries.read(draft, root, found)
    for each in filter(os.environ.get, _OF_THE_SHELL.split()):
        draft.note(f"left out: {each}={os.environ[each]}: no compile gets that from the shell")
    return root


def _root(directory: str, sources: list[str]) -> str:
    """Return the directory that holds what was named and its sources: one of the same repository,
    or the one that has a build directory."""
    from tilusbuild.intake.libraries import top_of
    from tilusbuild.runtime.regular import read_text
    from tilusbuild.runtime.where import is_within

    cache = os.path.join(directory, "CMakeCache.txt")
    if os.path.isfile(cache):
        text = read_text(cache, "replace")
        home = re.search(r"^CMAKE_HOME_DIRECTORY:\w+=(.+)$", text, re.MULTILINE)
        if home and os.path.isfile(os.path.join(home[1], "CMakeLists.txt")):
            return home[1]
    inside = [os.path.dirname(each) for each in sources if is_within(each, top_of(directory))]
    return os.path.commonpath([directory, *inside])


def _project_of(directory: str) -> str:
    from tilusbuild.intake.draft import name_of

    return name_of(os.path.basename(directory)).replace("_", "-")


def _report(arguments: ImportArgs, draft: Draft, manifest: str) -> None:
    from tilusbuild.report.text import format_count

    sources = sum(len(library.sources) for library in draft.libraries)
    kernels = len(draft.kernels)
    if arguments.json:
        emit_line(ImportedLine(manifest, sources, kernels, tuple(draft.notes)))
    elif arguments.stdout:
        print(manifest, end="")
    elif not arguments.quiet:
        what = format_count(kernels, "kernel") if kernels else format_count(sources, "source")
        print(f"{manifest}: {what}; next: tilusbuild build")
        for note in draft.notes:
            print(f"  {note}")


VERB = Verb(ImportArgs, run, (ImportedLine,))
