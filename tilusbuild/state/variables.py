"""The environment of a command, which remembers what was asked of it.

A plan depends on those variables and on no others, so that the record of a build with nothing to do
(`builder.noop_record`) names them, and no list of variables has to be kept by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class AskedVariables(Mapping[str, str]):
    """The variables of an environment; `asked` are the names of those that were looked up. An
    iteration over all of them asks for none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return self._environment[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._environment)

    def __len__(self) -> int:
        return len(self._environment)
