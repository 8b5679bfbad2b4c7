"""Builds the C dispatcher of a script: `dispatch/` in its directory, with `lib<script>.so`.

The sources follow from `script.json`, the tables and the programs. When they differ from those of
the directory, the dispatcher is built again, and one rename replaces the directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.layout import DISPATCH, DISPATCH_JSON
from tilusbuild.cache.tree import Tree
from tilusbuild.compile.causes import find_step_error
from tilusbuild.compile.steps import CC_FLAGS
from tilusbuild.embed.csource import NoDispatcherError, to_c_symbol, write_dispatcher_sources
from tilusbuild.errors import TilusbuildError
from tilusbuild.process.base import Command, Runner
from tilusbuild.runtime.naming import to_snake_case
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.sealed import seal_json
from tilusbuild.runtime.table_file import explain_refusals
from tilusbuild.runtime.tables import read_dispatch_table
from tilusbuild.state.files import sha256_file
from tilusbuild.status import Cause
from tilusbuild.toolchain import Toolchain

_SCHEMA = 2
# Costs are compared: a fused multiply-add would round other than Python.
_LINK = ("-ffp-contract=off", "-shared", "-Wl,--build-id=none,-s,-z,relro,-z,now,--as-needed")


def name_library(script: Script) -> str:
    """Return the file name of a script's dispatcher."""
    return f"lib{to_snake_case(script.name)}.so"


def is_current_dispatcher(script: Script) -> bool:
    """Return whether the dispatcher was built from the script and its tables as they are. Raises
    `LoadError` and `NoDispatcherError`."""
    return _is_built_from(script, _write_sources(script))


def _write_sources(script: Script) -> dict[str, str]:
    """Return the texts of the C source and the header. Raises `LoadError` and
    `NoDispatcherError`."""
    table_file = read_dispatch_table(script)
    return write_dispatcher_sources(
        script, table_file.tables, explain_refusals(script.programs, table_file.refused)
    )


def build_if_outdated(
    cache: Tree, script: Script, find_toolchain: Callable[[], Toolchain], runner: Runner
) -> str | None:
    """Build the dispatcher unless it is current. Return the path of its library. If the script can
    have no dispatcher, remove an earlier one and return None.

    Raises `LoadError` for damaged tables, `CacheError`, `TilusbuildError` when the compiler
    refuses, and the errors of `find_toolchain`.
    """
    directory = os.path.join(script.path, DISPATCH)
    library_path = os.path.join(directory, name_library(script))
    try:
        texts = _write_sources(script)
    except NoDispatcherError:
        if os.path.isdir(directory):
            cache.remove_entry(directory)
        return None
    # The compiler is not compared, because the texts decide what C callers get.
    if _is_built_from(script, texts):
        return library_path
    private = cache.make_private()
    try:
        with wrap_oserror(directory):
            new_directory = os.path.join(private.path, DISPATCH)
            os.mkdir(new_directory)
            for name, text in texts.items():
                with open(os.path.join(new_directory, name), "w", encoding="utf-8") as file:
                    file.write(text)
            name = name_library(script)
            _compile_dispatcher(new_directory, name, find_toolchain(), runner)
            with open(os.path.join(new_directory, DISPATCH_JSON), "wb") as sealed:
                sealed.write(_describe_library(script, os.path.join(new_directory, name)))
            cache.move_into_place(new_directory, directory)
    finally:
        private.discard()
    return library_path


def _describe_library(script: Script, library_path: str) -> bytes:
    """Return the content of `dispatch.json`: name and sha256 of the library, and the prefix of its
    functions. Raises `OSError`."""
    library = {"name": os.path.basename(library_path), "sha256": sha256_file(library_path)}
    return seal_json({"schema": _SCHEMA, "library": library, "symbol": to_c_symbol(script)})


def _is_built_from(script: Script, texts: dict[str, str]) -> bool:
    """Return whether the script's dispatcher has these texts, and the library whose digest is in
    its `dispatch.json`."""
    directory = os.path.join(script.path, DISPATCH)
    library_path = os.path.join(directory, name_library(script))
    try:
        for name, text in texts.items():
            if read_text(os.path.join(directory, name)) != text:
                return False
        description = read_bytes(os.path.join(directory, DISPATCH_JSON))
        return description == _describe_library(script, library_path)
    except OSError:
        # Nothing was built, or a file was removed.
        return False


def _compile_dispatcher(directory: str, name: str, toolchain: Toolchain, runner: Runner) -> None:
    """Compile `dispatch.c` in `directory` to the library `name` beside it. Raises `TilusbuildError`
    with the compiler's output."""
    argv = (toolchain.host.cc.path, *CC_FLAGS, *_LINK, "dispatch.c", "-o", name, "-pthread", "-ldl")
    # gcc's intermediate files are removed with the private directory, also when gcc is killed.
    environment = {**toolchain.build_environment(), "TMPDIR": os.path.dirname(directory)}
    finished = runner.run(Command(argv, directory, environment))
    log = finished.output.decode(errors="replace")
    error = find_step_error("the compiler", finished, log, None)
    if error is not None and error.cause is Cause.DISK:
        raise TilusbuildError(f"the dispatcher {name} cannot be written: {error.reason}")
    if error is not None:
        raise TilusbuildError(f"the dispatcher {name} does not compile:\n{log}")
