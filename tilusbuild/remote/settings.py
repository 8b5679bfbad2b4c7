"""The remote cache of a build, and its settings: the environment ▸ `[remote]` ▸ the user's.

The user's settings are the table `[remote]` of `~/.config/tilusbuild/config.toml`. A secret, and a
program to run, come from the environment or from there, never from a manifest. Headers and client
certificates are given only to the server that the user named there: a manifest that names another
gets none. Imports no protocol, and what checks the settings of a user only where there are any.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilusbuild.manifest.remote_section import RemoteSection
from tilusbuild.manifest.settings import REMOTE_ADDRESSES, REMOTE_OFF, REMOTE_PREFIX
from tilusbuild.manifest.table import NOTHING, Entries
from tilusbuild.manifest.values import Text
from tilusbuild.rooms import find_missing_package

if TYPE_CHECKING:
    from urllib.parse import SplitResult


# What is given to a server. A credential helper gets the address, and decides itself.
_SECRETS = ("headers", "tls_certificate", "tls_key")


class RemoteSettings(RemoteSection, frozen=True):
    """A remote cache, and how it is used: the keys that a manifest may have, and those that only
    the user's settings and the environment may have."""

    headers: Entries[str] = NOTHING
    """Sent with each request."""
    credential_helper: Text | None = None
    """A program that answers `get`."""
    tls_ca: Text | None = None
    """A file of certificates to trust."""
    tls_certificate: Text | None = None
    """The client's own."""
    tls_key: Text | None = None
    """Its key."""
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
        return _split_address(self.address).scheme

    @property
    def path(self) -> str:
        return _split_address(self.address).path


def explain_missing_package(error: ImportError) -> str:
    """Return a text that names a missing package and the command that installs it."""
    return "{} is not installed: {}".format(*find_missing_package(error.name))


def find_user_file(environment: Mapping[str, str]) -> str | None:
    """Return the path of the user's settings; None without a home."""
    base = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        home = environment.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".config")
    return os.path.join(base, "tilusbuild", "config.toml")


def choose_remote(
    section: RemoteSection | None, environment: Mapping[str, str], key: str = "cache"
) -> RemoteSettings | None:
    """Return the settings of the remote cache; with the key "executor", those of the executor.
    Return None if no address is set. Raises `InputError` for wrong settings."""
    environ: Mapping[str, Any] = {}
    if any(name.startswith(REMOTE_PREFIX) for name in environment):
        from tilusbuild.remote.user_settings import read_environment

        environ = read_environment(environment)
    if environ.get(key) == REMOTE_OFF:
        return None
    path = find_user_file(environment)
    user: Mapping[str, Any] = {}
    if path is not None and os.path.lexists(path):
        from tilusbuild.remote.user_settings import read_user_file

        user = read_user_file(path)
    declared = {} if section is None else section.given
    layers = ((environ, REMOTE_PREFIX), (declared, "tilus.toml"), (user, path or ""))
    address, source = next(
        ((layer[key], source) for layer, source in layers if layer.get(key)), (None, "")
    )
    if address is None:
        return None
    values: dict[str, Any] = {**user, **declared, **environ}
    own = environ.get(key) or user.get(key)
    withheld = False
    # The user's own address decides: a manifest may name any server, and wait for secrets there.
    if own is None or _server_of_address(own) != _server_of_address(address):
        withheld = any([values.pop(name, None) for name in _SECRETS])  # noqa: C419 - take out all
    for name in REMOTE_ADDRESSES:
        values.pop(name, None)
    source = f"{source}{key.upper()}" if source == REMOTE_PREFIX else source
    return make_settings(address, source, _withheld=withheld, **values)


def make_settings(address: str, source: str, **values: Any) -> RemoteSettings:
    """Return the settings of a server, which were checked; the others have their defaults."""
    return RemoteSettings(_address=address, _source=source, **values)


def _split_address(address: str) -> "SplitResult":
    from urllib.parse import urlsplit

    return urlsplit(address)


def _server_of_address(address: str) -> tuple[str, str]:
    parts = _split_address(address)
    return parts.scheme, parts.netloc
