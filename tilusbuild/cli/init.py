"""`tilusbuild init [DIR]`: a project that builds and runs, to start from. Overwrites nothing."""

from __future__ import annotations

import argparse
import os
import re


def configure(parser: argparse.ArgumentParser) -> None:
    """The folder is the only argument."""
    parser.add_argument("directory_to_make", metavar="DIR", nargs="?", default=".")


def run(arguments: argparse.Namespace) -> int:
    """Copy the starter project, named after its folder."""
    from tilusbuild.errors import input_error
    from tilusbuild.render import templates_folder
    from tilusbuild.state.files import write_atomic

    folder = os.path.abspath(arguments.directory_to_make)
    starter = os.path.join(templates_folder(), "starter")
    files = sorted(
        os.path.relpath(os.path.join(where, name), starter)
        for where, _, names in os.walk(starter)
        for name in names
    )
    targets = {name: os.path.join(folder, _target(name)) for name in files}
    if taken := [t for t in targets.values() if os.path.lexists(t) and not t.endswith("ignore")]:
        raise input_error(
            f"{os.path.relpath(taken[0])} is already there", hint="give an empty or a new folder"
        )
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(folder)).strip("-.") or "kernels"
    try:
        for source, target in targets.items():
            if os.path.lexists(target):
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(os.path.join(starter, source), "rb") as file:
                write_atomic(target, file.read().replace(b"@NAME@", name.encode()))
    except OSError as error:
        raise input_error(f"{error.filename or folder}: {error.strerror}") from None
    where = os.path.relpath(folder)
    inside = "" if where == "." else f" -C {where}"
    print(f"made {os.path.relpath(os.path.join(folder, 'tilus.toml'))}; next:")
    print(f"  tilusbuild build --target cpu{inside}")
    print(f"  tilusbuild run axpby --target cpu{inside}")
    return 0


def _target(name: str) -> str:
    """A dot file cannot be shipped under its own name without hiding from the packager."""
    return ".gitignore" if name == "gitignore" else name
