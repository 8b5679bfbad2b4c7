"""The C dispatcher, built: `dispatch/` in a script's directory, with `lib<script>.so` and its
header.

It is made again when its source would be another one: after a build that changed the programs, and
after tuning that changed the tables. The directory is replaced as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.layout import DISPATCH, DISPATCH_JSON
from tilusbuild.cache.tree import Tree
from tilusbuild.compile.steps import CC_FLAGS
from tilusbuild.embed.csource import NoDispatcherError, sources, symbol
from tilusbuild.errors import TilusbuildError
from tilusbuild.process.base import Command, Runner
from tilusbuild.runtime.naming import to_snake_case
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.sealed import seal_json
from tilusbuild.runtime.table_file import explain_refusals
from tilusbuild.runtime.tables import read_serving_tables
from tilusbuild.state.files import sha256_file
from tilusbuild.toolchain import Toolchain

_SCHEMA = 2
_LINK = ("-shared", "-Wl,--build-id=none,-s,-z,relro,-z,now,--as-needed")


def library_name(script: Script) -> str:
    """Return the file's name."""
    return f"lib{to_snake_case(script.name)}.so"


def is_current(script: Script) -> bool:
    """Return whether what is built is up to date. Raises `LoadError`, `NoDispatcherError`."""
    return _is_there(script, _texts(script))


def _texts(script: Script) -> dict[str, str]:
    found = read_serving_tables(script)
    return sources(script, found.tables, explain_refusals(script.programs, found.refused))


def refresh(
    cache: Tree, script: Script, find_toolchain: Callable[[], Toolchain], runner: Runner
) -> str | None:
    """Build the dispatcher unless it is current. Return its path, or None where there can be none.

    Raises `LoadError` for damaged tables, `CacheError`, `TilusbuildError` when the compiler
    refuses, and what `find_toolchain` raises.
    """
    directory = os.path.join(script.path, DISPATCH)
    made = os.path.join(directory, library_name(script))
    try:
        texts = _texts(script)
    except NoDispatcherError:
        if os.path.isdir(directory):
            cache.remove_entry(directory)
        return None
    if _is_there(script, texts):
        return made
    private = cache.make_private()
    try:
        with wrap_oserror(directory):
            inside = os.path.join(private.path, DISPATCH)
            os.mkdir(inside)
            for name, text in texts.items():
                with open(os.path.join(inside, name), "w", encoding="utf-8") as file:
                    file.write(text)
            name = library_name(script)
            _compile(inside, name, find_toolchain(), runner)
            with open(os.path.join(inside, DISPATCH_JSON), "wb") as sealed:
                sealed.write(_facts(script, os.path.join(inside, name)))
            cache.move_into_place(inside, directory)
    finally:
        private.discard()
    return made


def _facts(script: Script, made: str) -> bytes:
    """Return `dispatch.json`: the digest of the library, and the prefix of its functions."""
    library = {"name": os.path.basename(made), "sha256": sha256_file(made)}
    return seal_json({"schema": _SCHEMA, "library": library, "symbol": symbol(script)})


def _is_there(script: Script, texts: dict[str, str]) -> bool:
    directory = os.path.join(script.path, DISPATCH)
    try:
        for name, text in texts.items():
            if read_text(os.path.join(directory, name)) != text:
                return False
    except OSError:
        return False
    made = os.path.join(directory, library_name(script))
    try:
        return read_bytes(os.path.join(directory, DISPATCH_JSON)) == _facts(script, made)
    except OSError:
        return False


def _compile(directory: str, name: str, toolchain: Toolchain, runner: Runner) -> None:
    argv = (toolchain.host.cc.path, *CC_FLAGS, *_LINK, "dispatch.c", "-o", name, "-pthread", "-ldl")
    # gcc's intermediate files are removed with the private directory, also when gcc is killed.
    environment = {**toolchain.build_environment(), "TMPDIR": os.path.dirname(directory)}
    finished = runner.run(Command(argv, directory, environment))
    if not finished.ok:
        log = finished.output.decode(errors="replace")
        raise TilusbuildError(f"the dispatcher {name} does not compile:\n{log}")
