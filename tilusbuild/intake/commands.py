"""Commands of another build system: what their words say, and what they make.

Each word is understood, dropped because tilusbuild does that itself, or kept as a flag; none
disappears.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from tilusbuild.expr import Value
from tilusbuild.intake.draft import Draft
from tilusbuild.intake.spy import BEFORE, COMPILER, tool_of
from tilusbuild.manifest.check_targets import flag_problems
from tilusbuild.manifest.command_words import Option, options
from tilusbuild.manifest.library import LANGUAGES
from tilusbuild.manifest.names import IDENTIFIER

_OURS = re.compile(
    r"-(?:fPIC|pipe|MD|MMD|MP|M|g|mtune=.*|-?forward-unknown.*|-generate-dependencies.*)"
)
"""What tilusbuild says itself, or what changes no code of a kernel."""

_ARCHIVER = re.compile(r"(.*-)?ar(-[\d.]+)?")
_OURS_WITH_VALUE = frozenset(["-odir", "-ccbin", "-t", "-MF", "-MT", "-MQ", "-MJ"])
_STAGES = ("-E", "-M", "-MM", "-S", "-ptx", "-cubin", "-fatbin")
"""What ends before an object; of `-M` and `-MM` the compilers make a list of headers."""
_MAKES = {"-shared": "shared", "-c": "object", "-dc": "object", "-dlink": "device link"}
_MAKES |= dict(zip(_STAGES, _STAGES, strict=True))
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
    std: str | None = None
    march: str | None = None
    rdc: bool = False
    language: str | None = None
    makes: str = "program"
    """"program", "shared", "object", "device link", or the one of `_STAGES` that it ends with."""
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


def understood(words: Sequence[str], directory: str, tool: str = "nvcc") -> Arguments:
    """Return what a compiler's arguments say; paths are absolute. Raises `ValueError`."""
    by_nvcc = tool.endswith("nvcc")
    found = Arguments(cudart="static" if by_nvcc else None)
    for option in options(words, directory, found.unread):
        _take(found, option, directory, by_nvcc)
    return found


_VALUES = {"-std": "std", "-march": "march", "-x": "language", "-cudart": "cudart"}
_LISTS = {"-code": "codes", "-arch": "arch_names", "-l": "libs"}
_DIRECTORIES = {
    **dict.fromkeys(("-I", "-iquote"), "include_dirs"),
    **dict.fromkeys(("-isystem", "-idirafter"), "system_dirs"),
    "-L": "lib_dirs",
}
"""The fields of `Arguments` that options of one meaning go to."""


def _take(found: Arguments, option: Option, directory: str, by_nvcc: bool) -> None:
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
        found.codes.append(value.partition("code=")[2] or value)
    elif name == "-o":
        found.output = os.path.normpath(os.path.join(directory, value))
    elif name == "-Xlinker" or name.startswith("-Wl,"):
        found.linker += (value or written[0][len("-Wl,") :]).split(",")
    else:
        _take_word(found, option, directory, by_nvcc)


def _take_word(found: Arguments, option: Option, directory: str, by_nvcc: bool) -> None:
    """Take a file, or a flag."""
    name, written = option.name, option.written
    if not name.startswith("-"):
        is_source = os.path.splitext(name)[1] in LANGUAGES
        path = os.path.normpath(os.path.join(directory, name))
        (found.sources if is_source else found.others).append(path)
    elif name == "-Xcompiler":
        _take_host(found, option.value)
    elif not _OURS.fullmatch(name) and name not in _OURS_WITH_VALUE:
        # Of a host compiler's flags, only -O says the same to nvcc, which would read gcc's
        # -Werror=format-security as its own -Werror. nvcc forwards what it does not know.
        is_host = _HOST_FLAG.match(name) if by_nvcc else not re.fullmatch("-O[0-3]", name)
        can_be_passed = len(written) == 1 and not _is_refused(["-Xcompiler", *written])
        found.flags += ["-Xcompiler", *written] if is_host and can_be_passed else written


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


_HOST_FLAG = re.compile(
    r"-p(ipe|thread|edantic)|-ansi|-[fW](?!mad|tz|template-|device-|reorder|default-stream|missing-l"
    r"|no-deprecated-(gpu|decl)|ext-lambda)|-m(?!64|axrregcount|odify-|inimal)[a-z]"
)
"""The families of gcc's flags, without the flags of nvcc that begin so."""


