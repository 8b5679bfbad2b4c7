"""The layouts by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tilusbuild.views import hidet, tilelang, tilus
from tilusbuild.views.model import Item, Source

LAYOUTS: Mapping[str, Callable[[Iterable[Source]], Iterator[Item]]] = {
    "tilus": tilus.layout,
    "tilelang": tilelang.layout,
    "hidet": hidet.layout,
}
