"""`dataclass` at a fifth of the cost: its methods are made when one is first used.

`dataclasses` compiles the text of six methods for each class, half a millisecond. A build imports
some two hundred such classes and makes values of a fraction of them, so that this was a third of
the CPU time of a build that compiles nothing. Here a class has its slots at once. At the first use
one method is compiled, `__init__`; the others need no text of their own. Everything else is as with
`dataclasses`, whose `field`, `fields`, `replace` and `asdict` take these classes, and which type
checkers see in this place. Only a mistake in the fields (a default before none) is found at the
first use, and by the type checker before.

Making is repeatable and has no lock: two threads that use a class first may both do it, with the
same outcome, and a process that is forked meanwhile holds nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field
from operator import attrgetter
from reprlib import recursive_repr
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

_OURS = frozenset({"frozen", "eq", "repr", "kw_only"})
_SPECIAL = ("InitVar", "KW_ONLY")
_DESCRIPTIONS = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_A_FIELD: Any = dataclasses._FIELD  # type: ignore[attr-defined]


def lazy_dataclass(cls: Any = None, /, *, slots: bool = False, **options: bool) -> Any:
    """As `dataclasses.dataclass`, and by it where a class uses what is rare here: an order, a hash
    of mutable values, `InitVar`, `KW_ONLY`."""
    if cls is None:
        return lambda decorated: lazy_dataclass(decorated, slots=slots, **options)
    kinds = {name: _kind(annotation) for name, annotation in cls.__annotations__.items()}
    if options.keys() - _OURS or any(kind in _SPECIAL for kind in kinds.values()):
        return dataclasses.dataclass(cls, slots=slots, **options)
    names = [name for name, kind in kinds.items() if kind != "ClassVar"]
    maker = _Maker({name: vars(cls).get(name, MISSING) for name in names}, options)
    stands = _stands(maker, dict(vars(cls)), options)
    maker.of = _slotted(cls, names, stands) if slots else _open(cls, names, stands)
    return maker.of


def _kind(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else repr(annotation)
    return text.partition("[")[0].rpartition(".")[2]


def _stands(maker: _Maker, body: dict[str, Any], options: dict[str, bool]) -> dict[str, Any]:
    """Return what stands for the methods that a class does not define itself, by name."""
    frozen = options.get("frozen", False)
    maker.methods = ["__init__"]
    if options.get("repr", True):
        maker.methods.append("__repr__")
    if options.get("eq", True):
        maker.methods.append("__eq__")
    maker.methods = [name for name in maker.methods if name not in body]
    stands: dict[str, Any] = {}
    # Python itself gives a class that defines `__eq__` a `__hash__` of None.
    if options.get("eq", True) and body.get("__hash__") is None:
        if frozen:
            maker.methods.append("__hash__")
        else:
            stands["__hash__"] = None  # it compares by values that may change
    stands |= {name: maker.first(name) for name in maker.methods}
    stands |= {name: _Description(maker, name) for name in _DESCRIPTIONS}
    return stands | ({"__setattr__": _refuse, "__delattr__": _refuse} if frozen else {})


def _slotted(cls: type, names: list[str], stands: dict[str, Any]) -> type:
    """Return a class of the same body that has slots."""
    left_out = {*names, "__dict__", "__weakref__"}
    body = {key: value for key, value in vars(cls).items() if key not in left_out} | stands
    inherited = {slot for base in cls.__mro__ for slot in getattr(base, "__slots__", ())}
    body["__slots__"] = tuple(name for name in names if name not in inherited)
    if "__setattr__" in stands:
        # Neither `copy` nor `pickle` can set a slot of a class whose slots cannot be set.
        body.setdefault("__getstate__", _state)
        body.setdefault("__setstate__", _restore)
    return type(cls)(cls.__name__, cls.__bases__, body)


def _open(cls: type, names: list[str], stands: dict[str, Any]) -> type:
    """Return the class itself, whose defaults are its attributes."""
    for name in names:
        default = vars(cls).get(name)
        if isinstance(default, Field):
            if default.default is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, default.default)
    for name, stand in stands.items():
        setattr(cls, name, stand)
    return cls


class _Maker:
    """Makes the `methods` of one class, `of`, of the fields that it adds to its bases'."""

    __slots__ = ("_defaults", "_options", "methods", "of")

    def __init__(self, defaults: dict[str, Any], options: dict[str, bool]) -> None:
        self._defaults = defaults
        self._options = options
        self.of: type = type
        self.methods: list[str] = []

    def first(self, name: str) -> Callable[..., Any]:
        """Return what stands for a method until one is used."""

        def method(value: Any, /, *words: Any, **named: Any) -> Any:
            self.make()
            return vars(self.of)[name](value, *words, **named)

        return method

    def make(self) -> None:
        """Replace everything that stands for something."""
        fields = self._fields()
        of: Any = self.of
        for name in self.methods:
            method = _MADE[name](of, list(fields.values()))
            method.__name__, method.__qualname__ = name, f"{of.__qualname__}.{name}"
            method.__module__ = of.__module__
            setattr(of, name, method)
        flags = {"init": True, "repr": True, "eq": True, "order": False, "unsafe_hash": False}
        of.__dataclass_params__ = SimpleNamespace(**{**flags, "frozen": False, **self._options})
        positional = tuple(each.name for each in _positional(fields.values()))
        setattr(of, "__match_args__", positional)  # noqa: B010 - a name that mypy keeps for itself
        of.__dataclass_fields__ = fields

    def _fields(self) -> dict[str, Field[Any]]:
        fields: dict[str, Field[Any]] = {}
        for base in reversed(self.of.__mro__[1:]):
            fields.update(getattr(base, "__dataclass_fields__", {}))
        annotations = vars(self.of)["__annotations__"]
        for name, default in self._defaults.items():
            each: Any = default
            if not isinstance(default, Field):
                each = dataclasses.field(default=default)
            each.name, each.type = name, annotations[name]
            if each.kw_only is MISSING:
                each.kw_only = self._options.get("kw_only", False)
            each._field_type = _A_FIELD
            fields[name] = each
        return fields


