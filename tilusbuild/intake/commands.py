"""Compile commands of another build system: what they say in the words of a manifest.

Commands that agree on everything but the source become one library. Each word is understood,
dropped because tilusbuild does that itself, or noted; none disappears.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tilusbuild.arch import UnknownArchError, parse_arch
from tilusbuild.expr import Value
from tilusbuild.intake.draft import Draft, LibraryDraft, name_of
from tilusbuild.intake.places import of_a_package
from tilusbuild.manifest.check_targets import flag_problems
from tilusbuild.manifest.sources import LANGUAGES

_VALUED = """
    -o -odir -x -ccbin --compiler-bindir -MF -MT -MQ -MJ -I -isystem -iquote -D -U -std --std
    -include -gencode --generate-code -arch --gpu-architecture -code -Xcompiler --compiler-options
    -Xptxas --ptxas-options -Xlinker -Xcudafe -Xfatbin -diag-suppress --diag-suppress -t --threads
    -l -L --dependency-output
"""
_WITH_VALUE = frozenset(_VALUED.split())
_OURS = re.compile(
    r"-(?:c|dc|fPIC|shared|pipe|MD|MMD|MP|M|g|march=.*|mtune=.*|cudart.*|forward-unknown.*)"
    r"|--(?:compile|shared|cudart.*|forward-unknown.*|generate-dependencies.*|device-c)|-x|-fopenmp"
)
"""What tilusbuild says itself, or what changes no code of a kernel."""

_EXTENSION = "TORCH_EXTENSION_NAME"
_OF_A_TOOLKIT = "crt/host_config.h"
"""A directory with this header is a toolkit's, which tilusbuild finds itself."""

_OURS_VALUED = """
    -o -odir -ccbin --compiler-bindir -x -code -t --threads -MF -MT -MQ -MJ --dependency-output
    -l -L
"""
_OURS_WITH_VALUE = frozenset(_OURS_VALUED.split())


@dataclass(slots=True)
class Arguments:
    """What one command says of its source."""

    include_dirs: list[str] = field(default_factory=list)
    defines: dict[str, Value] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    archs: list[str] = field(default_factory=list)
    ptx: bool = False
    std: str | None = None
    rdc: bool = False
    sources: list[str] = field(default_factory=list)

    @property
    def shared(self) -> object:
        """What commands of one library agree on."""
        return (self.include_dirs, sorted(self.defines.items(), key=str), self.flags, self.rdc)


def understood(words: Sequence[str], directory: str) -> Arguments:
    """Return what a compiler's arguments say; paths are absolute."""
    found = Arguments()
    rest = iter(words)
    for word in rest:
        name, value = word, ""
        if word in _WITH_VALUE:
            value = next(rest, "")
        elif match := re.fullmatch(r"(-(?:isystem|iquote|[IDUL]|l(?!ineinfo)))(.+)", word):
            name, value = match[1], match[2]
        elif word.startswith("-") and "=" in word and word.split("=")[0] in _WITH_VALUE:
            name, _, value = word.partition("=")
        _take(found, name, value, word, directory)
    return found


def _take(found: Arguments, name: str, value: str, word: str, directory: str) -> None:
    if name in ("-I", "-isystem", "-iquote"):
        path = os.path.normpath(os.path.join(directory, value))
        found.include_dirs += [path] if path not in found.include_dirs else []
    elif name in ("-D", "-U"):
        _take_macro(found, name, value)
    elif name in ("-gencode", "--generate-code", "-arch", "--gpu-architecture"):
        for arch in re.findall(r"(?:sm|compute)_[0-9]+[af]?", value):
            named = arch.replace("compute_", "sm_")
            found.archs += [named] if named not in found.archs else []
        found.ptx = found.ptx or bool(re.search(r"code=\[?(?:[^,]*,)*compute_", value))
    elif name in ("-std", "--std"):
        found.std = value.replace("gnu++", "c++")
    elif word in ("-rdc=true", "--relocatable-device-code=true", "-dc"):
        found.rdc = True
    elif not word.startswith("-"):
        if os.path.splitext(word)[1] in LANGUAGES:
            found.sources.append(os.path.normpath(os.path.join(directory, word)))
    elif name in ("-Xcompiler", "--compiler-options"):
        found.flags += [word for kept in _host(value) for word in ("-Xcompiler", kept)]
    elif not _OURS.fullmatch(word) and name not in _OURS_WITH_VALUE:
        kept = [word, value] if word == name and value else [word]
        found.flags += ["-Xcompiler", word] if _of_the_host(kept) else kept


