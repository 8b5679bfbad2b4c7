"""A compile command of torch's `build.ninja`, in a form that another machine can use too.

Every argument stays, in its order, except paths: the source, the object, lists of dependencies and
the compiler are dropped, and directories of headers get names. A command that needs any other path
of this machine is refused with a reason, and torch's own command is run for it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from tilusbuild.manifest.command_words import Option, parse_options, split_command
from tilusbuild.manifest.denied_flags import find_denied_flags
from tilusbuild.manifest.library import LANGUAGES

_LAUNCHERS = ("ccache", "sccache")
_GXX = re.compile(r"(?:.*-)?(?:g|c)\+\+(?:-[\d.]+)?")
INCLUDES = ("-iquote", "-I", "-isystem", "-idirafter")
"""In the order in which they are searched."""
SYSTEM = INCLUDES.index("-isystem")
_DROPPED_OPTIONS = frozenset(
    ["-c", "-M", "-MM", "-MD", "-MMD", "-MP", "-MG", "-MF", "-MT", "-MQ", "-MJ"]
)
_REFUSED_OPTION = re.compile(
    r"-B.*|-specs.*|--?Xclang|-fplugin.*|-wrapper|-fprofile-use.*|-fauto-profile.*|-imacros.*"
    r"|-include-pch|--?(gpu-)?arch(itecture)?=?(native|all).*|-x.*"
)
"""Options that read a file which no preprocessor lists, run one, or depend on the machine."""
_KEYED_FLAG = re.compile(
    r"--?(std|gencode|generate-code|arch|code|gpu-\w+)(=.*)?|arch=.*|\w+_\d+\w?"
)
_NATIVE_FLAG = re.compile(r".*-m(?:arch|tune|cpu)=native.*")
_NAME = "-DTORCH_EXTENSION_NAME="
_PROJECT_MARKS = ("setup.py", "pyproject.toml", ".git")


class NotCarriedError(Exception):
    """A command depends on this machine. The text names the reason."""


class CompdbEntry(Struct):
    """An entry of `ninja -t compdb`."""

    directory: str
    command: str
    file: str


class IncludeDirectory(Struct, frozen=True):
    """An option with a directory of headers, absolute."""

    option: str
    path: str


class CompileCommand(Struct):
    """One compile, parsed. `arguments` are those of the command, with an `IncludeDirectory` for
    each directory of headers."""

    source: str
    """Absolute, as is `output`."""
    output: str
    compiler: str
    """The compiler of host code, "" where it is nvcc's default."""
    nvcc: str
    """"" for host code alone."""
    arguments: list[str | IncludeDirectory] = field(default_factory=list)
    native: bool = False
    """Whether it means the CPU of the machine."""
    rdc: bool = False
    """Whether device code is relocatable."""

    @property
    def extension(self) -> str:
        """The name of the extension module; "extension" if no macro names it."""
        flags = (argument for argument in self.arguments if isinstance(argument, str))
        return next((f.removeprefix(_NAME) for f in flags if f.startswith(_NAME)), "extension")


def parse_compile_command(entry: CompdbEntry, environment: Mapping[str, str]) -> CompileCommand:
    """Parse an entry of `ninja -t compdb`, with the flags and directories that environment
    variables add. A leading ccache is dropped. Raises `NotCarriedError` for a command that depends
    on this machine."""
    argv = split_command(entry.command)
    while argv and os.path.basename(argv[0]) in _LAUNCHERS:
        del argv[0]
    name = os.path.basename(argv[0]) if argv else ""
    is_nvcc = name == "nvcc"
    if not is_nvcc and not _GXX.fullmatch(name):
        raise NotCarriedError(f"{name} is neither nvcc nor g++")
    source = os.path.join(entry.directory, entry.file)
    suffix = os.path.splitext(source)[1]
    if suffix not in LANGUAGES or (suffix == ".cu" and not is_nvcc):
        raise NotCarriedError(f"{suffix or source} is not among the suffixes that tilusbuild knows")
    compiler, nvcc = ("", argv[0]) if is_nvcc else (argv[0], "")
    compile_command = CompileCommand(source, output="", compiler=compiler, nvcc=nvcc)
    unread: list[str] = []
    arguments = [*_add_environment_arguments(argv[1:], is_nvcc, environment)]
    for option in parse_options(arguments, entry.directory, unread):
        _add_option(compile_command, option, entry.directory)
    if unread:
        raise NotCarriedError(f"{unread[0]} names a file of options that cannot be read")
    return compile_command


