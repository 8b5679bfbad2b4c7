"""Compile commands of another build system: what they say in the words of a manifest.

Commands that agree on everything but the source become one library. Each word is understood,
dropped because tilusbuild does that itself, or noted; none disappears. Files of options are read in
their place, as the compilers do it: a value is often only there.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from tilusbuild.arch import ArchError, parse_arch
from tilusbuild.expr import Value
from tilusbuild.intake.draft import (
    ASSUMED_ARCH,
    STANDARDS,
    Draft,
    LibraryDraft,
    name_of,
    standard,
)
from tilusbuild.manifest import pure_flags
from tilusbuild.manifest.check_targets import flag_problems
from tilusbuild.manifest.library import LANGUAGES
from tilusbuild.manifest.names import IDENTIFIER
from tilusbuild.runtime.regular import read_text

_LONG_TEXT = """
    --include-path -I  --system-include -isystem  --define-macro -D  --undefine-macro -U
    --pre-include -include  --gpu-architecture -arch  --gpu-code -code  --generate-code -gencode
    --std -std  --compiler-options -Xcompiler  --ptxas-options -Xptxas  --output-file -o
    --output-directory -odir  --compiler-bindir -ccbin  --library -l  --library-path -L
    --threads -t  --dependency-output -MF  --options-file -optf
    --cuda-gpu-arch -arch  --offload-arch -arch  --cuda-path -ccbin
"""
_LONG = dict(zip(*[iter(_LONG_TEXT.split())] * 2, strict=True))
"""The long names of nvcc's options, and those of clang that say the same."""

_VALUED_TEXT = """
    -o -odir -x -ccbin -MF -MT -MQ -MJ -I -isystem -iquote -D -U -std -include -gencode -arch
    -code -Xcompiler -Xptxas -Xlinker -Xcudafe -Xfatbin -diag-suppress --diag-suppress -t -l -L
    -optf
"""
_VALUED = frozenset(_VALUED_TEXT.split())
_JOINED = re.compile(r"(-(?:isystem|iquote|[IDULx]|l(?!ineinfo)))=?(.+)")
_MAX_WORDS = 100_000


class Option(Struct, frozen=True):
    """One option of a command, or one word that is not an option."""

    name: str
    """The short one, where there is a long one too; the word itself, of what is not an option."""
    value: str
    written: tuple[str, ...]


class _Words(Struct):
    """The words of a command, with those of the files that it names in their place."""

    directory: str
    unread: list[str]
    count: int = 0
    open: list[str] = field(default_factory=list)

    def all(self, words: Sequence[str]) -> Iterator[str]:
        rest = iter(words)
        for word in rest:
            self.count += 1
            if self.count > _MAX_WORDS:
                raise ValueError(f"a command has more than {_MAX_WORDS:,} words")
            name, equals, value = word.partition("=")
            if word.startswith("@") and len(word) > 1:
                yield from self._file(word, word[1:])
            elif _LONG.get(name, name) == "-optf":
                for path in (value if equals else next(rest, "")).split(","):
                    yield from self._file(f"{name} {path}", path)
            else:
                yield word

    def _file(self, written: str, name: str) -> Iterator[str]:
        path = os.path.join(self.directory, name)
        try:
            # A file that names itself has no end.
            words = None if path in self.open else words_of(read_text(path, "replace"))
        except OSError:
            words = None
        if words is None:
            self.unread.append(written)
            return
        self.open.append(path)
        yield from self.all(words)
        self.open.pop()


def options(words: Sequence[str], directory: str, unread: list[str]) -> Iterator[Option]:
    """Yield the options of a compiler's arguments; `unread` takes the files of options that cannot
    be read. Raises `ValueError`."""
    rest = list(_Words(directory, unread).all(words))
    at = 0
    while at < len(rest):
        word = rest[at]
        end = at + 1 + has_value(rest, at)
        if end == at + 2:
            yield Option(_LONG.get(word, word), rest[at + 1], (word, rest[at + 1]))
        else:
            yield _alone(word)
        at = end


def _alone(word: str) -> Option:
    name, equals, value = word.partition("=")
    short = _LONG.get(name, name)
    if equals and name.startswith("-") and short in _VALUED:
        return Option(short, value, (word,))
    if match := _JOINED.fullmatch(word):
        return Option(match[1], match[2], (word,))
    return Option(_LONG.get(word, word), "", (word,))


def has_value(words: Sequence[str], at: int) -> bool:
    """Return whether the next word is the value of the one at an index."""
    if at + 1 >= len(words):
        return False
    word, following = words[at], words[at + 1]
    if _LONG.get(word, word) in _VALUED:
        return True
    # gcc has flags of the same names without a value: -Werror.
    is_source = os.path.splitext(following)[1] in LANGUAGES
    return pure_flags.takes_value(word) and not following.startswith("-") and not is_source


