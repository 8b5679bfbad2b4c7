"""NVRTC's library through ctypes: compiles, what is done to their cubins and PTX, fat binaries.

Used by `nvrtc_command.py`, beside which a copy of it lies in the tree; standard library only, for
Python 3.8 or later. What comes out depends on the arguments alone: NVRTC's own cache is never used,
and the times that the assembler leaves in line tables are taken out.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FAILED, BROKEN = 1, 70
"""Statuses: the source does not compile; NVRTC itself failed. 0: done."""

_COMPILATION = 6
_OF_THE_SOURCE = frozenset({5, _COMPILATION})
"""nvrtcResult: NVRTC_ERROR_INVALID_OPTION, NVRTC_ERROR_COMPILATION."""
_OUT_OF_MEMORY = 1
_CACHE_SINCE = (12, 9)


class UnusableError(Exception):
    """No library, or one that cannot be loaded."""


class Nvrtc:
    """The loaded library. Its builtins are loaded before it, since it would not find them."""

    def __init__(self, path: str) -> None:
        folder = os.path.dirname(os.path.realpath(path))
        try:
            for builtins in sorted(glob.glob(glob.escape(folder) + "/libnvrtc-builtins.so.*")):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
            self.library = ctypes.CDLL(path)
        except OSError as error:
            raise UnusableError(f"NVRTC cannot be loaded: {error}") from error
        self.folder = folder
        major, minor = ctypes.c_int(), ctypes.c_int()
        try:
            self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
            self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        except AttributeError as error:
            raise UnusableError(f"{path} is not NVRTC: {error}") from error
        self.version = major.value, minor.value

    def list_archs(self) -> list[int]:
        """Return the numbers of the architectures that the library compiles for, sorted."""
        count = ctypes.c_int()
        self.library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self.library.nvrtcGetSupportedArchs(numbers)
        return sorted(numbers)

    def compile(
        self,
        source: bytes,
        name: str,
        options: list[str],
        wanted: tuple[str, ...],
        kernel: str = "",
        text: bytes | None = None,
        after: Callable[[ctypes.c_void_p], None] | None = None,
    ) -> tuple[int, bytes, list[bytes]]:
        """(status, log, outputs): `wanted` are names of results, CUBIN and PTX; the symbol of
        `kernel`, a C++ name, follows unless that is empty.

        `text` is what NVRTC gets for `source`; `after` is given its program once it is compiled.
        """
        if self.version >= _CACHE_SINCE:
            options = ["--no-cache", *options]
        words = [os.fsencode(option) for option in options]
        program = ctypes.c_void_p()
        # Diagnostics and __FILE__ say source.cu; #include "x.h" looks in the folder of `name`.
        if text is None:
            text = b'#line 1 "source.cu"\n' + source
        if b"\0" in source:
            return FAILED, b"source.cu(1): error: the source holds a NUL character\n", []
        result = self.library.nvrtcCreateProgram(
            ctypes.byref(program), text, os.fsencode(name), 0, None, None
        )
        if result:
            return BROKEN, self._format_failure(result), []
        try:
            if kernel:
                self.library.nvrtcAddNameExpression(program, os.fsencode(kernel))
            array = (ctypes.c_char_p * len(words))(*words)
            result = self.library.nvrtcCompileProgram(program, len(words), array)
            if after is not None:
                after(program)
            log = self._read_result(program, "ProgramLog").rstrip(b"\0")
            log = log.replace(os.fsencode(name), b"source.cu")
            if result in _OF_THE_SOURCE:
                return FAILED, log, []
            if result:
                return BROKEN, log + self._format_failure(result), []
            outputs = [self._read_result(program, kind) for kind in wanted]
            return 0, log, [*outputs, *([self._find_symbol(program, kernel)] if kernel else ())]
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _find_symbol(self, program: ctypes.c_void_p, kernel: str) -> bytes:
        symbol = ctypes.c_char_p()
        self.library.nvrtcGetLoweredName(program, os.fsencode(kernel), ctypes.byref(symbol))
        return symbol.value or b""

    def _read_result(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self.library, "nvrtcGet" + what + "Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value or 1)
        getattr(self.library, "nvrtcGet" + what)(program, text)
        return text.raw[: size.value]

    def _format_failure(self, result: int) -> bytes:
        if result == _OUT_OF_MEMORY:
            return b"nvrtc: fatal: out of memory\n"
        text: bytes = self.library.nvrtcGetErrorString(result)
        return b"nvrtc: internal compiler error: " + text + b"\n"


def clear_times(cubin: bytes) -> bytes:
    """The cubin with 0 for the times of source files in its line tables, at the same length.

    The assembler looks each name of `-lineinfo` up in the file system and writes when the file was
    changed. A LEB128 number may be padded, so nothing moves.
    """
    if b".debug_line" not in cubin or cubin[:5] != b"\x7fELF\x02":
        return cubin
    data = bytearray(cubin)
    table, size, count, names = struct.unpack_from("<Q10xHHH", data, 0x28)
    sections = [struct.unpack_from("<IIQQQQ", data, table + size * i) for i in range(count)]
    for name, _, _, _, offset, length in sections:
        at = sections[names][4] + name
        if bytes(data[at : data.index(0, at)]) in (b".debug_line", b".nv_debug_line_sass"):
            with contextlib.suppress(IndexError, struct.error, ValueError):
                _clear_table_times(data, offset, offset + length)
    return bytes(data)


def _clear_table_times(data: bytearray, at: int, end: int) -> None:
    """Clear the times of each line table between two places."""
    while at + 15 <= end:
        length, version = struct.unpack_from("<IH", data, at)
        following = at + 4 + length
        if 2 <= version <= 4:
            place = at + 10 + (5 if version < 4 else 6)
            place += data[place - 1]
            while data[place]:  # folders
                place = data.index(0, place) + 1
            place += 1
            while data[place]:  # files: name, folder, time, size
                place = _skip_number(data, data.index(0, place) + 1)
                last = _skip_number(data, place)
                data[place:last] = b"\x80" * (last - place - 1) + b"\0"
                place = _skip_number(data, last)
        at = following


def _skip_number(data: bytearray, place: int) -> int:
    while data[place] & 0x80:
        place += 1
    return place + 1


_TOKEN = re.compile(
    rb"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)
       | (?P<line>(?:\.(?:version|target|address_size|file|loc)\b|@@)[^\n]*)
       | (?P<text>"(?:[^"\\\n]|\\.)*")
       | (?P<mark>[{}();=,])
       | (?P<word>[.%]?[A-Za-z_$][\w$]*)
       | [^\s{}();=,"]
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(rb"(?<![\w$.%])[A-Za-z_$][\w$]*")
_VARIABLES = frozenset({b".global", b".const"})


class _Statement:
    """One statement at the top of a module: from where to where, and what it is."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.words: set[bytes] = set()
        self.name = b""
        self.several = self.has_value = False

    def ends_statement(self, kind: str | None, text: bytes) -> bool:
        """Note a token outside of all brackets, and return whether it is the last."""
        if kind == "word" and text[:1] == b".":
            self.words.add(text)
        elif kind == "word" and not self.has_value:
            self.name = self.name or text
        self.several |= text == b","
        self.has_value |= text == b"="
        # After the braces of an initial value a ";" follows.
        return text == b";" or (text == b"}" and not self.is_variable)

    @property
    def may_go(self) -> bool:
        """Whether it declares one thing, which a kernel may not need and only a kernel sees."""
        if not self.name or self.several or {b".entry", b".attribute"} & self.words:
            return False
        return self.is_function or self.is_variable

    @property
    def is_function(self) -> bool:
        return b".func" in self.words

    @property
    def is_variable(self) -> bool:
        return bool(_VARIABLES & self.words) and not {b".func", b".entry"} & self.words


