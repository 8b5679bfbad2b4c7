"""A folder of `.cu` files: which of them are sources, and where their headers are.

Includes are followed through the files of the folder, and the preprocessor, where there is one, is
asked about each source: it alone knows which conditions hold, also in the headers of packages. A
file that asks for a header which is nowhere is left out and noted, so that what remains compiles;
one of which a condition leaves nothing is noted with it, since its object would be empty.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from tilusbuild.expr import Value
from tilusbuild.intake.complaints import Preprocess, Preprocessed
from tilusbuild.intake.draft import ASSUMED_ARCH, Draft, LibraryDraft, name_of
from tilusbuild.intake.places import Places, files_below
from tilusbuild.process.machine import usable_cores
from tilusbuild.render.preprocessor import Include, scan
from tilusbuild.runtime.regular import read_text

_HOPPER = re.compile(r"\bwgmma\.|\bcp\.async\.bulk\b|\bsetmaxnreg\b|\bSM90_")
_BLACKWELL = re.compile(r"\btcgen05\.|\bSM100_")
_CONDITION = re.compile(
    r"^[ \t]*#[ \t]*(if(?:def|ndef)?[^\w\n].*?)[ \t]*(?://.*|/\*.*)?$", re.MULTILINE
)
_ASKS_FOR = re.compile(r"(?:ifdef\s+|if\s+defined\s*\(?\s*)(\w+)\s*\)?")
_MAIN = re.compile(r"^\s*(?:int|void)\s+main\s*\(", re.MULTILINE)
_MAX_DIRECTORIES = 64
_NAMED = 4
"""So many files are named that are left out for the same reason."""

_ByReason: TypeAlias = "dict[str, list[str]]"
_Verdict: TypeAlias = "tuple[str, Preprocessed]"
_AskAll: TypeAlias = "Callable[[list[str], list[list[str]]], Iterable[Preprocessed]]"
_Known: TypeAlias = "dict[str, list[tuple[Include, bool]]]"
"""What files include, and whether they always do."""


def read(
    draft: Draft,
    root: str,
    system: Sequence[str],
    preprocess: Preprocess | None = None,
    defines: Mapping[str, Value] | None = None,
) -> None:
    """Add the library of a folder's `.cu` files to a draft; `system` are the directories that the
    compilers search by themselves, `defines` the macros that it is compiled with."""
    places = Places(root, list(_usable(draft, root)), system)
    included: set[str] = set()
    known: _Known = {}
    sources: list[str] = []
    left_out: dict[str, list[str]] = {}
    for file in places.files:
        if not file.endswith(".cu"):
            continue
        if _MAIN.search(_text(root, file)):
            draft.note(f"left out: {file} is a program of its own (main)")
            continue
        try:
            reached = list(_reached(places, file, known))
        except LookupError as error:
            left_out.setdefault(error.args[0], []).append(file)
            continue
        included.update(reached)
        sources.append(file)
    for file in sorted(included.intersection(sources)):
        draft.note(f"not a source of its own, because another one includes it: {file}")
    sources = [file for file in sources if file not in included]
    empty: dict[str, list[str]] = {}
    if preprocess is not None:
        for file, (reason, found) in _judged(places, sources, preprocess).items():
            if reason:
                left_out.setdefault(reason, []).append(file)
                sources.remove(file)
            elif _is_nothing(found, root):
                empty.setdefault(_first_condition(_text(root, file)), []).append(file)
    _note(draft, left_out, empty)
    if not sources:
        draft.note("no .cu file is left to compile")
        return
    library = LibraryDraft(
        name_of(draft.project), sources, kind="static", defines=dict(defines or {})
    )
    library.flags = ["-O3"]  # nvcc leaves host code as it is without
    library.include_dirs = list(places.include_dirs())
    for note in places.notes():
        draft.note(note)
    draft.libraries.append(library)
    _guess_arch(draft, [_text(root, file) for file in (*sources, *included)])


def _usable(draft: Draft, root: str) -> Iterator[str]:
    """Yield the files of a folder that a manifest can name, and note the others."""
    for file in files_below(root):
        if not file.isprintable():
            draft.note(f"left out, because a manifest cannot have its name: {file}")
        elif not os.path.isfile(os.path.join(root, file)):
            draft.note(f"left out, because it is not a regular file that is there: {file}")
        else:
            yield file


def _note(draft: Draft, left_out: _ByReason, empty: _ByReason) -> None:
    for reason, files in left_out.items():
        draft.note(f"left out: {_some(files)}: {reason}")
    for condition, files in empty.items():
        if not condition:
            draft.note(f"nothing is left of {_some(files)}: no code of its own")
            continue
        asked = _ASKS_FOR.fullmatch(condition)
        define = f" (--define {asked[1]} makes it hold)" if asked else ""
        draft.note(f"nothing is left of {_some(files)}: #{condition} does not hold{define}")


def _some(files: Sequence[str]) -> str:
    more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    return f"{', '.join(files[:_NAMED])}{more}"


def _is_nothing(found: Preprocessed, root: str) -> bool:
    """Return whether no text of the folder is left, of the source or of what it includes."""
    below = os.path.join(root, "")
    return found.left is not None and not any(file.startswith(below) for file in found.left)


def _first_condition(text: str) -> str:
    """Return the first condition that is not an include guard's, without its `#`; "" where there
    is none."""
    found = _CONDITION.findall(text)
    return next((each for each in found if not each.startswith("ifndef")), "")


def _judged(places: Places, files: list[str], preprocess: Preprocess) -> dict[str, _Verdict]:
    """Return of each file why the preprocessor refuses it, and what it leaves of it. Directories
    that files need are taken."""
    found: dict[str, _Verdict] = {}
    pool = ThreadPoolExecutor(usable_cores())
    try:
        # The first one needs most of the directories that all need, so it goes alone.
        for pending in (files[:1], files[1:]):
            _judge_some(places, pending, lambda *given: pool.map(preprocess, *given), found)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return {file: found[file] for file in files}


def _judge_some(
    places: Places, pending: list[str], ask: _AskAll, found: dict[str, _Verdict]
) -> None:
    """Ask of all files at once, and again of those that need a directory which was not known: what
    is found is the same, however many are asked at a time."""
    for _ in range(_MAX_DIRECTORIES):
        known = places.directories()
        paths = [os.path.join(places.root, file) for file in pending]
        answers = list(zip(pending, ask(paths, [known] * len(pending)), strict=True))
        pending = []
        for file, answer in answers:
            if _is_missed(places, answer, known):
                pending.append(file)
            else:
                found[file] = (_refusal(places, file, answer), answer)
        if not pending:
            return
    for file in pending:
        reason = f"more than {_MAX_DIRECTORIES} include directories are needed"
        found[file] = (reason, Preprocessed())


def _is_missed(places: Places, answer: Preprocessed, known: Sequence[str]) -> bool:
    """Return whether a header was missed that is there, in a directory which is taken then."""
    complaint = answer.complaint
    if complaint is None or not complaint.missing:
        return False
    where = os.path.relpath(complaint.file, places.root)
    return places.take(complaint.missing, where) or places.directories() != known


def _refusal(places: Places, file: str, answer: Preprocessed) -> str:
    complaint = answer.complaint
    if complaint is None:
        return ""
    if not complaint.missing:
        return f"{places.name(complaint.file)}:{complaint.line}: {complaint.text}"
    where = os.path.relpath(complaint.file, places.root)
    asker = "" if where == file else f" (for {places.name(complaint.file)})"
    return f"{places.nowhere(complaint.missing)}{asker}"


def _guess_arch(draft: Draft, texts: Sequence[str]) -> None:
    for arch, words in (("sm_100a", _BLACKWELL), ("sm_90a", _HOPPER)):
        if any(words.search(text) for text in texts):
            draft.archs = [arch]
            draft.note(f"assumed, from instructions that it uses: arch {arch}")
            return
    draft.note(ASSUMED_ARCH)


def _reached(places: Places, source: str, known: _Known) -> Iterator[str]:
    """Yield the files of the folder that a source includes, however deep; `known` are what files
    include. Raises `LookupError`."""
    certain = {source: True}
    queue = [source]
    while queue:
        file = queue.pop()
        if file not in known:
            known[file] = _includes(_text(places.root, file))
        for include, always in known[file]:
            # What is included on a condition is often another platform's or library's, and so is
            # all that it includes itself.
            needed = always and certain[file]
            try:
                found = places.find(include, file)
            except LookupError:
                if needed:
                    raise
                continue
            if found is None:
                continue
            if found not in certain:
                yield found
            if needed > certain.get(found, -1):
                certain[found] = needed
                queue.append(found)


def _includes(text: str) -> list[tuple[Include, bool]]:
    """Return what a text includes; False: only on a condition, besides that of its own guard."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith("#")]
    guarded = len(lines) > 1 and re.match(r"\s*#\s*ifndef\b", lines[0]) is not None
    guarded = guarded and re.match(r"\s*#\s*define\b", lines[1]) is not None
    depth = 0
    always = []
    for line in lines:
        word = line.lstrip().removeprefix("#").lstrip()
        depth += word.startswith("if") - word.startswith("endif")
        if word.startswith("include") and depth <= guarded:
            always.append(word)
    named = "\n".join(always)
    return [(each, each.name in named) for each in scan(text).includes if each.name]


def _text(root: str, file: str) -> str:
    try:
        return read_text(os.path.join(root, file), "replace")
    except OSError:
        return ""
