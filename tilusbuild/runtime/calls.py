"""The forms of a kernel's call: by position, by name, with outputs or without.

A form is the number of positional arguments and the names of the others. What it means is worked
out once: the order of the arguments, which outputs are allocated, how their sizes are read, and by
which library. A call of a known form spends its time on the arguments alone. Whatever it cannot
read that way is left to the slow functions of `arrays`, whose errors say what is wrong. The number
of forms that are kept is bounded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilusbuild.runtime import arrays
from tilusbuild.runtime.dtypes import WHOLE
from tilusbuild.runtime.script import Dim, Script, ScriptArgument
from tilusbuild.runtime.semantics import NoValueError
from tilusbuild.runtime.structs import is_struct, packed, struct_of

_MAX_FORMS = 256

_Read = Callable[[Sequence[Any]], Any]


class CallForms:
    """The forms in which a script has been called. Any number of threads may call."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._forms: dict[object, CallForm] = {}

    def complete(
        self, args: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Any]:
        """Return all arguments in order, and the outputs that were allocated: one, several as a
        tuple, or None. Raises `TypeError` and `ValueError`."""
        key = (len(args), *named) if named else len(args)
        form = self._forms.get(key)
        if form is None:
            form = CallForm(self._script, len(args), tuple(named))
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            self._forms[key] = form
        values = (*args, *named.values()) if named else args
        return form.complete(values)


class CallForm:
    """One form. Raises `TypeError` when no call can have it."""

    def __init__(self, script: Script, count: int, names: tuple[str, ...]) -> None:
        self._script = script
        self._passed = arrays.passed(script)
        sources = arrays.bound(
            script, range(count), dict(zip(names, range(count, count + len(names)), strict=True))
        )
        self._order = [sources.get(argument.name) for argument in self._passed]
        self._left_out = [i for i, source in enumerate(self._order) if source is None]
        tensors = (
            i
            for i, a in enumerate(self._passed)
            if a.dims is not None and not a.optional and not a.constant
        )
        self._like = next((i for i in tensors if self._order[i] is not None), None)
        self._structs = [
            (i, argument, struct_of(argument.dtype))
            for i, argument in enumerate(self._passed)
            if is_struct(argument.dtype)
        ]
        self._makers: dict[type, list[tuple[int, _Read]]] = {}

    def complete(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """Return all arguments in order, and the outputs that were allocated."""
        full = [None if source is None else values[source] for source in self._order]
        for place, argument, kind in self._structs:
            try:
                full[place] = packed(kind, full[place])
            except (TypeError, ValueError) as error:
                where = f'{self._script.name}: argument "{argument.name}"'
                text = f"{where}: expected {argument.type}, {error}"
                raise (TypeError if isinstance(error, TypeError) else ValueError)(text) from None
        if not self._left_out:
            return tuple(full), None
        try:
            for position, make in self._makers[self._type(full)]:
                full[position] = make(full)
        except (AttributeError, LookupError, TypeError, ValueError, NoValueError):
            self._allocate(full)
        made = [full[i] for i in self._left_out]
        return tuple(full), made[0] if len(made) == 1 else tuple(made)

    def _allocate(self, full: list[Any]) -> None:
        """Allocate the slow way, and keep how to do it for the next array of this type."""
        given = {
            argument.name: value
            for argument, value, source in zip(self._passed, full, self._order, strict=True)
            if source is not None
        }
        like, known = arrays.first_tensor(self._script, given), arrays.sizes(self._script, given)
        for i in self._left_out:
            full[i] = arrays.allocate(self._script, self._passed[i], known, like)
        if self._like is not None and full[self._like] is like:
            self._makers[type(like)] = [
                (i, self._maker(self._passed[i], like)) for i in self._left_out
            ]

    def _type(self, full: Sequence[Any]) -> type:
        return type(None if self._like is None else full[self._like])

    def _maker(self, argument: ScriptArgument, like: Any) -> _Read:
        allocate = arrays.allocator(self._script, argument, like)
        shape = self._shape(argument.dims or ())
        place = self._like or 0  # only called where some tensor is given
        return lambda full: allocate(shape(full), full[place])

    def _shape(self, dims: Sequence[Dim]) -> _Read:
        """Return how a shape is read. Written out where it is that of one tensor, or of one or two
        sizes of tensors: every tenth of a microsecond is on every call."""
        reads = [self._dim(dim) for dim in dims]
        if len(reads) == 1:
            (one,) = reads
            return lambda full: (one(full),)
        if len(reads) == 2:
            first, second = reads
            return lambda full: (first(full), second(full))
        return lambda full: tuple([read(full) for read in reads])

    def _dim(self, dim: Dim) -> _Read:
        if isinstance(dim, int):
            return lambda full: dim
        if isinstance(dim, str):
            return self._sizes()[dim]
        sizes = self._sizes()
        return lambda full: _whole(dim({name: read(full) for name, read in sizes.items()}))

    def _sizes(self) -> dict[str, _Read]:
        """Return how each size is read: off the first tensor that has it, or from an integer."""
        found: dict[str, _Read] = {}
        for i, argument in enumerate(self._passed):
            if self._order[i] is None or argument.optional:
                continue
            if argument.dims is None and argument.dtype in WHOLE:
                found[argument.name] = operator.itemgetter(i)
            for axis, dim in enumerate(argument.dims or ()):
                if isinstance(dim, str) and dim not in found:
                    found[dim] = _extent_of(i, axis)
        return found


def _extent_of(position: int, axis: int) -> _Read:
    return lambda full: full[position].shape[axis]


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError
    return int(value)
