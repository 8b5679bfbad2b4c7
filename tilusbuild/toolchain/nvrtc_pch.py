"""Precompiled headers of a resident NVRTC process: programs of one closure share the parsing.

Loaded by `nvrtc_command.py --serve` alone; standard library only. The `#include` lines at the top
of a source are precompiled, and nothing of the source itself, from the headers of its closure,
which are named by their content, in a thread that can read nothing else. So the result follows from
its key, and a program's code does not depend on the programs before it. The second program with the
same headers makes the file if the first took long. If NVRTC reports anything or fails, programs are
compiled from their text.

NVRTC deletes and writes the file by name, and only the process that wrote the file can use it. It
is made in the private directory of a compile, opened, and its name removed: nothing remains on the
disk, however the process ends.

The price: precompiling costs a third more than parsing once, and the first program of a process
parses alone.
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

# The top of a source up to its last `#include`. A line that a backslash or a trigraph could
# continue ends it, and so does a macro, a condition or a computed include.
_INCLUDES = re.compile(
    rb"""(?: \s+ | //[^\n\\?]*\n | /\*[^\\?]*?\*/
       | [ \t]*\#[ \t]*include[ \t]*(?:<[^>\n\\?]+>|"[^"\n\\?]+")
         [ \t]*(?://[^\n\\?]*)?\r?\n(?P<end>)
    )*""",
    re.VERBOSE,
)
_DIGEST = re.compile(r"[0-9a-f]{64}")

# The option of a program that has headers of its own, beside its source.
_OWN_HEADERS = "-I/proc/self/cwd"
_HEADER_STOP = b"#pragma nv_hdrstop\n"
_END_ERROR = b'#error "the end of what is precompiled"\n'
_END_ERROR_ALONE = re.compile(
    rb'\S+: catastrophic error: #error directive: "the end of what is precompiled"\n'
    rb'\s*#error "the end of what is precompiled"\n\s*\^\n\s*'
    rb'1 catastrophic error detected in the compilation of "[^"\n]*"\.\nCompilation terminated\.\s*'
)
# Processor time of a compile from which on its headers are precompiled. A small kernel with CUB's
# takes 1.3 s, with those of half precision 0.05 s (docs/performance.md).
_MIN_SECONDS = 0.4
# The keys that one process remembers, and the files that it keeps. Few files: CuTe's has 281 MB,
# and a temporary directory may be in memory.
_MAX_RECORDS, _MAX_FILES = 256, 2
# Bytes of address space for what is precompiled; only what is used is touched.
_FIRST_HEAP, _MAX_HEAP = 512 << 20, 4 << 30
# nvrtcResult: NVRTC_SUCCESS, NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED.
_STATUS_CREATED, _STATUS_EXHAUSTED = 0, 14


class _HeaderRecord:
    """The headers of one key: the time to compile them, and their precompiled file, if any."""

    def __init__(self, size: int) -> None:
        self.size = size  # bytes of the source up to the end of its last `#include`
        self.seconds = 0.0  # processor time of the last compile without the file
        # The second attempt has the heap that the first one found to be too small.
        self.attempts_left = 2
        self.handle: int | None = None  # the open file

    def close(self) -> None:
        """Close the file, which has no name, so that its bytes are freed."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class PrecompiledHeaders:
    """The precompiled headers that a process keeps, the last used last."""

    def __init__(self, nvrtc: Any) -> None:
        self._nvrtc = nvrtc
        self._records: dict[str, _HeaderRecord] = {}
        self._heap_size = 0

    def list_files(self) -> list[str]:
        """Return the paths of the files that are kept, for the thread that compiles."""
        return [_format_fd_path(record.handle) for record in self._list_kept()]

    def prepare_headers(
        self,
        source: str,
        name: str,
        options: list[str],
        run_in_sandbox: Callable[[list[str], Callable[[], None]], None],
    ) -> None:
        """Precompile the headers of a compile that follows, if an earlier one with the same headers
        took long. The oldest file is given up for the new one, and any failure leaves none.

        `run_in_sandbox` runs a function in a thread that can write below the given paths and read
        nothing but headers.
        """
        if not hasattr(self._nvrtc.library, "nvrtcSetPCHHeapSize"):  # before CUDA 12.8
            return
        with open(source, "rb") as file:
            text = file.read()
        record = self._look_up_record(text, name, options)
        if record is None or record.handle is not None or not record.attempts_left:
            return
        # Not for the first program, also where many more will follow: whether its headers are large
        # is known from its time alone, and precompiling small ones costs more than it saves.
        if record.seconds < _MIN_SECONDS:
            return
        record.attempts_left -= 1
        directory = os.path.join(os.getcwd(), "tmp")
        path = os.path.join(directory, "headers.pch")
        includes = text[: record.size]
        # Without the file, after any failure, the program is compiled from its text.
        with contextlib.suppress(OSError):
            # Room is made for one more file: the records with the oldest ones come first.
            for oldest in self._list_kept()[: 1 - _MAX_FILES]:
                oldest.close()
            run_in_sandbox([directory], lambda: self._create_file(includes, name, options, path))
            record.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.unlink(path)

    def compile(
        self,
        source: bytes,
        name: str,
        options: list[str],
        results: tuple[str, ...],
        kernel: str = "",
    ) -> Answer:
        """Compile with the precompiled headers of the source, if there are any; else compile
        plainly and record the time. Return what `Nvrtc.compile` returns."""
        record = self._look_up_record(source, name, options)
        if record is None or record.handle is None:
            began = time.process_time()
            answer: Answer = self._nvrtc.compile(source, name, options, results, kernel)
            if record is not None:
                record.seconds = time.process_time() - began
            return answer
        includes, rest = source[: record.size], source[record.size :]
        # NVRTC finds what to skip by the pragma, which `_create_file` put at the same place. The
        # pragma adds a line to the source: `#line` sets the number of the next one right again.
        line_directive = b'#line %d "source.cu"\n' % (includes.count(b"\n") + 1)
        text = includes + _HEADER_STOP + line_directive + rest
        options = [*options, "--use-pch=" + _format_fd_path(record.handle), "--pch-messages=false"]
        return self._nvrtc.compile(source, name, options, results, kernel, text)  # type: ignore[no-any-return]

    def _look_up_record(self, source: bytes, name: str, options: list[str]) -> _HeaderRecord | None:
        """Return the record of a source's headers, new for unknown headers; the oldest records are
        dropped.

        Return None for a source without includes at its top, and for a source that may include a
        file which is not named by its content.
        """
        match = _INCLUDES.match(source)
        size = match.end("end") if match else -1
        if size <= 0 or b"\0" in source or _OWN_HEADERS in options:
            return None
        parts = [name, *options]
        for link in ("include", "cuda"):
            target = os.path.realpath(link) if os.path.lexists(link) else ""
            # Only a directory that is named by its digest means the same files in the next program.
            if link == "include" and target and not _DIGEST.fullmatch(os.path.basename(target)):
                return None
            parts.append(target)
        key = hashlib.sha256(b"\0".join([source[:size], *map(os.fsencode, parts)])).hexdigest()
        # The record is taken out and put back, so that the records are in the order of their use.
        record = self._records.pop(key) if key in self._records else _HeaderRecord(size)
        self._records[key] = record
        while len(self._records) > _MAX_RECORDS:
            oldest_key = next(iter(self._records))
            self._records.pop(oldest_key).close()
        return record

    def _create_file(self, includes: bytes, name: str, options: list[str], path: str) -> None:
        """Precompile headers to a file at `path`. Write none if NVRTC reports anything.

        If NVRTC's heap was too small, enlarge it for the next attempt, and close all files.
        """
        library = self._nvrtc.library
        if not self._heap_size:
            self._heap_size = _FIRST_HEAP
            library.nvrtcSetPCHHeapSize(ctypes.c_size_t(self._heap_size))
        needed_size = ctypes.c_size_t()
        statuses = [-1]  # without a program, which is NVRTC's failure

        def read_status(program: ctypes.c_void_p) -> None:
            library.nvrtcGetPCHHeapSizeRequired(program, ctypes.byref(needed_size))
            statuses.append(library.nvrtcGetPCHCreateStatus(program))

        options = [*options, "--create-pch=" + path, "--pch-messages=false"]
        # The error ends the compile right after the headers: no code is generated.
        text = includes + _HEADER_STOP + _END_ERROR
        _, log, _ = self._nvrtc.compile(
            b"", name, options, (), text=text, inspect_program=read_status
        )
        status, needed = statuses[-1], needed_size.value
        if status == _STATUS_EXHAUSTED and self._heap_size < needed < _MAX_HEAP:
            self._heap_size = (needed // 4 * 5 >> 20) + 1 << 20  # a quarter more, in whole MiB
            library.nvrtcSetPCHHeapSize(ctypes.c_size_t(self._heap_size))
            for record in self._list_kept():  # their files belong to the earlier heap
                record.close()
        # Headers that warn would warn once: the logs of later programs would not have the warning.
        if status != _STATUS_CREATED or not _END_ERROR_ALONE.fullmatch(log):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _list_kept(self) -> list[_HeaderRecord]:
        """Return the records with a file, the last used last."""
        return [record for record in self._records.values() if record.handle is not None]


def _format_fd_path(handle: int | None) -> str:
    return f"/proc/self/fd/{handle}"
