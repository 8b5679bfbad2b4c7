"""Commands of another build system: the meaning of their arguments, and their outputs.

Each argument is understood, dropped because tilusbuild passes it itself, or kept as a flag; none
disappears.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from tilusbuild.expr import Value
from tilusbuild.intake.draft import ManifestDraft
from tilusbuild.intake.spy import BEFORE, COMPILER, get_tool_name
from tilusbuild.manifest.command_words import Option, parse_options
from tilusbuild.manifest.denied_flags import list_flag_problems
from tilusbuild.manifest.library import LANGUAGES
from tilusbuild.manifest.names import IDENTIFIER

_OWN_FLAGS = re.compile(
    r"-(?:fPIC|pipe|MD|MMD|MP|M|g|mtune=.*|-?forward-unknown.*|-generate-dependencies.*)"
)
"""Flags that tilusbuild passes itself, or that change no code of a kernel."""

_ARCHIVER = re.compile(r"(.*-)?ar(-[\d.]+)?")
_OWN_FLAGS_WITH_VALUE = frozenset(["-odir", "-ccbin", "-t", "-MF", "-MT", "-MQ", "-MJ"])
_STAGES = ("-E", "-M", "-MM", "-S", "-ptx", "-cubin", "-fatbin")
"""Options that end a compile before an object; `-M` and `-MM` print a list of headers."""
_MAKES = {"-shared": "shared", "-c": "object", "-dc": "object", "-dlink": "device link"}
_MAKES |= dict(zip(_STAGES, _STAGES, strict=True))
_RANKS = ("program", *dict.fromkeys(_MAKES.values()))
"""The outputs of commands; the last of those that the options of a command name is made."""
_ARCH = re.compile(r"(sm|compute)_([0-9]+[af]?)")
LANGUAGE_NAMES = {"cuda": "cu", "cu": "cu", "c++": "c++", "c": "c"}
"""The languages of `LANGUAGES`, by their names in `-x`."""


class CompileArguments(Struct):
    """The arguments of one command of a compiler, by meaning."""

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
        """A text that is equal for commands that compile their sources alike."""
        macros = sorted(self.defines.items(), key=str)
        return repr((self.include_dirs, self.system_dirs, macros, self.flags, self.std, self.march))

    @property
    def archs(self) -> list[str]:
        """The architectures of the code, such as "sm_80", without repetitions."""
        matches = (match for name in self._list_code_names() for match in _ARCH.findall(name))
        return list(dict.fromkeys(f"sm_{number}" for _, number in matches))

    @property
    def ptx(self) -> bool:
        """Whether the object has PTX. `-arch` alone keeps it."""
        code_names = " ".join(self._list_code_names())
        return "compute_" in code_names or (not self.codes and bool(self.archs))

    def _list_code_names(self) -> list[str]:
        return self.codes or self.arch_names


def parse_arguments(argv: Sequence[str], directory: str, tool: str = "nvcc") -> CompileArguments:
    """Parse the arguments of a compile in `directory`. Paths become absolute. The result's `unread`
    has the files of options that cannot be read. Raises `ValueError` for too many arguments."""
    by_nvcc = tool.endswith("nvcc")
    # nvcc links the static runtime unless `-cudart` says otherwise.
    arguments = CompileArguments(cudart="static" if by_nvcc else None)
    # `parse_options` reads files of options, and appends the unreadable ones to `unread`.
    for option in parse_options(argv, directory, arguments.unread):
        _add_option(arguments, option, directory, by_nvcc)
    return arguments


_VALUES = {"-std": "std", "-march": "march", "-x": "language", "-cudart": "cudart"}
_LISTS = {"-code": "codes", "-arch": "arch_names", "-l": "libs"}
_DIRECTORIES = {
    **dict.fromkeys(("-I", "-iquote"), "include_dirs"),
    **dict.fromkeys(("-isystem", "-idirafter"), "system_dirs"),
    "-L": "lib_dirs",
}
"""The field of `CompileArguments`, by option."""


def _add_option(arguments: CompileArguments, option: Option, directory: str, by_nvcc: bool) -> None:
    """Add one option, with its value, to `arguments`. `by_nvcc`: nvcc reads it, not g++."""
    name, value, written = option.name, option.value, option.written
    if name in _MAKES:
        arguments.makes = max(arguments.makes, _MAKES[name], key=_RANKS.index)
        arguments.rdc = arguments.rdc or name == "-dc"
    elif name == "-rdc":
        arguments.rdc = value != "false"
    elif name in _VALUES:
        setattr(arguments, _VALUES[name], value)
    elif name in _LISTS:
        getattr(arguments, _LISTS[name]).append(value)
    elif name in _DIRECTORIES:
        path = os.path.normpath(os.path.join(directory, value))
        directories = getattr(arguments, _DIRECTORIES[name])
        directories += [path] if path not in directories else []
    elif name in ("-D", "-U"):
        _add_macro(arguments, name, value)
    elif name == "-gencode":
        arguments.codes.append(value.partition("code=")[2] or value)
    elif name == "-o":
        arguments.output = os.path.normpath(os.path.join(directory, value))
    elif name == "-Xlinker" or name.startswith("-Wl,"):
        arguments.linker += (value or written[0][len("-Wl,") :]).split(",")
    else:
        _add_file_or_flag(arguments, option, directory, by_nvcc)


def _add_file_or_flag(
    arguments: CompileArguments, option: Option, directory: str, by_nvcc: bool
) -> None:
    """Add a source, another file, or a flag to `arguments`. Flags that tilusbuild sets itself are
    dropped. A flag for the host compiler of nvcc goes behind `-Xcompiler`."""
    name, written = option.name, option.written
    if not name.startswith("-"):
        is_source = os.path.splitext(name)[1] in LANGUAGES
        path = os.path.normpath(os.path.join(directory, name))
        (arguments.sources if is_source else arguments.others).append(path)
    elif name == "-Xcompiler":
        _add_host_flags(arguments, option.value)
    elif not _OWN_FLAGS.fullmatch(name) and name not in _OWN_FLAGS_WITH_VALUE:
        # Of a host compiler's flags, only -O says the same to nvcc, which would read gcc's
        # -Werror=format-security as its own -Werror. nvcc forwards what it does not know.
        is_host = _HOST_FLAG.match(name) if by_nvcc else not re.fullmatch("-O[0-3]", name)
        host_flags = ["-Xcompiler", *written]
        can_be_passed = len(written) == 1 and not any(
            list_flag_problems(host_flags, unsafe=False, cpu=False)
        )
        arguments.flags += host_flags if is_host and can_be_passed else written


def _add_macro(arguments: CompileArguments, name: str, value: str) -> None:
    """Apply `-D` or `-U`, the `name` of the option: set or remove a key of `defines`, or add a flag
    if `defines` cannot express it."""
    macro, equals, text = value.partition("=")
    if not IDENTIFIER.fullmatch(macro):
        # A macro with parameters cannot be a key of `defines`.
        arguments.flags.append(f"{name}{value}")
    elif name == "-D":
        arguments.defines[macro] = text if equals else True
    elif macro in arguments.defines:
        # The last of `-D` and `-U` holds.
        del arguments.defines[macro]
    else:
        arguments.flags.append(f"-U{macro}")


_HOST_FLAG = re.compile(
    r"-p(ipe|thread|edantic)|-ansi|-[fW](?!mad|tz|template-|device-|reorder|default-stream|missing-l"
    r"|no-deprecated-(gpu|decl)|ext-lambda)|-m(?!64|axrregcount|odify-|inimal)[a-z]"
)
"""The families of gcc's flags, without the flags of nvcc that begin so."""


