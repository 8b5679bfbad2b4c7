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

from tilusbuild.manifest.command_words import Option, options, words_of
from tilusbuild.manifest.denied_flags import find_denied_flags
from tilusbuild.manifest.library import LANGUAGES

_LAUNCHERS = ("ccache", "sccache")
_GXX = re.compile(r"(?:.*-)?(?:g|c)\+\+(?:-[\d.]+)?")
INCLUDES = ("-iquote", "-I", "-isystem", "-idirafter")
"""In the order in which they are searched."""
SYSTEM = INCLUDES.index("-isystem")
_DROPPED = frozenset(["-c", "-M", "-MM", "-MD", "-MMD", "-MP", "-MG", "-MF", "-MT", "-MQ", "-MJ"])
_FILES = re.compile(
    r"-B.*|-specs.*|--?Xclang|-fplugin.*|-wrapper|-fprofile-use.*|-fauto-profile.*|-imacros.*"
    r"|-include-pch|--?(gpu-)?arch(itecture)?=?(native|all).*|-x.*"
)
"""What reads a file that no preprocessor lists, runs one, or means another thing elsewhere."""
_NATIVE = re.compile(r".*-m(?:arch|tune|cpu)=native.*")
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
    rdc: bool = False
    """Whether device code is relocatable."""

    @property
    def extension(self) -> str:
        """The module's name."""
        given = (each for each in self.words if isinstance(each, str))
        named = (each.removeprefix(_NAME) for each in given if each.startswith(_NAME))
        return next(named, "extension")


def understood(entry: Entry, environment: Mapping[str, str]) -> Compile:
    """Return what a compile command says, with what the environment adds to it. Raises
    `NotCarriedError`."""
    words = words_of(entry.command)
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
    unread: list[str] = []
    given = [*_words(words[1:], is_nvcc, environment)]
    for option in options(given, entry.directory, unread):
        _take(found, option, entry.directory)
    if unread:
        raise NotCarriedError(f"{unread[0]} names a file of options that cannot be read")
    return found


def _take(found: Compile, option: Option, directory: str) -> None:
    name, value, written = option.name, option.value, option.written
    said = " ".join(written)
    path = os.path.normpath(os.path.join(directory, value or name))
    if name == "-ccbin":
        found.compiler = value
    elif name == "-o":
        found.output = path
    elif name in INCLUDES and found.nvcc and "," in path:
        raise NotCarriedError(f"nvcc takes {said} apart at its comma")
    elif name in INCLUDES:
        found.words.append(Include(name, path))
    elif name in _DROPPED or path == found.source:
        return
    elif not name.startswith("-"):
        raise NotCarriedError(f"{name} is not its source")
    elif _FILES.fullmatch("=".join(written)):
        raise NotCarriedError(f"{said} may name files that no hash covers, or mean this machine")
    else:
        found.words += [written[0], *map(_plain, written[1:])]
        found.native = found.native or _NATIVE.fullmatch(written[-1]) is not None
        if name in ("-dc", "-rdc"):
            found.rdc = value != "false"


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


def _plain(value: str) -> str:
    """Return a value without the quotes that torch has for the shell of nvcc."""
    return value[1:-1] if re.fullmatch(r"'[\w./+=,-]+'", value) else value


def unsure(found: Compile) -> str | None:
    """Return a flag that may read, write or run something that no hash covers; None where there is
    none. Only where nothing holds a compile to its own files does it matter."""
    plain = [word for word in found.words if isinstance(word, str)]
    owned = re.compile(r"--?(std|gencode|generate-code|arch|code|gpu-\w+)(=.*)?|arch=.*|\w+_\d+\w?")
    flags = [word for word in plain if not owned.fullmatch(word) and not _NATIVE.fullmatch(word)]
    return next((each.words for each in find_denied_flags(flags, cpu=not found.nvcc)), None)


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