def _add_option(compile_command: CompileCommand, option: Option, directory: str) -> None:
    """Add one option to a command, or set the field that it stands for; lists of dependencies are
    dropped. Raises `NotCarriedError` for an option that may name files outside of the hash."""
    name, value, written = option.name, option.value, option.written
    option_text = " ".join(written)
    path = os.path.normpath(os.path.join(directory, value or name))
    if name == "-ccbin":
        compile_command.compiler = value
    elif name == "-o":
        compile_command.output = path
    elif name in INCLUDES and compile_command.nvcc and "," in path:
        raise NotCarriedError(f"nvcc takes {option_text} apart at its comma")
    elif name in INCLUDES:
        compile_command.arguments.append(IncludeDirectory(name, path))
    elif name in _DROPPED_OPTIONS or path == compile_command.source:
        return
    elif not name.startswith("-"):
        raise NotCarriedError(f"{name} is not its source")
    elif _REFUSED_OPTION.fullmatch("=".join(written)):
        raise NotCarriedError(
            f"{option_text} may name files that no hash covers, or mean this machine"
        )
    else:
        # torch quotes values, such as '-fPIC', for nvcc's shell. No shell reads this command.
        values = (re.sub(r"^'([\w./+=,-]+)'$", r"\1", text) for text in written[1:])
        compile_command.arguments += [written[0], *values]
        compile_command.native |= _NATIVE_FLAG.fullmatch(written[-1]) is not None
        if name in ("-dc", "-rdc"):
            compile_command.rdc = value != "false"


def _add_environment_arguments(
    arguments: Sequence[str], is_nvcc: bool, environment: Mapping[str, str]
) -> Iterator[str]:
    """Yield the arguments of a command, and those that environment variables add."""
    # Compiles of tilusbuild do not get these variables, so the arguments are added to the command,
    # which is in the hash.
    if is_nvcc:
        yield from shlex.split(environment.get("NVCC_PREPEND_FLAGS", ""))
    yield from arguments
    if is_nvcc:
        yield from shlex.split(environment.get("NVCC_APPEND_FLAGS", ""))
    for name, option in (("CPATH", "-I"), ("CPLUS_INCLUDE_PATH", "-isystem")):
        for path in filter(None, environment.get(name, "").split(os.pathsep)):
            yield from (option, path)


def find_impure_flag(compile_command: CompileCommand) -> str | None:
    """Return a flag that may read, write or run a file that no hash covers; None if there is none.

    A sandbox keeps compiles from such files: the flag matters only without one.
    """
    # `find_denied_flags` also denies flags for which a manifest has a key: these are allowed here.
    flags = [
        argument
        for argument in compile_command.arguments
        if isinstance(argument, str)
        and not _KEYED_FLAG.fullmatch(argument)
        and not _NATIVE_FLAG.fullmatch(argument)
    ]
    denied = find_denied_flags(flags, cpu=not compile_command.nvcc)
    return next((flag.text for flag in denied), None)


def find_source_root(source: str, project_directory: str) -> str:
    """Return the directory relative to which a source is named: `project_directory` if the source
    is below it, else the nearest ancestor with a mark of a project, else its own directory."""
    if project_directory and source.startswith(project_directory.rstrip("/") + "/"):
        return project_directory
    source_directory = ancestor = os.path.dirname(source)
    while ancestor != os.path.dirname(ancestor):
        if any(os.path.lexists(os.path.join(ancestor, mark)) for mark in _PROJECT_MARKS):
            return ancestor
        ancestor = os.path.dirname(ancestor)
    return source_directory
