"""Where headers are: of a folder, of the machine, and of the installed Python packages.

What is asked for decides which directories a manifest names: each is one that a source needs, in
the order in which the first source needed it.
"""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from tilusbuild.render.preprocessor import Include

_SKIPPED = frozenset({"build", "dist", "node_modules", "__pycache__", "CMakeFiles"})
_MAX_DEPTH = 4
"""So many directories of a Python package stand before the name of a header, at most, unless the
name begins with the package's."""
_MAX_ABOVE = 3
_TOP = (".git", "setup.py", "pyproject.toml", "CMakeLists.txt")
"""A directory above with one of these is of the same project."""
_BESIDE = ("", "include/", "*/", "*/include/", "*/*/include/")
_GENERATED_FROM = (".in", ".cmake", ".jinja", ".j2", ".tmpl", ".template")


def files_below(root: str) -> list[str]:
    """Return the files of a folder by their names in it, without what builds leave."""
    found = []
    for where, directories, names in os.walk(root):
        directories[:] = sorted(
            each for each in directories if each not in _SKIPPED and not each.startswith(".")
        )
        found += [os.path.relpath(os.path.join(where, name), root) for name in sorted(names)]
    return found


def _by_name(files: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in files:
        found.setdefault(os.path.basename(file), []).append(file)
    return found


def _ending(index: dict[str, list[str]], name: str) -> list[str]:
    """Return the files whose path ends in `name`, with a directory before it or none."""
    parts = os.path.normpath(name).split("/")
    return [file for file in index.get(parts[-1], ()) if file.split("/")[-len(parts) :] == parts]


class Places(Struct):
    """Where headers are, as far as it was asked."""

    root: str
    files: Sequence[str]
    system: Sequence[str]
    roots: list[str] = field(default_factory=list)
    """Directories of the folder that sources need, in the order in which they were found."""
    outside: list[str] = field(default_factory=list)
    """Directories of the project that the folder is a part of."""
    packages: list[tuple[str, str]] = field(default_factory=list)
    """Packages, and the directories in them that sources need."""
    machine: list[str] = field(default_factory=list)
    """Other directories of this machine."""
    _index: dict[str, list[str]] = field(default_factory=dict)
    _known: dict[str, bool] = field(default_factory=dict)
    _compilers: dict[str, bool] = field(default_factory=dict)
    _packages: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index = _by_name(self.files)

    def include_dirs(self) -> Iterator[object]:
        """Yield `include-dirs` as a manifest has them."""
        yield from self.roots
        yield from self.outside
        yield from ({"package": package, "path": path} for package, path in self.packages)
        yield from self.machine

    def notes(self) -> Iterator[str]:
        """Yield what a person has to know of them."""
        for directory in self.outside:
            yield f"a directory outside of the folder: {directory}"
        for directory in self.machine:
            yield f"a directory of this machine, which others may have elsewhere: {directory}"

    def directories(self) -> list[str]:
        """Return the directories that a compiler is given, absolute, in the same order."""
        own = [os.path.normpath(os.path.join(self.root, each)) for each in self._own()]
        of_packages = [
            found
            for package, path in self.packages
            for site in _sites()
            if os.path.isdir(found := os.path.join(site, package, path))
        ]
        return [*own, *of_packages, *self.machine]

    def _own(self) -> list[str]:
        return [*self.roots, *self.outside]

    def find(self, include: Include, includer: str) -> str | None:
        """Return the file of the folder that an include means; None for one of elsewhere. Raises
        `LookupError` for one that is nowhere."""
        beside = os.path.normpath(os.path.join(os.path.dirname(includer), include.name))
        if include.quoted and os.path.isfile(os.path.join(self.root, beside)):
            if beside.startswith(".."):
                raise LookupError(f"{include.name} is outside of the folder")
            return beside
        for directory in self.roots:
            path = os.path.normpath(os.path.join(directory, include.name))
            if path != includer and os.path.isfile(os.path.join(self.root, path)):
                return path
        # Of the compilers' own headers the folder's namesakes, often in a directory that no one
        # names (`ours/utils/cuda.h`), would hide those that they are named like.
        if self._of_compilers(include.name):
            return None
        if not include.quoted and self._outside(include.name):
            return None
        if found := self._in_folder(include.name, includer):
            return found
        if self._outside(include.name):
            return None
        raise LookupError(self.nowhere(include.name))

    def take(self, name: str, includer: str) -> bool:
        """Take the directory of a header that the preprocessor did not find; False if there is
        none."""
        before = len(list(self.include_dirs()))
        self._known.pop(name, None)
        if not self._in_folder(name, includer) and not self._of_the_project(name):
            self._in_package(name)
        return before != len(list(self.include_dirs()))

    def name(self, path: str) -> str:
        """Return a file's name in the folder, or in the package that it is of."""
        for directory in (self.root, *_sites()):
            relative = os.path.relpath(path, directory)
            if not relative.startswith(".."):
                return relative
        return path

    def nowhere(self, name: str) -> str:
        """Return what is known of a header that is not there."""
        for suffix in _GENERATED_FROM:
            if found := _ending(self._index, name + suffix):
                return f"{name} is missing, which its own build makes of {found[0]}"
        return f"{name} is nowhere"

    def _in_folder(self, name: str, includer: str) -> str | None:
        """Return the nearest file whose path ends in `name`, and take its directory."""
        # A header that wraps another of its name does not mean itself.
        ends = [file for file in _ending(self._index, name) if file != includer]
        if not ends:
            return None
        near = max(ends, key=lambda file: (_shared(file, includer), -len(file)))
        directory = _before(near, name)
        self.roots += [directory] if directory not in self.roots else []
        return near

    def _of_the_project(self, name: str) -> bool:
        """Search the directories above, as far as the project goes, and what is beside them."""
        for above in _above(self.root):
            for beside in _BESIDE:
                home = os.path.join(self.root, above)
                for found in sorted(glob.glob(beside + glob.escape(name), root_dir=home)):
                    directory = os.path.normpath(os.path.join(above, _before(found, name)))
                    self.outside += [directory] if directory not in self.outside else []
                    return True
        return False

    def _outside(self, name: str) -> bool:
        if name not in self._known:
            there = self._of_compilers(name)
            # What a project has of its own is meant, also where a package has it as well.
            own = not there and not _ending(self._index, name) and self._of_the_project(name)
            self._known[name] = there or own or self._in_package(name)
        return self._known[name]

    def _of_compilers(self, name: str) -> bool:
        if name not in self._compilers:
            there = any(os.path.isfile(os.path.join(each, name)) for each in self.system)
            self._compilers[name] = there
        return self._compilers[name]

    def _in_package(self, name: str) -> bool:
        for package, path in self.packages:
            if any(os.path.isfile(f"{site}/{package}/{path}/{name}") for site in sys.path):
                return True
        return self._shallow(name) or self._deep(name) or self._of_python(name)

    def _shallow(self, name: str) -> bool:
        for site in _sites():
            for depth in range(1, _MAX_DEPTH):
                pattern = "/".join(["*"] * depth)
                for found in sorted(glob.glob(f"{pattern}/{glob.escape(name)}", root_dir=site)):
                    package, _, path = found.removesuffix("/" + name).partition("/")
                    if package.isidentifier() and path:
                        self.packages.append((package, path))
                        return True
        return False

    def _deep(self, name: str) -> bool:
        """Search the whole of those packages that the name begins with, or that are used."""
        candidates = [name.partition("/")[0], *(package for package, _ in self.packages)]
        for package in dict.fromkeys(candidates):
            for site in _sites():
                home = os.path.join(site, package)
                if not package.isidentifier() or not os.path.isdir(home):
                    continue
                if home not in self._packages:
                    names = [name for name in files_below(home) if name.isprintable()]
                    self._packages[home] = _by_name(names)
                if ends := _ending(self._packages[home], name):
                    path = _before(min(ends, key=len), name)
                    if path != ".":
                        self.packages.append((package, path))
                        return True
        return False

    def _of_python(self, name: str) -> bool:
        directory = sysconfig.get_path("include")
        if directory in self.machine or not os.path.isfile(os.path.join(directory, name)):
            return False
        self.machine.append(directory)
        return True


def _sites() -> list[str]:
    return [site for site in sys.path if site.endswith("-packages")]


def of_a_package(path: str) -> dict[str, str] | None:
    """Return a directory as `include-dirs` has it, if an installed package holds it."""
    for site in _sites():
        package, _, inside = os.path.relpath(path, site).partition("/")
        if package.isidentifier() and inside:
            return {"package": package, "path": inside}
    return None


def _above(folder: str) -> list[str]:
    """Return the directories above a folder, relative to it, that are of the same project."""
    ways = ["/".join([".."] * number) for number in range(1, _MAX_ABOVE + 1)]
    tops = [
        number
        for number, way in enumerate(ways, 1)
        if any(os.path.exists(os.path.join(folder, way, each)) for each in _TOP)
    ]
    return ways[: max(tops, default=0)]


def _before(file: str, name: str) -> str:
    """Return the directory from which `name` reaches a file that ends in it."""
    return "/".join(file.split("/")[: -len(os.path.normpath(name).split("/"))]) or "."


def _shared(file: str, other: str) -> int:
    """Return how many directories two files have in common."""
    return len(os.path.commonpath(["/" + file, "/" + other]).split("/"))
