"""The settings of one remote cache, as a value: the keys of `[remote]`, and those of a user."""

from typing import Any
from urllib.parse import urlsplit

from tilusbuild.manifest.remote_section import RemoteSection
from tilusbuild.manifest.table import NOTHING, Entries
from tilusbuild.manifest.values import Text
from tilusbuild.rooms import find_missing_package


class RemoteSettings(RemoteSection, frozen=True):
    """A remote cache, and how it is used: the keys that a manifest may have, and those that only
    the user's settings and the environment may have."""

    headers: Entries[str] = NOTHING
    """The headers of each request, by name."""
    credential_helper: Text | None = None
    """A program that prints headers for an address when it is called with `get`."""
    tls_ca: Text | None = None
    """A file of certificates to trust."""
    tls_certificate: Text | None = None
    """The file of the client's certificate."""
    tls_key: Text | None = None
    """The file of the key of that certificate."""
    _address: str = ""
    _source: str = ""
    _withheld: bool = False

    @property
    def address(self) -> str:
        return self._address

    @property
    def source(self) -> str:
        """Where the address is set, in words."""
        return self._source

    @property
    def withheld(self) -> bool:
        """Whether the user's secrets are not sent, because they are for another server."""
        return self._withheld

    def __repr__(self) -> str:
        return f"RemoteSettings({self.address!r})"  # the headers are secrets

    @property
    def scheme(self) -> str:
        return urlsplit(self.address).scheme

    @property
    def path(self) -> str:
        return urlsplit(self.address).path


def explain_missing_package(error: ImportError) -> str:
    """Return a text that names a missing package and the command that installs it."""
    return "{} is not installed: {}".format(*find_missing_package(error.name))


def make_settings(address: str, source: str, **values: Any) -> RemoteSettings:
    """Return the settings of a server, which were checked; the others have their defaults."""
    return RemoteSettings(_address=address, _source=source, **values)
