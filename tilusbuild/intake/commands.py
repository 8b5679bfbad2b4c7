"""Commands of another build system: the meaning of their arguments, and their outputs.

Each argument is understood, dropped because tilusbuild passes it itself, or kept as a flag; none
disappears.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field, structs

from tilusbuild.expr import Value
from tilusbuild.intake.draft import ManifestDraft
from tilusbuild.intake.spy import BEFORE, COMPILER, get_tool_name
from tilusbuild.manifest.command_words import Option, parse_options, split_command, split_list
from tilusbuild.manifest.denied_flags import list_flag_problems
from tilusbuild.manifest.library import LANGUAGES
from tilusbuild.manifest.names import IDENTIFIER

_DROPPED_FLAGS = re.compile(
    r"-(?:fPIC|pipe|MD|MMD|MP|M|g|mtune=.*|-?forward-unknown.*|-generate-dependencies.*)"
)
"""Flags that tilusbuild passes itself, or that change no code of a kernel."""

_PRINTERS = ("echo", "printf", ":")
_LINKER = re.compile(r"(.*-)?ld(\.\w+)?(-[\d.]+)?")
_LD_OPTIONS_WITH_VALUE = frozenset(
    ["-rpath", "-rpath-link", "-soname", "-h", "-z", "-m", "-T", "-e", "-R", "-u", "-Map"]
)
_ARCHIVER = re.compile(r"(.*-)?ar(-[\d.]+)?")
_DROPPED_OPTIONS_WITH_VALUE = frozenset(["-odir", "-ccbin", "-t", "-MF", "-MT", "-MQ", "-MJ"])
_STAGES = ("-E", "-M", "-MM", "-S", "-ptx", "-cubin", "-fatbin")
"""Options that end a compile before an object; `-M` and `-MM` print a list of headers."""
_OUTPUT_KIND_OF_OPTION = {
    "-shared": "shared",
    **dict.fromkeys(("-lib", "-r"), "static"),
    "-c": "object",
    "-dc": "object",
    "-dw": "object",
    "-dlink": "device link",
    **dict(zip(_STAGES, _STAGES, strict=True)),
}
_OUTPUT_KINDS = ("program", *dict.fromkeys(_OUTPUT_KIND_OF_OPTION.values()))
"""In the order of precedence: if the options of a command name several, it makes the last."""
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
    output_kind: str = "program"
    """"program", "shared", "static", "object", "device link", or the one of `_STAGES` that it ends
    with."""
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
    options = [*parse_options(argv, directory, arguments.unread)]
    # The host compiler gets these words before all others: nvcc's own `-D` takes precedence.
    host_options = [option for option in options if option.name == "-Xcompiler"]
    host_words = [word for option in host_options for word in _split_shell_list(option.value)]
    for option in parse_options(host_words, directory, arguments.unread):
        _add_option(arguments, option, directory, _FOR_HOST)
    # Of several, the last -O holds: nvcc would put its own behind those of the host compiler.
    levels = [option for option in options if _LEVEL.fullmatch(option.name)]
    for option in options:
        if any(option is level for level in levels[:-1]):
            continue
        split = _SPLIT_BY_OPTION.get(option.name) if by_nvcc else None
        for value in split(option.value) if split else [option.value]:
            part = structs.replace(option, value=value)
            _add_option(arguments, part, directory, _FOR_NVCC if by_nvcc else _FOR_BOTH)
    if by_nvcc and any(not source.endswith(".cu") for source in arguments.sources):
        arguments.defines.setdefault("__NVCC__", True)
    return arguments


def _split_shell_list(value: str) -> list[str]:
    """Return the words of a list of options, which a shell takes apart after nvcc."""
    return split_command(" ".join(split_list(value)))


_LEVEL = re.compile("-O([0-3sgz]|fast)?")
# The options whose value nvcc takes apart at commas.
_SPLIT_BY_OPTION: Mapping[str, Callable[[str], list[str]]] = {
    **dict.fromkeys(("-D", "-U", "-I", "-isystem", "-l", "-L", "-code"), split_list),
    "-Xlinker": _split_shell_list,
}
# The flags of a command that nvcc can be given as they are; it passes all others on to the host
# compiler. Of g++'s, only -O means the same to nvcc, which would misread others, such as
# -Werror=format-security as its own -Werror. Behind `-Xcompiler`, -O is for host code alone.
_FOR_BOTH, _FOR_HOST = re.compile("-O[0-3]"), re.compile("(?!)")
# nvcc forwards flags that it does not know to the host compiler: these are gcc's families, without
# the flags of nvcc that begin so.
_FOR_NVCC = re.compile(
    r"(?!-p(ipe|thread|edantic)|-ansi|-[fW](?!mad|tz|template-|device-|reorder|default-stream"
    r"|missing-l|no-deprecated-(gpu|decl)|ext-lambda)|-m(?!64|axrregcount|odify-|inimal)[a-z]).*",
    re.DOTALL,
)

# The fields of `CompileArguments`, by option: those that get the option's value, those whose list
# gets it, and those whose list gets it as an absolute path.
_FIELD_OF_VALUE_OPTION = {"-std": "std", "-march": "march", "-x": "language", "-cudart": "cudart"}
_FIELD_OF_LIST_OPTION = {
    "-code": "codes",
    "-arch": "arch_names",
    "-l": "libs",
    "-Xlinker": "linker",
}
_FIELD_OF_DIRECTORY_OPTION = {
    **dict.fromkeys(("-I", "-iquote"), "include_dirs"),
    **dict.fromkeys(("-isystem", "-idirafter"), "system_dirs"),
    "-L": "lib_dirs",
}


def _add_option(
    arguments: CompileArguments, option: Option, directory: str, for_nvcc: re.Pattern[str]
) -> None:
    """Add one option, with its value, to `arguments`. Flags that match `for_nvcc` are nvcc's."""
    name, value = option.name, option.value
    if name in _OUTPUT_KIND_OF_OPTION:
        arguments.output_kind = max(
            arguments.output_kind, _OUTPUT_KIND_OF_OPTION[name], key=_OUTPUT_KINDS.index
        )
        arguments.rdc = arguments.rdc or name == "-dc"
    elif name == "-rdc":
        arguments.rdc = value != "false"
    elif name in _FIELD_OF_VALUE_OPTION:
        setattr(arguments, _FIELD_OF_VALUE_OPTION[name], value)
    elif name in _FIELD_OF_LIST_OPTION:
        getattr(arguments, _FIELD_OF_LIST_OPTION[name]).append(value)
    elif name in _FIELD_OF_DIRECTORY_OPTION:
        path = os.path.normpath(os.path.join(directory, value))
        directories = getattr(arguments, _FIELD_OF_DIRECTORY_OPTION[name])
        if path not in directories:
            directories.append(path)
    elif name in ("-D", "-U"):
        _add_macro(arguments, name, value)
    elif name == "-gencode":
        # Such as `arch=compute_90,code=sm_90`.
        arguments.codes.append(value.partition("code=")[2] or value)
    elif name == "-o":
        arguments.output = os.path.normpath(os.path.join(directory, value))
    elif name == "-z" or name.startswith("-Wl,"):
        arguments.linker += ",".join(option.written).removeprefix("-Wl,").split(",")
    elif name != "-Xcompiler":
        _add_file_or_flag(arguments, option, directory, for_nvcc)