def _take_macro(found: Arguments, name: str, value: str) -> None:
    macro, equals, text = value.partition("=")
    if name == "-D":
        found.defines[macro] = text if equals else True
    elif macro in found.defines:
        del found.defines[macro]
    else:
        found.flags.append(f"-U{macro}")


def _of_the_host(words: list[str]) -> bool:
    """Return whether a flag is the host compiler's: nvcc does not know it."""
    if len(words) > 1 or _pure(words):
        return False
    return _pure(words, cpu=True) and _pure(["-Xcompiler", *words])


def _pure(words: list[str], *, cpu: bool = False) -> bool:
    return not any(flag_problems(words, unsafe=False, cpu=cpu))


def _host(value: str) -> list[str]:
    """Return what the host compiler is told beyond what tilusbuild tells it."""
    words = [word for word in value.strip("'\"").split(",") if not _OURS.fullmatch(word)]
    return [",".join(words)] if words else []


def read(draft: Draft, root: str, commands: Iterator[tuple[str, Sequence[str]]]) -> None:
    """Add the libraries of (directory, arguments) to a draft; sources are below `root`."""
    groups: dict[str, tuple[Arguments, list[str]]] = {}
    for directory, words in commands:
        found = understood(words[1:], directory)
        for source in found.sources:
            name = os.path.relpath(source, root)
            if name.startswith(".."):
                draft.note(f"left out, because it is outside of the folder: {source}")
            elif not os.path.isfile(source):
                draft.note(f"left out, because it is not there (is it generated?): {name}")
            else:
                sources = groups.setdefault(repr(found.shared), (found, []))[1]
                sources += [name] if name not in sources else []
        _take_target(draft, found)
    for found, sources in groups.values():
        taken = [library.name for library in draft.libraries]
        name = name_of(str(found.defines.get(_EXTENSION, draft.project)), taken)
        library = LibraryDraft(name, sorted(sources), undefined=True)
        _fill(draft, root, library, found)
        draft.libraries.append(library)


def sources_of(commands: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the sources that commands compile, as absolute paths."""
    found = (understood(words[1:], directory) for directory, words in commands)
    return [source for each in found for source in each.sources]


def _take_target(draft: Draft, found: Arguments) -> None:
    draft.ptx = draft.ptx or found.ptx
    for arch in found.archs:
        try:
            parse_arch(arch)
        except UnknownArchError as error:
            draft.note(f"left out: {error}")
            continue
        if arch not in draft.archs:
            draft.archs.append(arch)
    if found.std is not None and found.std > (draft.std or ""):
        draft.std = found.std


def _fill(draft: Draft, root: str, library: LibraryDraft, found: Arguments) -> None:
    library.defines, library.rdc = found.defines, found.rdc
    for path in found.include_dirs:
        if not os.path.isdir(path):
            draft.note(f"left out, because it is not there: include directory {path}")
            continue
        if os.path.isfile(os.path.join(path, _OF_A_TOOLKIT)):
            continue
        relative = os.path.relpath(path, root)
        place: object = path if relative.startswith("..") else relative
        library.include_dirs.append(of_a_package(path) or place)
    library.flags = _checked(draft, found.flags)


def _checked(draft: Draft, flags: list[str]) -> list[str]:
    """Return the flags that a manifest may hold, and note the others."""
    hints = {number: hint for number, _, hint in flag_problems(flags, unsafe=False, cpu=False)}
    kept: list[str] = []
    number = 0
    while number < len(flags):
        # An option goes with its value: alone it would take the next word.
        end = number + 1 + (flags[number] in _WITH_VALUE)
        if hint := next((hints[each] for each in range(number, end) if each in hints), None):
            draft.note(f"flag left out: {' '.join(flags[number:end])} ({hint})")
        else:
            kept += flags[number:end]
        number = end
    return kept


def words_of(command: str) -> list[str]:
    """Return the words of a shell's command."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
