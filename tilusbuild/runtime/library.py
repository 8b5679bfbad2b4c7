"""A program's library, opened: its directory is whole, its bytes are those that were built.

A library is opened once for the process, when it is first called for, by whichever thread comes
first. Children of a fork keep what was open.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from tilusbuild.runtime import compat, receipts
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.errors import CorruptCacheError, LibraryChangedError, ProgramNotFoundError
from tilusbuild.runtime.process import process
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.sealed import CorruptFileError, unseal

LIBRARY = "module/lib.so"


def launcher(script: Script, program: int, device: Device | None) -> Callable[..., Any]:
    """Return the packed function of a program, for a device; None is any.

    Raises `CorruptCacheError`, `LibraryChangedError`, and `ProgramNotFoundError` when the library
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


def _loaded(path: str) -> Callable[..., Any]:
    import tvm_ffi

    try:
        launch: Callable[..., Any] = tvm_ffi.load_module(path)["launch"]
    except (RuntimeError, AttributeError, OSError) as error:
        raise CorruptCacheError(f"{path} cannot be loaded: {error}") from None
    return launch


def check_library(path: str, digest: str) -> None:
    """Raises `LibraryChangedError` unless the file has this sha256, `CorruptCacheError` when it is
    not there."""
    try:
        found = receipts.sha256_of(path)
    except OSError as error:
        raise CorruptCacheError(f"{path} cannot be read: {error.strerror}") from None
    if found != digest:
        raise LibraryChangedError(
            f"{path} is not what was built: sha256 {found}, expected {digest}"
        )


def read_meta(script: Script, program: int) -> Mapping[str, Any]:
    """meta.json of a built program. Raises `CorruptCacheError`."""
    digest = script.programs[program]
    path = os.path.join(script.root, "programs", digest, "meta.json")
    try:
        with open(path, "rb") as file:
            meta = unseal(file.read())
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
    """What the binary itself holds, against the device. Raises `ProgramNotFoundError`."""
    refused = []
    for image in meta.get("images", ()):
        kind: compat.Kind = "ptx" if image.get("kind") == "ptx" else "sass"
        verdict = compat.can_run(str(image.get("arch")), device.arch, kind)
        if verdict:
            return
        refused.append(verdict.reason)
    raise ProgramNotFoundError(
        f"program {program} of {script.label} holds nothing that runs on {device}", tuple(refused)
    )
