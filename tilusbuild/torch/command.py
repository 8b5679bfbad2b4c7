"""A compile command of torch's `build.ninja`, in the words that another machine can use too.

Every word of the command stays, in its order, but for those that say where something lies: the
source, the object, lists of dependencies, the compiler, and the directories of headers, which get
names. Whatever cannot be said without a path of this machine is refused here with a reason, and
torch's own command is run for it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from tilusbuild.manifest import pure_flags
from tilusbuild.manifest.library import LANGUAGES

_LAUNCHERS = ("ccache", "sccache")
_GXX = re.compile(r"(?:.*-)?(?:g|c)\+\+(?:-[\d.]+)?")
_INCLUDE = re.compile(r"(-(?:isystem|iquote|idirafter|I))(.*)", re.DOTALL)
INCLUDES = ("-iquote", "-I", "-isystem", "-idirafter")
"""In the order in which they are searched."""
SYSTEM = INCLUDES.index("-isystem")
_LONG = {"--include-path": "-I", "--system-include": "-isystem"}
_DROPPED = frozenset(["-c", "--compile", "-M", "-MM", "-MD", "-MMD", "-MP", "-MG"])
_DROPPED_WITH_VALUE = frozenset(["-MF", "-MT", "-MQ", "-MJ"])
_HOST = ("-ccbin", "--compiler-bindir")
_FILES = re.compile(
    r"@.*|--?optf.*|--options-file.*|-B.*|-specs.*|--?Xclang|-fplugin.*|-wrapper|-fprofile-use.*"
    r"|-fauto-profile.*|-imacros.*|-include-pch|-I-|--?(gpu-)?arch(itecture)?=?(native|all).*|-x"
)
"""What reads a file that no preprocessor lists, runs one, or means another thing elsewhere."""
_NATIVE = re.compile(r"(?:-Xcompiler[=,]?|--compiler-options=)?.*-m(?:arch|tune|cpu)=native.*")
_VALUED_TEXT = """
    -D -U -include -gencode --generate-code -arch --gpu-architecture -code --gpu-code -std --std
    -t --threads -Xfatbin -Xassembler --param -isysroot --sysroot -Xnvlink -nvlink-options
    --define-macro --undefine-macro --pre-include
"""
_VALUED = frozenset(_VALUED_TEXT.split())
_NAME = "-DTORCH_EXTENSION_NAME="
_MARKS = ("setup.py", "pyproject.toml", ".git")


class NotCarriedError(Exception):
    """A command cannot be said without this machine; the text says why."""


class Entry(Struct):
    """An entry of `ninja -t compdb`."""

    directory: str
    command: str
    file: str


class Include(Struct, frozen=True):
    """A directory of headers, absolute."""

    option: str
    path: str


class Compile(Struct):
    """One compile, understood. `words` are the command's, an `Include` where it names a directory
    of headers."""

    source: str
    """Absolute, as is `output`."""
    output: str
    compiler: str
    """That of host code, "" where it is nvcc's default."""
    nvcc: str
    """"" for host code alone."""
    words: list[str | Include] = field(default_factory=list)
    native: bool = False
    """Whether it means the CPU of the machine."""

    @property
    def extension(self) -> str:
        """The module's name."""
        given = (each for each in self.words if isinstance(each, str))
        named = (each.removeprefix(_NAME) for each in given if each.startswith(_NAME))
        return next(named, "extension")


def understood(entry: Entry, environment: Mapping[str, str]) -> Compile:
    """Return what a compile command says, with what the environment adds to it. Raises
    `NotCarriedError`."""
    words = shlex.split(entry.command)
    while words and os.path.basename(words[0]) in _LAUNCHERS:
        del words[0]
    name = os.path.basename(words[0]) if words else ""
    is_nvcc = name == "nvcc"
    if not is_nvcc and not _GXX.fullmatch(name):
        raise NotCarriedError(f"{name} is neither nvcc nor g++")
    source = os.path.join(entry.directory, entry.file)
    suffix = os.path.splitext(source)[1]
    if suffix not in LANGUAGES or (suffix == ".cu" and not is_nvcc):
        raise NotCarriedError(f"{suffix or source} is not among the suffixes that tilusbuild knows")
    found = Compile(source, "", "" if is_nvcc else words[0], words[0] if is_nvcc else "")
    for option, value in _paired([*_words(words[1:], is_nvcc, environment)]):
        _take(found, option, value, entry.directory)
    return found


