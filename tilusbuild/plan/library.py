"""The instances of a library's two scripts: plain sources, and the link of all objects.

A source is not rendered; its first line says which file it is, so that messages and `__FILE__` have
the name that the project has for it. The link's identity names the programs whose objects it joins,
so whatever changes one of them changes it, and what changes none is not linked again.
"""

from __future__ import annotations

import os
import re
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
from tilusbuild.runtime.regular import open_file
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
            path = os.path.join(self._manifest.root, name)
            yield self._file(f"{PROJECT}/{name}", path, "objects")

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
        """Yield those of `link-libs` that are in a directory of `link-dirs`, and what they name
        there."""
        for _, place in self._places_of_libs():
            if place is not None:
                yield self._file(*place, "link-libs")
                directories = [os.path.dirname(each) for each in place]
                for other in _named_beside(place[1]):
                    name, path = (f"{directory}/{other}" for directory in directories)
                    yield self._file(name, path, "link-libs")

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
                there = files_named(name)
                self.inputs.update(f"{root.path}/{each}" for each in there)
                if found := next((f for f in there if os.path.isfile(f"{root.path}/{f}")), None):
                    place = f"{root.name}/{found}", f"{root.path}/{found}"
                    break
            yield name, place

    def _file(self, name: str, path: str, key: str) -> Header:
        place = self._manifest.place("library", self.script, key)
        try:
            header = Header(name, self._memory.digest(path), path)
            start = _start_of(path)
        except OSError as error:
            raise input_error(f"{path} cannot be read: {error.strerror}", place=place) from None
        if start.startswith(_THIN):
            message = f"{path} is a thin archive: it names objects, and holds none"
            raise input_error(message, place=place, hint="ar rcs, without T, makes one with them")
        return header

    def readable(self, schedule: Schedule, log: str) -> str:
        """Return the linker's log with the objects' names for their numbers, and no directory of
        the compile in those of the other files."""
        names = [name for name, _ in self.objects]

        def name_of(found: re.Match[str]) -> str:
            number = int(found["number"] or -1)
            return names[number] if 0 <= number < len(names) else found["file"] or found[0]

        return _LINKED_FILE.sub(name_of, log)


_BINARY = (b"\x7fELF", b"!<arch>\n")
_THIN = b"!<thin>\n"
_MAX_SCRIPT = 1 << 12
"""Bytes of a linker's script, of which there are few: its names come after a comment at most."""


_LINKED_FILE = re.compile(
    rf"(?<![^\s'\"`(])(?:include/(?:{PROJECT}/)?(?P<file>[^\s:'\"`(]+)|(?P<number>\d+)\.o\b)"
)
"""A file in what a linker says, by its name in the private directory."""


def files_named(lib: str) -> tuple[str, ...]:
    """Return the files that a linker looks for, after `-l`, in the order in which it takes them."""
    return (lib[1:],) if lib.startswith(":") else (f"lib{lib}.so", f"lib{lib}.a")


def _named_beside(path: str) -> list[str]:
    """Return the files beside a library that it names, as a linker's script does in its place."""
    start = _start_of(path)
    if start.startswith(_BINARY):
        return []
    words = re.findall(r"[^\s(),;\"]+", start.decode("utf-8", "replace"))
    directory = os.path.dirname(path)
    return [word for word in words if "/" not in word and os.path.isfile(f"{directory}/{word}")]


def _start_of(path: str) -> bytes:
    with open_file(path) as file:
        return file.read(_MAX_SCRIPT)


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
