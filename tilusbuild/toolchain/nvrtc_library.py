"""NVRTC's library through ctypes: compiles, line tables without times, fat binaries.

Used by `nvrtc_command.py`, beside which a copy of it lies in the tree; standard library only, for
Python 3.8 or later. What comes out depends on the arguments alone: NVRTC's own cache is never used,
and the times that the assembler leaves in line tables are taken out.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FAILED, BROKEN = 1, 70
"""Statuses: the source does not compile; NVRTC itself failed. 0: done."""

# nvrtcResult: NVRTC_ERROR_INVALID_OPTION, NVRTC_ERROR_COMPILATION.
_SOURCE_ERRORS = frozenset({5, 6})
_OUT_OF_MEMORY = 1
# The release whose NVRTC began to cache results in the home directory.
_FIRST_WITH_CACHE = (12, 9)


class UnusableError(Exception):
    """There is no library, or it cannot be loaded."""


class Nvrtc:
    """The loaded library. Raises `UnusableError`."""

    def __init__(self, path: str) -> None:
        folder = os.path.dirname(os.path.realpath(path))
        try:
            # These are loaded first: the library looks for them by name, not in its own directory.
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
        results: tuple[str, ...],
        kernel: str = "",
        text: bytes | None = None,
        inspect_program: Callable[[ctypes.c_void_p], None] | None = None,
    ) -> tuple[int, bytes, list[bytes]]:
        """Compile a source. Return (status, log, outputs): one output for each name in `results`
        ("CUBIN", "PTX"), then the symbol of `kernel`, a C++ name, unless it is empty.

        NVRTC gets `text` in place of `source`, unless `text` is None. `inspect_program` is called
        with NVRTC's program once it is compiled.
        """
        if self.version >= _FIRST_WITH_CACHE:
            options = ["--no-cache", *options]
        encoded_options = [os.fsencode(option) for option in options]
        program = ctypes.c_void_p()
        # Diagnostics and __FILE__ say source.cu; #include "x.h" looks in the folder of `name`.
        if text is None:
            text = b'#line 1 "source.cu"\n' + source
        if b"\0" in source:  # NVRTC takes a C string, and would compile what is before it
            return FAILED, b"source.cu(1): error: the source holds a NUL character\n", []
        result = self.library.nvrtcCreateProgram(
            ctypes.byref(program), text, os.fsencode(name), 0, None, None
        )
        if result:
            return BROKEN, self._format_failure(result), []
        try:
            if kernel:
                self.library.nvrtcAddNameExpression(program, os.fsencode(kernel))
            option_count = len(encoded_options)
            option_array = (ctypes.c_char_p * option_count)(*encoded_options)
            result = self.library.nvrtcCompileProgram(program, option_count, option_array)
            if inspect_program is not None:
                inspect_program(program)
            log = self._read_result(program, "ProgramLog").rstrip(b"\0")
            log = log.replace(os.fsencode(name), b"source.cu")
            if result in _SOURCE_ERRORS:
                return FAILED, log, []
            if result:
                return BROKEN, log + self._format_failure(result), []
            outputs = [self._read_result(program, kind) for kind in results]
            if kernel:
                outputs.append(self._find_symbol(program, kernel))
            return 0, log, outputs
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _find_symbol(self, program: ctypes.c_void_p, kernel: str) -> bytes:
        symbol = ctypes.c_char_p()
        self.library.nvrtcGetLoweredName(program, os.fsencode(kernel), ctypes.byref(symbol))
        return symbol.value or b""

    def _read_result(self, program: ctypes.c_void_p, kind: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self.library, "nvrtcGet" + kind + "Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value or 1)
        getattr(self.library, "nvrtcGet" + kind)(program, text)
        return text.raw[: size.value]

    def _format_failure(self, result: int) -> bytes:
        # These are words by which `compile/causes.py` recognises a fault of the machine.
        if result == _OUT_OF_MEMORY:
            return b"nvrtc: fatal: out of memory\n"
        text: bytes = self.library.nvrtcGetErrorString(result)
        return b"nvrtc: internal compiler error: " + text + b"\n"


# Errors of offsets and numbers that lead out of the bytes.
_DAMAGE_ERRORS = (IndexError, struct.error, ValueError, OverflowError)


def clear_times(cubin: bytes) -> bytes:
    """Return the cubin with 0 for the times of source files in its line tables, at the same length.

    The assembler looks each name of `-lineinfo` up in the file system and writes when the file was
    changed. A damaged section table or line table is returned as it is.
    """
    if b".debug_line" not in cubin or cubin[:5] != b"\x7fELF\x02":
        return cubin
    data = bytearray(cubin)
    with contextlib.suppress(*_DAMAGE_ERRORS):
        # The ELF header's e_shoff, e_shentsize, e_shnum, e_shstrndx.
        table, row_size, count, names_index = struct.unpack_from("<Q10xHHH", data, 0x28)
        sections = [struct.unpack_from("<IIQQQQ", data, table + row_size * i) for i in range(count)]
        _, _, _, _, names_offset, _ = sections[names_index]
        for name_offset, _, _, _, offset, length in sections:
            name_start = names_offset + name_offset
            name = bytes(data[name_start : data.index(0, name_start)])
            if name in (b".debug_line", b".nv_debug_line_sass"):
                with contextlib.suppress(*_DAMAGE_ERRORS):
                    _clear_table_times(data, offset, offset + length)
    return bytes(data)


def _clear_table_times(data: bytearray, table: int, end: int) -> None:
    """Clear the times of each line table between two offsets. DWARF 2 to 4, section 6.2.4."""
    while table + 15 <= end:  # the bytes of the shortest header
        length, version = struct.unpack_from("<IH", data, table)
        if 2 <= version <= 4:
            # DWARF 4 has one byte more than 2 and 3: maximum_operations_per_instruction.
            offset = table + 10 + (5 if version < 4 else 6)
            offset += data[offset - 1]  # past the lengths of the opcodes
            while data[offset]:  # folders
                offset = data.index(0, offset) + 1
            offset += 1
            while data[offset]:  # files: name, folder, time, size
                offset = _skip_number(data, data.index(0, offset) + 1)
                past_time = _skip_number(data, offset)
                # 0 is written in as many bytes as the time had: a LEB128 number may be padded.
                data[offset:past_time] = b"\x80" * (past_time - offset - 1) + b"\0"
                offset = _skip_number(data, past_time)
        table += 4 + length


def _skip_number(data: bytearray, offset: int) -> int:
    """Return the offset behind the LEB128 number at `offset`."""
    while data[offset] & 0x80:
        offset += 1
    return offset + 1


def join_images(nvrtc: Nvrtc, words: list[str]) -> tuple[int, bytes]:
    """Write a fat binary of cubins and PTX. `words` are options of libnvfatbin, the path of the
    output, and KIND:ARCH:FILE of each image.

    Return (status, log). Raises `UnusableError` without libnvfatbin, and `OSError`.
    """
    # libnvfatbin is beside NVRTC, in toolkits and in wheels.
    paths = sorted(glob.glob(glob.escape(nvrtc.folder) + "/libnvfatbin.so*"))
    if not paths:
        raise UnusableError(
            f"several architectures in one library need libnvfatbin.so in {nvrtc.folder}"
        )
    library = ctypes.CDLL(paths[0])
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [b"-64", *(word.encode() for word in words if word.startswith("-"))]
    count = len(options)
    output, *images = words[count - 1 :]
    array = (ctypes.c_char_p * count)(*options)
    statuses = [library.nvFatbinCreate(ctypes.byref(handle), array, ctypes.c_size_t(count))]
    for image in images:
        kind, arch, path = image.split(":", 2)
        with open(path, "rb") as file:
            content = file.read()
        arguments = (handle, content, ctypes.c_size_t(len(content)), arch.encode(), b"")
        if kind == "ptx":
            statuses.append(library.nvFatbinAddPTX(*arguments, b""))
        else:
            statuses.append(library.nvFatbinAddCubin(*arguments))
    statuses.append(library.nvFatbinSize(handle, ctypes.byref(size)))
    if any(statuses):  # nvFatbinResult: 0 is success
        return BROKEN, f"nvrtc: internal compiler error: nvFatbin {max(statuses)}\n".encode()
    fatbin = ctypes.create_string_buffer(size.value)
    library.nvFatbinGet(handle, fatbin)
    library.nvFatbinDestroy(ctypes.byref(handle))
    with open(output, "wb") as file:
        file.write(fatbin.raw)
    return 0, b""
