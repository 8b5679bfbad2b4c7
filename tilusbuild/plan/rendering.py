"""From an instance and a schedule to a program's texts, with what they were made of.

`render` is a function: it reads templates and headers through `Sources`, writes nothing, and its
answer names everything that it read, so that the no-op record, the memo and `watch` take what it
returned. A program that is only planned is rendered and dropped: it stays out of memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.compile import Recipe, options_text
from tilusbuild.compile.geometry import LaunchError
from tilusbuild.compile.model import Includes
from tilusbuild.compile.steps import DEFINE_FLAGS
from tilusbuild.errors import Diagnostic, InputError, Place, input_error
from tilusbuild.manifest.check_files import missing_file_error
from tilusbuild.manifest.library import SOURCE
from tilusbuild.plan import identity, library
from tilusbuild.plan.instance import Inputs, InstanceSpec, Sources, is_source, language_of
from tilusbuild.plan.valued import launch_lines
from tilusbuild.render.closure import Closure, add_files
from tilusbuild.render.renderer import Renderer, Rendering
from tilusbuild.space import Schedule
from tilusbuild.state.files import sha256_text
from tilusbuild.state.patterns import PatternTooWideError
from tilusbuild.toolchain import Toolchain


class RenderedProgram(Struct, frozen=True):
    """One program with all its texts: what its hash is made of, and what compiles it."""

    program_txt: str
    options_txt: str
    recipe: Recipe
    toolchain: Toolchain
    """What compiles it."""
    closure: Closure
    """The headers that the compile sees."""
    templates: tuple[str, ...] = ()
    """Every template that the rendering asked for, those that are not there too."""
    scanned: str = ""
    """What its headers were looked for in: the source, headers that were rendered, and what the
    command defines."""
    files: tuple[str, ...] = ()
    """What a link read, or looked for, besides the closure's files."""

    @property
    def hash(self) -> str:
        """What `cat program.txt options.txt | sha256sum` prints."""
        return sha256_text(self.program_txt + self.options_txt)


class Reads:
    """Gathers what programs of an instance were made of; most were made of the same."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], tuple[tuple[str, ...], Closure]] = {}
        self._files: set[str] = set()

    def of(self, program: RenderedProgram) -> RenderedProgram:
        """Add a program's, and return it."""
        self._files.update(program.files)
        self.add(program.templates, program.closure)
        return program

    def add(self, templates: tuple[str, ...], closure: Closure) -> None:
        key = templates, closure.digest, closure.external, closure.probed
        self._seen.setdefault(key, (templates, closure))

    def inputs(self, spec: InstanceSpec, sources: Sources) -> Inputs:
        """Return them together."""
        renderer = sources.renderer.with_style(spec.style)
        templates: set[str] = set()
        paths = set(self._files)
        names: set[str] = set()
        any_name = bool(spec.manifest.headers_for(spec.script))
        for asked, closure in self._seen.values():
            templates.update(map(renderer.resolve_path, asked))
            paths.update(header.path for header in closure.headers if header.path)
            paths.update(closure.probed)
            sought = closure.sought
            any_name = any_name or sought is None
            names.update(sought or ())
        return Inputs(
            frozenset(paths | templates),
            frozenset(templates),
            None if any_name else frozenset(names),
        )


def render(spec: InstanceSpec, sources: Sources, schedule: Schedule) -> RenderedProgram:
    """Render the template and find the headers that it can reach. Raises `InputError`."""
    if spec.is_link:
        return _linked(spec, sources)
    if is_source(spec.owner):
        return _plain(spec, sources, schedule)
    given = context(spec, schedule)
    renderer = sources.renderer.with_style(spec.style)
    template = spec.owner.template
    rendered = _rendered(spec, renderer, template, given, "template")
    source = rendered.text
    if spec.manifest.build.line_directives:
        source = renderer.map_lines(template, given, source).insert_directives()
    headers: dict[str, Rendering] = {}
    if spec.owner.generate:
        generator = sources.renderer.with_style(replace(spec.style, rendered=True))
        headers = {
            name: _rendered(spec, generator, each, given, "generate", name)
            for name, each in spec.owner.generate.items()
        }
    return _program(spec, sources, schedule, source, template, rendered, headers)


def context(spec: InstanceSpec, schedule: Schedule) -> dict[str, object]:
    """Return the variables of the template: in a unit, those that all of its kernels share."""
    values = spec.values(schedule)
    symbol = spec.valued.symbol(values)
    if spec.grouping is not None:
        symbol = spec.owner.kernel or ""
    target = spec.target
    around = spec.valued.around.items()
    return {
        **spec.shared(values),
        "target": {
            "kind": target.kind,
            "name": target.name,
            "arch": target.archs[0].name,
            "archs": tuple(arch.name for arch in target.archs),
        },
        "arch": {n.removeprefix("arch."): v for n, v in around if n.startswith("arch.")},
        "args": {argument.name: argument for argument in spec.signature.arguments},
        "script": {"name": spec.script, "symbol": symbol},
    }


def _rendered(
    spec: InstanceSpec, renderer: Renderer, template: str, given: Mapping[str, object], *keys: str
) -> Rendering:
    """Render the template that a script's table names at `keys`. Raises `InputError`."""
    try:
        return renderer.render(template, given)
    except InputError as error:
        # It was deleted since the manifest was checked.
        if not os.path.lexists(renderer.resolve_path(template)):
            place = spec.manifest.locate_value("script", spec.script, *keys)
            raise InputError(missing_file_error(spec.manifest.root, template, place)) from None
        raise error if spec.grouping is None else spec.grouping.explained(error) from None


