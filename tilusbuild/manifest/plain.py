"""A checked manifest as plain values, which are read back without pydantic.

The plain form of a table has the model's name, fields and methods (`methods`), and the same `repr`.
`encoded` gives it as JSON: of each kind of table its fields and their defaults once, of each table
what differs. `decoded` trusts that: who calls it has checked that `encoded` wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from tilusbuild.manifest.methods import (
    LinkMethods,
    ManifestMethods,
    ParameterMethods,
    ScriptMethods,
    SourcesMethods,
    TableMethods,
    TargetMethods,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from tilusbuild.manifest.model import Manifest
    from tilusbuild.manifest.table import ManifestTable

_METHODS: Mapping[str, type] = {
    "LinkScript": LinkMethods,
    "Manifest": ManifestMethods,
    "ParameterSection": ParameterMethods,
    "ScriptSection": ScriptMethods,
    "SourcesScript": SourcesMethods,
    "TargetSection": TargetMethods,
}


class PlainTable(TableMethods):
    """A frozen table; fields that it does not have itself are those of its class."""

    _fields: ClassVar[tuple[str, ...]] = ()
    _given: tuple[str, ...] = ()

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)
        self._given = tuple(values)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} is frozen")
        self.__dict__[name] = value

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PlainTable)
            and type(other).__name__ == type(self).__name__
            and list(self) == list(other)
        )

    def __hash__(self) -> int:
        return hash((type(self).__name__, *(value for _, value in self)))

    @property
    def given(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in sorted(self._given)}

    def replaced(self, **changes: object) -> Self:
        changed = type(self)()
        changed.__dict__.update(self.__dict__, **changes)
        changed._given = tuple(dict.fromkeys((*self._given, *changes)))
        return changed


def encoded(manifest: Manifest) -> dict[str, Any]:
    """Return a checked manifest as JSON has it, less the scripts that its libraries stand for."""
    writer = _Writer()
    own = {
        name: script
        for name, script in manifest.scripts.items()
        if not isinstance(script, (SourcesMethods, LinkMethods))
    }
    if manifest.libraries:
        from tilusbuild.manifest.library import LinkScript, SourcesScript

        writer.add_kind(SourcesScript)
        writer.add_kind(LinkScript)
    return {"manifest": writer.written(manifest.replaced(scripts=own)), "kinds": writer.kinds}


class _Writer:
    def __init__(self) -> None:
        self.kinds: dict[str, dict[str, Any]] = {}
        """Of each kind, by field: its default, or nothing; in declared order."""

    def add_kind(self, table: type[ManifestTable]) -> dict[str, Any]:
        """Return the defaults of a kind of table."""
        known = self.kinds.get(table.__name__)
        if known is None:
            known = self.kinds[table.__name__] = {}
            for name, field in table.model_fields.items():
                required = field.is_required()
                default = None if required else field.get_default(call_default_factory=True)
                known[name] = [] if required else [self.written(default)]
        return known

    def written(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return [self.written(item) for item in value]
        if isinstance(value, Mapping):
            return {"of": {key: self.written(item) for key, item in value.items()}}
        if not isinstance(value, TableMethods):
            return value
        table = cast("ManifestTable", value)
        defaults = self.add_kind(type(table))
        has = {name: self.written(item) for name, item in table}
        differs = {n: item for n, item in has.items() if _text([item]) != _text(defaults[n])}
        also = sorted(table.model_fields_set - differs.keys())
        return {"is": type(table).__name__, "has": differs, "given": also}


def _text(value: Any) -> str:
    """Of a value as JSON: in Python, `1`, `1.0` and `True` are equal."""
    return json.dumps(value)


def decoded(data: Mapping[str, Any]) -> tuple[Manifest, Mapping[str, Callable[..., Any]]]:
    """Return what `encoded` was given, and the classes of its tables by name."""
    reader = _Reader(data["kinds"])
    manifest = reader.read(data["manifest"])
    return manifest, {name: reader.kind(name) for name in data["kinds"]}


class _Reader:
    def __init__(self, kinds: Mapping[str, Mapping[str, Any]]) -> None:
        self._declared = kinds
        self._kinds: dict[str, type[PlainTable]] = {}

    def kind(self, name: str) -> type[PlainTable]:
        if name not in self._kinds:
            methods = _METHODS.get(name)
            bases = (PlainTable,) if methods is None else (methods, PlainTable)
            declared = self._declared[name]
            defaults = {key: self.read(held[0]) for key, held in declared.items() if held}
            self._kinds[name] = type(name, bases, {**defaults, "_fields": tuple(declared)})
        return self._kinds[name]

    def read(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple([self.read(item) for item in value])
        if not isinstance(value, dict):
            return value
        if "of" in value:
            of = {key: self.read(item) for key, item in value["of"].items()}
            return MappingProxyType(of)
        table = self.kind(value["is"])(
            **{name: self.read(item) for name, item in value["has"].items()}
        )
        table._given = (*table._given, *value["given"])
        return table
