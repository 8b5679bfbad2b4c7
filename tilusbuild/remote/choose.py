"""The back end that an address needs, and no other, is imported."""

from __future__ import annotations

from tilusbuild.remote.backend import Backend
from tilusbuild.remote.settings import RemoteSettings


def open_backend(settings: RemoteSettings) -> Backend:
    """Return the back end for an address; nothing is connected yet. Raises `RemoteTroubleError`
    when what it needs is not installed."""
    if settings.scheme == "file":
        from tilusbuild.remote.files import FileBackend

        return FileBackend(settings)
    if settings.scheme in ("grpc", "grpcs"):
        from tilusbuild.remote.reapi import ReapiBackend

        return ReapiBackend(settings)
    from tilusbuild.remote.http import HttpBackend

    return HttpBackend(settings)