def words_of(command: str) -> list[str]:
    """Return the words of a shell's command."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


_OURS = re.compile(
    r"-(?:c|dc|fPIC|shared|pipe|MD|MMD|MP|M|g|march=.*|mtune=.*|cudart.*|forward-unknown.*)"
    r"|--(?:compile|shared|cudart.*|forward-unknown.*|generate-dependencies.*|device-c)"
)
"""What tilusbuild says itself, or what changes no code of a kernel."""

_EXTENSION = "TORCH_EXTENSION_NAME"
_OF_A_TOOLKIT = "crt/host_config.h"
"""A directory with this header is a toolkit's, which tilusbuild finds itself."""

_OURS_WITH_VALUE = frozenset(
    ["-o", "-odir", "-ccbin", "-t", "-MF", "-MT", "-MQ", "-MJ", "-l", "-L"]
)
_COMPILES = ("-c", "-dc", "--compile", "--device-c")
_RDC = ("-rdc", "--relocatable-device-code")
_ARCH = re.compile(r"(sm|compute)_([0-9]+[af]?)")
_LANGUAGES = {"cuda": "cu", "cu": "cu", "c++": "c++", "c": "c"}
"""What `-x` names, as `LANGUAGES` has it."""


class Arguments(Struct):
    """What one command says of its source."""

    include_dirs: list[str] = field(default_factory=list)
    defines: dict[str, Value] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    arch_names: list[str] = field(default_factory=list)
    """As `-arch` has them; `codes` take precedence."""
    codes: list[str] = field(default_factory=list)
    std: str | None = None
    rdc: bool = False
    language: str | None = None
    compiles: bool = False
    sources: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Words that are neither options nor sources."""
    unread: list[str] = field(default_factory=list)
    """Files of options that cannot be read."""

    @property
    def shared(self) -> object:
        """What commands of one library agree on."""
        return (self.include_dirs, sorted(self.defines.items(), key=str), self.flags, self.rdc)

    @property
    def archs(self) -> list[str]:
        """The architectures that code is made for."""
        named = [f"sm_{each[1]}" for word in self._code_names() for each in _ARCH.findall(word)]
        return list(dict.fromkeys(named))

    @property
    def ptx(self) -> bool:
        """Whether PTX is kept; `-arch` alone keeps it."""
        named = " ".join(self._code_names())
        return "compute_" in named or (not self.codes and bool(self.archs))

    def _code_names(self) -> list[str]:
        return self.codes or self.arch_names


def understood(words: Sequence[str], directory: str) -> Arguments:
    """Return what a compiler's arguments say; paths are absolute. Raises `ValueError`."""
    found = Arguments()
    for option in options(words, directory, found.unread):
        _take(found, option, directory)
    return found


def _take(found: Arguments, option: Option, directory: str) -> None:
    name, value, written = option.name, option.value, option.written
    found.compiles = found.compiles or name in _COMPILES
    if name in ("-I", "-isystem", "-iquote"):
        path = os.path.normpath(os.path.join(directory, value))
        found.include_dirs += [path] if path not in found.include_dirs else []
    elif name in ("-D", "-U"):
        _take_macro(found, name, value)
    elif name == "-gencode":
        found.codes.append(value.partition("code=")[2] or value)
    elif name == "-code":
        found.codes.append(value)
    elif name == "-arch":
        found.arch_names.append(value)
    elif name == "-std":
        found.std = value
    elif name == "-x":
        found.language = value
    elif written in (("-dc",), ("--device-c",)) or (written[0].partition("=")[0] in _RDC):
        found.rdc = not written[-1].endswith("false")
    elif not name.startswith("-"):
        is_source = os.path.splitext(name)[1] in LANGUAGES
        path = os.path.normpath(os.path.join(directory, name))
        (found.sources if is_source else found.others).append(path)
    elif name == "-Xcompiler":
        found.flags += [word for kept in _host(value) for word in ("-Xcompiler", kept)]
    elif not _OURS.fullmatch(written[0]) and name not in _OURS_WITH_VALUE:
        kept = list(written)
        found.flags += ["-Xcompiler", *kept] if _of_the_host(kept) else kept


def _take_macro(found: Arguments, name: str, value: str) -> None:
    macro, equals, text = value.partition("=")
    if not IDENTIFIER.fullmatch(macro):
        found.flags.append(f"{name}{value}")  # one with parameters
    elif name == "-D":
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
    """Return what the host compiler gets beyond what tilusbuild passes."""
    # nvcc's shell takes a value apart at blanks, nvcc itself at commas.
    words = re.split(r"[\s,]+", value.strip("'\" "))
    kept = [word for word in words if word and not _OURS.fullmatch(word)]
    return [",".join(kept)] if kept else []


