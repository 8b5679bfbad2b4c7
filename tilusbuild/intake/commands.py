"""Commands of another build system: what their words say.

Each word is understood, dropped because tilusbuild does that itself, or kept as a flag; none
disappears.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from msgspec import Struct, field

from tilusbuild.expr import Value
from tilusbuild.manifest.check_targets import flag_problems
from tilusbuild.manifest.command_words import Option, options
from tilusbuild.manifest.library import LANGUAGES
from tilusbuild.manifest.names import IDENTIFIER

_OURS = re.compile(
    r"-(?:fPIC|pipe|MD|MMD|MP|M|g|mtune=.*|-?forward-unknown.*|-generate-dependencies.*)"
)
"""What tilusbuild says itself, or what changes no code of a kernel."""

_OURS_WITH_VALUE = frozenset(["-odir", "-ccbin", "-t", "-MF", "-MT", "-MQ", "-MJ"])
STAGES = ("-E", "-M", "-MM", "-S", "-ptx", "-cubin", "-fatbin")
"""What ends before an object; of `-M` and `-MM` the compilers make a list of headers."""
_MAKES = {"-shared": "shared", "-c": "object", "-dc": "object", "-dlink": "device link"}
_MAKES |= dict(zip(STAGES, STAGES, strict=True))
_RANKS = ("program", *dict.fromkeys(_MAKES.values()))
"""Of what several options say that a command makes, the last holds."""
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
    makes: str = "program"
    """"program", "shared", "object", "device link", or the one of `STAGES` that it ends with."""
    sources: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Words that are neither options nor sources."""
    output: str | None = None
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


_VALUES = {"-std": "std", "-march": "march", "-x": "language", "-cudart": "cudart"}
_LISTS = {"-code": "codes", "-arch": "arch_names", "-l": "libs"}
_DIRECTORIES = {
    **dict.fromkeys(("-I", "-iquote"), "include_dirs"),
    **dict.fromkeys(("-isystem", "-idirafter"), "system_dirs"),
    "-L": "lib_dirs",
}
"""The fields of `Arguments` that options of one meaning go to."""


def _take(found: Arguments, option: Option, directory: str) -> None:
    name, value, written = option.name, option.value, option.written
    if name in _MAKES:
        found.makes = max(found.makes, _MAKES[name], key=_RANKS.index)
        found.rdc = found.rdc or name == "-dc"
    elif name == "-rdc":
        found.rdc = value != "false"
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
    elif not _OURS.fullmatch(name) and name not in _OURS_WITH_VALUE:
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
