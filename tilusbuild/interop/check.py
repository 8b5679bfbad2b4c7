"""Check that an entry of a foreign cache is what the list says, from the bytes of its library.

The code in it is what is listed, and asks no more of a host than the list says. What else the entry
holds is the system's own affair: of pickles and the like only the digest is compared.
"""

from __future__ import annotations

from tilusbuild.binary import BinaryError, read_needs
from tilusbuild.interop import triton_groups
from tilusbuild.interop.listing import ListedCache, ListedEntry
from tilusbuild.package.check import host_problem
from tilusbuild.package.errors import CodeMismatchError, InconsistentError, OverLimitError
from tilusbuild.package.extract import PackageMember
from tilusbuild.package.listing import FileList
from tilusbuild.package.model import MAX_LIBRARY_SIZE, code_of


class EntryChecker:
    """Check the files of one cache as they arrive: libraries, and Triton's groups."""

    def __init__(self, listing: FileList, cache: ListedCache) -> None:
        self._listing = listing
        self._system = cache.system
        self._libraries = cache.libraries()

    def wants(self, member: PackageMember) -> bool:
        """Return whether the content counts, not the digest alone. Raises `OverLimitError`."""
        path, group = member.path, triton_groups.is_group(self._system, member.path)
        if path not in self._libraries and not group:
            return False
        limit = triton_groups.MAX_BYTES if group else MAX_LIBRARY_SIZE
        if member.entry.size > limit:
            raise OverLimitError(f"{path} has more than {limit} bytes")
        return True

    def check(self, path: str, data: bytes) -> None:
        """Raises `CodeMismatchError` and `InconsistentError`."""
        if path in self._libraries:
            self._check_code(path, self._libraries[path], data)
        else:
            triton_groups.check(path, data, self._listing.files)

    def _check_code(self, path: str, entry: ListedEntry, data: bytes) -> None:
        images, machine = code_of(data)
        if set(images) != set(entry.images) or machine != entry.machine:
            there = _text(sorted(i.arch for i in images), machine)
            listed = _text(sorted(i.arch for i in entry.images), entry.machine)
            raise CodeMismatchError(f"{path} holds code for {there}; listed is {listed}")
        try:
            problem = host_problem(self._listing.needs, read_needs(data)) if machine else None
        except BinaryError as error:
            problem = str(error)
        if problem:
            raise InconsistentError(f"{path} {problem}; the list says otherwise")


def _text(archs: list[str], machine: str | None) -> str:
    return ", ".join([*archs, *([machine] if machine else [])]) or "nothing that is known"
