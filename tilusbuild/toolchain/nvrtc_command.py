"""NVRTC as a command: what `compile.sh` runs, what the build runs, and what discovery asks.

A script of its own, standard library only: a copy of it and of what it loads (`nvrtc_library.py`,
`nvrtc_places.py`) lies in the tree beside the launcher, so a library is made again with Python,
NVRTC and binutils. `--serve` keeps the library loaded and answers many
commands one after the other. Both ways run the same lines, and what is written depends on the
command alone.

    nvrtc_command.py [--library FILE] cubin SOURCE NAME OUTPUT [OPTION…]
    nvrtc_command.py [--library FILE] both SOURCE NAME CUBIN PTX [OPTION…]
                                      (--kernel=NAME: the symbol of a C++ name to kernel.s)
    nvrtc_command.py [--library FILE] fatbin [-OPTION…] OUTPUT [KIND:ARCH:FILE…]
    nvrtc_command.py [--library FILE] --confine LANDLOCK READ… -- WRITE… -- VERB…
    nvrtc_command.py [--library FILE] identify | headers
    nvrtc_command.py [--library FILE] --serve ADDRESS

Exit status: 0 done; 1 the source does not compile; 70 NVRTC itself failed; 2 usage, no NVRTC.
It needs Python 3.8 and Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
import sys
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _load_module(path: str) -> Any:
    """Load the module in a file once: this interpreter has no path that leads to it."""
    import importlib.util

    name = os.path.basename(path).partition(".")[0]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]  # it has a path
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        sys.modules[name] = module
    return sys.modules[name]


def _load_sibling(name: str) -> Any:
    """Load the module of a name in this file's directory."""
    return _load_module(os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py"))


if __package__:
    from tilusbuild.toolchain import nvrtc_library, nvrtc_places
else:
    sys.dont_write_bytecode = True  # beside these files, which may be a cache tree's
    nvrtc_library, nvrtc_places = _load_sibling("nvrtc_library"), _load_sibling("nvrtc_places")

SHIPPED = (__file__, nvrtc_library.__file__, nvrtc_places.__file__)
"""The files of the command, of which a copy lies in the tree."""

FRAME = struct.Struct("<I")
"""The length of a request: a working folder and arguments, each ending in NUL."""
ANSWER = struct.Struct("<iQ?I")
"""Exit status, peak resident set in bytes, whether the process goes on, length of the output."""

USAGE = 2
# A process that holds more than so many bytes after a compile is ended: heaps seldom shrink.
_MAX_RESIDENT = 512 << 20

# Without these, the C library gives each compile's pages back, and the next one faults them in
# again: 8 percent of its time.
# malloc.h: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, in bytes; M_ARENA_MAX, so that the
# threads of confined compiles share the one heap that is kept.
_HEAP_OPTIONS = ((-1, 64 << 20), (-2, 16 << 20), (-3, 32 << 20), (-8, 1))
# Bytes of address space for the stack of such a thread: templates nest deeply.
_STACK_SIZE = 64 << 20

_KERNEL_OPTION = "--kernel="
_RESULTS_OF_VERB = {"cubin": ("CUBIN",), "both": ("CUBIN", "PTX")}


# Not of `typing`, which takes some milliseconds to import in each process.
CompileCommand = namedtuple("CompileCommand", "results source name outputs kernel options")
"""The arguments of a compile: `results` are NVRTC's names of the files `outputs`, `kernel` is the
C++ name of the kernel or ""."""


def _parse_compile(argv: list[str]) -> CompileCommand | None:
    """Return the compile that a command asks for; None for other verbs, and if words are
    missing. Of several kernel options the first is taken."""
    results = _RESULTS_OF_VERB.get(argv[0]) if argv else None
    if results is None or len(argv) < 3 + len(results):
        return None
    _, source, name, *outputs_and_options = argv
    outputs = outputs_and_options[: len(results)]
    options = outputs_and_options[len(results) :]
    kernels = [word[len(_KERNEL_OPTION) :] for word in options if word.startswith(_KERNEL_OPTION)]
    options = [word for word in options if not word.startswith(_KERNEL_OPTION)]
    kernel = kernels[0] if kernels else ""
    return CompileCommand(results, source, name, outputs, kernel, options)


def run_command(
    nvrtc: nvrtc_library.Nvrtc, argv: list[str], compiler: Any = None
) -> tuple[int, bytes]:
    """Run one command, which writes its output files. Return (exit status, output for the user).

    An unknown command has the status `USAGE`. `compiler` compiles in place of `nvrtc`.
    """
    command = _parse_compile(argv)
    if command is not None:
        with open(command.source, "rb") as file:
            text = file.read()
        status, log, results = (compiler or nvrtc).compile(
            text, command.name, command.options, command.results, command.kernel
        )
        # After a failure there are no results. The symbol of `kernel` is the last result, for which
        # `outputs` has no path.
        for kind, path, data in zip(command.results, command.outputs, results):  # noqa: B905 - Python 3.8
            if kind == "CUBIN":
                _write_file(path, nvrtc_library.clear_times(data))
            else:
                _write_file(path, data.rstrip(b"\0"))
        if command.kernel and results:
            _write_file("kernel.s", b'.asciz "' + results[-1] + b'"\n')
        return status, log
    verb, arguments = argv[0] if argv else "", argv[1:]
    if verb == "fatbin" and arguments:
        return nvrtc_library.join_images(nvrtc, arguments)
    if verb == "identify" and not arguments:
        archs = " ".join(map(str, nvrtc.list_archs()))
        return 0, f"{nvrtc.version[0]}.{nvrtc.version[1]}\n{archs}\n".encode()
    if verb == "headers" and not arguments:
        include_dir = nvrtc_places.find_include_dir(nvrtc.folder, nvrtc.version)
        return 0, os.fsencode(include_dir or "") + b"\n"
    return USAGE, (__doc__ or "").encode()


def run_confined(
    nvrtc: nvrtc_library.Nvrtc, argv: list[str], headers: Any = None
) -> tuple[int, bytes]:
    """Run one command as `run_command` does, in a thread that can open only the named files.

    `argv` is `--confine LANDLOCK READ… -- WRITE… -- VERB…`, where LANDLOCK is the path of
    `process/landlock.py`. `headers` are `nvrtc_pch.PrecompiledHeaders`, which a compile uses
    and may add to.
    """
    landlock = _load_module(argv[1])
    read_end = argv.index("--")
    write_end = argv.index("--", read_end + 1)
    read, write, command = argv[2:read_end], argv[read_end + 1 : write_end], argv[write_end + 1 :]
    compile_command = _parse_compile(command)
    if headers is not None and compile_command is not None:
        run_in_sandbox = lambda writable, work: _run_in_sandbox(landlock, read, writable, work)  # noqa: E731
        headers.prepare_headers(
            compile_command.source, compile_command.name, compile_command.options, run_in_sandbox
        )
        read = [*read, *headers.list_files()]
    work = lambda: run_command(nvrtc, command, headers)  # noqa: E731
    return _run_in_sandbox(landlock, read, write, lambda: _catch_failures(work))  # type: ignore[no-any-return]


def _run_in_sandbox(
    landlock: Any, read: list[str], write: list[str], work: Callable[[], Any]
) -> Any:
    """Run a function in a thread that Landlock confines to the paths. Return its result, or raise
    its exception."""
    # A new thread for each, since Landlock cannot be lifted from a thread again.
    import threading

    answers: list[Any] = []

    def run() -> None:
        try:
            landlock.restrict_files(read, write)
            answers.append(work())
        except Exception as error:
            answers.append(error)

    threading.stack_size(_STACK_SIZE)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


def try_command(
    nvrtc: nvrtc_library.Nvrtc, argv: list[str], headers: Any = None
) -> tuple[int, bytes]:
    """Run one command by `run_command` or, for `--confine`, by `run_confined`. Return (status,
    output): failures of the machine become the output. Only a confined compile uses `headers`."""
    # A `--` ends the paths to read, and another one those to write.
    if argv[:1] == ["--confine"] and argv.count("--") >= 2:
        return _catch_failures(lambda: run_confined(nvrtc, argv, headers))
    return _catch_failures(lambda: run_command(nvrtc, argv))


def _catch_failures(work: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
    """Return (status, output) of a command; exceptions of the machine become its output."""
    try:
        return work()
    except MemoryError:
        return nvrtc_library.BROKEN, b"nvrtc: fatal: out of memory\n"
    except nvrtc_library.UnusableError as error:
        return USAGE, os.fsencode(f"nvrtc: {error}\n")
    except OSError as error:
        return nvrtc_library.BROKEN, os.fsencode(f"nvrtc: internal compiler error: {error}\n")


def _write_file(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def serve_commands(nvrtc: nvrtc_library.Nvrtc, address: str) -> None:
    """Answer commands that come over the socket, until it closes or this process holds more than
    `_MAX_RESIDENT` bytes."""
    import socket

    _keep_heap()
    headers = _load_sibling("nvrtc_pch").PrecompiledHeaders(nvrtc)
    channel = socket.socket(socket.AF_UNIX)
    channel.connect("\0" + address)
    with channel, channel.makefile("rb") as requests:
        while len(head := requests.read(FRAME.size)) == FRAME.size:
            (request_size,) = FRAME.unpack(head)
            # Each word ends in NUL, so that a last, empty piece follows.
            folder, *argv = requests.read(request_size).split(b"\0")[:-1]
            _forget_peak()
            os.chdir(folder)
            status, output = try_command(nvrtc, [os.fsdecode(word) for word in argv], headers)
            os.chdir("/")  # the builder removes the folder next
            peak, resident_bytes = _measure_memory()
            stays = resident_bytes <= _MAX_RESIDENT
            channel.sendall(ANSWER.pack(status, peak, stays, len(output)) + output)
            if not stays:
                return


def _keep_heap() -> None:
    """Have the C library keep up to 64 MB for the next compile."""
    with contextlib.suppress(AttributeError):  # a C library without mallopt
        for option, value in _HEAP_OPTIONS:
            ctypes.CDLL(None).mallopt(option, value)


def _forget_peak() -> None:
    """Set the peak resident set to the present one, as proc(5) says. Do nothing if that fails."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb") as file:
        file.write(b"5")


def _measure_memory() -> tuple[int, int]:
    """Return the peak and the present resident set in bytes."""
    with open("/proc/self/status", "rb") as file:
        text = file.read()
    # `VmHWM:    123456 kB` is the peak, `VmRSS` the present size.
    kilobytes = dict(re.findall(rb"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    return int(kilobytes.get(b"VmHWM", 0)) * 1024, int(kilobytes.get(b"VmRSS", 0)) * 1024


def main(argv: list[str]) -> int:
    """Run one command line, or serve commands. Return the exit status."""
    path = None
    if argv[:1] == ["--library"] and len(argv) > 1:
        path, argv = argv[1], argv[2:]
    try:
        nvrtc = nvrtc_library.Nvrtc(path or nvrtc_places.find_library())
    except nvrtc_library.UnusableError as error:
        sys.stderr.write(f"nvrtc: {error}\n")
        return USAGE
    if argv[:1] == ["--serve"] and len(argv) == 2:
        serve_commands(nvrtc, argv[1])
        return 0
    try:
        status, output = try_command(nvrtc, argv)
    except Exception as error:  # Python's own status would say that the source does not compile
        status = nvrtc_library.BROKEN
        output = os.fsencode(f"nvrtc: internal error: {error!r}\n")
    sys.stdout.buffer.write(output)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