def _add_host_flags(arguments: CompileArguments, value: str) -> None:
    """Add the flags in the value of `-Xcompiler`, without those that tilusbuild passes itself.
    `-march` sets the field `march`."""
    # nvcc's shell takes a value apart at blanks, nvcc itself at commas.
    host_flags = []
    for flag in filter(None, re.split(r"[\s,]+", value.strip("'\" "))):
        if flag.startswith("-march="):
            arguments.march = flag.removeprefix("-march=")
        elif not _OWN_FLAGS.fullmatch(flag):
            host_flags.append(flag)
    arguments.flags += ["-Xcompiler", ",".join(host_flags)] if host_flags else []


class LinkProduct(Struct):
    """The result of a link or of an archiver."""

    kind: str
    """"shared", "static" or "program"."""
    output: str
    inputs: list[str]
    arguments: CompileArguments

    def resolve_own_libs(self, outputs: CommandOutputs) -> None:
        """Move each library of `-l` that one of the commands makes from `arguments.libs` to
        `inputs`, as its path."""
        for lib in [*self.arguments.libs]:
            # In the order in which ld searches: by directory, in each the shared one first.
            stems = (f"{directory}/lib{lib}" for directory in self.arguments.lib_dirs)
            names = (f"{stem}{suffix}" for stem in stems for suffix in (".so", ".a"))
            path = next((name for name in names if name in outputs.products), None)
            if path is not None:
                self.inputs.append(path)
                self.arguments.libs.remove(lib)


