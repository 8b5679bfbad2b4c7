"""What each part of a plan depends on, and which parts a set of changes is about.

A part is the manifest, the tools, or one script for one target. A file counts by its content; of a
directory only the names in it count, and of those only the ones that the part asks for, so that
saving an unrelated file beside a template plans nothing again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from tilusbuild.manifest.names import PACKAGE
from tilusbuild.plan.instance import Inputs
from tilusbuild.render.closure import Root
from tilusbuild.runtime.where import is_within
from tilusbuild.state.patterns import PatternTooWideError, matching
from tilusbuild.toolchain import Toolchain

if TYPE_CHECKING:
    from tilusbuild.manifest.model import Manifest


MANIFEST = ("manifest",)
TOOLS = ("tools",)
REFERENCES = ("references",)

Part = tuple[str, ...]
"""`MANIFEST`, `TOOLS`, `REFERENCES`, or a script and a target."""

_EDITOR_TEMP_FILE = re.compile(
    r"""\..*\.sw[a-z]      # vim's swap files
    | .*~                  # backups
    | \d{4,5}              # vim tries whether it can write: 4913, 5036, ...
    | \.\#.* | \#.*\#      # Emacs' locks and autosaves
    | .*___jb_(?:tmp|old)___
    | \.goutputstream-.*
    | .*\.kate-swp
    | sed[A-Za-z0-9]{6}    # sed -i
    """,
    re.VERBOSE,
)


def is_editor_temp_file(name: str) -> bool:
    """Return whether a file's name is one that editors give to files of their own."""
    return _EDITOR_TEMP_FILE.fullmatch(name) is not None


class Change(Struct, frozen=True):
    """A path that is not what it was. `names` came to a directory or went from it; None for a file,
    and for what became a file or a directory."""

    path: str
    names: frozenset[str] | None = None


class Dependencies(Struct, frozen=True):
    """What a part depends on."""

    paths: frozenset[str] = frozenset()
    """Files and directories, also such that are not there yet."""
    names: frozenset[str] | None = None
    """What it asks for in the directories; None is anything."""

    def is_affected_by(self, change: Change) -> bool:
        """Return whether a change is about this part."""
        if change.path not in self.paths:
            return False
        if change.names is None or self.names is None:
            return True
        return not self.names.isdisjoint(change.names)


def affected(
    dependencies: Mapping[Part, Dependencies], changes: Mapping[str, Change]
) -> dict[Part, list[str]]:
    """Return the parts that changes are about, with the paths that make them so."""
    found: dict[Part, list[str]] = {}
    for part, each in dependencies.items():
        if why := [path for path, change in changes.items() if each.is_affected_by(change)]:
            found[part] = why
    return found


_TOOLS = frozenset((
    "nvcc", "g++", "gcc", "c++", "cc", "clang++", "clang", "ld", "as", "ptxas", "cicc",
    "fatbinary", "nvlink", "cudafe++",
))  # fmt: skip
_SOURCES = (".j2", ".jinja", ".cu", ".cuh", ".h", ".hpp", ".inl", ".toml", ".json", ".py")
MAX_PATHS = 10_000


def dependencies_of_part(
    manifest: Manifest,
    script: str,
    inputs: Inputs,
    roots: Sequence[Root],
) -> Dependencies:
    """Return what a script's programs rest on: templates, headers, and where those are sought."""
    owner = manifest.scripts[script]
    paths = set(inputs.paths)
    if not owner.template.startswith(PACKAGE):
        paths.add(os.path.join(manifest.root, owner.template))
    paths.update(manifest.data_of(script))
    paths.update(root.path for root in roots)
    paths.update(_directories_of(manifest.headers_for(script), roots))
    return Dependencies(frozenset(paths), inputs.names)


def _directories_of(patterns: Iterable[str], roots: Sequence[Root]) -> Iterator[str]:
    """Yield the directories in which a new file could match a pattern."""
    for pattern in patterns:
        for base in {root.path for root in roots} | {root.base for root in roots}:
            with suppress(PatternTooWideError):
                yield from matching(base, pattern).directories


def references(manifest: Manifest) -> Dependencies:
    """Return the Python references: no program rests on them, but what `--exec` runs may."""
    names = (script.tune.ref for script in manifest.scripts.values() if script.tune is not None)
    files = (name.rpartition(":")[0] for name in names if name is not None)
    return Dependencies(frozenset(os.path.join(manifest.root, name) for name in files))


def dependencies_of_tools(
    toolchains: Iterable[Toolchain], environment: Mapping[str, str]
) -> Dependencies:
    """Return the tools, and the directories where one that comes would be found before them."""
    directories = [
        directory for directory in environment.get("PATH", "").split(os.pathsep) if directory
    ]
    directories += [
        os.path.join(environment[name], "bin")
        for name in ("CUDA_HOME", "CUDA_PATH")
        if environment.get(name)
    ]
    witnesses = [path for each in toolchains for path in each.witnesses()]
    names = _TOOLS.union(map(os.path.basename, witnesses))  # g++-11, where one was asked for
    return Dependencies(frozenset((*witnesses, *directories)), names)


def project_files(root: str, cache: str) -> frozenset[str]:
    """Return all directories and sources of a project but hidden ones: what to watch while
    something is wrong and it is unknown what would mend it."""
    found: set[str] = set()
    for where, directories, files in os.walk(root):
        directories[:] = [
            name
            for name in directories
            if not name.startswith(".") and not is_within(os.path.join(where, name), cache)
        ]
        found.add(where)
        found.update(os.path.join(where, name) for name in files if name.endswith(_SOURCES))
        if len(found) > MAX_PATHS:
            break
    return frozenset(found)
