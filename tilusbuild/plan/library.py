"""The instances of a library's two scripts: plain sources, and the link of all objects.

A source is not rendered; its first line says which file it is, so that messages and `__FILE__` have
the name that the project has for it. The link's identity names the programs whose objects it joins,
so whatever changes one of them changes it, and what changes none is not linked again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from tilusbuild.compile import Link, Recipe
from tilusbuild.errors import input_error
from tilusbuild.manifest.methods import LinkMethods, SourcesMethods
from tilusbuild.manifest.sources import SOURCE
from tilusbuild.plan import identity
from tilusbuild.plan.model import PlannedInstance
from tilusbuild.plan.roots import PROJECT, root_of
from tilusbuild.plan.script_instance import RenderedProgram, ScriptInstance
from tilusbuild.render.closure import Header, closure_of
from tilusbuild.runtime.naming import program_name
from tilusbuild.space import Schedule

if TYPE_CHECKING:
    from tilusbuild.manifest import LinkScript
    from tilusbuild.manifest.library import LibrarySection
    from tilusbuild.manifest.script import ScriptSection


class SourcesInstance(ScriptInstance):
    """The sources of a library: a schedule names one."""

    def file(self, schedule: Schedule) -> str:
        """Return the source's name in the project."""
        return str(schedule.values[SOURCE])

    def render_all(self, schedules: Sequence[Schedule]) -> Iterator[RenderedProgram]:
        for schedule in schedules:
            name = self.file(schedule)
            rendered = self._renderer.plain(name)
            quoted = name.replace("\\", r"\\").replace('"', r"\"")
            source = f'#line 1 "{quoted}"\n{rendered.text}'
            yield self._compiled(schedule, source, name, rendered)

    def readable(self, schedule: Schedule, log: str) -> str:
        return log


class LinkInstance(ScriptInstance):
    """A library of objects."""

    objects: tuple[tuple[str, str], ...] = ()
    """The name and the hash of each program that is linked, in order."""

    def take(self, planned: Mapping[tuple[str, str], Sequence[tuple[str, str]]]) -> None:
        """Take the objects of what was planned, by script and target."""
        scripts = self._manifest.objects_of(self.script)
        every = (each for script in scripts for each in planned.get((script, self.target.name), ()))
        # Two sources that are the same program are one object: linked twice it would clash.
        by_hash = {program: name for name, program in reversed([*every])}
        self.objects = tuple((name, program) for program, name in reversed(by_hash.items()))

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(program for _, program in self.objects)

    def render_all(self, schedules: Sequence[Schedule]) -> Iterator[RenderedProgram]:
        for schedule in schedules:
            yield self._linked(schedule)

    def _linked(self, schedule: Schedule) -> RenderedProgram:
        owner = cast("LinkScript", self._owner).owner
        files = [*self._own_inputs(), *(libs := [*self._own_libs()])]
        closure = closure_of(files)
        self.inputs.update(header.path for header in closure.headers if header.path)
        recipe = Recipe(
            pipeline=self.pipeline,
            archs=self.target.archs,
            ptx=self.target.ptx,
            source="",
            symbol="",
            signature=self.signature,
            launch=None,
            constants={},
            include_digest=closure.digest if files else None,
            rdc=self._rdc,
            link=Link(
                soname=f"lib{self.script}.so",
                inputs=tuple(header.name for header in files[: len(files) - len(libs)]),
                dirs=tuple(dict.fromkeys(os.path.dirname(header.name) for header in libs)),
                libs=owner.link_libs,
                needed=self._needed(owner),
                rpath=owner.rpath,
                undefined=owner.undefined,
                cudart=owner.cudart,
            ),
            objects=self.needs,
        )
        program_txt = identity.program_text(
            script=self.script,
            entry=("library", owner.kind),
            params={},
            schedule={},
            derived={},
            signature=(),
            launch=(),
            source="",
            headers=[(header.sha256, header.name) for header in closure.headers],
            objects=self.objects,
        )
        options_txt = self._options(recipe, closure)
        return RenderedProgram(program_txt, options_txt, recipe, self.toolchain, closure, ())

    def _needed(self, owner: LibrarySection) -> tuple[str, ...]:
        place = self._manifest.place_of_torch(self.script)
        if place is None:
            return owner.needed
        from tilusbuild.plan import torch

        sonames, files = torch.needed(place)
        self.inputs.update(files)
        return (*owner.needed, *sonames)

    def _own_inputs(self) -> Iterator[Header]:
        """Yield the objects and archives that are linked as they are."""
        for name in cast("LinkScript", self._owner).libs:
            yield self._file(f"{PROJECT}/{name}", os.path.join(self._manifest.root, name))

    @property
    def kept_here(self) -> str:
        from tilusbuild.manifest.pure_flags import impure

        cpu = self.target.kind == "cpu"
        named = (name for name, place in self._places_of_libs() if place is None)
        # The C and C++ libraries are in the fingerprint, by their headers.
        foreign = [name for name in named if any(impure([f"-l{name}"], cpu=cpu))]
        if not foreign:
            return ""
        which = "link-libs" if len(foreign) > 1 else "of link-libs"
        return f"{', '.join(foreign)} {which} is taken from the system by its name, in no hash"

    def _own_libs(self) -> Iterator[Header]:
        """Yield those of `link-libs` that are in a directory of `link-dirs`."""
        for _, place in self._places_of_libs():
            if place is not None:
                yield self._file(*place)

    def _places_of_libs(self) -> Iterator[tuple[str, tuple[str, str] | None]]:
        """Yield each of `link-libs` with its name and its path in a directory of `link-dirs`; None
        for one that is in none of them."""
        owner = cast("LinkScript", self._owner).owner
        taken = {PROJECT: self._manifest.root}
        roots = [
            root_of(
                self._manifest.root,
                declared,
                self._manifest.place("library", self.script, "link-dirs", number),
                taken,
            )
            for number, declared in enumerate(owner.link_dirs)
        ]
        for name in owner.link_libs:
            place = None
            for root in roots:
                self.inputs.add(root.path)
                there = [f"lib{name}{suffix}" for suffix in (".so", ".a")]
                if found := next((f for f in there if os.path.isfile(f"{root.path}/{f}")), None):
                    place = f"{root.name}/{found}", f"{root.path}/{found}"
                    break
            yield name, place

    def _file(self, name: str, path: str) -> Header:
        try:
            return Header(name, self._memory.digest(path), path)
        except OSError as error:
            place = self._manifest.place("library", self.script)
            raise input_error(f"{path} cannot be read: {error.strerror}", place=place) from None

    def readable(self, schedule: Schedule, log: str) -> str:
        """Return the linker's log with the objects' names for their numbers."""
        for number, (name, _) in reversed([*enumerate(self.objects)]):
            log = log.replace(f"{number}.o:", f"{name}:")
        return log


def is_link(script: ScriptSection) -> bool:
    """Return whether a script's program joins those of others, which are planned before it."""
    return isinstance(script, LinkMethods)


def class_of(script: ScriptSection) -> type[ScriptInstance]:
    """Return the class of a script's instances."""
    if is_link(script):
        return LinkInstance
    return SourcesInstance if isinstance(script, SourcesMethods) else ScriptInstance


def object_names(instance: PlannedInstance, schedules: Sequence[Schedule]) -> list[str]:
    """Return what people call an instance's objects: their sources, or their programs."""
    return [
        str(schedule.values[SOURCE])
        if instance.parameters == (SOURCE,)
        else program_name(instance.script, instance.params, index)
        for index, schedule in enumerate(schedules)
    ]
