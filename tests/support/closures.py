"""The closure of one source."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilusbuild.plan.rendering import format_definitions
from tilusbuild.render.closure import Closure, Outside, Root, map_layout
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
    defined = format_definitions((defines or {}).items(), ())
    return headers.find_closure("\n".join((source, *defined)), extra=extra)


def copy_to(directory: Path, header_closure: Closure) -> None:
    """Write the copy as a compile sees it."""
    for name, content in map_layout(header_closure).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            shutil.copyfile(content, path)