def _add_file_or_flag(
    arguments: CompileArguments, option: Option, directory: str, for_nvcc: re.Pattern[str]
) -> None:
    """Add a source, another file, or a flag to `arguments`. Flags that tilusbuild sets itself are
    dropped. A flag that does not match `for_nvcc` goes behind `-Xcompiler`."""
    name, written = option.name, option.written
    if not name.startswith("-"):
        is_source = os.path.splitext(name)[1] in LANGUAGES
        path = os.path.normpath(os.path.join(directory, name))
        (arguments.sources if is_source else arguments.others).append(path)
    elif not _DROPPED_FLAGS.fullmatch(name) and name not in _DROPPED_OPTIONS_WITH_VALUE:
        host_flags = ["-Xcompiler", *written]
        can_be_passed = len(written) == 1 and not any(
            list_flag_problems(host_flags, unsafe=False, cpu=False)
        )
        is_host_flag = can_be_passed and not for_nvcc.fullmatch(name)
        arguments.flags += host_flags if is_host_flag else written


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
            # In the order in which ld searches: directory by directory, and in each the shared
            # library first.
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
    unmade: dict[str, str] = field(default_factory=dict)
    """The sources of which a command makes something else than an object, and the option for
    that."""

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
    """Parse each (directory, arguments) command, and return the objects and the products that the
    commands make.

    Commands of programs that are neither compilers nor archivers are skipped. For each source that
    cannot be carried over, a comment is added to the draft (`add_note`), with the path relative to
    `root`. Raises `ValueError` if the files of options give a command too many arguments.
    """
    outputs = CommandOutputs()
    for directory, argv in commands:
        # Launchers and assignments come before the tool: `CC=x ccache g++ …`.
        tool_index = next(
            (n for n, word in enumerate(argv) if not BEFORE.fullmatch(get_tool_name(word))), None
        )
        if tool_index is None:
            continue
        tool, words = get_tool_name(argv[tool_index]), argv[tool_index + 1 :]
        if _ARCHIVER.fullmatch(tool):
            words = _to_archive_words(words)
        elif _LINKER.fullmatch(tool):
            words = [*_to_driver_words(words)]
        elif not COMPILER.fullmatch(tool):
            # A compiler with an unknown name, such as a wrapper script, is recognized by its words.
            if tool in _PRINTERS or not _makes_object(words):
                continue
            # A launcher with options and a compiler, as in `nice -n 5 nvcc`.
            for n, word in enumerate(words):
                if COMPILER.fullmatch(get_tool_name(word)) and words[n - 1] != "-ccbin":
                    tool, words = get_tool_name(word), words[n + 1 :]
                    break
        if "clang" in tool:
            draft.add_note(f"compiled by {tool} there, and by g++ here (cxx in [toolchain])")
        parsed = parse_arguments(words, directory, tool)
        _add_compile(draft, root, outputs, directory, parsed)
    compiled_sources = {source for source, _ in outputs.objects.values()}
    for source, option in outputs.unmade.items():
        if source not in compiled_sources:
            name = os.path.relpath(source, root)
            draft.add_note(f"left out, because {option} makes no object of it: {name}")
    return outputs