def _take(found: Compile, option: str, value: str | None, directory: str) -> None:
    path = os.path.normpath(os.path.join(directory, option if value is None else value))
    if option in _HOST:
        found.compiler = value or ""
    elif option == "-o":
        found.output = path
    elif option in INCLUDES and found.nvcc and "," in path:
        raise NotCarriedError(f"nvcc takes {option} {value} apart at its comma")
    elif option in INCLUDES:
        found.words.append(Include(option, path))
    elif option in _DROPPED or option in _DROPPED_WITH_VALUE or path == found.source:
        return
    elif not option.startswith("-"):
        raise NotCarriedError(f"{option} is not its source")
    elif _FILES.fullmatch(option if value is None else f"{option}={value}"):
        what = " ".join(filter(None, (option, value)))
        raise NotCarriedError(f"{what} may name files that no hash covers, or mean this machine")
    else:
        found.words += [option] if value is None else [option, _plain(value)]
        is_native = _NATIVE.fullmatch(option if value is None else value)
        found.native = found.native or is_native is not None


def _words(words: Sequence[str], is_nvcc: bool, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the words, with what the compilers take from variables."""
    if is_nvcc:
        yield from shlex.split(environment.get("NVCC_PREPEND_FLAGS", ""))
    yield from words
    if is_nvcc:
        yield from shlex.split(environment.get("NVCC_APPEND_FLAGS", ""))
    for name, option in (("CPATH", "-I"), ("CPLUS_INCLUDE_PATH", "-isystem")):
        for path in filter(None, environment.get(name, "").split(os.pathsep)):
            yield from (option, path)


def _paired(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield options with their values, and the value None of one that has none apart."""
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if word in _DROPPED or not word.startswith("-"):
            yield word, None
        elif equals and option in (*_HOST, *_LONG):
            yield _LONG.get(option, option), value
        elif match := _INCLUDE.fullmatch(_LONG.get(word, word)):
            yield match[1], match[2].removeprefix("=") or next(rest, "")
        elif word in (*_HOST, "-o", *_DROPPED_WITH_VALUE, *_VALUED) or pure_flags.takes_value(word):
            yield word, next(rest, "")
        else:
            yield word, None


def _plain(value: str) -> str:
    """Return a value without the quotes that torch has for the shell of nvcc."""
    return value[1:-1] if re.fullmatch(r"'[\w./+=,-]+'", value) else value


def unsure(found: Compile) -> str | None:
    """Return a flag that may read, write or run something that no hash covers; None where there is
    none. Only where nothing holds a compile to its own files does it matter."""
    plain = [word for word in found.words if isinstance(word, str)]
    owned = re.compile(r"--?(std|gencode|generate-code|arch|code|gpu-\w+)(=.*)?|arch=.*|\w+_\d+\w?")
    flags = [word for word in plain if not owned.fullmatch(word) and not _NATIVE.fullmatch(word)]
    return next((words for _, words in pure_flags.impure(flags, cpu=not found.nvcc)), None)


def root_of(source: str, around: str) -> str:
    """Return the directory that a source is named from: `around` if it lies there, else the nearest
    one above with a mark of a project, else its own."""
    if around and source.startswith(around.rstrip("/") + "/"):
        return around
    own = above = os.path.dirname(source)
    while above != os.path.dirname(above):
        if any(os.path.lexists(os.path.join(above, mark)) for mark in _MARKS):
            return above
        above = os.path.dirname(above)
    return own
