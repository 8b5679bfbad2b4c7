"""The kinds of packages: what may differ between them, and where each kind is implemented.

A package of programs is the ordinary kind. Any other kind is recognised by its own key, the first
of the list, keeps its files below a root directory of its own, and adds a `Part` to the list. Kinds
are named by module and imported when the first package of the kind is met: packages of programs pay
nothing for the others, and no layer imports from a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tilusbuild.cache.cache import Cache
    from tilusbuild.package.arriving import Arrival, Limits
    from tilusbuild.package.listing import FileList
    from tilusbuild.package.preflight import Host
    from tilusbuild.package.reader import Reader
    from tilusbuild.package.values import Field

PROGRAMS = "tilusbuild.package.programs"
OTHERS = {"adopted": ("caches", "tilusbuild.interop.kind")}
"""By their keys in the list: the root directory of the files, and the module. A key must sort
before all keys that every list has."""
_BY_ROOT = dict(OTHERS.values())


class ContentChecker(Protocol):
    def wants(self, arrival: Arrival) -> bool:
        """Return whether a file's content is checked, not its digest alone."""

    def check(self, path: str, data: bytes) -> None:
        """Raise a `PackageError` for content that is not what the list says."""


class Part(Protocol):
    """What the list says under the kind's key; `key` is that key and `summary` a few words."""

    @property
    def key(self) -> str: ...
    @property
    def summary(self) -> str: ...
    def value(self) -> dict[str, Any]: ...
    def check(self, listing: FileList) -> None: ...

    def inputs(self) -> Iterable[str]:
        """Return the names that the digest of the package's inputs covers."""

    def unit_digests(self, listing: FileList) -> Mapping[str, str]:
        """Return a digest of each thing that `diff` compares as one."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where to install: tilusbuild's cache, or for kinds with a place of their own the directory
    that the user named, else one that `environment` tells."""

    cache: Cache
    directory: str | None
    environment: Mapping[str, str]


class Report(Protocol):
    """The result of a verb. `warning` is for the user even with --quiet; "" if there is none."""

    @property
    def ok(self) -> bool: ...
    @property
    def warning(self) -> str: ...
    def text(self, *, verbose: bool) -> str: ...
    def events(self) -> Iterable[tuple[str, Mapping[str, Any]]]: ...


class Kind(Protocol):
    def path_problem(self, below: Sequence[str]) -> str | None:
        """Say why no file can have this path below the root; None if one can."""

    def read(self, field: Field) -> Part: ...
    def checker(self, listing: FileList) -> ContentChecker: ...
    def install(self, reader: Reader, to: Destination, limits: Limits) -> Report: ...
    def preflight(self, path: str, hosts: Sequence[Host], limits: Limits) -> Report: ...


def kind_of(encoded: bytes) -> Kind:
    """Return the kind of the package with this list."""
    module = next(
        (m for k, (_, m) in OTHERS.items() if encoded.startswith(b'{"%s":' % k.encode())), PROGRAMS
    )
    return _load(module)


def kind_with_key(key: str) -> Kind:
    return _load(OTHERS[key][1])


def kind_at(root: str) -> Kind | None:
    """Return the kind whose files are below a root directory; None if there is none."""
    module = _BY_ROOT.get(root)
    return None if module is None else _load(module)


@cache
def _load(module: str) -> Kind:
    kind: Kind = import_module(module).KIND
    return kind