def _to_driver_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of an `ld` as a compiler takes them that links."""
    for before, word in zip(["", *words], words, strict=False):
        is_value = before in _LD_OPTIONS_WITH_VALUE
        if is_value or not re.fullmatch(r"-o|-[lL].*|-shared|-r|[^-].*", word):
            yield "-Xlinker"
        yield word


def _makes_object(words: Sequence[str]) -> bool:
    """Return whether the words of an unknown program are those of a compile. `wc -c x.cu` is
    none."""
    suffixes = {os.path.splitext(word)[1] for word in words}
    return {"-c", "-o", ".o"} <= {*words, *suffixes} and not suffixes.isdisjoint(LANGUAGES)


def _to_archive_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words of an archiver, such as `qc libx.a a.o b.o`, as a linker takes them that
    joins objects; none if no word names an archive."""
    index = next((n for n, word in enumerate(words) if word.endswith(".a")), None)
    return [] if index is None else ["-r", "-o", *words[index:]]


def _add_compile(
    draft: ManifestDraft,
    root: str,
    outputs: CommandOutputs,
    directory: str,
    arguments: CompileArguments,
) -> None:
    """Add the objects or the product of one compiler's command to `outputs`. Unreadable files of
    options become notes of the draft."""
    for name in arguments.unread:
        draft.add_note(f"left out, because its file cannot be read: {name}")
    if arguments.output_kind in _STAGES:
        outputs.unmade |= dict.fromkeys(arguments.sources, arguments.output_kind)
    elif arguments.output_kind == "device link":
        outputs.device_links.add(arguments.output or "")
    elif arguments.output_kind == "object":
        if arguments.others and not arguments.sources:
            name = os.path.relpath(arguments.others[-1], root)
            draft.add_note(f"left out, because it is not a {', '.join(LANGUAGES)}: {name}")
        for source in arguments.sources:
            stem = os.path.splitext(os.path.basename(source))[0]
            path = arguments.output or os.path.join(directory, f"{stem}.o")
            object_name, this_compile = path, (source, arguments)
            # A setup.py may compile one source to one path for several extensions, with other flags
            # for each. Each of these is an object of its own, and `+` makes its name unique.
            while outputs.objects.get(object_name, this_compile) != this_compile:
                object_name += "+"
            outputs.objects[object_name] = this_compile
            outputs.latest[path] = object_name
    elif arguments.sources or arguments.others:
        output = arguments.output or os.path.join(directory, "a.out")
        # The objects of a command that compiles and links at once have no names: make some up.
        objects = {f"{output}/{source}": (source, arguments) for source in arguments.sources}
        outputs.objects |= objects
        inputs = [*objects, *(outputs.latest.get(path, path) for path in arguments.others)]
        if arguments.output_kind == "static" and output in outputs.products:
            # CMake adds the objects of a large archive in several commands.
            inputs = [*dict.fromkeys([*outputs.products[output].inputs, *inputs])]
        outputs.products[output] = LinkProduct(arguments.output_kind, output, inputs, arguments)