def prune_ptx(ptx: bytes) -> bytes:
    """PTX with what its kernels reach; nothing where that is all of it, or where the text is not
    understood.

    NVRTC makes a variable of each constant of a header that it instantiates, and keeps all of them
    for a host that might look one up; the host of a program here launches a kernel, and looks up at
    most what that uses. Kept are the kernels, whatever they name, directly or through functions and
    initial values, and every statement that is not known to be a variable or a function. What is
    kept stays as it is, in its place, so the assembler makes the same instructions of each kernel;
    only addresses in the tables of variables differ.
    """
    statements = _split_statements(ptx)
    if statements is None:
        return b""
    named = [frozenset(_NAME.findall(ptx, each.start, each.end)) for each in statements]
    by_name: dict[bytes, list[int]] = {}
    for number, each in enumerate(statements):
        if each.may_go:
            by_name.setdefault(each.name, []).append(number)
    kept = {number for number, each in enumerate(statements) if not each.may_go}
    waiting = list(kept)
    while waiting:
        for name in named[waiting.pop()] & by_name.keys():
            new = [number for number in by_name[name] if number not in kept]
            kept.update(new)
            waiting += new
    if len(kept) == len(statements):
        return b""
    parts, at = [], 0
    for number, each in enumerate(statements):
        if number not in kept:
            parts.append(ptx[at : each.start])
            at = each.end
    return b"".join([*parts, ptx[at:]])


def _split_statements(ptx: bytes) -> list[_Statement] | None:
    """The statements in order; None where a bracket or a string has no end."""
    found: list[_Statement] = []
    one: _Statement | None = None
    at = braces = brackets = 0
    while at < len(ptx):
        token = _TOKEN.match(ptx, at)
        if token is None:
            return None
        at, kind, text = token.end(), token.lastgroup, token[0]
        if kind == "blank" or (kind == "line" and one is None):
            continue
        one = one or _Statement(token.start())
        if kind == "mark":
            braces += (text == b"{") - (text == b"}")
            brackets += (text == b"(") - (text == b")")
            if braces < 0 or brackets < 0:
                return None
        if not braces and not brackets and one.ends_statement(kind, text):
            one.end = at
            found.append(one)
            one = None
    return None if one is not None else found


def join_images(nvrtc: Nvrtc, output: str, images: list[str]) -> tuple[int, bytes]:
    """Join cubins and PTX with nvFatbin, which lies beside NVRTC."""
    found = sorted(glob.glob(glob.escape(nvrtc.folder) + "/libnvfatbin.so*"))
    if not found:
        raise UnusableError(
            f"several architectures in one library need libnvfatbin.so in {nvrtc.folder}"
        )
    library = ctypes.CDLL(found[0])
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = (ctypes.c_char_p * 1)(b"-64")
    results = [library.nvFatbinCreate(ctypes.byref(handle), options, ctypes.c_size_t(1))]
    for image in images:
        kind, arch, path = image.split(":", 2)
        with open(path, "rb") as file:
            content = file.read()
        start = (handle, content, ctypes.c_size_t(len(content)), arch.encode(), b"")
        if kind == "ptx":
            results.append(library.nvFatbinAddPTX(*start, b""))
        else:
            results.append(library.nvFatbinAddCubin(*start))
    results.append(library.nvFatbinSize(handle, ctypes.byref(size)))
    if any(results):
        return BROKEN, f"nvrtc: internal compiler error: nvFatbin {max(results)}\n".encode()
    made = ctypes.create_string_buffer(size.value)
    library.nvFatbinGet(handle, made)
    library.nvFatbinDestroy(ctypes.byref(handle))
    with open(output, "wb") as file:
        file.write(made.raw)
    return 0, b""
