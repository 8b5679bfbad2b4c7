"""Note what a Python process reads: files, directories, variables, modules, programs.

An audit hook sees each `open`, listing, load and start of a program before it happens; `os.stat`
and `os.environ`, which raise no event, are replaced by versions that note their questions. The
digest of a file is taken before the file is read. If the file changes in between, the digest is the
old one, and the reader is seen to be out of date.

A file of an installed package is known by its stamp: importing one opens thousands. Python's own
library is not noted: its version stands for it. A child process of another program than an
installed package's may read anything: then `UNTRACKED` is noted, which never holds again. The
network is refused. `TMPDIR`, where the process may write, is not noted, nor are variables with its
value.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import ItemsView, Iterator, Mapping
from types import FrameType
from typing import Any

from tilusbuild.runtime.regular import sha256_file
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import DeviceStamp, read_device_stamp

UNTRACKED = "untracked:"
DIRECTORY = "directory"
"""The digest of a directory that was asked for as a file: its names do not count."""
_SITE = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_WALK = ItemsView.__iter__.__code__
_SPAWN: Any = subprocess.Popen._posix_spawn.__code__  # type: ignore[attr-defined]
_SEARCHES: Any = (
    importlib.machinery.FileFinder._fill_cache.__code__,  # type: ignore[attr-defined]
    importlib.metadata.FastPath.children.__code__,  # type: ignore[attr-defined]
)
"""The functions of Python that list a directory for modules, and for installed packages."""
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_NETWORK = tuple(
    f"socket.{name}" for name in ("connect", "bind", "sendto", "sendmsg", "getaddrinfo", "gethost")
)
NO_NETWORK = "a generator has no network, and may write in TMPDIR only"


def digest_read(name: str, environment: Mapping[str, str]) -> str:
    """Return the digest of a noted thing as it is now; "" for a missing one. `UNTRACKED` has
    another digest each time."""
    kind, _, value = name.partition(":")
    if kind == "env":
        return f"={environment[value]}" if value in environment else ""
    if kind == "stamp":
        return repr(tuple(read_device_stamp(value).stamp))
    try:
        if kind in ("dir", "modules"):
            is_counted = _is_importable if kind == "modules" else bool
            with os.scandir(value) as entries:
                names = (e.name for e in entries if is_counted(e) and not _is_cache(e))
                return sha256_text("\0".join(sorted(names)))
        if kind == "file" and os.path.isdir(value):
            return DIRECTORY
        if kind == "file":
            return sha256_file(value)
    except OSError:
        return ""
    return os.urandom(16).hex()


def _is_cache(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a cache, which a first import or build adds."""
    return entry.name == "__pycache__" or os.path.exists(os.path.join(entry.path, "CACHEDIR.TAG"))


