"""Is a carried program what its list says? From the bytes of its files; nothing of it is run.

Its texts hash to its name, `meta.json` speaks of it and of the files that are carried, and the
library holds the code that the list and the target promise, and asks no more of a host than the
list says.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilusbuild.binary import BinaryError, Needs, read_archs, read_needs
from tilusbuild.cache import layout
from tilusbuild.cache.includes import read_manifest
from tilusbuild.package.errors import CodeMismatch, Incoherent
from tilusbuild.package.listing import FileEntry, FileList, Target
from tilusbuild.package.listing import Needs as Listed
from tilusbuild.runtime import candidates
from tilusbuild.runtime.sealed import CorruptFileError, unseal
from tilusbuild.state.hashing import sha256_bytes

READ = (layout.PROGRAM_TXT, layout.OPTIONS_TXT, layout.META, layout.LIBRARY)
"""The files whose content is checked; of the others their digest is enough."""

Files = Mapping[str, FileEntry]
"""What is carried of an entry, by the name within it."""


def check_program(listing: FileList, digest: str, data: Mapping[str, bytes], files: Files) -> None:
    """Raises `Incoherent` and `CodeMismatch`. `data` has `READ`."""
    where = f"{layout.PROGRAMS}/{digest}"
    if sha256_bytes(data[layout.PROGRAM_TXT] + data[layout.OPTIONS_TXT]) != digest:
        raise Incoherent(f"{where}: its texts are not those that the folder is named by")
    _check_meta(where, digest, data[layout.META], files)
    _check_code(f"{where}/{layout.LIBRARY}", listing, digest, data[layout.LIBRARY])


def _check_meta(where: str, digest: str, data: bytes, files: Files) -> None:
    try:
        meta = unseal(data)
    except CorruptFileError as error:
        raise Incoherent(f"{where}/{layout.META} is damaged: {error}") from None
    if meta.get("program") != digest or meta.get("status") != "built":
        raise Incoherent(f"{where}/{layout.META} does not speak of a program that was built")
    known = meta.get("files")
    for name, entry in files.items():
        listed = {"size": entry.size, "sha256": entry.sha256}
        if name != layout.META and not (isinstance(known, dict) and known.get(name) == listed):
            raise Incoherent(f"{where}/{name} is not what {layout.META} beside it says")


def _check_code(where: str, listing: FileList, digest: str, data: bytes) -> None:
    program = listing.programs[digest]
    try:
        held: set[tuple[str, str]] = {(image.kind, image.arch) for image in read_archs(data)}
        needs = read_needs(data)
    except BinaryError as error:
        raise CodeMismatch(f"{where} is no library: {error}") from None
    listed: set[tuple[str, str]] = {(image.kind, image.arch) for image in program.images}
    if held != listed:
        raise CodeMismatch(f"{where} holds code for {_text(held)}; listed is {_text(listed)}")
    promised = _promised(listing.targets[program.target])
    if held != promised:
        raise CodeMismatch(
            f"{where} holds code for {_text(held)}; target {program.target} is {_text(promised)}"
        )
    problem = host_problem(listing.needs, needs)
    if problem:
        raise Incoherent(f"{where} {problem}; the list says otherwise")


def _promised(target: Target) -> set[tuple[str, str]]:
    if target.kind == "cpu":
        return set()
    return {(kind, arch) for arch, kind in candidates.images(target.archs, target.ptx)}


def host_problem(listed: Listed, needs: Needs) -> str | None:
    """What a library asks of a host beyond what is listed."""
    if needs.machine != listed.machine:
        return f"is for {needs.machine}"
    if extra := set(needs.libraries) - set(listed.libraries):
        return f"needs {min(extra)}"
    allowed = tuple(int(word) for word in listed.glibc.split(".")) if listed.glibc else (0,)
    if needs.glibc is not None and needs.glibc > allowed:
        return f"needs glibc {needs.glibc[0]}.{needs.glibc[1]}"
    return None


def _text(images: set[tuple[str, str]]) -> str:
    return ", ".join(sorted(f"{arch} ({kind})" for kind, arch in images)) or "no GPU"


def check_include(digest: str, manifest: bytes, files: Files) -> None:
    """The headers are those of the MANIFEST that the folder is named by. Raises `Incoherent`."""
    where = f"{layout.INCLUDE}/{digest}"
    try:
        if sha256_bytes(manifest) != digest:
            raise CorruptFileError(f"{layout.MANIFEST} is not the one that the folder is named by")
        wanted = read_manifest(manifest)
    except CorruptFileError as error:
        raise Incoherent(f"{where}: {error}") from None
    there = {name: entry.sha256 for name, entry in files.items() if name != layout.MANIFEST}
    if there != wanted:
        odd = min(n for n in {**there, **wanted} if there.get(n) != wanted.get(n))
        raise Incoherent(f"{where}/{odd} is not what {layout.MANIFEST} says")
