"""A package's files in layers: one for each script and target, so that what changes together
travels together, and what did not change is not sent again.

The list alone decides. A program belongs to the script and target that the list gives it; header
folders, which many programs share, make a last layer of their own. What another kind keeps in one
directory below its root is one layer. Files are sorted by path.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilusbuild.cache import layout
from tilusbuild.package import names
from tilusbuild.package.listing import FileList


@dataclass(frozen=True, slots=True)
class Layer:
    """Some of a package's files. `script` and `target` are "" for the layer of headers; for one of
    another kind `script` is the directory below the kind's root."""

    script: str
    target: str
    paths: tuple[str, ...]

    @property
    def label(self) -> str:
        """What a person calls it."""
        return f"{self.script} {self.target}".rstrip() if self.script else "headers"


def named_layers(found: FileList) -> tuple[Layer, ...]:
    """The layers, by script and target."""
    owners = {script.hash: (script.script, script.target) for script in found.scripts}
    parts: dict[tuple[str, str], list[str]] = {}
    headers: list[str] = []
    for path in sorted(found.files):
        kind, _, digest = names.root_of(path)
        if kind == layout.INCLUDE:
            headers.append(path)
            continue
        if kind == layout.SCRIPTS:
            owner = owners[digest]
        elif kind == layout.PROGRAMS:
            owner = (found.programs[digest].script, found.programs[digest].target)
        else:
            owner = (digest, "")
        parts.setdefault(owner, []).append(path)
    made = [Layer(script, target, tuple(parts[script, target])) for script, target in sorted(parts)]
    return (*made, Layer("", "", tuple(headers))) if headers else tuple(made)


def layers(found: FileList) -> tuple[tuple[str, ...], ...]:
    """The paths of each layer."""
    return tuple(layer.paths for layer in named_layers(found))
