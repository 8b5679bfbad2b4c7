"""Precompiled headers of an NVRTC process that stays: programs of one closure share the parsing.

Loaded by `nvrtc_command.py --serve` alone; standard library only. What is precompiled is a source's
`#include` lines at its top and nothing of the source itself, from the headers of its closure,
which are named by their content, in a thread that can read nothing else. So it follows from its
key, and a program's code does not depend on what was compiled before it. A process makes one when
the request says that more programs will follow, or when a second one asks for the same headers and
the first took long; where making it prints anything, fails or finds no room, programs are compiled
from their text as ever.

NVRTC deletes and writes the file by name, and only the process that wrote it can use it. It is
made in the private directory of a compile, opened, and its name removed: nothing is left behind,
however the process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Answer = tuple[int, bytes, list[bytes]]

_INCLUDES = re.compile(
    rb"""(?: \s+ | //[^\n\\?]*\n | /\*[^\\?]*?\*/
       | [ \t]*\#[ \t]*include[ \t]*(?:<[^>\n\\?]+>|"[^"\n\\?]+")
         [ \t]*(?://[^\n\\?]*)?\r?\n(?P<end>)
    )*""",
    re.VERBOSE,
)
"""The top of a source up to its last `#include`. A line that a backslash or a trigraph could
continue ends it, and so does a macro, a condition or a computed include."""
_DIGEST = re.compile(r"[0-9a-f]{64}")

_OWN = "-I/proc/self/cwd"
"""The option of a program that has headers of its own, beside its source."""
_STOP = b"#pragma nv_hdrstop\n"
_END = b'#error "the end of what is precompiled"\n'
_ONLY_THE_END = re.compile(
    rb'\S+: catastrophic error: #error directive: "the end of what is precompiled"\n'
    rb'\s*#error "the end of what is precompiled"\n\s*\^\n\s*'
    rb'1 catastrophic error detected in the compilation of "[^"\n]*"\.\nCompilation terminated\.\s*'
)
_WORTH = 0.4
"""Seconds of processor time from which on a source's headers are worth to be kept."""
_LEAST_BYTES = 24 << 20
"""A smaller file holds headers that are parsed sooner than the file is mapped."""
_MAX_KNOWN, _MAX_FILES, _MAX_BYTES = 256, 4, 1 << 30
"""The tops of sources that one process counts, and the precompiled headers that it keeps."""
_FIRST_HEAP, _MAX_HEAP = 512 << 20, 4 << 30
"""Bytes of address space for what is precompiled; only what is used is touched."""
_CREATED, _EXHAUSTED = 0, 14
"""nvrtcResult: NVRTC_SUCCESS, NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED."""


class _HeaderRecord:
    """The headers of one key: how often they were asked for, and the file of them, if there is."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.seconds = 0.0
        self.tries = 2
        self.handle: int | None = None

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class PrecompiledHeaders:
    """What a process keeps of headers, the last used last."""

    def __init__(self, nvrtc: Any) -> None:
        self._nvrtc = nvrtc
        self._known: dict[str, _HeaderRecord] = {}
        self._heap = 0

    def list_files(self) -> list[str]:
        """Return the paths of the files that are kept, for the thread that compiles."""
        return [
            _format_fd_path(record.handle)
            for record in self._known.values()
            if record.handle is not None
        ]

    def prepare_headers(
        self,
        source: str,
        name: str,
        options: list[str],
        more: bool,
        run_in_sandbox: Callable[[list[str], Callable[[], None]], None],
    ) -> None:
        """Make what a compile is about to use, if it is worth it: if `more` like it will follow, or
        another one before it took long. `run_in_sandbox` runs a function in a thread that can write
        below the given paths and read nothing but headers."""
        if not hasattr(self._nvrtc.library, "nvrtcSetPCHHeapSize"):
            return
        with open(source, "rb") as file:
            text = file.read()
        record = self._look_up_record(text, name, options)
        if record is None or record.handle is not None or not record.tries:
            return
        if record.seconds < _WORTH and not (more and record.seconds == 0.0):
            return
        record.tries -= 1
        room = os.path.join(os.getcwd(), "tmp")
        path = os.path.join(room, "headers.pch")
        with contextlib.suppress(OSError):
            self._evict_oldest()
            run_in_sandbox(
                [room], lambda: self._create_file(text[: record.size], name, options, path)
            )
            record.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.unlink(path)
            if os.fstat(record.handle).st_size < _LEAST_BYTES:
                record.close()
                record.tries = 0

    def compile(
        self,
        source: bytes,
        name: str,
        options: list[str],
        wanted: tuple[str, ...],
        kernel: str = "",
    ) -> Answer:
        """As `Nvrtc.compile`, with the headers that are there."""
        record = self._look_up_record(source, name, options)
        answer: Answer
        if record is None or record.handle is None:
            began = time.process_time()
            answer = self._nvrtc.compile(source, name, options, wanted, kernel)
            if record is not None:
                record.seconds = time.process_time() - began
            return answer
        top = source[: record.size]
        line = b'#line %d "source.cu"\n' % (top.count(b"\n") + 1)
        options = [*options, "--use-pch=" + _format_fd_path(record.handle), "--pch-messages=false"]
        text = top + _STOP + line + source[record.size :]
        answer = self._nvrtc.compile(source, name, options, wanted, kernel, text)
        return answer

    def _look_up_record(self, source: bytes, name: str, options: list[str]) -> _HeaderRecord | None:
        """Return what is known of a source's headers; None for a source that has none of them at
        its top, or may include what is not named by its content."""
        match = _INCLUDES.match(source)
        size = match.end("end") if match else -1
        if size <= 0 or b"\0" in source or _OWN in options:
            return None
        parts = [name, *options]
        for link in ("include", "cuda"):
            real = os.path.realpath(link) if os.path.lexists(link) else ""
            if link == "include" and real and not _DIGEST.fullmatch(os.path.basename(real)):
                return None
            parts.append(real)
        key = hashlib.sha256(b"\0".join([source[:size], *map(os.fsencode, parts)])).hexdigest()
        if key not in self._known:
            self._known[key] = _HeaderRecord(size)
        record = self._known[key] = self._known.pop(key)
        while len(self._known) > _MAX_KNOWN:
            self._known.pop(next(iter(self._known))).close()
        return record

    def _create_file(self, top: bytes, name: str, options: list[str], path: str) -> None:
        """Precompile headers to a file at `path`; there is none where that did not go well."""
        library = self._nvrtc.library
        if not self._heap:
            self._heap = _FIRST_HEAP
            library.nvrtcSetPCHHeapSize(ctypes.c_size_t(self._heap))
        status_and_size: list[int] = []

        def read_status(program: ctypes.c_void_p) -> None:
            needed = ctypes.c_size_t()
            library.nvrtcGetPCHHeapSizeRequired(program, ctypes.byref(needed))
            status_and_size.extend((library.nvrtcGetPCHCreateStatus(program), needed.value))

        options = [*options, "--create-pch=" + path, "--pch-messages=false"]
        _, log, _ = self._nvrtc.compile(
            b"", name, options, (), text=top + _STOP + _END, after=read_status
        )
        status, needed = status_and_size or (-1, 0)
        if status == _EXHAUSTED and self._heap < needed < _MAX_HEAP:
            self._heap = (needed // 4 * 5 >> 20) + 1 << 20
            library.nvrtcSetPCHHeapSize(ctypes.c_size_t(self._heap))
            for other in self._known.values():  # they belong to the heap that was
                other.close()
        # Headers that warn would warn once: the others' logs would lack it.
        if status != _CREATED or not _ONLY_THE_END.fullmatch(log):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _evict_oldest(self) -> None:
        """Close what was used longest ago, so that one more may be kept."""
        records = [record for record in self._known.values() if record.handle is not None]
        size = sum(os.fstat(one.handle).st_size for one in records if one.handle is not None)
        while records and (len(records) >= _MAX_FILES or size > _MAX_BYTES // 2):
            oldest = records.pop(0)
            size -= os.fstat(oldest.handle).st_size if oldest.handle is not None else 0
            oldest.close()


def _format_fd_path(handle: int | None) -> str:
    return f"/proc/self/fd/{handle}"
