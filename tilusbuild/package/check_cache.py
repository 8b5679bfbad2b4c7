"""The libraries of a cache, read again: the code that each holds is what its `meta.json` says."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tilusbuild.binary import BinaryError, read_archs
from tilusbuild.cache import layout
from tilusbuild.cache.cache import Cache
from tilusbuild.cache.listing import programs
from tilusbuild.status import Status


def code_problems(cache: Cache) -> Iterator[str]:
    """What is wrong, in the order of hashes. What is not whole is left to the cache's own check."""
    for program in programs(cache.tree):
        entry = cache.lookup(program)
        if entry is None or entry.status != Status.BUILT:
            continue
        where = f"{layout.PROGRAMS}/{program}/{layout.LIBRARY}"
        try:
            with open(os.path.join(entry.path, layout.LIBRARY), "rb") as file:
                images = read_archs(file.read())
        except (BinaryError, OSError) as error:
            yield f"{where}: {error}"
            continue
        held: set[tuple[str, str]] = {(image.kind, image.arch) for image in images}
        said = {(image.get("kind"), image.get("arch")) for image in entry.meta.get("images", ())}
        if held != said:
            yield f"{where} holds code for {_text(held)}; {layout.META} says {_text(said)}"


def _text(images: set[tuple[str, str]]) -> str:
    return ", ".join(sorted(f"{arch} ({kind})" for kind, arch in images)) or "no GPU"
