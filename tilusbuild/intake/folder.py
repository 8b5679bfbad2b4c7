"""A folder of `.cu` files: which of them are sources, and where their headers are.

Includes are followed through the files of the folder, the toolkit's and the system's, and what the
installed Python packages hold. A file that asks for a header which is nowhere is left out and
noted, so that what remains compiles.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tilusbuild.intake.draft import Draft, LibraryDraft, name_of
from tilusbuild.render.preprocessor import Include, scan
from tilusbuild.runtime.regular import read_text

_SKIPPED = frozenset({"build", "dist", "node_modules", "__pycache__", "CMakeFiles"})
_HOPPER = re.compile(r"\bwgmma\.|\bcp\.async\.bulk\b|\bsetmaxnreg\b|\bSM90_")
_BLACKWELL = re.compile(r"\btcgen05\.|\bSM100_")
_MAIN = re.compile(r"^\s*(?:int|void)\s+main\s*\(", re.MULTILINE)
_MAX_DEPTH = 4
"""So many directories of a Python package stand before the name of a header, at most."""


def files_below(root: str) -> list[str]:
    """Return the files of a folder by their names in it, without what builds leave."""
    found = []
    for where, directories, names in os.walk(root):
        directories[:] = sorted(
            each for each in directories if each not in _SKIPPED and not each.startswith(".")
        )
        found += [os.path.relpath(os.path.join(where, name), root) for name in sorted(names)]
    return [name for name in found if name.isprintable()]  # others cannot be written down


@dataclass(slots=True)
class Places:
    """Where headers are: of the folder, of the machine, and of Python packages."""

    root: str
    files: Sequence[str]
    system: Sequence[str]
    roots: list[str] = field(default_factory=list)
    """Directories of the folder that sources need, in the order in which they were found."""
    packages: list[tuple[str, str]] = field(default_factory=list)
    _by_name: dict[str, list[str]] = field(default_factory=dict)
    _known: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for file in self.files:
            self._by_name.setdefault(os.path.basename(file), []).append(file)

    def find(self, include: Include, includer: str) -> str | None:
        """Return the file of the folder that an include means; None for one of elsewhere. Raises
        `LookupError` for one that is nowhere."""
        beside = os.path.normpath(os.path.join(os.path.dirname(includer), include.name))
        if include.quoted and os.path.isfile(os.path.join(self.root, beside)):
            if beside.startswith(".."):
                raise LookupError(f"{include.name}, which is outside of the folder")
            return beside
        for directory in self.roots:
            path = os.path.normpath(os.path.join(directory, include.name))
            if os.path.isfile(os.path.join(self.root, path)):
                return path
        if not include.quoted and self._outside(include.name):
            return None
        if found := self._in_folder(include.name, includer):
            return found
        if self._outside(include.name):
            return None
        raise LookupError(f"{include.name}, which is nowhere")

    def _in_folder(self, name: str, includer: str) -> str | None:
        """Return the nearest file whose path ends in `name`, and take its directory."""
        parts = os.path.normpath(name).split("/")
        ends = [
            file
            for file in self._by_name.get(parts[-1], ())
            if file.split("/")[-len(parts) :] == parts
        ]
        if not ends:
            return None
        near = max(ends, key=lambda file: (_shared(file, includer), -len(file)))
        directory = "/".join(near.split("/")[: -len(parts)]) or "."
        self.roots += [directory] if directory not in self.roots else []
        return near

    def _outside(self, name: str) -> bool:
        if name not in self._known:
            there = any(os.path.isfile(os.path.join(each, name)) for each in self.system)
            self._known[name] = there or self._in_package(name)
        return self._known[name]

    def _in_package(self, name: str) -> bool:
        for package, path in self.packages:
            if any(os.path.isfile(f"{site}/{package}/{path}/{name}") for site in sys.path):
                return True
        for site in sys.path:
            if not site.endswith("-packages"):
                continue
            for depth in range(1, _MAX_DEPTH):
                pattern = "/".join(["*"] * depth)
                for found in sorted(glob.glob(f"{pattern}/{glob.escape(name)}", root_dir=site)):
                    package, _, path = found.removesuffix("/" + name).partition("/")
                    if package.isidentifier() and path:
                        self.packages.append((package, path))
                        return True
        return False


def _shared(file: str, other: str) -> int:
    """Return how many directories two files have in common."""
    return len(os.path.commonpath(["/" + file, "/" + other]).split("/"))


def read(draft: Draft, root: str, system: Sequence[str]) -> None:
    """Add the library of a folder's `.cu` files to a draft; `system` are the directories that the
    compilers search by themselves."""
    places = Places(root, files_below(root), system)
    included: set[str] = set()
    sources: list[str] = []
    for file in places.files:
        if not file.endswith(".cu"):
            continue
        try:
            reached = list(_reached(places, file))
        except LookupError as error:
            draft.note(f"left out: {file} includes {error.args[0]}")
            continue
        if _MAIN.search(_text(root, file)):
            draft.note(f"left out: {file} is a program of its own (main)")
            continue
        included.update(reached)
        sources.append(file)
    for file in sorted(included.intersection(sources)):
        draft.note(f"not a source of its own, because another one includes it: {file}")
    sources = [file for file in sources if file not in included]
    if not sources:
        draft.note("no .cu file is left to compile")
        return
    library = LibraryDraft(name_of(draft.project), sources, kind="static")
    library.include_dirs = [*places.roots]
    library.include_dirs += [{"package": p, "path": path} for p, path in places.packages]
    draft.libraries.append(library)
    _guess_arch(draft, [_text(root, file) for file in (*sources, *included)])


def _guess_arch(draft: Draft, texts: Sequence[str]) -> None:
    for arch, words in (("sm_100a", _BLACKWELL), ("sm_90a", _HOPPER)):
        if any(words.search(text) for text in texts):
            draft.archs = [arch]
            draft.note(f"assumed, from instructions that it uses: arch {arch}")
            return
    draft.note("assumed, because nothing says what to compile for: arch sm_80")


def _reached(places: Places, source: str) -> Iterator[str]:
    """Yield the files of the folder that a source includes, however deep. Raises `LookupError`."""
    seen, queue = {source}, [source]
    while queue:
        file = queue.pop()
        for include in scan(_text(places.root, file)).includes:
            if not include.name:
                continue
            try:
                found = places.find(include, file)
            except LookupError:
                # What is included on a condition is often another platform's or library's.
                if not _on_condition(_text(places.root, file), include.name):
                    raise
                continue
            if found is not None and found not in seen:
                seen.add(found)
                queue.append(found)
                yield found


def _on_condition(text: str, name: str) -> bool:
    """Return whether a file includes a name on a condition, besides that of its own guard."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith("#")]
    guarded = len(lines) > 1 and re.match(r"\s*#\s*ifndef\b", lines[0]) is not None
    guarded = guarded and re.match(r"\s*#\s*define\b", lines[1]) is not None
    depth = 0
    for line in lines:
        word = line.lstrip().removeprefix("#").lstrip()
        depth += word.startswith("if") - word.startswith("endif")
        if word.startswith("include") and name in word and depth <= guarded:
            return False
    return True


def _text(root: str, file: str) -> str:
    try:
        return read_text(os.path.join(root, file), "replace")
    except OSError:
        return ""
