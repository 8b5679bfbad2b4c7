"""The names that files of a package may have, and the kinds of packages, which decide on roots.

Whoever reads or writes a package checks each name by `check_path` first. A name is refused if it
leads out of the package, is the same file as another name on some file system, or is shown
otherwise by a terminal.

A package of programs is the ordinary kind. Any other kind is recognised by its own key, the first
of the list, keeps its files below a root directory of its own, and has a list class of its own.
Optional rooms bring these kinds (`rooms.py`), which are imported when the first package of the kind
is met: packages of programs pay nothing for the others.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

from tilusbuild.cache import layout
from tilusbuild.package.errors import unsafe_name
from tilusbuild.rooms import find_contributions, import_value

LIST = "tilus-package.json"
ATTESTATIONS = "attestations"
SIGNATURE, PROVENANCE, SBOM = (
    f"{ATTESTATIONS}/signature.json",
    f"{ATTESTATIONS}/provenance.json",
    f"{ATTESTATIONS}/sbom.json",
)
BESIDE = (SIGNATURE, PROVENANCE, SBOM)
"""Files about the list, which are never in it."""

# The limits of Linux: a longer name could be listed and never written.
MAX_PATH = 4096
MAX_PART = 255


def check_path(path: str) -> None:
    """Raise `PackageError` unless a list may name this file: the path is relative, has no second
    spelling, and is below `scripts/NAME/HASH`, `programs/HASH`, `include/DIGEST`, `tests/HASH` or
    the root of another kind of package."""
    problem = _find_path_problem(path)
    if problem:
        raise unsafe_name(f"{path!r:.200} cannot name a file of a package: {problem}")


def check_paths(paths: Iterable[str]) -> None:
    """Raise `PackageError` for a path that `check_path` refuses, for two paths that differ only in
    case or in the Unicode form of a letter, and for a file that is also a directory of another."""
    path_by_folded: dict[str, str] = {}
    for path in paths:
        check_path(path)
        # On a disk that takes both for one name, the second file would overwrite the first, which
        # was checked.
        folded = fold_path(path)
        if folded in path_by_folded:
            raise unsafe_name(
                f"{path!r:.200} and {path_by_folded[folded]!r:.200} are one name on some disks"
            )
        path_by_folded[folded] = path
    directories: set[str] = set()
    for folded, path in path_by_folded.items():
        directory = folded.rpartition("/")[0]
        # The parents of a known directory are known, too.
        while directory and directory not in directories:
            if directory in path_by_folded:
                raise unsafe_name(f"{path!r:.200} would be in a directory that is a file")
            directories.add(directory)
            directory = directory.rpartition("/")[0]


def fold_path(path: str) -> str:
    """Return a key that is equal for names that are one file on some file systems."""
    if path.isascii():
        return path.lower()
    # Normalized before and after: `casefold` may return letters that are not normalized.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def split_root(path: str) -> tuple[str, str, str]:
    """Split a checked path: `scripts/NAME/HASH/…` gives ("scripts", NAME, HASH), `programs/HASH/…`
    gives ("programs", "", HASH). In another kind of package, the third value is the directory below
    the kind's root."""
    parts = path.split("/", 3)
    if parts[0] == layout.SCRIPTS:
        return parts[0], parts[1], parts[2]
    return parts[0], "", parts[1]


def _find_path_problem(path: str) -> str | None:
    """Return the reason why a path cannot name a file of a package; None if it can."""
    if len(path) > MAX_PATH or len(path.encode("utf-8", "surrogatepass")) > MAX_PATH:
        return f"longer than {MAX_PATH} bytes"
    # A terminal obeys control characters, and shows text in another order after some others.
    if not path.isprintable():
        return "it holds a character that cannot be printed"
    # On Windows a backslash separates, and zip tools there and here read names differently.
    if "\\" in path:
        return "it holds a backslash"
    if path.startswith("/"):
        return "it is absolute"
    parts = path.split("/")
    for part in parts:
        # `..` leads out of the package; an empty part or `.` is a second spelling of a name.
        if part in ("", ".", ".."):
            return f"it has a part {part!r}"
        if len(part.encode("utf-8", "surrogatepass")) > MAX_PART:
            return f"a part is longer than {MAX_PART} bytes"
    return _find_root_problem(parts)


def _find_root_problem(parts: list[str]) -> str | None:
    """Return the reason why a path of these parts is below no root of a package; None if it is."""
    root, *rest = parts
    list_class = find_list_class(root)
    if list_class is not None:
        problem: str | None = list_class.find_path_problem(rest)
        return problem
    other_roots = (layout.PROGRAMS, layout.INCLUDE, layout.TESTS)
    if root == layout.SCRIPTS:
        if len(rest) < 3 or not layout.is_script_directory(rest[0]):
            return "below scripts come a script's name, its hash and a file"
        rest = rest[1:]  # without the script's name, as below the other roots
    elif root not in other_roots:
        names = ", ".join(other_roots[:-1])
        return f"it is not below {layout.SCRIPTS}, {names} or {other_roots[-1]}"
    if len(rest) < 2 or not layout.is_hash(rest[0]):
        return "a file is below a directory that is named by 64 hex digits"
    return None


# The kinds.


def read_kind(encoded: bytes) -> str | None:
    """Return the kind of a package from its list, the bytes of a JSON object: a key of a
    "package kind" contribution, such as "adopted". None is a package of programs.
    """
    for key in find_contributions("package kind"):
        # The object begins with the key, which sorts before all keys that every list has.
        if encoded.startswith(b'{"%s":' % key.encode()):
            return key
    return None


def load_command(encoded: bytes) -> Any:
    """Return the module that installs the kind of package with this list; None for a package of
    programs. Its `install(reader, arguments)` returns an exit status."""
    key = read_kind(encoded)
    return None if key is None else import_value(find_contributions("package kind")[key][2])


def load_list_class(key: str) -> Any:
    """Return the subclass of `listing.FileList` that has a key."""
    return import_value(find_contributions("package kind")[key][1])


def find_list_class(root: str) -> Any:
    """Return the list class of the kind with the root directory `root`; None if no kind has it."""
    for key, (kind_root, _, _) in find_contributions("package kind").items():
        if kind_root == root:
            return load_list_class(key)
    return None