def _is_importable(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry may be a module, a package, or the data of an installed package."""
    is_package = "." not in entry.name and entry.is_dir()
    return is_package or entry.name.endswith((".py", ".so", ".dist-info", ".egg-info"))


class ReadsNoter:
    """Notes the reads of this process from `install` on."""

    def __init__(self) -> None:
        self._fresh: dict[str, tuple[str, DeviceStamp | None]] = {}
        self._known: set[str] = set()
        self._outputs: set[str] = set()
        self._state = threading.local()
        self._is_installed = False
        self._own_directory = ""
        self._unnoted: tuple[str, ...] = (*_SYSTEM, _OWN)

    def take_fresh(self) -> dict[str, tuple[str, DeviceStamp | None]]:
        """Return digest and stamp, by name, of what was first read since the last call. Stamps are
        those of before the digest; a variable has none."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def install(self) -> None:
        """Begin, at the first call. Changes `os.environ`, imports and `os.stat` for good."""
        if self._is_installed:
            return
        self._is_installed = True
        self._unnoted += (os.path.join(os.environ["TMPDIR"], ""),)
        self._own_directory = digest_read("env:TMPDIR", os.environ)
        noter, environ = self, os.environ
        sys.path_hooks.insert(0, _find_uncached)
        sys.path_importer_cache.clear()

        class NotingEnvironment(type(environ)):  # type: ignore[misc]
            def __getitem__(self, name: str) -> str:
                if not _is_looked_past(name, sys._getframe(1)):
                    noter._note("env", str(name))
                return str(super().__getitem__(name))

            def values(self) -> Any:
                # `Popen` hands all of them to a child, whose program is noted.
                is_for_child = sys._getframe(1).f_code is _SPAWN
                return os.environb.copy().values() if is_for_child else super().values()

        environ.__class__ = NotingEnvironment
        for name in ("stat", "lstat"):
            setattr(os, name, self._wrap_stat(getattr(os, name)))
        sys.addaudithook(self._see_event)

    def _wrap_stat(self, stat: Any) -> Any:
        def note_and_stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
            if options.get("dir_fd") is None:
                self._note_path("file", path)
            return stat(path, *args, **options)  # type: ignore[no-any-return]

        return note_and_stat

    def _see_event(self, event: str, args: tuple[Any, ...]) -> None:
        match event:
            case "open":
                path, _, flags = args
                if isinstance(flags, int) and flags & os.O_ACCMODE != os.O_RDONLY:
                    self._add_output(path)
                else:
                    self._note_path("file", path)
            case "os.listdir" | "os.scandir":
                kind = "modules" if sys._getframe(1).f_code in _SEARCHES else "dir"
                self._note_path(kind, "." if args[0] is None else args[0])
            case "os.mkdir":
                self._add_output(args[0])
            case "os.rename":
                self._add_output(args[1])
            case "import":
                self._note_path("file", args[1])
            case "ctypes.dlopen" if args[0] and os.sep in str(args[0]):
                self._note_path("file", args[0])
            case "subprocess.Popen" | "os.posix_spawn" | "os.exec":
                if file := _find_input(args[0], args[1]):
                    self._note_path("file", file)
                else:
                    self._note("untracked", "")
            case "os.system" | "os.fork" | "os.forkpty":
                # A child that only forks is seen by no hook of this process.
                self._note("untracked", "")
            case _ if event.startswith(_NETWORK):
                raise PermissionError(errno.EACCES, NO_NETWORK)

    def _add_output(self, path: Any) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            self._outputs.add(os.path.abspath(os.fsdecode(path)))

    def _note_path(self, kind: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        full = os.path.abspath(os.fsdecode(path))
        if os.path.basename(os.path.dirname(full)) == "__pycache__":
            with contextlib.suppress(ValueError):
                full = importlib.util.source_from_cache(full)
        is_site = full.startswith(_SITE)
        is_standard = full.startswith(_STANDARD) and not is_site
        if is_standard or f"{full}/".startswith(self._unnoted):
            return
        # A file that this process has written is not an input.
        if not self._outputs.isdisjoint(_list_ancestors(full)):
            return
        self._note("stamp" if kind == "file" and is_site else kind, full)

    def _note(self, kind: str, value: str) -> None:
        name = f"{kind}:{value}"
        if name in self._known or getattr(self._state, "is_busy", False):
            return
        self._state.is_busy = True
        try:
            self._known.add(name)
            stamp = None if kind in ("env", "untracked") else read_device_stamp(value)
            digest = digest_read(name, os.environ)
            if digest != self._own_directory:
                self._fresh[name] = digest, stamp
        finally:
            self._state.is_busy = False


def _find_input(program: Any, arguments: Any) -> str | None:
    """Return the file that decides what a program reads besides what it is given; None if there is
    no such file."""
    # `ctypes.util.find_library` runs it, in an import of PyTorch for one.
    if list(arguments) == ["/sbin/ldconfig", "-p"]:
        return "/etc/ld.so.cache"
    path = os.path.realpath(os.fsdecode(program))
    return path if path.startswith(_SITE) else None


def _is_looked_past(name: str, frame: FrameType | None) -> bool:
    """Return whether an installed package goes through all variables while it is imported, as tqdm
    does, and this one has not the beginning of its own: the package's name."""
    if frame is None or frame.f_code is not _WALK or (frame := frame.f_back) is None:
        return False
    path = frame.f_code.co_filename
    parts = (path[len(site) :].split(os.sep)[0] for site in _SITE if path.startswith(site))
    package = next(parts, "").removesuffix(".py").lower()
    # Called by the project, it may look for names of the project's.
    while frame is not None and frame.f_code.co_filename.startswith((*_SITE, *_STANDARD)):
        frame = frame.f_back
    is_import = frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")
    return bool(package) and is_import and not name.lower().startswith(package)


def _list_ancestors(path: str) -> Iterator[str]:
    while True:
        yield path
        parent = os.path.dirname(path)
        if parent == path:
            return
        path = parent


class UncachedLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module from its source each time: bytecode is compared by whole seconds and size,
    so that of a file that was edited twice in a second may be out of date."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _find_uncached(path: str) -> Any:
    """Return the finder of a directory that is not of an installed package. Raises `ImportError`
    for others."""
    if f"{os.path.abspath(path)}/".startswith((*_SITE, *_STANDARD, _OWN)) or not os.path.isdir(
        path
    ):
        raise ImportError
    return importlib.machinery.FileFinder(
        path,
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (UncachedLoader, importlib.machinery.SOURCE_SUFFIXES),
    )
