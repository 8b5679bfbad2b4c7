"""NVRTC as a command: what `compile.sh` runs, what the build runs, and what discovery asks.

A script of its own, standard library only: a copy of it lies in the tree beside the launcher, so a
library is made again with nothing but Python, NVRTC and binutils. `--serve` keeps the library
loaded and answers many commands one after the other. Both ways run the same lines, and
what is written depends on the command alone: NVRTC's own cache is never used, and the times that
the assembler leaves in line tables are taken out.

    nvrtc_command.py [--library FILE] cubin SOURCE NAME OUTPUT [OPTION…]
    nvrtc_command.py [--library FILE] both SOURCE NAME CUBIN PTX [OPTION…]
                                      (--kernel=NAME: the symbol of a C++ name to kernel.s)
    nvrtc_command.py [--library FILE] fatbin OUTPUT [KIND:ARCH:FILE…]
    nvrtc_command.py [--library FILE] --confine LANDLOCK READ… -- WRITE… -- VERB…
    nvrtc_command.py [--library FILE] identify | headers
    nvrtc_command.py [--library FILE] --serve ADDRESS

Exit status: 0 done; 1 the source does not compile; 70 NVRTC itself failed; 2 usage, no NVRTC.
It needs Python 3.8 and Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

FRAME = struct.Struct("<I")
"""The length of a request: a working folder and arguments, each ending in NUL."""
ANSWER = struct.Struct("<iQ?I")
"""Exit status, peak resident set in bytes, whether the process goes on, length of the output."""

FAILED, USAGE, BROKEN = 1, 2, 70
MORE = ("--more",)
"""Before a command to `--serve`: several like it will follow, so what they share is prepared."""
_MOST_KEPT = 512 << 20
"""A process that holds more than so many bytes after a compile is ended: heaps seldom shrink."""

_HEAP = ((-1, 64 << 20), (-2, 16 << 20), (-3, 32 << 20), (-8, 1))
"""malloc.h: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, in bytes; M_ARENA_MAX, so that the
threads of confined compiles share the one heap that is kept."""
_STACK = 64 << 20
"""Bytes of address space for the stack of such a thread: templates nest deeply."""

_COMPILATION = 6
_OF_THE_SOURCE = frozenset({5, _COMPILATION})
"""nvrtcResult: NVRTC_ERROR_INVALID_OPTION, NVRTC_ERROR_COMPILATION."""
_OUT_OF_MEMORY = 1
_CACHE_SINCE = (12, 9)
_KERNEL = "--kernel="


class Unusable(Exception):  # noqa: N818 - a finding
    """No library, or one that cannot be loaded."""


class Nvrtc:
    """The library, loaded, with its builtins, which it would look for in vain by itself."""

    def __init__(self, path: str) -> None:
        folder = os.path.dirname(os.path.realpath(path))
        try:
            for builtins in sorted(glob.glob(glob.escape(folder) + "/libnvrtc-builtins.so.*")):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
            self.library = ctypes.CDLL(path)
        except OSError as error:
            raise Unusable(f"NVRTC cannot be loaded: {error}") from error
        self.folder = folder
        major, minor = ctypes.c_int(), ctypes.c_int()
        try:
            self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
            self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        except AttributeError as error:
            raise Unusable(f"{path} is no NVRTC: {error}") from error
        self.version = major.value, minor.value

    def archs(self) -> list[int]:
        """The numbers of the architectures that it compiles for."""
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
            return BROKEN, self._failure(result), []
        try:
            if kernel:
                self.library.nvrtcAddNameExpression(program, os.fsencode(kernel))
            array = (ctypes.c_char_p * len(words))(*words)
            result = self.library.nvrtcCompileProgram(program, len(words), array)
            if after is not None:
                after(program)
            log = self._get(program, "ProgramLog").rstrip(b"\0")
            log = log.replace(os.fsencode(name), b"source.cu")
            if result in _OF_THE_SOURCE:
                return FAILED, log, []
            if result:
                return BROKEN, log + self._failure(result), []
            outputs = [self._get(program, kind) for kind in wanted]
            return 0, log, [*outputs, *([self._symbol(program, kernel)] if kernel else ())]
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _symbol(self, program: ctypes.c_void_p, kernel: str) -> bytes:
        symbol = ctypes.c_char_p()
        self.library.nvrtcGetLoweredName(program, os.fsencode(kernel), ctypes.byref(symbol))
        return symbol.value or b""

    def _get(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self.library, "nvrtcGet" + what + "Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value or 1)
        getattr(self.library, "nvrtcGet" + what)(program, text)
        return text.raw[: size.value]

    def _failure(self, result: int) -> bytes:
        if result == _OUT_OF_MEMORY:
            return b"nvrtc: fatal: out of memory\n"
        text: bytes = self.library.nvrtcGetErrorString(result)
        return b"nvrtc: internal compiler error: " + text + b"\n"


def without_times(cubin: bytes) -> bytes:
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
                _clear_times(data, offset, offset + length)
    return bytes(data)


def _clear_times(data: bytearray, at: int, end: int) -> None:
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
                place = _after_number(data, data.index(0, place) + 1)
                last = _after_number(data, place)
                data[place:last] = b"\x80" * (last - place - 1) + b"\0"
                place = _after_number(data, last)
        at = following


def _after_number(data: bytearray, place: int) -> int:
    while data[place] & 0x80:
        place += 1
    return place + 1


def fatbin(nvrtc: Nvrtc, output: str, images: list[str]) -> tuple[int, bytes]:
    """Join cubins and PTX with nvFatbin, which lies beside NVRTC."""
    found = sorted(glob.glob(glob.escape(nvrtc.folder) + "/libnvfatbin.so*"))
    if not found:
        raise Unusable(
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
    _write(output, made.raw)
    return 0, b""


def _compile_command(words: list[str]) -> Any:
    """The results, source, name, outputs, kernel and options of a compile; None for other words."""
    results = {"cubin": ("CUBIN",), "both": ("CUBIN", "PTX")}.get(words[0] if words else "")
    if results is None or len(words) < 3 + len(results):
        return None
    _, source, name, *others = words
    outputs, options = others[: len(results)], others[len(results) :]
    kernel = "".join(word[len(_KERNEL) :] for word in options if word.startswith(_KERNEL))
    options = [word for word in options if not word.startswith(_KERNEL)]
    return results, source, name, outputs, kernel, options


def obey(nvrtc: Nvrtc, words: list[str], compiler: Any = None) -> tuple[int, bytes]:
    """(status, output) of one command. `compiler` compiles in place of `nvrtc`."""
    compile_command = _compile_command(words)
    if compile_command is not None:
        results, source, name, outputs, kernel, options = compile_command
        with open(source, "rb") as file:
            text = file.read()
        status, log, made = (compiler or nvrtc).compile(text, name, options, results, kernel)
        for kind, output, data in zip(results, outputs, made):  # noqa: B905 - Python 3.8
            _write(output, without_times(data) if kind == "CUBIN" else data.rstrip(b"\0"))
        if kernel and made:
            _write("kernel.s", b'.asciz "' + made[-1] + b'"\n')
        return status, log
    verb, rest = words[0] if words else "", words[1:]
    if verb == "fatbin" and rest:
        return fatbin(nvrtc, rest[0], rest[1:])
    if verb == "identify" and not rest:
        archs = " ".join(map(str, nvrtc.archs()))
        return 0, f"{nvrtc.version[0]}.{nvrtc.version[1]}\n{archs}\n".encode()
    if verb == "headers" and not rest:
        return 0, os.fsencode(headers(nvrtc.folder, nvrtc.version) or "") + b"\n"
    return USAGE, (__doc__ or "").encode()


def confined(
    nvrtc: Nvrtc, words: list[str], headers: Any = None, more: bool = False
) -> tuple[int, bytes]:
    """As `obey`, in a thread that can open only the files that the command names. LANDLOCK is the
    path of `process/landlock.py`; `headers` are `nvrtc_pch.PrecompiledHeaders`."""
    landlock = _module(words[1])
    end = words.index("--")
    after = words.index("--", end + 1)
    read, write, command = words[2:end], words[end + 1 : after], words[after + 1 :]
    compiled = _compile_command(command)
    if headers is not None and compiled is not None:
        _, source, name, _, _, options = compiled
        held = lambda room, work: _held(landlock, read, room, work)  # noqa: E731
        headers.prepare(source, name, options, more, held)
        read = [*read, *headers.reads()]
    work = lambda: obey(nvrtc, command, headers)  # noqa: E731
    return _held(landlock, read, write, lambda: _answer(work))  # type: ignore[no-any-return]


def _held(landlock: Any, read: list[str], write: list[str], work: Callable[[], Any]) -> Any:
    """Run a function in a thread of its own: Landlock holds one for as long as it lives."""
    import threading

    answers: list[Any] = []

    def run() -> None:
        try:
            landlock.restrict(read, write)
            answers.append(work())
        except Exception as error:
            answers.append(error)

    threading.stack_size(_STACK)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


def _module(path: str) -> Any:
    """Return a module of a file: this interpreter has no path to look it up."""
    import importlib.util

    name = os.path.basename(path).partition(".")[0]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]  # it has a path
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        sys.modules[name] = module
    return sys.modules[name]


def attempt(nvrtc: Nvrtc, words: list[str], headers: Any = None) -> tuple[int, bytes]:
    """As `obey`, with what is raised as its output. Only a confined compile uses `headers`."""
    more = words[:1] == list(MORE)
    words = words[more:]
    if words[:1] == ["--confine"] and words.count("--") >= 2:
        return _answer(lambda: confined(nvrtc, words, headers, more))
    return _answer(lambda: obey(nvrtc, words))


def _answer(work: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
    try:
        return work()
    except MemoryError:
        return BROKEN, b"nvrtc: fatal: out of memory\n"
    except Unusable as error:
        return USAGE, os.fsencode(f"nvrtc: {error}\n")
    except OSError as error:
        return BROKEN, os.fsencode(f"nvrtc: internal compiler error: {error}\n")


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def serve(nvrtc: Nvrtc, address: str) -> None:
    """Answer commands that come over the socket, until it closes."""
    import socket

    _keep_heap()
    beside = os.path.abspath(__file__).replace("nvrtc_command", "nvrtc_pch")
    headers = _module(beside).PrecompiledHeaders(nvrtc)
    channel = socket.socket(socket.AF_UNIX)
    channel.connect("\0" + address)
    with channel, channel.makefile("rb") as requests:
        while len(head := requests.read(FRAME.size)) == FRAME.size:
            folder, *words = requests.read(*FRAME.unpack(head)).split(b"\0")[:-1]
            _forget_peak()
            os.chdir(folder)
            status, output = attempt(nvrtc, [os.fsdecode(word) for word in words], headers)
            os.chdir("/")
            peak, held = _memory()
            stays = held <= _MOST_KEPT
            channel.sendall(ANSWER.pack(status, peak, stays, len(output)) + output)
            if not stays:
                return


def _keep_heap() -> None:
    """Have the C library keep up to 64 MB for the next compile, which saves 8 percent of its time:
    otherwise each one gives its pages back and faults them in again."""
    with contextlib.suppress(AttributeError):  # a C library without mallopt
        for option, value in _HEAP:
            ctypes.CDLL(None).mallopt(option, value)


def _forget_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb") as file:
        file.write(b"5")


def _memory() -> tuple[int, int]:
    """The peak and the present resident set, in bytes."""
    with open("/proc/self/status", "rb") as file:
        said = file.read()
    peak, held = (re.search(name + rb":\s+(\d+) kB", said) for name in (b"VmHWM", b"VmRSS"))
    return int(peak[1]) * 1024 if peak else 0, int(held[1]) * 1024 if held else 0


def homes() -> list[str]:
    """Where a CUDA toolkit may be, besides the wheels: roots that are there."""
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    newest = sorted(glob.glob("/usr/local/cuda-*"), key=numbers, reverse=True)
    return [root for root in (*named, "/usr/local/cuda", *newest) if root and os.path.isdir(root)]


def numbers(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", os.path.basename(path))]


def libraries_under(root: str) -> list[str]:
    """The NVRTC libraries of a toolkit or of wheels, newest first."""
    folders = ("lib64", "lib", "targets/*/lib")
    found = [
        path
        for name in folders
        for path in glob.glob(f"{glob.escape(root)}/{name}/libnvrtc.so.*")
        if re.fullmatch(r"libnvrtc\.so\.\d+", os.path.basename(path))
    ]
    return sorted(found, key=numbers, reverse=True)


def wheels() -> list[str]:
    """The roots of NVIDIA's wheels along Python's path, newest first."""
    found = [
        root
        for folder in sys.path
        if folder
        for root in glob.glob(glob.escape(folder) + "/nvidia/cu[0-9]*")
    ]
    return sorted(set(found), key=numbers, reverse=True)


def headers(folder: str, version: tuple[int, int]) -> str | None:
    """The include folder of the toolkit whose release is the library's, or None."""
    root = os.path.dirname(folder)
    return headers_among(
        (root, os.path.dirname(os.path.dirname(root)), *homes(), *wheels()), version
    )


