"""What was chosen of tuning spaces in earlier plans: a space is enumerated only when it changed.

The schedules of a level follow from the space's spec, from what is asked of it, and from our own
code. They are kept under the digest of these, with the sizes that a plan reports of a space, in
files that only save work (`tilusbuild.state.envelope`), written only when something was added.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from tilusbuild.space import Schedule, SpaceSpec
from tilusbuild.state.envelope import Envelope
from tilusbuild.state.hashing import sha256_text

Chosen: TypeAlias = tuple[tuple[Schedule, ...], Schedule | None]
"""The schedules of a level, and the declared default, if there is one."""

_ENVELOPE = Envelope("spaces 2")
_MAX_VALUES = 5_000_000
"""Of more, reading them would take as long as enumerating."""
_SPARE = 16
"""So many spaces of a script are kept though no plan asked for them: of another target or constant,
or of values that may come back."""


@dataclass(frozen=True, slots=True)
class KnownSpace:
    """One space. `columns` are the values of `names`, schedule by schedule; `indices` the places of
    the schedules, None for all; `default` is a place, too."""

    count: int
    cartesian: int
    asked: str
    default: int | None
    indices: Sequence[int] | None
    names: Sequence[str]
    columns: Sequence[Sequence[Any]]

    def chosen(self) -> Chosen:
        """Return the schedules and the default as the space gave them."""
        indices = range(self.count) if self.indices is None else self.indices
        rows = zip(*self.columns, strict=True) if self.columns else ((),) * len(indices)
        schedules = tuple(
            Schedule(index, MappingProxyType(dict(zip(self.names, row, strict=True))))
            for index, row in zip(indices, rows, strict=True)
        )
        if self.default is None:
            return schedules, None
        return schedules, next(each for each in schedules if each.index == self.default)


class SpaceCache:
    """What is known of one project's spaces: a file for each script in `directory`, read when asked
    for and written by `save` only. `code` stands for what chooses."""

    def __init__(self, directory: str, owner: str, code: str) -> None:
        self._directory = directory
        self._owner = owner
        self._code = code
        self._scripts: dict[str, dict[str, str]] = {}
        self._used: set[str] = set()
        self._changed: set[str] = set()

    def size(self, script: str, spec: SpaceSpec) -> tuple[int, int] | None:
        """Return the numbers of valid points and of all combinations, where they are known."""
        known = self._known(script, self._key(spec))
        return None if known is None else (known.count, known.cartesian)

    def chosen(
        self,
        script: str,
        spec: SpaceSpec,
        asked: str,
        size: Callable[[], tuple[int, int]],
        choose: Callable[[], Chosen],
    ) -> Chosen:
        """Return what `choose` gives for the question `asked`; not called when it is known."""
        key, question = self._key(spec), sha256_text(asked)
        known = self._known(script, key)
        if known is None or known.asked != question:
            schedules, default = choose()
            self._put(script, key, question, schedules, default, size())
            return schedules, default
        return known.chosen()

    def save(self) -> None:
        """Write what is new; do nothing where that is not possible."""
        for script in self._changed:
            spaces = self._scripts[script]
            spare = [key for key in spaces if key not in self._used][:-_SPARE]
            kept = {key: text for key, text in spaces.items() if key not in spare}
            _ENVELOPE.write(self._path(script), json.dumps(kept).encode())
        self._changed.clear()

    def _key(self, spec: SpaceSpec) -> str:
        expressions = [expr for _, expr in (*spec.derived, *spec.restrict)]
        expressions += [each.when for each in spec.parameters if each.when is not None]
        texts = (self._code, repr(spec), *(expr.canonical for expr in expressions))
        return sha256_text("\n".join(texts))

    def _known(self, script: str, key: str) -> KnownSpace | None:
        if script not in self._scripts:
            body = _ENVELOPE.read(self._path(script))
            self._scripts[script] = {} if body is None else json.loads(body)
        self._used.add(key)
        text = self._scripts[script].get(key)
        return None if text is None else KnownSpace(*json.loads(text))

    def _put(
        self,
        script: str,
        key: str,
        question: str,
        schedules: Sequence[Schedule],
        default: Schedule | None,
        size: tuple[int, int],
    ) -> None:
        names = tuple(schedules[0].values)
        indices = [schedule.index for schedule in schedules]
        if len(indices) * (len(names) + 1) > _MAX_VALUES:
            return
        if default is not None and default not in schedules:
            return
        known = KnownSpace(
            *size,
            asked=question,
            default=None if default is None else default.index,
            indices=None if indices == list(range(size[0])) else indices,
            names=names,
            columns=[[schedule.values[name] for schedule in schedules] for name in names],
        )
        fields = [getattr(known, name) for name in KnownSpace.__slots__]
        self._scripts[script][key] = json.dumps(fields, separators=(",", ":"))
        self._changed.add(script)

    def _path(self, script: str) -> str:
        return os.path.join(self._directory, sha256_text(f"{self._owner}\0{script}\0points"))
