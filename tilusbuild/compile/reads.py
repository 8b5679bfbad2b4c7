"""What a compile may read, and what it did read: nothing that the program's hash does not cover.

A source can name any file: by an absolute path, by `..`, by a macro, in `.incbin`. Two nets, of
which the second also holds where the first is not offered:

- a sandbox (`process/landlock.py`): a tool can open its own files, the headers of its fingerprint,
  `include/<digest>` and the private directory, and no other;
- a check of what was read: the preprocessor and the assembler list their files, and each must be a
  header of the fingerprint, of `include/<digest>`, or in the private directory; without a sandbox
  a linker that can does so too, and may read what comes with the tools. NVRTC lists none: without
  a sandbox it is given no source whose includes the closure cannot determine.

A compile that is caught by either says nothing about the program: it is an accident, and not
recorded. So the verdict on a program is the same on every machine.

The sandbox takes 0.8 ms a command (benchmarks/sandbox.py); without it, NVRTC refuses sources that
it would otherwise take.
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
"""The lists of the preprocessor, the assembler and the linker, in the private directory."""

_LIST_INCLUDED = {"SUNPRO_DEPENDENCIES": f"{HERE}/{INCLUDED}"}
"""gcc's variable: every preprocessor that runs, nvcc's too, adds its files to the list. Unlike -MD
it changes no command, and unlike DEPENDENCIES_OUTPUT it does not leave out system headers."""
# Not -Wa,…: nvcc splits what it passes on at commas.
_LIST_ASSEMBLED = ("-Xassembler", "--MD", "-Xassembler", ASSEMBLED)
_LIST_LINKED = ("-Xlinker", f"--dependency-file={LINKED}")
_READERS = ("{nvcc}", "{cxx}", "{nvrtc}")
"""The tools that are given a person's source."""

_NOT_OPENED = re.compile(
    r"Permission denied|No such file or directory|file not found|cannot open source file",
    re.IGNORECASE,
)
"""strerror() of EACCES and ENOENT, as gcc and ld print it; as; NVRTC."""
_PATH = re.compile(r"[^\s\"'`<>]*/[^\s\"'`<>]*")
_TOOL = re.compile(rf"^{HERE}/{TOOLS}/\S+?: ")
"""A tool's own name, at the start of its message."""
_PLACE = re.compile(r"(?:^|from )(/[^:\n]*?)(?::|\()\d+", re.MULTILINE)
"""A file in which a compiler found something, or from which it includes another."""
_AT = re.compile(
    rf"^(?P<file>(?:{HERE}/)?(?:source\.cu|include/[^:\s(]+))(?::(?P<line>\d+)|\((?P<nvrtc>\d+)\))"
)
"""A place in the source, or in a header of the program, at the start of a message."""

_MADE = ("/tmp/source.cudafe1.stub.c", "/tmp/source.fatbin.c")  # noqa: S108 - in a private directory

REMEDY = "put it into a directory of include-dirs and include it by its name there"
_LINK_REMEDY = "a [library.NAME] takes archives and objects in objects, link-libs and link-dirs"


@lru_cache(maxsize=1)
def offered() -> int:
    """Return the version of Landlock that this machine offers; 0 for none."""
    return landlock.find_version()


