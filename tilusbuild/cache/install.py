"""Publishing what was made elsewhere and lies in a private directory, checked: a package's programs
and scripts. They get into place as a build's own do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from tilusbuild.cache import layout
from tilusbuild.cache.cache import Cache
from tilusbuild.cache.entries import ADDED_KEYS, Entry
from tilusbuild.cache.errors import wrap_oserror
from tilusbuild.cache.locks import LockRange
from tilusbuild.cache.scripts import links_of, parse_script, put_script
from tilusbuild.runtime.sealed import unseal

_OPTIONAL = (layout.SCHEDULE_TXT, layout.TABLE_JSON, layout.TABLE_TXT, layout.DISPATCH)


def install_program(cache: Cache, program: str, directory: str) -> Entry:
    """Publish the program whose files lie in `directory`, on the cache's disk; the directory is
    used up.

    What is published already stays. Raises `CacheError`, `CorruptFileError`, and what publishing
    raises.
    """
    disk = cache.tree.disk
    stage = cache.stage()
    try:
        with cache.locked(program), wrap_oserror(stage.path):
            found = unseal(_taken(cache, directory, layout.META))
            meta = {key: value for key, value in found.items() if key not in ADDED_KEYS}
            program_txt, options_txt = (
                _taken(cache, directory, name).decode("utf-8", "surrogateescape")
                for name in (layout.PROGRAM_TXT, layout.OPTIONS_TXT)
            )
            disk.rename(directory, stage.path)
            return stage.publish_program(program, program_txt, options_txt, meta)
    finally:
        stage.discard()


def install_script(
    cache: Cache, directory: str, digest: str, files: Mapping[str, bytes], dispatcher: str | None
) -> str:
    """Make a script's directory hold these files, and links to those of its programs that are
    there.

    `dispatcher` is a directory on the cache's disk that becomes its `dispatch`. What an older
    package put there beyond that goes. Returns its path; raises `CacheError`.
    """
    tree = cache.tree
    path = tree.script_path(directory, digest)
    text = files[layout.SCRIPT_TXT].decode("utf-8", "surrogateescape")
    links = links_of(tree, parse_script(text).programs)
    put_script(tree, directory, digest, files, links)
    with tree.held(LockRange("use", shared=True), LockRange("script", digest)), wrap_oserror(path):
        for name in _OPTIONAL:
            given = name in files or (name == layout.DISPATCH and dispatcher is not None)
            if not given and os.path.lexists(os.path.join(path, name)):
                tree.remove_entry(os.path.join(path, name))
        if dispatcher is not None:
            tree.move(dispatcher, os.path.join(path, layout.DISPATCH))
    return path


def _taken(cache: Cache, directory: str, name: str) -> bytes:
    """Return the content of a file that publishing writes itself, and the file out of its way."""
    path = os.path.join(directory, name)
    with open(path, "rb") as file:
        data = file.read()
    cache.tree.disk.remove(path)
    return data
