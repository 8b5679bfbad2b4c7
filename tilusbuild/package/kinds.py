"""The kinds of packages: what may differ between them, and where each kind is implemented.

A package of programs is the ordinary kind. Any other kind is recognised by its own key, the first
of the list, keeps its files below a root directory of its own, and adds a `Part` to the list. Kinds
are named by module and imported when the first package of the kind is met: packages of programs pay
nothing for the others, and no layer imports from a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tilusbuild.package.extract import PackageMember
    from tilusbuild.package.listing import FileList
    from tilusbuild.package.model import Field

OTHERS = {"adopted": ("caches", "tilusbuild.interop.kind")}
"""By their keys in the list: the root directory of the files, and the module. A key must sort
before all keys that every list has."""
_BY_ROOT = dict(OTHERS.values())


class ContentChecker(Protocol):
    """Check the content of files as they arrive, one by one."""

    def wants(self, member: PackageMember) -> bool:
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


class Kind(Protocol):
    """A kind of package: the paths that its files may have, its part of the list, its checks."""

    def path_problem(self, below: Sequence[str]) -> str | None:
        """Say why no file can have this path below the root; None if one can."""

    def read(self, field: Field) -> Part: ...
    def checker(self, listing: FileList) -> ContentChecker: ...


def other_kind(encoded: bytes) -> str | None:
    """Return the key of the kind of the package with this list; None for a package of programs."""
    return next((key for key in OTHERS if encoded.startswith(b'{"%s":' % key.encode())), None)


def kind_with_key(key: str) -> Kind:
    """Return the kind whose lists have a key."""
    return _load(OTHERS[key][1])


def kind_at(root: str) -> Kind | None:
    """Return the kind whose files are below a root directory; None if there is none."""
    module = _BY_ROOT.get(root)
    return None if module is None else _load(module)


@cache
def _load(module: str) -> Kind:
    kind: Kind = import_module(module).KIND
    return kind