class Reads(Struct, frozen=True):
    """The files of one compile. `work` is its private directory, `headers` that of its headers."""

    tools: Tools
    work: str
    headers: str | None

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which compilers list what they read."""
        return {} if self.tools.reach is None else _LIST_INCLUDED

    def argv(self, step: Step) -> tuple[str, ...]:
        """Return a step's command as it is run: with paths, and with what lists or holds it."""
        words = self.tools.fill(step.argv)
        if self.tools.reach is None:
            return words
        if _assembles(step):
            if step.argv[0] == "{nvcc}":
                return (*words, *(w for word in _LIST_ASSEMBLED for w in ("-Xcompiler", word)))
            return (*words, *_LIST_ASSEMBLED)
        if self._lists_linked(step):
            return (*words, *_LIST_LINKED)
        sandbox = self._sandbox(self.tools.reach.nvrtc)
        if sandbox is not None and step.argv[0] == "{nvrtc}" and step.name != "fatbin":
            # Its process loads far more than a compile needs, so it gives the rest up by itself.
            own = self.tools.paths["{nvrtc}"]
            held = ("--confine", os.path.abspath(landlock.__file__), *sandbox.read, "--")
            return (*own, *held, *sandbox.write, "--", *words[len(own) :])
        return words

    def lists(self, step: Step) -> tuple[str, ...]:
        """Return the lists that a step makes of what it read; NVRTC and ptxas make none."""
        if self.tools.reach is None or step.argv[0] not in ("{nvcc}", "{cxx}"):
            return ()
        return (INCLUDED, ASSEMBLED) if _assembles(step) else (INCLUDED,)

    def sandbox(self, step: Step) -> Sandbox | None:
        """Return what the runner holds a step to; None for NVRTC, which holds itself, and for a
        tool that only shows what was made."""
        reach = self.tools.reach
        if reach is None or step.argv[0] == "{nvrtc}" or not step.argv[0].startswith("{"):
            return None
        return self._sandbox(reach.tools)

    def _sandbox(self, tools: tuple[str, ...]) -> Sandbox | None:
        reach = self.tools.reach
        if reach is None or not reach.sandboxed or not offered():
            return None
        own = () if self.headers is None else (self.headers,)
        return Sandbox((*tools, *reach.headers, *own), (self.work, os.devnull))

    def problem(self, step: Step, finished: CompletedCommand, source: str) -> str | None:
        """Return what a finished step read, or tried to read, that the hash does not cover: one
        line, with the place in the source where it is named. None for nothing."""
        if self.tools.reach is None or step.argv[0] not in _READERS:
            return None
        if finished.status != 0:
            log = finished.output.decode("utf-8", "replace")
            found = next(self._outside(self._named(log)), None)
            if found is None:
                return None
            return _located(found, source, log) if SOURCE in step.argv else _linked(found)
        if self._lists_linked(step):
            return self._wrongly_linked(step)
        if SOURCE not in step.argv or step.argv[0] == "{nvrtc}":
            return None
        listed = self._listed(INCLUDED)
        if listed is None:
            return (
                f"{step.tool} did not list the files that it read, so that they cannot be compared "
                "with what the program's hash covers (does toolchain.launcher pass the "
                "environment on, and share the directory?)"
            )
        listed |= self._listed(ASSEMBLED) or set()
        if finished.elsewhere is not None:
            listed -= _made_elsewhere(listed)
        found = next(self._outside(sorted(listed)), None)
        return None if found is None else _located(found, source)

    def _lists_linked(self, step: Step) -> bool:
        """Return whether the linker is asked for its files: where nothing holds it."""
        if step.name != "link" or step.argv[0] not in _READERS or not self.tools.ld_lists:
            return False
        return self.tools.reach is not None and self.sandbox(step) is None

    def _wrongly_linked(self, step: Step) -> str | None:
        listed = self._listed(LINKED)
        if listed is None:
            return f"the linker of {step.tool} did not list the files that it read"
        # Its own temporary objects are in the private directory.
        own = self.tools.reach.tools if self.tools.reach is not None else ()
        files = (path for path in sorted(listed) if not _is_below(path, own))
        found = next(self._outside(files), None)
        return None if found is None else _linked(found)

    def unheld(self, notes: Sequence[Diagnostic]) -> str | None:
        """Return why NVRTC cannot be given a source whose closure has `notes`: what it would read
        is neither held nor listed. None where it can."""
        reach = self.tools.reach
        if reach is None or not notes or self._sandbox(reach.nvrtc) is not None:
            return None
        note = notes[0]
        return (
            f"{note.place or 'source.cu'}: error: {note.message}, and without a sandbox nothing "
            f"shows what NVRTC reads: {note.hint}"
        )

    def forget(self) -> None:
        """Remove the lists of the step before."""
        for name in (INCLUDED, ASSEMBLED, LINKED):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.work, name))

    def _named(self, log: str) -> Iterator[str]:
        """Yield the files that a failed compiler could not open, or was in."""
        for line in log.splitlines():
            if _NOT_OPENED.search(line):
                yield from (path.rstrip(":,;.") for path in _PATH.findall(_TOOL.sub("", line)))
        yield from _PLACE.findall(log)

    def _listed(self, name: str) -> set[str] | None:
        """Return the files of a list; None if there is none."""
        text = try_read_text(os.path.join(self.work, name), "replace")
        if text is None:
            return None
        rules = (line.partition(": ")[2] for line in text.replace("\\\n", " ").split("\n"))
        words = re.findall(r"(?:\\.|[^\s\\])+", " ".join(rules))
        return {re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words}

    def _outside(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield those of `paths` that the hash does not cover, as they were named."""
        reach = self.tools.reach
        covered = reach.headers if reach is not None else ()
        mine = tuple(os.path.realpath(p) for p in (self.work, self.headers) if p is not None)
        for path in paths:
            own = path.startswith(HERE) or not path.startswith("/")
            if own:
                path = os.path.join(self.work, path.removeprefix(HERE).lstrip("/"))
            if _is_below(path, covered) or _below(os.path.realpath(path), mine):
                continue
            # The assembler's input, and the directories of gcc's own programs in its messages.
            yield os.path.normpath(path) if own else path


def _made_elsewhere(listed: set[str]) -> set[str]:
    """Return the files of nvcc's own that an object's host code includes, by the real path of the
    private directory: on another machine that is unknown. Nvcc always lists them, so that
    files of these names in a second directory are the source's."""
    own = {path for path in listed if path.endswith(_MADE) and not path.startswith(HERE)}
    return own if len({os.path.dirname(path) for path in own}) == 1 else set()


def _assembles(step: Step) -> bool:
    return SOURCE in step.argv and step.output.endswith(".o")


@lru_cache(maxsize=8192)
def _is_below(path: str, directories: tuple[str, ...]) -> bool:
    """Return `_below` of a file of the system, which every program of a build includes."""
    return _below(os.path.realpath(path), directories)


def _below(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == each or path.startswith(each + "/") for each in directories)


def _linked(path: str) -> str:
    """Return the error about a file that was linked, or would have been."""
    return (
        f"error: the link asks for {path}, and the program's hash does not cover it; {_LINK_REMEDY}"
    )


def _located(path: str, source: str, log: str = "") -> str:
    """Return the error about a file, worded as a compiler's, at the place that names it."""
    name = os.path.basename(path)
    said = (match for line in log.splitlines() if name in line and (match := _AT.match(line)))
    lines = enumerate(source.split("\n"), 1)
    place = next((f"{at['file']}:{at['line'] or at['nvrtc']}" for at in said), None)
    place = place or next((f"source.cu:{n}" for n, line in lines if name in line), "source.cu")
    return f"{place}: error: {path} is outside of what the program's hash covers; {REMEDY}"