def headers_among(roots: Iterable[str], version: tuple[int, int]) -> str | None:
    """The first include folder under `roots` that holds the headers of a release."""
    for root in roots:
        for include in (root + "/include", *glob.glob(glob.escape(root) + "/targets/*/include")):
            if header_release(include) == version:
                return os.path.realpath(include)
    return None


def header_release(include: str) -> tuple[int, int] | None:
    """The release of the CUDA headers in a folder: (13, 0), or None where there are none."""
    try:
        with open(include + "/cuda_runtime_api.h", "rb") as file:
            found = re.search(rb"#define\s+CUDART_VERSION\s+(\d+)", file.read())
    except OSError:
        return None
    return (int(found[1]) // 1000, int(found[1]) % 1000 // 10) if found else None


def find() -> str:
    """The library where nobody says which: $NVRTC, the toolkits, the wheels, the loader's."""
    if os.environ.get("NVRTC"):
        return os.environ["NVRTC"]
    for root in (*homes(), *wheels()):
        for path in libraries_under(root):
            return path
    return "libnvrtc.so.13"


def main(words: list[str]) -> int:
    path = None
    if words[:1] == ["--library"] and len(words) > 1:
        path, words = words[1], words[2:]
    try:
        nvrtc = Nvrtc(path or find())
    except Unusable as error:
        sys.stderr.write(f"nvrtc: {error}\n")
        return USAGE
    if words[:1] == ["--serve"] and len(words) == 2:
        serve(nvrtc, words[1])
        return 0
    status, output = attempt(nvrtc, words)
    sys.stdout.buffer.write(output)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
