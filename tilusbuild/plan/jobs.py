"""The plan's programs as the engine's jobs: light until they compile, rendered anew when they do.

What is compiled is always what the hash names: the engine compares the texts that a job makes now
with the hash of the plan, and everything else that a compile sees is addressed by content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilusbuild.errors import InputError
from tilusbuild.plan.maker import Made, Maker
from tilusbuild.plan.model import Instance
from tilusbuild.plan.planner import Planned


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """One program of a plan."""

    hash: str
    index: int
    planned: Instance
    maker: Maker

    @property
    def label(self) -> str:
        return f"{self.script}/{self.index} {self.planned.target.name}"

    @property
    def script(self) -> str:
        return self.planned.script

    @property
    def instance(self) -> tuple[str, ...]:
        constants = (f"{name}={value}" for name, value in self.planned.params.items())
        return (self.script, *constants, self.planned.target.name)

    @property
    def is_default(self) -> bool:
        return self.index == self.planned.default

    def recipe(self) -> Made:
        """Render. Raises `InputError` when the template is no longer right."""
        return self.maker.make(self.maker.space[self.planned.schedules[self.index]])

    def changed_input(self) -> str | None:
        """None: a compile sees its own copy of the source, and headers addressed by content."""
        return None

    def readable(self, log: str) -> str:
        """A compiler's log with the template's own places, and what helps when a header lacks."""
        from tilusbuild.render.missing import misses_header, missing_header_help

        schedule = self.maker.space[self.planned.schedules[self.index]]
        text = self.maker.readable(schedule, log)
        if not misses_header(log):
            return text
        try:
            notes = self.maker.make(schedule).closure.notes
        except InputError:
            notes = ()
        helping = missing_header_help(log, notes, nvrtc=self.maker.through_nvrtc)
        return text.rstrip("\n") + "\n" + helping


def jobs(planned: Planned) -> Iterator[ProgramJob]:
    """Every program of every instance, in plan order; shared hashes come as often as they are
    planned, because each instance wants its own verdict."""
    for instance, maker in zip(planned.plan.instances, planned.makers, strict=True):
        for index, program in enumerate(instance.programs):
            yield ProgramJob(program, index, instance, maker)
