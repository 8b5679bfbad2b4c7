"""Is a carried script what its list says? Read from its folder as a deployment reads it.

The runtime's own readers are asked, so what passes here is what `load` takes.
"""

from __future__ import annotations

import os

from tilusbuild.cache import layout
from tilusbuild.package import purpose
from tilusbuild.package.errors import Incoherent
from tilusbuild.package.listing import FileList, ScriptEntry
from tilusbuild.runtime import direct
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.sealed import CorruptFileError, unseal
from tilusbuild.runtime.tables import FILE, read_tables
from tilusbuild.state.hashing import sha256_bytes

_SPARSEST = 6
"""Bytes of text for each array or object; the densest that is written is `["name","m"]`."""


def check_script(listing: FileList, entry: ScriptEntry, root: str) -> None:
    """Check the script's folder below `root`. Raises `Incoherent`."""
    where = f"{layout.SCRIPTS}/{entry.folder}"
    path = os.path.join(root, where)
    for name in layout.files_below(path):
        if purpose.of_script(name) is None:
            raise Incoherent(f"{where}/{name} is no file that a script has")
        if name.endswith(".json") and _is_hollow(os.path.join(path, name)):
            raise Incoherent(f"{where}/{name} is made of nothing but brackets")
    try:
        script = read_script(path)
        tables = read_tables(script)
    except LoadError as error:
        raise Incoherent(str(error).replace(f"{root}/", "")) from None
    _check_description(where, listing, entry, script)
    carried = set(entry.programs)
    for row in (row for table in tables for row in table.entries):
        if script.programs[row.program] not in carried:
            raise Incoherent(
                f"{where}/{FILE} chooses program {row.program} at {list(row.key)}, which is not"
                " carried"
            )
    _check_dispatcher(f"{where}/{layout.DISPATCH}", os.path.join(path, layout.DISPATCH))


def _is_hollow(path: str) -> bool:
    """Whether JSON would take many times its size in memory: an empty array is two bytes of text
    and sixty of memory."""
    with open(path, "rb") as file:
        data = file.read()
    return data.count(b"[") + data.count(b"{") > 1000 + len(data) // _SPARSEST


def _check_description(where: str, listing: FileList, entry: ScriptEntry, script: Script) -> None:
    target = listing.targets[entry.target]
    said = (script.name, script.target, script.machine, script.kind, script.archs, script.ptx)
    listed = (
        entry.script,
        entry.target,
        listing.needs.machine,
        target.kind,
        target.archs,
        target.ptx,
    )
    if (*said, script.toolkit) != (*listed, target.toolkit):
        raise Incoherent(f"{where}/{layout.SCRIPT_JSON} and the list disagree on the target")
    carried = set(entry.programs)
    order = dict.fromkeys(program for program in script.programs if program in carried)
    if tuple(order) != entry.programs:
        raise Incoherent(f"{where}: the list names programs that are not of this script")


def _check_dispatcher(where: str, folder: str) -> None:
    """The C dispatcher is the one that its own description names."""
    if not os.path.isdir(folder):
        return
    try:
        with open(os.path.join(folder, direct.FILE), "rb") as file:
            library = unseal(file.read())["library"]
        with open(os.path.join(folder, os.path.basename(library["name"])), "rb") as file:
            found = sha256_bytes(file.read())
    except (OSError, CorruptFileError, KeyError, TypeError) as error:
        raise Incoherent(f"{where}/{direct.FILE} is damaged: {error}") from None
    if found != library["sha256"]:
        raise Incoherent(f"{where}: the dispatcher is not what was built")
