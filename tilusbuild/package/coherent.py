"""Whether a file list agrees with itself: what it names has files, and every file has an owner.

It is asked of a list before it is written and after it was read, so that the two agree on what a
list is. Raises `ListMalformed`, and `UnsafeName` for names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

from tilusbuild.cache import layout
from tilusbuild.package import kinds, names
from tilusbuild.package.errors import ListMalformed
from tilusbuild.state.hashing import sha256_text

if TYPE_CHECKING:
    from tilusbuild.package.listing import FileList

OF_PROGRAM = (layout.PROGRAM_TXT, layout.OPTIONS_TXT, layout.META, layout.LIBRARY)
OF_SCRIPT = (layout.SCRIPT_TXT, layout.SCRIPT_JSON)
"""The files without which a program or a script is of no use."""


def check(found: FileList) -> None:
    """Raises for the first thing that is not as it must be."""
    names.check_paths(found.files)
    if list(found.needs.libraries) != sorted(set(found.needs.libraries)):
        _refuse("needs.libraries is not sorted")
    if found.part is not None:
        if found.scripts or found.programs or found.targets:
            _refuse(f"it lists both programs and {found.part.summary}")
        found.part.check(found)
    _scripts(found)
    _programs(found)
    _owners(found)
    _inputs(found)


def digest_of_inputs(
    scripts: Iterable[str],
    programs: Iterable[str],
    tables: Mapping[str, str],
    entries: Iterable[str] = (),
) -> str:
    """One digest for what was packed: sha256 over a line each for the scripts' hashes, the
    programs', the dispatch tables' paths and digests, and what another kind counts, all sorted."""
    lines = [f"script {each}" for each in sorted(scripts)]
    lines += [f"program {each}" for each in sorted(programs)]
    lines += [f"table {digest} {path}" for path, digest in sorted(tables.items())]
    lines += [f"entry {path}" for path in sorted(entries)]
    return sha256_text("".join(f"{line}\n" for line in lines))


def is_table(path: str) -> bool:
    """Whether a listed file is a dispatch table."""
    return path.startswith(layout.SCRIPTS) and path.rpartition("/")[2] == "dispatch_table.json"


def _scripts(found: FileList) -> None:
    keys = [(each.script, each.target, each.hash) for each in found.scripts]
    if keys != sorted(set(keys)) or len({each.hash for each in found.scripts}) != len(keys):
        _refuse("the scripts are not sorted, or one is there twice")
    for script in found.scripts:
        if script.target not in found.targets:
            _refuse(f"script {script.script} is for a target {script.target} that is not listed")
        for digest in script.programs:
            if digest not in found.programs:
                _refuse(f"script {script.script} has a program {digest} that is not listed")
        prefix = f"{layout.SCRIPTS}/{script.folder}"
        for name in OF_SCRIPT:
            if f"{prefix}/{name}" not in found.files:
                _refuse(f"{prefix}/{name} is not listed")
        if script.tables != (f"{prefix}/dispatch_table.json" in found.files):
            _refuse(f"script {script.script} and the files disagree on its dispatch tables")
    if used := found.targets.keys() - {script.target for script in found.scripts}:
        _refuse(f"no script is for the target {min(used)}")


def _programs(found: FileList) -> None:
    having: dict[str, tuple[str, str]] = {}
    for script in found.scripts:
        for each in script.programs:
            having.setdefault(each, (script.script, script.target))
    for digest, program in found.programs.items():
        if not layout.is_hash(digest):
            _refuse(f"{digest!r:.80} is no program's hash")
        if having.get(digest) != (program.script, program.target):
            _refuse(f"program {digest} is not that of the first script and target that have it")
        for name in OF_PROGRAM:
            if f"{layout.PROGRAMS}/{digest}/{name}" not in found.files:
                _refuse(f"{layout.PROGRAMS}/{digest}/{name} is not listed")


def _owners(found: FileList) -> None:
    folders = {tuple(script.folder.split("/")) for script in found.scripts}
    for path in found.files:
        kind, folder, digest = names.root_of(path)
        if kind == layout.PROGRAMS and digest not in found.programs:
            _refuse(f"{path} belongs to no listed program")
        if kind == layout.SCRIPTS and (folder, digest) not in folders:
            _refuse(f"{path} belongs to no listed script")
        if found.part is None and kinds.kind_at(kind):
            _refuse(f"{path} is below {kind}, of which the list says nothing")


def _inputs(found: FileList) -> None:
    tables = {path: file.sha256 for path, file in found.files.items() if is_table(path)}
    scripts = [script.hash for script in found.scripts]
    entries = found.part.inputs() if found.part else ()
    if found.inputs != digest_of_inputs(scripts, found.programs, tables, entries):
        _refuse("the digest of the inputs is another one")


def _refuse(problem: str) -> NoReturn:
    raise ListMalformed(problem)
