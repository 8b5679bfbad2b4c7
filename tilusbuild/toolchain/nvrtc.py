"""Find NVRTC's library, check that it is complete, and describe it by content.

NVRTC needs no nvcc and no host compiler. The toolkit's headers come from any directory of the same
release; without one, a program can include only NVRTC's built-in headers.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator

from msgspec import Struct

from tilusbuild.arch import Arch
from tilusbuild.process.base import Command, OnWorker
from tilusbuild.state.digests import Digests
from tilusbuild.toolchain import nvrtc_places
from tilusbuild.toolchain.cuda import RejectedError, read_embedded_version
from tilusbuild.toolchain.headers import HeaderDirectories
from tilusbuild.toolchain.probe import Probe, ProbeError, run_in_temporary_directory

PYTHON = "python3"
# The environment of a command on a worker: its Python is on this PATH.
_WORKER_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
_TIMEOUT_SECONDS = 60.0
_COMMAND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvrtc_command.py")


class NvrtcLibrary(Struct, frozen=True):
    """A complete NVRTC.

    `numbers` are the architectures that it compiles for, without suffix; `include_dir` is the
    toolkit's directory of headers of the same release, or None; `joiner` is libnvfatbin beside it,
    which several architectures in one library need, or None."""

    library: str
    builtins: tuple[str, ...]
    version: str
    release: tuple[int, int]
    numbers: tuple[int, ...]
    include_dir: str | None
    joiner: str | None

    @property
    def command(self) -> tuple[str, ...]:
        """The start of a command of `nvrtc_command` with this library; arguments follow."""
        return (sys.executable, "-I", "-S", _COMMAND, "--library", self.library)

    def build_worker_command(self, arguments: tuple[str, ...]) -> OnWorker:
        """Return the command by which a worker runs `nvrtc_command` with these arguments.

        The worker has the library at the same path, and gets a copy of the script. Any Python runs
        the script, since Python has no effect on the output.
        """
        from tilusbuild.toolchain import nvrtc_command, nvrtc_library

        name = os.path.basename(_COMMAND)
        argv = (PYTHON, "-I", "-S", name, "--library", self.library, *arguments)
        # With these statuses a worker has no usable library, which is not the program's fault.
        unusable_statuses = frozenset({nvrtc_command.USAGE, nvrtc_library.BROKEN})
        shipped = map(os.path.abspath, nvrtc_command.SHIPPED)
        files = {os.path.basename(path): path for path in shipped}
        return OnWorker(argv, _WORKER_ENVIRONMENT, files, unusable_statuses)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the library, of its builtins, and of libnvfatbin if there is one."""
        return (self.library, *self.builtins, *((self.joiner,) if self.joiner else ()))

    def can_target(self, arch: Arch) -> bool:
        """Return whether NVRTC compiles for a GPU architecture."""
        return arch.number in self.numbers and arch.since <= self.release

    def find_header_directories(self) -> HeaderDirectories:
        """Return the directories searched after a program's own: the toolkit's, none of host
        compiler and system."""
        return HeaderDirectories((self.include_dir,) if self.include_dir else (), (), ())

    def format_fingerprint(self, memory: Digests) -> tuple[str, ...]:
        """Return NVRTC's lines of `options.txt`: versions and digests, no path. The first lines are
        those of `library` and of `builtins`, in this order, and end with the digest. Raises
        `OSError`."""
        headers = self.find_header_directories()
        core = headers.digest_toolkit_core(memory) if self.include_dir else "-"
        return (
            f"nvrtc {self.version} {memory.digest_file(self.library)}",
            *(f"nvrtc-builtins - {memory.digest_file(path)}" for path in self.builtins),
            f"cuda-headers {self.version if self.include_dir else '-'} {core}",
        )

    def format_joiner_fingerprint(self, memory: Digests) -> tuple[str, ...]:
        """Return libnvfatbin's line of `options.txt`. Raises `OSError`."""
        return (f"nvfatbin - {memory.digest_file(self.joiner)}",) if self.joiner else ()


def list_library_candidates(roots: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (location in words, path) of each NVRTC library in the roots, each file once.

    `roots` are (location in words, root of a toolkit or of wheels).
    """
    seen: set[str] = set()
    for where, root in roots:
        for path in nvrtc_places.list_libraries(root):
            real_path = os.path.realpath(path)
            if real_path not in seen:
                seen.add(real_path)
                yield f"{where} ({path})", path


def examine_library(library: str, probe: Probe, roots: Iterable[str]) -> NvrtcLibrary:
    """Return the NVRTC of a library. Raises `RejectedError`.

    Headers of its release are taken from its own toolkit, else from the first of `roots` that has
    them.
    """
    directory = os.path.dirname(os.path.realpath(library))
    escaped_directory = glob.escape(directory)
    paths = sorted(glob.glob(f"{escaped_directory}/libnvrtc-builtins.so.*[0-9]"))
    builtins = tuple(dict.fromkeys(map(os.path.realpath, paths)))
    if not builtins:
        raise RejectedError("incomplete: no libnvrtc-builtins beside it")
    try:
        release, numbers = _probe_release(library, builtins, probe)
        version = read_embedded_version(probe, library)
    except (OSError, ProbeError) as error:
        raise RejectedError(str(error)) from error
    except ValueError as error:
        raise RejectedError("does not report its release") from error
    # The library is in the toolkit's lib64, or in its targets/x86_64-linux/lib.
    root_of_lib = os.path.dirname(directory)
    root_of_target = os.path.dirname(os.path.dirname(root_of_lib))
    joiners = sorted(glob.glob(f"{escaped_directory}/libnvfatbin.so*"))
    return NvrtcLibrary(
        library=library,
        builtins=builtins,
        version=version or ".".join(map(str, release)),
        release=release,
        numbers=numbers,
        include_dir=nvrtc_places.find_include_dir_among(
            (root_of_lib, root_of_target, *roots), release
        ),
        joiner=os.path.realpath(joiners[0]) if joiners else None,
    )


def _probe_release(
    library: str, builtins: tuple[str, ...], probe: Probe
) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return a library's release and the numbers of its architectures.

    The library's answer is stored under its digest. Raises `RejectedError` if the library fails,
    `ValueError` if its answer has another form, `ProbeError` and `OSError`.
    """
    # In a process of its own: a library that crashes while it is loaded would end this one.
    key = " ".join(("nvrtc identity", *map(probe.memory.digest_file, (library, *builtins))))
    answer = probe.memory.get_answer(key)
    if answer is None:
        argv = (sys.executable, "-I", "-S", _COMMAND, "--library", library, "identify")
        finished = run_in_temporary_directory(
            probe.runner, Command(argv, cwd="/", env={}, timeout=_TIMEOUT_SECONDS)
        )
        answer = finished.output.decode("utf-8", "replace")
        if not finished.ok:
            lines = answer.strip().splitlines()
            raise RejectedError(lines[-1] if lines else f"ended with status {finished.status}")
    # "13.0" in the first line, "75 80 86 90" in the second.
    release, numbers = answer.splitlines()[:2]
    major, minor = release.split(".")
    parsed = (int(major), int(minor)), tuple(int(number) for number in numbers.split())
    # Stored once it is parsed: an answer of another form would be an error of every later call.
    probe.memory.put_answer(key, answer)
    return parsed
