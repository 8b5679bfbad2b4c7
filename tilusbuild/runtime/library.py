"""Opens a program's library after comparing its bytes with the digest of the build.

A library is read and opened once for the process, by the first thread that calls it. Children of a
fork keep the open libraries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilusbuild.runtime.arrays import add_workspaces
from tilusbuild.runtime.device import CodeKind, Device, can_run, explain_cpu_refusal
from tilusbuild.runtime.errors import (
    SHORTAGES,
    CorruptCacheError,
    LoadError,
    MissingLibraryError,
    NoExecError,
    ShortageError,
    make_read_error,
)
from tilusbuild.runtime.process import process
from tilusbuild.runtime.regular import read_bytes, sha256_file
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.sealed import CorruptFileError, unseal_json

LIBRARY = "module/lib.so"


def load_launcher(script: Script, program: int, device: Device | None) -> Callable[..., Any]:
    """Return the packed function of a program. Its library is checked and opened at the first call,
    and cached for the process. A `device` of None skips the check of the code's architecture. Raise
    `LoadError`, also for a library that does not run on the device."""
    if (refusal := explain_cpu_refusal(script.code.isa)) is not None:
        raise LoadError(f"{script.label} is {refusal}")
    path = script.get_library_path(program)
    meta = read_meta(script, program)
    if device is not None and device.kind == "cuda":
        check_images(script, program, meta, device)
    digest = meta["files"][LIBRARY]["sha256"]
    key = (path, digest)  # by digest, too: a program that is built again has the same path
    # Held while a library is opened, so that one of many threads opens it.
    with process.library_lock:
        if key not in process.libraries:
            check_library(path, digest)
            process.libraries[key] = _open_cached_launcher(path, script)
        return process.libraries[key]


def open_launcher(path: str, script: Script) -> Callable[..., Any]:
    """Return the packed function of a script's `lib.so`; it allocates the workspaces that a call
    leaves out. Raises tvm-ffi's errors: `RuntimeError`, `AttributeError`, `OSError`."""
    import tvm_ffi

    from tilusbuild.runtime.cuda_driver import open_with_dependencies  # ctypes takes milliseconds

    module: Any = open_with_dependencies(partial(tvm_ffi.load_module, path))
    launch: Callable[..., Any] = module["launch"]
    if script.workspaces:
        return add_workspaces(script, launch, module["workspace"])
    return launch


_REFUSALS = (
    (ShortageError, tuple(map(os.strerror, SHORTAGES))),
    (NoExecError, ("failed to map segment",)),
    (MissingLibraryError, ("cannot open shared object file", "' not found", "undefined symbol")),
)
"""Parts of the messages of glibc's loader, by the class of the error."""


def _open_cached_launcher(path: str, script: Script) -> Callable[..., Any]:
    """Return the packed function of a library in a cache. Raises `LoadError`: no
    `CorruptCacheError`, since the bytes are those of the build."""
    try:
        return open_launcher(path, script)
    except (RuntimeError, AttributeError, OSError) as error:
        # "Check failed: … Failed to load dynamic shared library PATH PATH: …": the loader's words.
        reason = str(error).rpartition(f"{path} ")[2].removeprefix(f"{path}: ")
        message = f"{path} cannot be loaded: {reason}"
        kinds = (kind for kind, words in _REFUSALS if any(word in message for word in words))
        raise next(kinds, LoadError)(message) from None


def check_library(path: str, digest: str) -> None:
    """Raise `LoadError` unless the file has this sha256."""
    try:
        actual = sha256_file(path)
    except OSError as error:
        raise make_read_error(path, error) from None
    if actual != digest:
        problem = f"is not what was built: sha256 {actual}, expected {digest}"
        raise CorruptCacheError(f"{path} {problem}")


def read_meta(script: Script, program: int) -> Mapping[str, Any]:
    """Return meta.json of a built program. Raises `LoadError`s."""
    program_hash = script.programs[program]
    path = os.path.join(script.root, "programs", program_hash, "meta.json")
    try:
        meta = unseal_json(read_bytes(path))
    except OSError as error:
        raise make_read_error(path, error) from None
    except CorruptFileError as error:
        raise CorruptCacheError(f"{path} is damaged: {error}") from None
    if meta.get("program") != program_hash or meta.get("status") != "built":
        raise CorruptCacheError(f"{path}: not the metadata of a built program")
    try:
        library_digest = meta["files"][LIBRARY]["sha256"]
    except (KeyError, TypeError):
        library_digest = None
    if not isinstance(library_digest, str):
        raise CorruptCacheError(f"{path} does not list {LIBRARY}")
    return meta


def check_images(script: Script, program: int, meta: Mapping[str, Any], device: Device) -> None:
    """Raise `LoadError` unless one image of the program's code runs on the device."""
    reasons = []
    for image in meta.get("images", ()):
        kind: CodeKind = "ptx" if image.get("kind") == "ptx" else "sass"
        verdict = can_run(str(image.get("arch")), device.arch, kind)
        if verdict:
            return
        reasons.append(verdict.reason)
    label = f"program {program} of {script.label}"
    raise LoadError(f"{label} holds nothing that runs on {device}", reasons)
