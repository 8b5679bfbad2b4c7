"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from urllib.parse import SplitResult


def find_address_problem(parts: SplitResult) -> tuple[str, str] | None:
    """Return a message and a hint for a malformed address; None for a right one."""
    if parts.hostname and parts.port and not parts.path.strip("/"):
        return None
    return "must be a host and a port", f"as in {parts.scheme}://cache.example:443"


_SCHEMES = ("grpc", "grpcs")
BRINGS = {
    "remote address": dict.fromkeys(_SCHEMES, "tilusbuild.reapi.room:find_address_problem"),
    "remote backend": dict.fromkeys(_SCHEMES, "tilusbuild.reapi.backend:ReapiBackend"),
    "remote executor": dict.fromkeys(_SCHEMES, "tilusbuild.reapi.sharing:Sharing"),
}