def _is_refused(words: list[str]) -> bool:
    return any(flag_problems(words, unsafe=False, cpu=False))


def _take_host(found: Arguments, value: str) -> None:
    """Take what the host compiler gets beyond what tilusbuild passes."""
    # nvcc's shell takes a value apart at blanks, nvcc itself at commas.
    words = [word for word in re.split(r"[\s,]+", value.strip("'\" ")) if word]
    for word in words:
        if word.startswith("-march="):
            found.march = word.removeprefix("-march=")
    kept = [word for word in words if not _OURS.fullmatch(word) and "-march=" not in word]
    found.flags += ["-Xcompiler", ",".join(kept)] if kept else []


class Product(Struct):
    """What a command links or archives."""

    kind: str
    """"shared", "static" or "program"."""
    output: str
    inputs: list[str]
    said: Arguments

    def find_libs(self, made: Made) -> None:
        """Take the libraries that are made here themselves for inputs."""
        for lib in [*self.said.libs]:
            names = (
                f"{where}/lib{lib}{end}" for where in self.said.lib_dirs for end in (".so", ".a")
            )
            if found := next((name for name in names if name in made.products), None):
                self.inputs.append(found)
                self.said.libs.remove(lib)


class Made(Struct):
    """What is made, by path."""

    objects: dict[str, tuple[str, Arguments]] = field(default_factory=dict)
    """Of each object its source, and how it is compiled."""
    latest: dict[str, str] = field(default_factory=dict)
    """The name in `objects` of what is at a path so far: a setup.py makes many of one name."""
    products: dict[str, Product] = field(default_factory=dict)
    device_links: set[str] = field(default_factory=set)

    def objects_in(self, product: Product, seen: set[str]) -> Iterator[str]:
        """Yield the objects of a product, and of the archives that it links."""
        for path in product.inputs:
            other = self.products.get(path)
            if path in self.objects:
                yield path
            elif other is not None and other.kind == "static" and path not in seen:
                seen.add(path)
                yield from self.objects_in(other, seen)


def made_by(draft: Draft, root: str, commands: Iterable[tuple[str, Sequence[str]]]) -> Made:
    """Return what commands make, each with its directory. Raises `ValueError`."""
    made = Made()
    for directory, words in commands:
        at = next((n for n, w in enumerate(words) if not BEFORE.fullmatch(tool_of(w))), None)
        if at is None:
            continue
        tool, arguments = tool_of(words[at]), words[at + 1 :]
        if _ARCHIVER.fullmatch(tool):
            paths = [os.path.normpath(os.path.join(directory, word)) for word in arguments]
            first = next((n for n, path in enumerate(paths) if path.endswith(".a")), None)
            if first is not None:
                inputs = [made.latest.get(path, path) for path in paths[first + 1 :]]
                product = Product("static", paths[first], inputs, Arguments())
                made.products[product.output] = product
        elif COMPILER.fullmatch(tool) or "-c" in arguments:
            _compiled(draft, root, made, directory, understood(arguments, directory, tool))
    return made


def _compiled(draft: Draft, root: str, made: Made, directory: str, said: Arguments) -> None:
    """Add what one command of a compiler makes."""
    for name in said.unread:
        draft.note(f"left out, because its file cannot be read: {name}")
    if said.makes in _STAGES:
        for source in said.sources:
            name = os.path.relpath(source, root)
            draft.note(f"left out, because {said.makes} makes no object of it: {name}")
    elif said.makes == "device link":
        made.device_links.add(said.output or "")
    elif said.makes == "object":
        if said.others and not said.sources:
            name = os.path.relpath(said.others[-1], root)
            draft.note(f"left out, because it is not a {', '.join(LANGUAGES)}: {name}")
        for source in said.sources:
            stem = os.path.splitext(os.path.basename(source))[0]
            path = said.output or os.path.join(directory, f"{stem}.o")
            name = path
            while made.objects.get(name, (source, said)) != (source, said):
                name += "+"
            made.objects[name] = source, said
            made.latest[path] = name
    elif said.sources or said.others:
        output = said.output or os.path.join(directory, "a.out")
        inputs = [f"{output}/{source}" for source in said.sources]
        made.objects |= {f"{output}/{source}": (source, said) for source in said.sources}
        others = [made.latest.get(path, path) for path in said.others]
        made.products[output] = Product(said.makes, output, [*inputs, *others], said)