def read(draft: Draft, root: str, commands: Iterator[tuple[str, Sequence[str]]]) -> None:
    """Add the libraries of (directory, arguments) to a draft; sources are below `root`. Raises
    `ValueError`."""
    groups: dict[str, tuple[Arguments, list[str]]] = {}
    standards: list[str] = []
    for directory, words in commands:
        found = understood(words[1:], directory)
        _note(draft, root, found)
        for name in _sources(draft, root, found):
            sources = groups.setdefault(repr(found.shared), (found, []))[1]
            sources += [name] if name not in sources else []
        _take_archs(draft, found)
        standards += [found.std] if found.std is not None else []
    _take_standards(draft, standards)
    # PTX of sm_90a runs on nothing that its code does not run on.
    draft.ptx = draft.ptx and any(arch[-1].isdigit() for arch in draft.archs)
    for found, sources in groups.values():
        taken = [library.name for library in draft.libraries]
        name = name_of(str(found.defines.get(_EXTENSION, draft.project)), taken)
        library = LibraryDraft(name, sorted(sources))
        _fill(draft, root, library, found)
        draft.libraries.append(library)
    is_cuda = any(name.endswith(".cu") for _, sources in groups.values() for name in sources)
    if is_cuda and not draft.archs:
        draft.note(ASSUMED_ARCH)


def _note(draft: Draft, root: str, found: Arguments) -> None:
    for name in found.unread:
        draft.note(f"left out, because its file cannot be read: {name}")
    if found.compiles and not found.sources and found.others:
        name = os.path.relpath(found.others[-1], root)
        draft.note(f"left out, because it is not a {', '.join(LANGUAGES)}: {name}")


def _sources(draft: Draft, root: str, found: Arguments) -> Iterator[str]:
    """Yield the sources of a command that can be in a library, relative to `root`."""
    for source in found.sources:
        name = os.path.relpath(source, root)
        suffix = os.path.splitext(name)[1]
        language = found.language and _LANGUAGES.get(found.language)
        if name.startswith(".."):
            draft.note(f"left out, because it is outside of the folder: {source}")
        elif not os.path.isfile(source):
            draft.note(f"left out, because it does not exist (is it generated?): {name}")
        elif language and language != LANGUAGES[suffix]:
            said = next(each for each in LANGUAGES if LANGUAGES[each] == language)
            draft.note(
                f"left out, because the other build compiles it as {said} (-x {found.language}), "
                f"and here the suffix decides: {name}"
            )
        else:
            yield name


def sources_of(commands: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the sources that commands compile, as absolute paths. Raises `ValueError`."""
    found = (understood(words[1:], directory) for directory, words in commands)
    return [source for each in found for source in each.sources]


def _take_archs(draft: Draft, found: Arguments) -> None:
    draft.ptx = draft.ptx or found.ptx
    for name in found.arch_names:
        if not _ARCH.search(name):
            draft.note(f"left out, because it names no architecture: -arch={name}")
    for arch in found.archs:
        try:
            parse_arch(arch)
        except ArchError as error:
            draft.note(f"left out: {error}")
            continue
        if arch not in draft.archs:
            draft.archs.append(arch)


def _take_standards(draft: Draft, standards: Sequence[str]) -> None:
    """Take the newest standard of C++, since a manifest has one for all sources."""
    known: list[str] = []
    for written in dict.fromkeys(standards):
        std = standard(written)
        if std is None:
            draft.note(f"left out: -std={written} (a manifest has one of {', '.join(STANDARDS)})")
        elif std not in known:
            known.append(std)
    draft.std = max(known, key=STANDARDS.index, default=draft.std)
    if len(known) > 1:
        draft.note(
            f"std = {draft.std} is written for all, where the other build has also "
            f"{', '.join(each for each in known if each != draft.std)}"
        )


def _fill(draft: Draft, root: str, library: LibraryDraft, found: Arguments) -> None:
    library.defines, library.rdc = found.defines, found.rdc
    for path in found.include_dirs:
        if not os.path.isdir(path):
            draft.note(f"left out, because it does not exist: include directory {path}")
            continue
        if os.path.isfile(os.path.join(path, _OF_A_TOOLKIT)):
            continue
        relative = os.path.relpath(path, root)
        place: object = _of_a_package(path)
        if place is None and relative.startswith(".."):
            draft.note(f"a directory of this machine, which others may have elsewhere: {path}")
            place = path
        library.include_dirs.append(place or relative)
    library.flags = _checked(draft, found.flags)
    if "-fopenmp" in library.flags:
        draft.note(
            f'{library.name}: -fopenmp needs libgomp of the process; link-libs = ["gomp"] links it'
        )


def _of_a_package(path: str) -> dict[str, str] | None:
    """Return a directory as `include-dirs` has it, if an installed package holds it."""
    for site in sys.path:
        package, _, inside = os.path.relpath(path, site or ".").partition("/")
        if site.endswith("-packages") and package.isidentifier() and inside:
            return {"package": package, "path": inside}
    return None


def _checked(draft: Draft, flags: list[str]) -> list[str]:
    """Return the flags that a manifest may hold, and note the others."""
    hints = {number: hint for number, _, hint in flag_problems(flags, unsafe=False, cpu=False)}
    kept: list[str] = []
    number = 0
    while number < len(flags):
        # An option goes with its value: alone it would take the next word.
        end = number + 1 + has_value(flags, number)
        if hint := next((hints[each] for each in range(number, end) if each in hints), None):
            draft.note(f"flag left out: {' '.join(flags[number:end])} ({hint})")
        else:
            kept += flags[number:end]
        number = end
    return kept
