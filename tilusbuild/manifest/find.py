"""Finding the manifest, and the git repository that it is in, from a directory upwards.

Imports nothing heavy: a build with nothing to do comes through here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tilusbuild.errors import input_error

MANIFEST_NAME = "tilus.toml"


def find(start: str) -> str:
    """Return the absolute path of the nearest `tilus.toml` in `start` or above it.

    Looks no higher than the root of the git repository that holds `start`. Raises `InputError`
    that names the directories looked in.
    """
    looked = []
    for directory in _upwards(start):
        candidate = os.path.join(directory, MANIFEST_NAME)
        if os.path.lexists(candidate):
            return candidate
        looked.append(directory)
        if _is_git_root(directory):
            break
    raise input_error(
        f"no {MANIFEST_NAME} here or above",
        hint="searched in:\n"
        + "".join(f"  {directory}\n" for directory in looked)
        + "`tilusbuild init` makes a project to start from; -C DIR runs elsewhere",
    )


def git_root(start: str) -> str | None:
    """Return the top directory of the git repository (or worktree) that holds `start`; None outside
    one."""
    return next((directory for directory in _upwards(start) if _is_git_root(directory)), None)


def _is_git_root(directory: str) -> bool:
    # A directory in a clone, a file in a worktree or a submodule.
    return os.path.exists(os.path.join(directory, ".git"))


def _upwards(start: str) -> Iterator[str]:
    directory = os.path.abspath(start)
    while True:
        yield directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return
        directory = parent