class _Description:
    """Stands for what `dataclasses` asks of a class: its fields, its options."""

    __slots__ = ("_maker", "_name")

    def __init__(self, maker: _Maker, name: str) -> None:
        self._maker = maker
        self._name = name

    def __get__(self, value: object, of: type) -> Any:
        self._maker.make()
        return getattr(of, self._name)


def _positional(fields: Iterable[Field[Any]]) -> list[Field[Any]]:
    return [each for each in fields if each.init and not each.kw_only]


def _init(of: type, fields: list[Field[Any]]) -> Any:
    """Compile `__init__`, whose text has the names of fields; all else is given by variables."""
    given: dict[str, Any] = {"__missing": MISSING, "__set": object.__setattr__}
    named = [each for each in fields if each.init and each.kw_only]
    words = ["self", *(_parameter(each, given) for each in _positional(fields))]
    words += ["*", *(_parameter(each, given) for each in named)] if named else []
    line = "__set(self, {0!r}, {1})" if of.__setattr__ is _refuse else "self.{0} = {1}"
    values = ((each.name, _value(each, given)) for each in fields)
    lines = [line.format(name, value) for name, value in values if value is not None]
    if hasattr(of, "__post_init__"):
        lines.append("self.__post_init__()")
    text = f"def __init__({', '.join(words)}):\n " + "\n ".join(lines or ["pass"])
    exec(text, given)  # noqa: S102 - of names that Python itself took for annotations
    init = given["__init__"]
    init.__annotations__ = {each.name: each.type for each in fields if each.init}
    return init


def _parameter(each: Field[Any], given: dict[str, Any]) -> str:
    if each.default_factory is not MISSING:
        return f"{each.name}=__missing"
    if each.default is MISSING:
        return each.name
    given[f"__default_{each.name}"] = each.default
    return f"{each.name}=__default_{each.name}"


def _value(each: Field[Any], given: dict[str, Any]) -> str | None:
    """Return the expression of a field's first value; None for one that is set later."""
    if each.default_factory is not MISSING:
        made = f"__make_{each.name}"
        given[made] = each.default_factory
        return (
            f"{made}() if {each.name} is __missing else {each.name}" if each.init else f"{made}()"
        )
    if each.init:
        return each.name
    if each.default is MISSING:
        return None
    given[f"__default_{each.name}"] = each.default
    return f"__default_{each.name}"


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the fields as a tuple, which compares what is identical as equal."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _eq(_: type, fields: list[Field[Any]]) -> Any:
    values = _values([each.name for each in fields if each.compare])

    def equals(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return equals


def _hash(_: type, fields: list[Field[Any]]) -> Any:
    hashed = [each.name for each in fields if (each.compare if each.hash is None else each.hash)]
    values = _values(hashed)
    return lambda self: hash(values(self))


def _repr(_: type, fields: list[Field[Any]]) -> Any:
    names = [each.name for each in fields if each.repr]

    @recursive_repr()
    def text(self: Any) -> str:
        parts = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({parts})"

    return text


_MADE = {"__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash}


def _refuse(value: object, name: str, *_: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _state(value: Any) -> list[Any]:
    return [getattr(value, each.name) for each in dataclasses.fields(value)]


def _restore(value: Any, state: list[Any]) -> None:
    for each, content in zip(dataclasses.fields(value), state, strict=True):
        object.__setattr__(value, each.name, content)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = lazy_dataclass
