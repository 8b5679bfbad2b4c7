"""The C dispatcher, built: `dispatch/` in a script's directory, with `lib<script>.so` and its
header.

It is made again when its source would be another one: after a build that changed the programs, and
after tuning that changed the tables. The directory is replaced as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.layout import DISPATCH
from tilusbuild.cache.tree import Tree
from tilusbuild.compile.steps import CC_FLAGS
from tilusbuild.dispatch.csource import NoDispatcherError, sources, symbol
from tilusbuild.dispatch.latency import adopt
from tilusbuild.dispatch.tables import forget_other_keys, is_measured, keep_current
from tilusbuild.errors import TilusbuildError
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.process.base import Command, Runner
from tilusbuild.runtime import direct
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.kernel import programs_there
from tilusbuild.runtime.naming import snake_case
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.sealed import seal
from tilusbuild.runtime.table_file import Refusal, by_number
from tilusbuild.runtime.tables import TableFile, serving
from tilusbuild.state.files import sha256_file
from tilusbuild.toolchain import Toolchain

if TYPE_CHECKING:
    from tilusbuild.manifest.model import Manifest


_LINK = ("-shared", "-Wl,--build-id=none,-s,-z,relro,-z,now,--as-needed")


def library_name(script: Script) -> str:
    """Return the file's name."""
    return f"lib{snake_case(script.name)}.so"


def is_current(script: Script) -> bool:
    """Return whether what is built is up to date. Raises `LoadError`, `NoDispatcherError`."""
    return _is_there(script, _texts(script))


def _texts(script: Script) -> dict[str, str]:
    found = serving(script)
    return sources(script, found.tables, by_number(script.programs, found.refused))


def refresh(cache: Tree, script: Script, toolchain: Toolchain, runner: Runner) -> str | None:
    """Build the dispatcher unless it is current; its path, or None where there can be none.

    Raises `LoadError` for damaged tables, `CacheError`, and `TilusbuildError` when the compiler
    refuses.
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
    private = cache.private()
    try:
        with wrap_oserror(directory):
            inside = os.path.join(private.path, DISPATCH)
            os.mkdir(inside)
            for name, text in texts.items():
                with open(os.path.join(inside, name), "w", encoding="utf-8") as file:
                    file.write(text)
            name = library_name(script)
            _compile(inside, name, toolchain, runner)
            with open(os.path.join(inside, direct.FILE), "wb") as sealed:
                sealed.write(_facts(script, os.path.join(inside, name)))
            cache.move(inside, directory)
    finally:
        private.discard()
    return made


def after_build(
    cache: Tree,
    path: str,
    manifest: Manifest,
    instance: PlannedInstance,
    runner: Runner,
    refused: Mapping[str, Refusal],
) -> None:
    """Keep a script's directory current as far as dispatch goes: programs that are `refused` where
    they were tuned are so here, and there is a dispatcher where there is something to dispatch by:
    the manifest says `dispatch`, or something was measured. Raises as `refresh`."""
    script, found = keep_tables(path, refused)
    declared = manifest.scripts[instance.script].dispatch is not None
    try:
        if declared or is_measured(found):
            refresh(cache, script, instance.spec.toolchain, runner)
    except LoadError as error:
        raise TilusbuildError(str(error)) from None


def keep_tables(
    path: str, refused: Mapping[str, Refusal] = MappingProxyType({})
) -> tuple[Script, TableFile]:
    """Have the tables in a script's directory say what is chosen now; return it. Raises
    `CacheError`, and `TilusbuildError` for damaged ones."""
    try:
        with wrap_oserror(path):
            script = read_script(path)
            forget_other_keys(script)
            adopt(script, refused)
            return script, keep_current(script)
    except LoadError as error:
        raise TilusbuildError(str(error)) from None


def _facts(script: Script, made: str) -> bytes:
    """`dispatch.json`: what the dispatcher was made from, and its digest."""
    found = {"name": os.path.basename(made), "sha256": sha256_file(made)}
    origin = direct.made_from(script, programs_there(script))
    value = {"schema": direct.SCHEMA, "from": origin, "library": found, "symbol": symbol(script)}
    return seal(value)


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
        return read_bytes(os.path.join(directory, direct.FILE)) == _facts(script, made)
    except OSError:
        return False


def _compile(directory: str, name: str, toolchain: Toolchain, runner: Runner) -> None:
    argv = (toolchain.host.cc.path, *CC_FLAGS, *_LINK, "dispatch.c", "-o", name, "-pthread", "-ldl")
    # gcc's intermediate files are removed with the private directory, also when gcc is killed.
    environment = {**toolchain.environment(), "TMPDIR": os.path.dirname(directory)}
    finished = runner.run(Command(argv, directory, environment))
    if not finished.ok:
        log = finished.output.decode(errors="replace")
        raise TilusbuildError(f"the dispatcher {name} does not compile:\n{log}")
