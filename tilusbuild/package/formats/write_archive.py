"""A package as a `.tar.zst`: one tar in concatenated zstd frames, which plain tar reads.

The first frame has the list and what is about it, so that a reader knows everything before it
unpacks anything; then comes a frame for each layer; the last has the end of the tar.
"""

from __future__ import annotations

from functools import partial

from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.formats.plain import Sink, finish
from tilusbuild.package.formats.tarball import File, write_frame
from tilusbuild.package.layers import Layer, named_layers


def write_archive(contents: Contents, path: str, *, time: int) -> None:
    """Make the file. `time`: every entry's, in seconds since 1970. Raises `CannotPack` and
    `OSError`."""
    with open(path, "xb") as out:
        heads = {names.LIST: contents.encoded, **dict(sorted(contents.beside.items()))}
        first: list[File] = [
            (name, len(data), partial(bytes, data)) for name, data in heads.items()
        ]
        write_frame(out, first, time=time, end=False)
        for layer in named_layers(contents.listed):
            write_layer(contents, layer, out, time=time, end=False)
        write_frame(out, (), time=time, end=True)
        finish(out)


def write_layer(contents: Contents, layer: Layer, out: Sink, *, time: int, end: bool) -> None:
    """A layer as one frame; with `end` it is a tar by itself. Raises `CannotPack`, `OSError`."""
    files: list[File] = [
        (name, contents.listed.files[name].size, partial(contents.read, name))
        for name in layer.paths
    ]
    write_frame(out, files, time=time, end=end)
