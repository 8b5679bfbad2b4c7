"""A package from the remote cache as a directory, for `load(where="sha256:…")`.

Everything is unpacked into a private directory beside its place and checked there as `verify` does.
Only then it is moved there: what has the name is whole, whoever is killed, and of two who fetch at
once the first stays.
"""

from __future__ import annotations

import os

from tilusbuild.package import names
from tilusbuild.package.check import Checker
from tilusbuild.package.errors import CannotInstallError, NoPackageError
from tilusbuild.package.extract import Limits, check_limits, members
from tilusbuild.package.formats.directory import make_directory, sync_all, write_file
from tilusbuild.package.listing import parse
from tilusbuild.package.model import mode_of
from tilusbuild.package.read import opened
from tilusbuild.package.staging import private_directory
from tilusbuild.state.files import publish_new, sync_directory

_PLAIN = 0o644
"""The mode that every file is written with."""


def fetch(digest: str, path: str) -> None:
    """Make `path` be the package with this digest. Raises `PackageError`s, and `InputError`
    without a remote cache."""
    place = os.path.dirname(path)
    with opened(names.by_digest(digest)) as reader:
        listing = parse(reader.list_bytes())
        if listing.part is not None:
            raise NoPackageError(f"it holds {listing.part.summary}, not programs of tilusbuild")
        check_limits(listing, reader, Limits())
        try:
            os.makedirs(place, exist_ok=True)
            with private_directory(place) as private:
                made = os.path.join(private, digest)
                make_directory(made)
                checker = Checker(listing, made)
                for member in members(reader, listing):
                    checker.take(member, keep=True)
                checker.finish()
                for name in filter(lambda name: mode_of(name) != _PLAIN, listing.files):
                    os.chmod(os.path.join(made, name), mode_of(name))
                for name, data in {
                    **reader.attestations(),
                    names.LIST: reader.list_bytes(),
                }.items():
                    os.makedirs(os.path.dirname(os.path.join(made, name)), exist_ok=True)
                    write_file(os.path.join(made, name), data)
                sync_all(made)
                publish_new(made, path)
                sync_directory(place)
        except OSError as error:
            raise CannotInstallError(f"{error.filename or place}: {error.strerror}") from None
