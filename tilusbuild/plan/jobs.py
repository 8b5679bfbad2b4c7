"""The plan's programs as the engine's jobs: light until they compile, rendered again when they do.

What is compiled is always what the hash names: the engine compares the texts that a job makes now
with the hash of the plan, and everything else that a compile sees is addressed by content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilusbuild.errors import InputError
from tilusbuild.plan.model import PlannedInstance
from tilusbuild.plan.planner import Plan
from tilusbuild.plan.script_instance import RenderedProgram, ScriptInstance
from tilusbuild.space import Schedule


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """One program of a plan."""

    hash: str
    index: int
    planned: PlannedInstance
    script_instance: ScriptInstance

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

    @property
    def schedule(self) -> Schedule:
        """The point of the space that this program is for."""
        return self.script_instance.space[self.planned.schedules[self.index]]

    def render(self) -> RenderedProgram:
        """Render the program. Raises `InputError` when the template is no longer right."""
        return self.script_instance.render(self.schedule)

    def changed_input(self) -> str | None:
        """None: a compile sees its own copy of the source, and headers addressed by content."""
        return None

    def readable(self, log: str) -> str:
        """Return a compiler's log with the template's places, and what helps when a header is
        missing."""
        from tilusbuild.render.missing import misses_header, missing_header_help

        schedule = self.schedule
        text = self.script_instance.readable(schedule, log)
        if not misses_header(log):
            return text
        try:
            notes = self.script_instance.render(schedule).closure.notes
        except InputError:
            notes = ()
        pipeline = self.script_instance.pipeline
        helping = missing_header_help(log, notes, nvrtc=not pipeline.has_c_library)
        return text.rstrip("\n") + "\n" + helping


def jobs(plan: Plan) -> Iterator[ProgramJob]:
    """Yield every program of every instance, in plan order; shared hashes come as often as they are
    planned, because each instance wants its own verdict."""
    for instance, script_instance in zip(plan.instances, plan.script_instances, strict=True):
        for index, program in enumerate(instance.programs):
            yield ProgramJob(program, index, instance, script_instance)
