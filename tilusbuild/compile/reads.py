"""Check that a compile reads only files that the program's hash covers.

A source can name any file: by an absolute path, by `..`, by a macro, in `.incbin`. Two mechanisms
refuse it. In the sandbox (`process/landlock.py`) a tool can open its own files, the headers of its
fingerprint, `include/<digest>` and the private directory, and no other. The check of reads needs no
Landlock: the preprocessor and the assembler list the files that they read, and each must be a
header of the fingerprint, of `include/<digest>`, or in the private directory. Without a sandbox the
linker lists its files, too, and may read the tools' own. NVRTC lists none: without a sandbox it
gets no source whose includes the closure cannot determine.

A compile that breaks the rule is an accident and is not recorded, so that the status of a program
is the same on every machine. The sandbox takes 0.8 ms a command (benchmarks/sandbox.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache

from msgspec import Struct

from tilusbuild.compile.model import HERE, SOURCE, Step, Tools
from tilusbuild.compile.steps import TOOLS
from tilusbuild.errors import Diagnostic
from tilusbuild.process import landlock
from tilusbuild.process.base import CompletedCommand, Sandbox
from tilusbuild.runtime.regular import try_read_text

INCLUDED, ASSEMBLED, LINKED = "tmp/included.d", "tmp/assembled.d", "tmp/linked.d"
"""The files in the private directory in which preprocessor, assembler and linker list their
reads."""

# gcc's variable: every preprocessor that runs, nvcc's too, adds its files to the list. Unlike -MD
# it changes no command, and unlike DEPENDENCIES_OUTPUT it does not leave out system headers.
_LIST_INCLUDED = {"SUNPRO_DEPENDENCIES": f"{HERE}/{INCLUDED}"}
# Not -Wa,…: nvcc splits what it passes on at commas.
_LIST_ASSEMBLED = ("-Xassembler", "--MD", "-Xassembler", ASSEMBLED)
_LIST_LINKED = ("-Xlinker", f"--dependency-file={LINKED}")
# The tools that read a user's source.
_SOURCE_READERS = ("{nvcc}", "{cxx}", "{nvrtc}")

# strerror() of EACCES and ENOENT, as gcc and ld print it; as; NVRTC.
_NOT_OPENED = re.compile(
    r"Permission denied|No such file or directory|file not found|cannot open source file",
    re.IGNORECASE,
)
_PATH_IN_MESSAGE = re.compile(r"[^\s\"'`<>]*/[^\s\"'`<>]*")
# A tool's own name, at the start of its message.
_TOOL_PREFIX = re.compile(rf"^{HERE}/{TOOLS}/\S+?: ")
# The file of a compiler's message, or of an `included from` line.
_FILE_OF_MESSAGE = re.compile(r"(?:^|from )(/[^:\n]*?)(?::|\()\d+", re.MULTILINE)
# A place in the source, or in a header of the program, at the start of a message.
_MESSAGE_POSITION = re.compile(
    rf"^(?P<file>(?:{HERE}/)?(?:source\.cu|include/[^:\s(]+))(?::(?P<line>\d+)|\((?P<nvrtc>\d+)\))"
)

_NVCC_TEMPORARIES = ("/tmp/source.cudafe1.stub.c", "/tmp/source.fatbin.c")  # noqa: S108 - in a private directory

REMEDY = "put it into a directory of include-dirs and include it by its name there"
_LINK_REMEDY = "a [library.NAME] takes archives and objects in objects, link-libs and link-dirs"


@lru_cache(maxsize=1)
def detect_landlock() -> int:
    """Return the version of Landlock in this kernel; 0 without Landlock."""
    return landlock.find_version()


class CompileReads(Struct, frozen=True):
    """The reads of one compile. `work` is the compile's private directory, and `headers` the
    directory of the program's headers, if there are any."""

    tools: Tools
    work: str
    headers: str | None

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that make compilers list their reads."""
        return {} if self.tools.reach is None else _LIST_INCLUDED

    def build_argv(self, step: Step) -> tuple[str, ...]:
        """Return a step's command with the tools' paths, and with the options that list or confine
        its reads."""
        command = self.tools.fill_placeholders(step.argv)
        if self.tools.reach is None:
            return command
        if _is_assembly_step(step):
            if step.argv[0] != "{nvcc}":
                return (*command, *_LIST_ASSEMBLED)
            # nvcc passes each word on to the host compiler.
            passed_on = [option for word in _LIST_ASSEMBLED for option in ("-Xcompiler", word)]
            return (*command, *passed_on)
        if self._can_list_linked(step):
            return (*command, *_LIST_LINKED)
        sandbox = self._make_sandbox(self.tools.reach.nvrtc)
        if sandbox is not None and step.argv[0] == "{nvrtc}" and step.name != "fatbin":
            # A sandbox from the start would hinder NVRTC's process, which first loads far more than
            # a compile needs: the process confines itself before it compiles.
            tool = self.tools.paths["{nvrtc}"]
            confinement = ("--confine", os.path.abspath(landlock.__file__), *sandbox.read, "--")
            return (*tool, *confinement, *sandbox.write, "--", *command[len(tool) :])
        return command

    def list_dependency_files(self, step: Step) -> tuple[str, ...]:
        """Return the lists that a step writes; () for NVRTC and ptxas, which list nothing."""
        if self.tools.reach is None or step.argv[0] not in ("{nvcc}", "{cxx}"):
            return ()
        return (INCLUDED, ASSEMBLED) if _is_assembly_step(step) else (INCLUDED,)

    def select_sandbox(self, step: Step) -> Sandbox | None:
        """Return the sandbox in which the runner starts a step; None for NVRTC, which confines
        itself, and for a tool of `--dump-ir`."""
        reach = self.tools.reach
        if reach is None or step.argv[0] == "{nvrtc}" or not step.argv[0].startswith("{"):
            return None
        return self._make_sandbox(reach.tools)

    def _make_sandbox(self, tools: tuple[str, ...]) -> Sandbox | None:
        """Return a sandbox that opens the paths `tools`, headers and the private directory; None if
        it is switched off or the kernel has no Landlock."""
        reach = self.tools.reach
        if reach is None or not reach.sandboxed or not detect_landlock():
            return None
        header_directories = () if self.headers is None else (self.headers,)
        return Sandbox((*tools, *reach.headers, *header_directories), (self.work, os.devnull))

    def find_problem(self, step: Step, finished: CompletedCommand, source: str) -> str | None:
        """Return an error line, with the line of the source, for a file outside of the hash that a
        finished step read or tried to read; None without one."""
        if self.tools.reach is None or step.argv[0] not in _SOURCE_READERS:
            return None
        # After a failure the list may be missing, so the file is looked for in the message.
        if finished.status != 0:
            log = finished.output.decode("utf-8", "replace")
            path = next(self._list_uncovered_paths(self._extract_paths(log)), None)
            if path is None:
                return None
            if SOURCE in step.argv:
                return _format_read_error(path, source, log)
            return _format_link_error(path)
        if self._can_list_linked(step):
            return self._find_link_problem(step)
        if SOURCE not in step.argv or step.argv[0] == "{nvrtc}":
            return None
        read_paths = self._read_list(INCLUDED)
        if read_paths is None:
            return (
                f"{step.tool} did not list the files that it read, so that they cannot be compared "
                "with what the program's hash covers (does toolchain.launcher pass the "
                "environment on, and share the directory?)"
            )
        read_paths |= self._read_list(ASSEMBLED) or set()
        # A worker's private directory has another name, which is not known here.
        if finished.elsewhere is not None:
            read_paths -= _find_worker_temporaries(read_paths)
        # Sorted, so that the same file is named in every build.
        path = next(self._list_uncovered_paths(sorted(read_paths)), None)
        return None if path is None else _format_read_error(path, source)

    def _can_list_linked(self, step: Step) -> bool:
        """Return whether the step is a link that no sandbox confines and whose linker can list
        files."""
        if step.name != "link" or step.argv[0] not in _SOURCE_READERS or not self.tools.ld_lists:
            return False
        return self.tools.reach is not None and self.select_sandbox(step) is None

    def _find_link_problem(self, step: Step) -> str | None:
        """Return an error line for a file that the linker listed and that is neither covered nor a
        tool's; None without one."""
        read_paths = self._read_list(LINKED)
        if read_paths is None:
            return f"the linker of {step.tool} did not list the files that it read"
        # The linker may read the tools' files. What it makes itself is in the private directory.
        tool_directories = self.tools.reach.tools if self.tools.reach is not None else ()
        files = (
            path for path in sorted(read_paths) if not _is_system_file_below(path, tool_directories)
        )
        outside_path = next(self._list_uncovered_paths(files), None)
        return None if outside_path is None else _format_link_error(outside_path)

    def explain_unconfined(self, notes: Sequence[Diagnostic]) -> str | None:
        """Return why NVRTC cannot compile a source whose closure has `notes`: without a sandbox its
        reads are neither confined nor listed. None if it can."""
        reach = self.tools.reach
        if reach is None or not notes or self._make_sandbox(reach.nvrtc) is not None:
            return None
        note = notes[0]
        return (
            f"{note.location or 'source.cu'}: error: {note.message}, and without a sandbox nothing "
            f"shows what NVRTC reads: {note.hint}"
        )

    def remove_lists(self) -> None:
        """Remove the lists of the previous step: compilers append to them."""
        for name in (INCLUDED, ASSEMBLED, LINKED):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.work, name))

    def _extract_paths(self, log: str) -> Iterator[str]:
        """Yield the files in a failed compiler's log: those it could not open, and those of its
        messages."""
        for line in log.splitlines():
            if _NOT_OPENED.search(line):
                yield from (
                    path.rstrip(":,;.")
                    for path in _PATH_IN_MESSAGE.findall(_TOOL_PREFIX.sub("", line))
                )
        yield from _FILE_OF_MESSAGE.findall(log)

    def _read_list(self, name: str) -> set[str] | None:
        """Return the files in a list; None if the list does not exist."""
        text = try_read_text(os.path.join(self.work, name), "replace")
        if text is None:
            return None
        # The list has rules of make: `source.o: source.cu my\ header.h cost$$.h`. A backslash at
        # the end of a line continues a rule.
        rules = text.replace("\\\n", " ").split("\n")
        prerequisites = " ".join(rule.partition(": ")[2] for rule in rules)
        escaped_names = re.findall(r"(?:\\.|[^\s\\])+", prerequisites)
        return {re.sub(r"\\(.)", r"\1", name).replace("$$", "$") for name in escaped_names}

    def _list_uncovered_paths(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield the paths that the hash does not cover: absolute ones unchanged, relative ones
        joined to the private directory, and normalized."""
        reach = self.tools.reach
        covered = reach.headers if reach is not None else ()
        program_directories = tuple(
            os.path.realpath(directory)
            for directory in (self.work, self.headers)
            if directory is not None
        )
        for name in paths:
            is_relative = name.startswith(HERE) or not name.startswith("/")
            path = name
            if is_relative:
                path = os.path.join(self.work, name.removeprefix(HERE).lstrip("/"))
            if _is_system_file_below(path, covered):
                continue
            # The private directory also has the assembler's input, and the links to gcc's tools.
            if _is_below_any(os.path.realpath(path), program_directories):
                continue
            yield os.path.normpath(path) if is_relative else path


def _find_worker_temporaries(read_paths: set[str]) -> set[str]:
    """Return nvcc's temporary files in a worker's private directory, whose path is not known here.
    nvcc lists them in every compile: if such names occur in a second directory, they are the
    source's own, and none is returned."""
    temporaries = {
        path
        for path in read_paths
        if path.endswith(_NVCC_TEMPORARIES) and not path.startswith(HERE)
    }
    return temporaries if len({os.path.dirname(path) for path in temporaries}) == 1 else set()


def _is_assembly_step(step: Step) -> bool:
    return SOURCE in step.argv and step.output.endswith(".o")


@lru_cache(maxsize=8192)
def _is_system_file_below(path: str, directories: tuple[str, ...]) -> bool:
    """Return whether the real path of a file is in one of the directories. The answer is cached,
    since every program of a build includes the system's headers."""
    return _is_below_any(os.path.realpath(path), directories)


def _is_below_any(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in directories)


def _format_link_error(path: str) -> str:
    """Return the error line for a file that the link reads."""
    return (
        f"error: the link asks for {path}, and the program's hash does not cover it; {_LINK_REMEDY}"
    )


def _format_read_error(path: str, source: str, log: str = "") -> str:
    """Return `FILE:LINE: error: …` for a file read outside the hash. The position comes from the
    log, else from the source, else it is `source.cu`."""
    file_name = os.path.basename(path)
    error_line = f"error: {path} is outside of what the program's hash covers; {REMEDY}"
    for log_line in log.splitlines():
        match = _MESSAGE_POSITION.match(log_line)
        if match is not None and file_name in log_line:
            return f"{match['file']}:{match['line'] or match['nvrtc']}: {error_line}"
    for number, source_line in enumerate(source.split("\n"), 1):
        if file_name in source_line:
            return f"source.cu:{number}: {error_line}"
    # The source may not contain the name (a macro builds it): then no line.
    return f"source.cu: {error_line}"