class CommandOutputs(Struct):
    """The results of all commands, by path."""

    objects: dict[str, tuple[str, CompileArguments]] = field(default_factory=dict)
    """The source of each object, and the arguments of its compile."""
    latest: dict[str, str] = field(default_factory=dict)
    """The name in `objects` of the file that a path has so far: a setup.py makes many at one."""
    products: dict[str, LinkProduct] = field(default_factory=dict)
    device_links: set[str] = field(default_factory=set)

    def list_objects(self, product: LinkProduct, seen: set[str]) -> Iterator[str]:
        """Yield the names of the objects of a product, and of those in the static archives among
        its inputs. Archives in `seen` are skipped; each visited one is added to it."""
        for path in product.inputs:
            archive = self.products.get(path)
            if path in self.objects:
                yield path
            elif archive is not None and archive.kind == "static" and path not in seen:
                seen.add(path)
                yield from self.list_objects(archive, seen)


def collect_outputs(
    draft: ManifestDraft, root: str, commands: Iterable[tuple[str, Sequence[str]]]
) -> CommandOutputs:
    """Return the objects and products of commands, given as (directory, arguments). Programs that
    are neither compilers nor archivers are skipped. Sources that cannot be carried over become
    notes of the draft, named relative to `root`. Raises `ValueError`."""
    outputs = CommandOutputs()
    for directory, argv in commands:
        # Launchers and assignments come before the tool: `CC=x ccache g++ …`.
        tool_index = next(
            (n for n, word in enumerate(argv) if not BEFORE.fullmatch(get_tool_name(word))), None
        )
        if tool_index is None:
            continue
        tool, arguments = get_tool_name(argv[tool_index]), argv[tool_index + 1 :]
        if _ARCHIVER.fullmatch(tool):
            paths = [os.path.normpath(os.path.join(directory, word)) for word in arguments]
            # Before the archive are the archiver's operations: `ar qc libx.a …`.
            first = next((n for n, path in enumerate(paths) if path.endswith(".a")), None)
            if first is not None:
                inputs = [outputs.latest.get(path, path) for path in paths[first + 1 :]]
                product = LinkProduct("static", paths[first], inputs, CompileArguments())
                outputs.products[product.output] = product
        # A compiler that is not known by name, as a wrapper script, is known by `-c`.
        elif COMPILER.fullmatch(tool) or "-c" in arguments:
            parsed = parse_arguments(arguments, directory, tool)
            _add_compile(draft, root, outputs, directory, parsed)
    return outputs


def _add_compile(
    draft: ManifestDraft,
    root: str,
    outputs: CommandOutputs,
    directory: str,
    arguments: CompileArguments,
) -> None:
    """Add the objects or the product of one compiler's command to `outputs`. Sources of which it
    makes no object, and unreadable files of options, become notes of the draft."""
    for name in arguments.unread:
        draft.add_note(f"left out, because its file cannot be read: {name}")
    if arguments.makes in _STAGES:
        for source in arguments.sources:
            name = os.path.relpath(source, root)
            draft.add_note(f"left out, because {arguments.makes} makes no object of it: {name}")
    elif arguments.makes == "device link":
        outputs.device_links.add(arguments.output or "")
    elif arguments.makes == "object":
        if arguments.others and not arguments.sources:
            name = os.path.relpath(arguments.others[-1], root)
            draft.add_note(f"left out, because it is not a {', '.join(LANGUAGES)}: {name}")
        for source in arguments.sources:
            stem = os.path.splitext(os.path.basename(source))[0]
            path = arguments.output or os.path.join(directory, f"{stem}.o")
            name = path
            # A setup.py compiles one source to one path for several extensions, with other flags:
            # each is an object of its own, and `+` makes its name unique.
            while outputs.objects.get(name, (source, arguments)) != (source, arguments):
                name += "+"
            outputs.objects[name] = source, arguments
            outputs.latest[path] = name
    elif arguments.sources or arguments.others:
        output = arguments.output or os.path.join(directory, "a.out")
        # A command that compiles and links has objects without names: these are made up.
        objects = {f"{output}/{source}": (source, arguments) for source in arguments.sources}
        outputs.objects |= objects
        inputs = [*objects, *(outputs.latest.get(path, path) for path in arguments.others)]
        outputs.products[output] = LinkProduct(arguments.makes, output, inputs, arguments)