def _plain(spec: InstanceSpec, sources: Sources, schedule: Schedule) -> RenderedProgram:
    """Return the program of a library's source. It is not rendered; its first line says which file
    it is, so that messages and `__FILE__` have the name that the project has for it."""
    name = source_file(schedule)
    rendered = sources.renderer.with_style(spec.style).read_plain(name)
    quoted = name.replace("\\", r"\\").replace('"', r"\"")
    return _program(spec, sources, schedule, f'#line 1 "{quoted}"\n{rendered.text}', name, rendered)


def source_file(schedule: Schedule) -> str:
    """Return the name in the project of the source that a schedule of a library is."""
    return str(schedule.values[SOURCE])


def _program(
    spec: InstanceSpec,
    sources: Sources,
    schedule: Schedule,
    source: str,
    template: str,
    rendered: Rendering,
    headers: Mapping[str, Rendering] | None = None,
) -> RenderedProgram:
    """Return the program of a source made of `template`, with headers rendered for it."""
    headers = headers or {}
    every = (rendered, *headers.values())
    values = spec.values(schedule)
    valued = spec.valued
    flags = valued.flags(spec.shared(values))
    texts = (source, *(each.text for each in headers.values()))
    scanned = "\n".join((*texts, *definitions(spec.recipe.options.defines, flags)))
    found = closure_of_text(spec, sources, scanned, template)
    link, libs, files = library.link_of_entry(spec, sources.memory)
    closure = add_files(found, libs)
    symbol, unit = valued.symbol(values), spec.unit(values)
    roots = sources.headers(template).roots if found.headers else ()
    recipe = replace(
        spec.recipe,
        source=valued.whole(source, symbol, unit),
        symbol=symbol,
        constants=values,
        includes=Includes(
            closure.digest if closure.headers else None,
            tuple((root.name, root.quoted_only) for root in roots),
        ),
        options=replace(spec.recipe.options, flags=flags),
        prune=valued.limits(values),
        unit=unit,
        headers={name: each.text for name, each in headers.items()},
        part=replace(spec.recipe.part, language=language_of(template)),
        link=link,
    )
    program_txt = identity.program_text(
        script=spec.script,
        entry=(spec.owner.form, symbol or template),
        params=spec.params,
        schedule={name: schedule.values[name] for name in spec.parameters},
        derived={name: schedule.values[name] for name in spec.derived},
        signature=spec.signature.format_text().splitlines(),
        launch=launch_lines(recipe.launch),
        source=recipe.source,
        headers=[(header.sha256, header.name) for header in closure.headers],
    )
    return RenderedProgram(
        program_txt,
        _options(spec, sources, recipe, closure),
        recipe,
        spec.toolchain,
        closure,
        (
            *(name for each in every for name in each.templates),
            *(name for each in every for name in each.missing),
        ),
        scanned,
        files,
    )


def definitions(defines: Iterable[tuple[str, str]], flags: Iterable[str]) -> Iterator[str]:
    """Yield what a command defines as a source would: a macro may name a header."""
    for name, value in defines:
        yield f"#define {name} {value}"
    before = ""
    for flag in flags:
        if found := _DEFINED.match(flag if before not in DEFINE_FLAGS else f"-D{flag}"):
            name, _, value = found[1].partition("=")
            yield f"#define {name} {value}"
        before = flag


_DEFINED = re.compile(r"(?:-D|--?define-macro=)(.+)", re.DOTALL)


def _linked(spec: InstanceSpec, sources: Sources) -> RenderedProgram:
    """Return the program that joins a library's objects. Its identity names their programs, so
    whatever changes one of them changes it, and what changes none is not linked again."""
    link, closure, files = library.link_of(spec, sources.memory)
    includes = Includes(closure.digest if closure.headers else None)
    recipe = replace(spec.recipe, includes=includes, link=link)
    program_txt = identity.program_text(
        script=spec.script,
        entry=("library", library.section_of(spec).kind),
        params={},
        schedule={},
        derived={},
        signature=(),
        launch=(),
        source="",
        headers=[(header.sha256, header.name) for header in closure.headers],
        objects=spec.objects,
    )
    options_txt = _options(spec, sources, recipe, closure)
    return RenderedProgram(program_txt, options_txt, recipe, spec.toolchain, closure, files=files)


def _options(spec: InstanceSpec, sources: Sources, recipe: Recipe, closure: Closure) -> str:
    try:
        return options_text(recipe, spec.toolchain, sources.other_headers(spec, closure))
    except ValueError as error:
        at = error.keys if isinstance(error, LaunchError) else ("launch",)
        keys = spec.manifest.resolve_override(spec.script, spec.target.name, *at)
        place = spec.manifest.locate_value(*keys)
        raise InputError(Diagnostic(str(error), place)) from None


def closure_of_text(spec: InstanceSpec, sources: Sources, source: str, template: str) -> Closure:
    """Return the headers that a source made of `template` can reach. Raises `InputError`."""

    def place(pattern: str) -> Place | None:
        own = pattern in spec.owner.headers
        keys = ("script", spec.script, "headers") if own else ("build", "headers")
        return spec.manifest.locate_key(*keys)

    try:
        found = sources.headers(template).find_closure(
            source,
            extra=spec.manifest.headers_for(spec.script),
            rendered=spec.owner.generate.keys(),
        )
    except PatternTooWideError as error:
        hint = "name the directory that they are in, or a smaller one in include-dirs"
        raise input_error(str(error), place=place(error.pattern), hint=hint) from None
    if found.unmatched:
        hint = "patterns are relative to the directories of include-dirs, or to the project"
        raise InputError(
            *(
                Diagnostic(f'no header matches "{pattern}"', place(pattern), hint)
                for pattern in found.unmatched
            )
        )
    return found
