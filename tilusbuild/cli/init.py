"""`tilusbuild init [DIR]`: a project that builds and runs, to start from. Overwrites nothing."""

from __future__ import annotations

import os

from tilusbuild.cli.arguments import Common, Verb, optional
from tilusbuild.cli.options import emit_line
from tilusbuild.report.jsonl import declare_line
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.regular import read_bytes


class InitArgs(Common, frozen=True, kw_only=True):
    into: str | None = optional("DIR", help="the directory to create it in (default: .)")


CreatedLine = declare_line("created", directory=str, files=tuple[str, ...])
"""A project was created."""


def run(arguments: InitArgs) -> int:
    """Copy the starter project, and print the next commands. Return 0. Raises `InputError` for a
    file that exists, except for .gitignore, or that cannot be written."""
    from tilusbuild.errors import input_error
    from tilusbuild.render import find_templates_directory
    from tilusbuild.state.files import write_atomic

    directory = os.path.abspath(arguments.into or ".")
    starter = os.path.join(find_templates_directory(), "starter")
    files = sorted(
        os.path.relpath(os.path.join(folder, name), starter)
        for folder, _, names in os.walk(starter)
        for name in names
        if not folder.endswith("__pycache__")  # Python makes it when a starter file is imported
    )
    targets = {name: os.path.join(directory, _restore_dot(name)) for name in files}
    # A .gitignore may exist: it has the user's own lines, and stays as it is.
    new_paths = (path for path in targets.values() if not path.endswith(".gitignore"))
    existing = [path for path in new_paths if os.path.lexists(path)]
    if existing:
        raise input_error(
            f"{os.path.relpath(existing[0])} already exists",
            hint="name an empty or a new directory",
        )
    try:
        for source, target in targets.items():
            if os.path.lexists(target):
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            write_atomic(target, read_bytes(os.path.join(starter, source)))
    except OSError as error:
        raise input_error(f"{error.filename or directory}: {error.strerror}") from None
    if arguments.json:
        emit_line(CreatedLine(directory, tuple(sorted(map(_restore_dot, files)))))
    if arguments.json or arguments.quiet:
        return 0
    shown_path = os.path.relpath(directory)
    # A name that begins with "-" would be taken for an option.
    shown_path = f"./{shown_path}" if shown_path.startswith("-") else shown_path
    directory_option = () if shown_path == "." else ("-C", shown_path)
    print(f"created {os.path.relpath(os.path.join(directory, 'tilus.toml'))}; next:")
    for command in (("build",), ("run", "axpby")):
        print(f"  {format_command(*command, '--target', 'cpu', *directory_option)}")
    return 0


def _restore_dot(name: str) -> str:
    """Return a starter file's name in the project. Packagers leave out dot files."""
    return ".gitignore" if name == "gitignore" else name


VERB = Verb(InitArgs, run, (CreatedLine,))
