"""A program's library, opened: its directory is whole, its bytes are those that were built.

A library is opened once for the process, when it is first called for, by whichever thread comes
first. Children of a fork keep what was open. Its digest is checked once: a receipt outside the tree
keeps what `stat` said of the file when its content was read. It counts while size, mtime, ctime,
inode and device are the same, and only if the file was older than the file system's tick when it
was read, by the clock that stamps it. A receipt of another user counts for nothing. Receipts save
reading and nothing else: without a place to keep them, every process reads each library that it
uses once.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilusbuild.runtime.device import CodeKind, Device, can_run
from tilusbuild.runtime.errors import CorruptCacheError, LoadError
from tilusbuild.runtime.places import is_trusted
from tilusbuild.runtime.process import process
from tilusbuild.runtime.regular import open_regular, read_bytes
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.sealed import CorruptFileError, unseal

LIBRARY = "module/lib.so"


def launcher(script: Script, program: int, device: Device | None) -> Callable[..., Any]:
    """Return the packed function of a program, for a device; None is any.

    Raises `LoadError`, also when the library
    is not for the device.
    """
    path = script.library(program)
    meta = read_meta(script, program)
    if device is not None and device.kind == "cuda":
        check_images(script, program, meta, device)
    digest = meta["files"][LIBRARY]["sha256"]
    # Held while a library is opened, so that of many threads that ask for it one opens it.
    with process.library_lock:
        if (path, digest) not in process.libraries:
            check_library(path, digest)
            process.libraries[path, digest] = _loaded(path)
        return process.libraries[path, digest]


def open_launcher(path: str) -> Callable[..., Any]:
    """Return the packed function of a `lib.so`. Raises what tvm-ffi raises when it cannot be
    loaded: `RuntimeError`, `AttributeError`, `OSError`."""
    import tvm_ffi

    from tilusbuild.runtime.cuda_driver import opened  # ctypes takes milliseconds

    launch: Callable[..., Any] = opened(partial(tvm_ffi.load_module, path))["launch"]
    return launch


def _loaded(path: str) -> Callable[..., Any]:
    try:
        return open_launcher(path)
    except (RuntimeError, AttributeError, OSError) as error:
        raise CorruptCacheError(f"{path} cannot be loaded: {error}") from None


def check_library(path: str, digest: str) -> None:
    """Raises `CorruptCacheError` unless the file has this sha256."""
    try:
        found = sha256_of(path)
    except OSError as error:
        raise CorruptCacheError(f"{path} cannot be read: {error.strerror}") from None
    if found != digest:
        raise CorruptCacheError(f"{path} is not what was built: sha256 {found}, expected {digest}")


def read_meta(script: Script, program: int) -> Mapping[str, Any]:
    """Return meta.json of a built program. Raises `CorruptCacheError`."""
    digest = script.programs[program]
    path = os.path.join(script.root, "programs", digest, "meta.json")
    try:
        meta = unseal(read_bytes(path))
    except OSError as error:
        raise CorruptCacheError(f"{path} cannot be read: {error.strerror}") from None
    except CorruptFileError as error:
        raise CorruptCacheError(f"{path} is damaged: {error}") from None
    if meta.get("program") != digest or meta.get("status") != "built":
        raise CorruptCacheError(f"{path}: not the metadata of a built program")
    try:
        if not isinstance(meta["files"][LIBRARY]["sha256"], str):
            raise TypeError
    except (KeyError, TypeError):
        raise CorruptCacheError(f"{path} does not list {LIBRARY}") from None
    return meta


def check_images(script: Script, program: int, meta: Mapping[str, Any], device: Device) -> None:
    """Compare the code in the binary with the device. Raises `LoadError`."""
    refused = []
    for image in meta.get("images", ()):
        kind: CodeKind = "ptx" if image.get("kind") == "ptx" else "sass"
        verdict = can_run(str(image.get("arch")), device.arch, kind)
        if verdict:
            return
        refused.append(verdict.reason)
    raise LoadError(
        f"program {program} of {script.label} holds nothing that runs on {device}", tuple(refused)
    )


# The stamp and this rule are those of `tilusbuild.state.stamp` and `clock`, which a deployment does
# not have; `tests/state/test_stamp.py` compares them.
_TICK = 2_000_000_000
"""Nanoseconds: the coarsest time stamp of a file system in use."""
_LAG = 600_000_000_000
"""Nanoseconds that the clock of another file system than the receipts' may be behind ours."""


def sha256_of(path: str) -> str:
    """Return the digest of a file's content, from its receipt if it has one. Raises `OSError`."""
    place = _receipt_path(path)
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        stamp = _stamp(os.fstat(file.fileno()))
        kept = _read_receipt(place)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        at = 0 if place is None else _moment(os.path.dirname(place), file.fileno())
        hasher = hashlib.sha256()
        while piece := file.read(1 << 20):
            hasher.update(piece)
        found = os.fstat(file.fileno())
    digest = hasher.hexdigest()
    newest = max(found.st_mtime_ns, found.st_ctime_ns)
    if place is not None and _is_settled(newest, at) and _stamp(found) == stamp:
        _write_receipt(place, f"{stamp} {digest}\n")
    return digest


def _stamp(found: os.stat_result) -> str:
    numbers = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)
    return " ".join(map(str, numbers))


def _moment(directory: str, file: int) -> int:
    """Return the time by the clock that stamps an open file, or an earlier one. A file that is made
    now has the time of its file system."""
    try:
        os.makedirs(directory, exist_ok=True)
        handle = os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        return time.time_ns() - _LAG
    try:
        found = os.fstat(handle)
    finally:
        os.close(handle)
    same = found.st_dev == os.fstat(file).st_dev
    return found.st_mtime_ns if same else time.time_ns() - _LAG


def _is_settled(newest: int, at: int) -> bool:
    """Return whether something last changed at `newest` was old enough at `at` to be trusted."""
    return newest < at - _TICK


def _receipt_path(path: str) -> str | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = os.environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return os.path.join(base, "tilusbuild", "receipts", name)


def _read_receipt(place: str | None) -> tuple[str, str] | None:
    if place is None:
        return None
    try:
        with os.fdopen(open_regular(place), "rb") as file:
            # Whoever wrote a receipt says which bytes are right: also where a signature is asked
            # for, because its check reads files through their receipts.
            if not is_trusted(os.fstat(file.fileno()).st_uid):
                return None
            words = file.read(1000).decode("ascii").split()
    except (OSError, ValueError):
        return None
    return (" ".join(words[:-1]), words[-1]) if len(words) == 6 and len(words[-1]) == 64 else None


def _write_receipt(place: str, text: str) -> None:
    import tempfile

    try:
        directory = os.path.dirname(place)
        os.makedirs(directory, exist_ok=True)
        handle, made = tempfile.mkstemp(prefix=".tmp-", dir=directory)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(made, place)
    except OSError:
        return
