"""The layouts by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tilusbuild.interop.export import hidet, tilelang, tilus
from tilusbuild.interop.export.model import Item, Source

LAYOUTS: Mapping[str, Callable[[Iterable[Source]], Iterator[Item]]] = {
    "tilus": tilus.layout,
    "tilelang": tilelang.layout,
    "hidet": hidet.layout,
}
