"""The hits that are compiled here as well, and what came of the comparison.

Which ones follows from the program's hash and a salt that each build draws: whoever changes an
entry of the remote cannot know who will compile it. A program of the sample is not fetched. It is
compiled as if it were missing, and by this machine's own tools even where others compile too; then
its record's digests are compared with the entry that came of it: every program's bytes follow from
its inputs, so there is nothing to judge.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from tilusbuild.cache import layout
from tilusbuild.cache.entries import Entry, listed
from tilusbuild.remote.record import Blob, Record, blob_for
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_text


class Sample:
    """May be used from several threads."""

    def __init__(self, share: float, salt: str | None = None) -> None:
        """`share` is the part of the hits, 0 to 1."""
        self._below = int(share * (1 << 64))
        self._salt = secrets.token_hex(8) if salt is None else salt
        self._records: dict[str, Record] = {}

    def takes(self, program: str, record: Record) -> bool:
        """Return whether a hit is compiled here as well; its record is kept then."""
        if int(sha256_text(self._salt + program)[:16], 16) >= self._below:
            return False
        self._records[program] = record
        return True

    def holds(self, program: str) -> bool:
        """Return whether a program is of the sample, and was not compared yet."""
        return program in self._records

    def record(self, program: str) -> Record | None:
        """Take out the record of a program; None for one that is not of the sample."""
        return self._records.pop(program, None)


def differences(record: Record, entry: Entry) -> Sequence[str]:
    """Return the files of a program that are others in its record than in an entry. Raises
    `OSError`."""
    ours = {name: Blob(digest, size) for name, size, digest in listed(entry.meta)}
    ours[layout.META] = blob_for(read_bytes(f"{entry.path}/{layout.META}"))
    theirs = record.files
    names = sorted({*ours, *theirs}, key=lambda name: (name == layout.META, name))
    return [name for name in names if ours.get(name) != theirs.get(name)]
