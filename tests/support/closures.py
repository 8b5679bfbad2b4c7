"""The closure of one source."""

from collections.abc import Mapping, Sequence
from typing import Any

from tilusbuild.render.closure import Closure, Outside, Root
from tilusbuild.render.headers import Headers
from tilusbuild.state.digests import DigestMemory


def closure(
    source: str,
    roots: Sequence[Root],
    extra: Sequence[str] = (),
    *,
    defines: Mapping[str, str] | None = None,
    digests: Any = None,
    outside: Outside | None = None,
) -> Closure:
    headers = Headers(roots, digests=digests or DigestMemory(), outside=outside)
    return headers.closure(source, extra=extra, defines=defines)
