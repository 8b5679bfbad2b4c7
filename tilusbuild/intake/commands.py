"""Commands of another build system: what their words say.

Each word is understood, dropped because tilusbuild does that itself, or kept as a flag; none
disappears. Files of options are read in their place, as the compilers do it: a value is often only
there.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from tilusbuild.expr import Value
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
    --cuda-gpu-arch -arch  --offload-arch -arch  --cuda-path -ccbin  --cudart -cudart
"""
_LONG = dict(zip(*[iter(_LONG_TEXT.split())] * 2, strict=True))
"""The long names of nvcc's options, and those of clang that say the same."""

_VALUED_TEXT = """
    -o -odir -x -ccbin -MF -MT -MQ -MJ -I -isystem -iquote -D -U -std -include -gencode -arch
    -code -Xcompiler -Xptxas -Xlinker -Xcudafe -Xfatbin -diag-suppress --diag-suppress -t -l -L
    -optf -march -cudart
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
    r"-(?:fPIC|pipe|MD|MMD|MP|M|g|mtune=.*|forward-unknown.*)"
    r"|--(?:forward-unknown.*|generate-dependencies.*)"
)
"""What tilusbuild says itself, or what changes no code of a kernel."""

_OURS_WITH_VALUE = frozenset(["-odir", "-ccbin", "-t", "-MF", "-MT", "-MQ", "-MJ"])
_STAGES = ("-E", "-M", "-MM", "-S", "-ptx", "--ptx", "-cubin", "--cubin", "-fatbin", "--fatbin")
"""What ends before an object; of `-M` and `-MM` the compilers make a list of headers."""
_RDC = ("-rdc", "--relocatable-device-code")
_ARCH = re.compile(r"(sm|compute)_([0-9]+[af]?)")
LANGUAGE_NAMES = {"cuda": "cu", "cu": "cu", "c++": "c++", "c": "c"}
"""What `-x` names, as `LANGUAGES` has it."""


class Arguments(Struct):
    """What one command says of its source."""

    include_dirs: list[str] = field(default_factory=list)
    system_dirs: list[str] = field(default_factory=list)
    """Searched after those, wherever the option is."""
    defines: dict[str, Value] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    arch_names: list[str] = field(default_factory=list)
    """As `-arch` has them; `codes` take precedence."""
    codes: list[str] = field(default_factory=list)
    crossed: list[str] = field(default_factory=list)
    """Values of `-gencode` with code for another architecture than the front end's."""
    std: str | None = None
    march: str | None = None
    rdc: bool = False
    language: str | None = None
    compiles: bool = False
    stage: str | None = None
    """The option that ends the compile before there is an object."""
    sources: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Words that are neither options nor sources."""
    output: str | None = None
    shared: bool = False
    """Whether it links a shared library."""
    links_device_code: bool = False
    libs: list[str] = field(default_factory=list)
    lib_dirs: list[str] = field(default_factory=list)
    cudart: str | None = None
    linker: list[str] = field(default_factory=list)
    """The words for the linker."""
    unread: list[str] = field(default_factory=list)
    """Files of options that cannot be read."""

    @property
    def key(self) -> str:
        """What commands whose sources are compiled alike agree on, as text."""
        macros = sorted(self.defines.items(), key=str)
        return repr((self.include_dirs, self.system_dirs, macros, self.flags, self.std, self.march))

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


_SWITCHES = {
    **dict.fromkeys(("-c", "-dc", "--compile", "--device-c"), "compiles"),
    **dict.fromkeys(("-shared", "--shared"), "shared"),
    **dict.fromkeys(("-dlink", "--device-link"), "links_device_code"),
}
_VALUES = {"-std": "std", "-march": "march", "-x": "language", "-cudart": "cudart"}
_LISTS = {"-code": "codes", "-arch": "arch_names", "-l": "libs"}
_DIRECTORIES = {
    **dict.fromkeys(("-I", "-iquote"), "include_dirs"),
    "-isystem": "system_dirs",
    "-L": "lib_dirs",
}
"""The fields of `Arguments` that options of one meaning go to."""


def _take(found: Arguments, option: Option, directory: str) -> None:
    name, value, written = option.name, option.value, option.written
    if name in _SWITCHES:
        setattr(found, _SWITCHES[name], True)
        found.rdc = found.rdc or name in ("-dc", "--device-c")
    elif name in _VALUES:
        setattr(found, _VALUES[name], value)
    elif name in _LISTS:
        getattr(found, _LISTS[name]).append(value)
    elif name in _DIRECTORIES:
        path = os.path.normpath(os.path.join(directory, value))
        known = getattr(found, _DIRECTORIES[name])
        known += [path] if path not in known else []
    elif name in ("-D", "-U"):
        _take_macro(found, name, value)
    elif name == "-gencode":
        virtual, _, code = value.partition("code=")
        found.codes.append(code or value)
        own = _ARCH.findall(virtual)
        if own and any(number != own[0][1] for _, number in _ARCH.findall(code)):
            found.crossed.append(value)
    elif name == "-o":
        found.output = os.path.normpath(os.path.join(directory, value))
    elif name == "-Xlinker" or name.startswith("-Wl,"):
        found.linker += (value or written[0][len("-Wl,") :]).split(",")
    elif name in _STAGES:
        found.stage = name
    elif written[0].partition("=")[0] in _RDC:
        found.rdc = not written[-1].endswith("false")
    else:
        _take_word(found, option, directory)


def _take_word(found: Arguments, option: Option, directory: str) -> None:
    """Take a file, or a flag."""
    name, written = option.name, option.written
    if not name.startswith("-"):
        is_source = os.path.splitext(name)[1] in LANGUAGES
        path = os.path.normpath(os.path.join(directory, name))
        (found.sources if is_source else found.others).append(path)
    elif name == "-Xcompiler":
        _take_host(found, option.value)
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


def _take_host(found: Arguments, value: str) -> None:
    """Take what the host compiler gets beyond what tilusbuild passes."""
    # nvcc's shell takes a value apart at blanks, nvcc itself at commas.
    words = [word for word in re.split(r"[\s,]+", value.strip("'\" ")) if word]
    for word in words:
        if word.startswith("-march="):
            found.march = word.removeprefix("-march=")
    kept = [word for word in words if not _OURS.fullmatch(word) and "-march=" not in word]
    found.flags += ["-Xcompiler", ",".join(kept)] if kept else []
