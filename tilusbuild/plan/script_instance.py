"""One instance of a script: its constants fixed, for one target; and how its programs are rendered.

A `ScriptInstance` keeps what is the same for all schedules (signature, launch, flags, header
directories) and renders the rest each time, so that a program that is only planned stays out of
memory. Rendering is pure: it reads templates and headers, and writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from tilusbuild.compile import Recipe, options_text, pipeline_for
from tilusbuild.compile.pipelines.nvcc import FIRST_SEEDED
from tilusbuild.errors import Diagnostic, InputError, Place, input_error
from tilusbuild.expr import Value
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.manifest import LANGUAGES, signature_of
from tilusbuild.plan import identity
from tilusbuild.plan.model import Target, target_constants
from tilusbuild.plan.units import Grouping
from tilusbuild.plan.valued import Valued, launch_lines
from tilusbuild.render.closure import Closure
from tilusbuild.render.environment import Style
from tilusbuild.render.headers import Headers
from tilusbuild.render.renderer import Renderer, Rendering
from tilusbuild.runtime.naming import instance_name
from tilusbuild.signature import Signature, SignatureError, resolve
from tilusbuild.space import Schedule, Space, SpaceSpec
from tilusbuild.state.patterns import PatternTooWideError
from tilusbuild.toolchain import DigestMemory, Toolchain

if TYPE_CHECKING:
    from tilusbuild.manifest import Manifest
    from tilusbuild.manifest.script import ScriptSection

HeadersOf: TypeAlias = Callable[[str], Headers]
"""The headers that a template of a script can reach, by the template's name."""


@dataclass(frozen=True, slots=True)
class RenderedProgram:
    """One program with all its texts: what its hash is made of, and what compiles it."""

    program_txt: str
    options_txt: str
    recipe: Recipe
    toolchain: Toolchain
    """What compiles it."""
    closure: Closure
    """The headers that the compile sees."""
    templates: tuple[str, ...]
    """Every template that the rendering asked for, those that are not there too."""
    scanned: str = ""
    """What its headers were looked for in: the source, with headers that were rendered."""

    @property
    def hash(self) -> str:
        return identity.program_hash(self.program_txt, self.options_txt)


def language_of(template: str) -> str:
    """Return what a template's source is compiled as, where the pipeline takes several."""
    return LANGUAGES.get(os.path.splitext(template.removesuffix(".j2"))[1], "cu")


def style_of(script: ScriptSection) -> Style:
    """Return how a script's templates are read."""
    jinja = script.jinja
    return Style(
        rendered=script.render,
        trim_blocks=jinja.trim_blocks,
        lstrip_blocks=jinja.lstrip_blocks,
        keep_trailing_newline=jinja.keep_trailing_newline,
        strict=jinja.undefined == "error",
        cpp_values=jinja.cpp_values,
    )


class ScriptInstance:
    """A script with its constants fixed, for one target; `render` makes a program of a schedule."""

    def __init__(
        self,
        manifest: Manifest,
        script: str,
        target: Target,
        params: Mapping[str, Value],
        spec: SpaceSpec,
        space: Space,
        renderer: Renderer,
        headers: HeadersOf,
        toolchain: Toolchain,
        memory: DigestMemory,
    ) -> None:
        self.script = script
        self.target = target
        self.params = params
        self.space = space
        self.parameters = tuple(n for parameter in spec.parameters for n in parameter.names)
        self.derived = tuple(name for name, _ in spec.derived)
        self._manifest = manifest
        self._owner = manifest.scripts[script]
        self._renderer = renderer.styled(style_of(self._owner))
        self._generator = renderer.styled(replace(style_of(self._owner), rendered=True))
        self._headers = headers
        self.toolchain = toolchain
        self._memory = memory
        self.inputs: set[str] = set()
        """Files that were read, and files and directories in which one was looked for, by path."""
        self.templates: set[str] = set()
        """Those of the inputs that were asked for as templates, by path."""
        self.sought: set[str] = set()
        """The names that an include asks for, part by part: only a file or directory that is called
        so can, where it appears, change what an include finds."""
        self.seeks_any = bool(manifest.headers_for(script))
        """Whether a file of any name can be included."""
        self._noted: set[tuple[object, ...]] = set()
        self._external_digests: dict[tuple[str, ...] | None, tuple[str, ...]] = {}
        self._around = target_constants(target)
        own = manifest.device_compiler_for(script, target.name)
        compiler = toolchain.device_compiler.of(own)
        self._declared = manifest.toolchain_for(script, target.name)
        self._std = manifest.std_for(script, target.name)
        self._cudart = manifest.cudart_for(script, target.name)
        self.pipeline = pipeline_for(target.kind, self._owner.form, compiler)
        self.signature = self._resolved_signature()
        self._valued = Valued(manifest, script, target.name, self.pipeline, self._around)
        self.launch = self._valued.launch()
        self._defines = tuple(self._all_defines().items())
        self.grouping = self._grouping(spec)
        self.is_part = self._owner.form not in ("kernel", "entry")
        """Whether its programs are of use only together: those of a library."""
        self._rdc = self.is_part and manifest.libraries[self._owner.library or script].rdc

    def _grouping(self, spec: SpaceSpec) -> Grouping | None:
        """Return how kernels share translation units; None where each has one of its own."""
        group = self._owner.group
        if group is None and self._manifest.kernels_with(self.script):
            group = self.parameters
        if group is None or not self.pipeline.launcher.starts_kernel:
            return None
        place = self._manifest.place_of_value("script", self.script, "group")

        def names(values: Mapping[str, Value]) -> tuple[str, ...]:
            return self._valued.kernels({**self.params, **values})

        def fail(problem: Diagnostic) -> InputError:
            return InputError(replace(problem, place=place))

        return Grouping(group, spec, names, fail)

    def _shared(self, values: Mapping[str, Value]) -> Mapping[str, Value]:
        """Return those of a program's values that all kernels of its unit have."""
        if self.grouping is None:
            return values
        shared = self.grouping.shared
        return {n: value for n, value in values.items() if n in shared or n in self.params}

    def unit(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the kernels that are compiled in one translation unit with a program's, its own
        among them; () for one that is compiled alone. Raises `InputError`."""
        if self.grouping is None or not self.pipeline.groups:
            return ()
        return self.grouping.kernels(values)

    def unit_of(self, schedule: Schedule) -> str:
        """Return a name for the unit of a schedule, in this build; "" without one."""
        if self.grouping is None or not self.pipeline.groups:
            return ""
        return f"{self.label} {self.grouping.key(schedule.values)!r}"

    @property
    def needs(self) -> tuple[str, ...]:
        """The programs that must be built before its own are, by hash."""
        return ()

    @property
    def kept_here(self) -> str:
        """Why its programs are not shared with other machines, in words; "" where they are."""
        return ""

    @property
    def header_directories(self) -> list[str]:
        """The directories that the project's headers are searched in."""
        return [root.path for root in self._headers(self._owner.template).roots]

    @property
    def label(self) -> str:
        """What a person calls the instance."""
        return instance_name(self.script, self.params, self.target.name)

    def values(self, schedule: Schedule) -> dict[str, Value]:
        """Return constants, parameters and derived values by name."""
        return {**self.params, **schedule.values}

    def context(self, schedule: Schedule) -> dict[str, object]:
        """Return the variables of the template: in a unit, those that all of its kernels share."""
        values = self.values(schedule)
        symbol = self.symbol(values)
        if self.grouping is not None:
            symbol = self._owner.kernel or ""
        return {
            **self._shared(values),
            "target": {
                "kind": self.target.kind,
                "name": self.target.name,
                "arch": self.target.archs[0].name,
                "archs": tuple(arch.name for arch in self.target.archs),
            },
            "arch": {
                n.removeprefix("arch."): v for n, v in self._around.items() if n.startswith("arch.")
            },
            "args": {argument.name: argument for argument in self.signature.arguments},
            "script": {"name": self.script, "symbol": symbol},
        }

    def symbol(self, values: Mapping[str, Value]) -> str:
        """Return the function that the template defines, for a program of these values. Raises
        `InputError`."""
        return self._valued.symbol(values)

    def render(self, schedule: Schedule) -> RenderedProgram:
        """Render the template and find the headers that it can reach. Raises `InputError`."""
        return next(self.render_all([schedule]))

    def render_all(self, schedules: Sequence[Schedule]) -> Iterator[RenderedProgram]:
        """Yield what `render` returns for each. Raises `InputError` at the first that has none."""
        for schedule in schedules:
            context = self.context(schedule)
            rendered = self._rendered(self._renderer, self._owner.template, context)
            yield self._program(schedule, context, rendered)

    def _rendered(
        self, renderer: Renderer, template: str, context: Mapping[str, object]
    ) -> Rendering:
        try:
            return renderer.render(template, context)
        except InputError as error:
            raise error if self.grouping is None else self.grouping.explained(error) from None

    def _program(
        self, schedule: Schedule, context: Mapping[str, object], rendered: Rendering
    ) -> RenderedProgram:
        source = rendered.text
        if self._manifest.build.line_directives:
            lines = self._renderer.line_map(self._owner.template, context, source)
            source = lines.with_directives()
        headers = {
            name: self._rendered(self._generator, template, context)
            for name, template in self._owner.generate.items()
        }
        return self._compiled(schedule, source, self._owner.template, rendered, headers)

    def _compiled(
        self,
        schedule: Schedule,
        source: str,
        template: str,
        rendered: Rendering,
        headers: Mapping[str, Rendering] = MappingProxyType({}),
    ) -> RenderedProgram:
        """Return the program of a source that was made of `template`, with headers that were
        rendered for it."""
        every = (rendered, *headers.values())
        scanned = "\n".join((source, *(each.text for each in headers.values())))
        closure = self.closure(scanned, template)
        copied = bool(closure.headers)
        templates = (
            *(name for each in every for name in each.templates),
            *(name for each in every for name in each.missing),
        )
        self.note_inputs(templates, closure)
        values = self.values(schedule)
        symbol = self.symbol(values)
        unit = self.unit(values)
        cuda = self.toolchain.cuda
        source = self._valued.whole(source, symbol, unit)
        recipe = Recipe(
            pipeline=self.pipeline,
            archs=self.target.archs,
            ptx=self.target.ptx,
            source=source,
            symbol=symbol,
            signature=self.signature,
            launch=self.launch,
            constants=values,
            include_digest=closure.digest if copied else None,
            include_roots=self._roots(template) if copied else (),
            flags=self._valued.flags(self._shared(values)),
            defines=self._defines,
            std=self._std,
            host_march=self._declared.host_march,
            cudart=self._cudart,
            prune=self._valued.limits(values),
            unit=unit,
            headers={name: each.text for name, each in headers.items()},
            assembled=bool(self.toolchain.fingerprint_assembler),
            seeded=cuda is not None and cuda.release >= FIRST_SEEDED,
            language=language_of(template),
            rdc=self._rdc,
        )
        program_txt = identity.program_text(
            script=self.script,
            entry=(self._owner.form, symbol or template),
            params=self.params,
            schedule={name: schedule.values[name] for name in self.parameters},
            derived={name: schedule.values[name] for name in self.derived},
            signature=self.signature.text().splitlines(),
            launch=launch_lines(self.launch),
            source=source,
            headers=[(header.sha256, header.name) for header in closure.headers],
        )
        return RenderedProgram(
            program_txt,
            self._options(recipe, closure),
            recipe,
            self.toolchain,
            closure,
            templates,
            scanned,
        )

    def _roots(self, template: str) -> tuple[tuple[str, bool], ...]:
        return tuple((root.name, root.quoted_only) for root in self._headers(template).roots)

    def _all_defines(self) -> Mapping[str, str]:
        own = self._manifest.defines_for(self.script, self.target.name)
        place = self._manifest.place_of_torch(self.script)
        if place is None:
            return own
        from tilusbuild.plan import torch

        return {**torch.defines(place), **own}

    def closure(self, source: str, template: str) -> Closure:
        """Return the headers that a source, which was made of `template`, can reach. Raises
        `InputError`."""
        patterns = self._manifest.headers_for(self.script)
        headers = self._headers(template)
        try:
            found = headers.closure(
                source,
                extra=patterns,
                defines=dict(self._defines),
                rendered=self._owner.generate.keys(),
            )
        except PatternTooWideError as error:
            hint = "name the directory that they are in, or a smaller one in include-dirs"
            raise input_error(str(error), place=self._place_of(error.pattern), hint=hint) from None
        if found.unmatched:
            raise InputError(*(self._unmatched(pattern) for pattern in found.unmatched))
        return found

    def _unmatched(self, pattern: str) -> Diagnostic:
        return Diagnostic(
            f'no header matches "{pattern}"',
            self._place_of(pattern),
            "patterns are relative to the directories of include-dirs, or to the project",
        )

    def _place_of(self, pattern: str) -> Place | None:
        own = self._owner.headers
        keys = ("script", self.script, "headers") if pattern in own else ("build", "headers")
        return self._manifest.place(*keys)

    def template_digest(self, name: str) -> str:
        """Return the digest of a template as it is rendered; "" when there is none."""
        return self._renderer.digest(name)

    def fixed(self) -> str:
        """Everything that decides a program besides the schedule's values, the templates, the
        headers, and the code of tilusbuild."""
        launch = self.launch
        expressions = (
            [] if launch is None else [each for _, group in launch.lines for each in group]
        )
        tools = self.toolchain
        owner = self._owner
        parts: tuple[object, ...] = (
            (self.script, owner.template, style_of(owner), owner.kernel, owner.entry),
            (self.target, self._around, self.params, self.parameters, self.derived),
            (self.signature, self.signature.text()),
            (launch, [expression.canonical for expression in expressions]),
            [(name, each.source, each.canonical) for name, each in self._valued.prune.items()],
            (self._valued.written_flags, self._defines, self._roots(owner.template)),
            (self._std, self._declared.host_march),
            (self._manifest.build.line_directives, self._manifest.headers_for(self.script)),
            (tools.fingerprint_cuda, tools.fingerprint_host),
            (repr(type(self.pipeline)), tools.fingerprint_nvrtc, tools.fingerprint_joiner),
            tools.fingerprint_assembler,
        )
        if owner.generate:
            parts = (*parts, tuple(owner.generate.items()))
        if self.is_part:
            parts = (*parts, (owner.form, self._rdc))
        if self._cudart == "shared":
            parts = (*parts, ("shared", tools.fingerprint_cudart))
        if self.grouping is not None:
            parts = (*parts, self.grouping.group)
        return "\n".join(repr(part) for part in parts)

    def note_inputs(self, templates: tuple[str, ...], closure: Closure) -> None:
        """Add what a program was made from to `inputs`."""
        key = (templates, closure.digest, closure.external, closure.probed)
        if key not in self._noted:
            self._noted.add(key)
            self.templates.update(self._renderer.path(name) for name in templates)
            self.inputs |= self.templates
            self.inputs.update(header.path for header in closure.headers if header.path)
            self.inputs.update(closure.probed)
            self.seeks_any = self.seeks_any or closure.external is None
            names = (*(closure.external or ()), *(header.name for header in closure.headers))
            self.sought.update(part for name in names for part in name.split("/"))
            self.sought.update(part for name in closure.shadowing for part in name.split("/"))

    def renewed(self, renderer: Renderer, headers: HeadersOf) -> ScriptInstance:
        """Return the same instance with templates and headers read again; its space is not made
        again."""
        fresh = copy(self)
        fresh._renderer = renderer.styled(style_of(self._owner))
        fresh._generator = renderer.styled(replace(style_of(self._owner), rendered=True))
        fresh._headers = headers
        fresh.inputs = set()
        fresh.templates = set()
        fresh.sought = set()
        fresh.seeks_any = bool(self._manifest.headers_for(self.script))
        fresh._noted = set()
        fresh._external_digests = {}
        return fresh

    def readable(self, schedule: Schedule, log: str) -> str:
        """Return a compiler's log with the template's own places and lines."""
        from tilusbuild.plan import asked

        if self._manifest.build.line_directives:
            return log
        try:
            context = self.context(schedule)
            source = self._renderer.render(self._owner.template, context).text
            lines = self._renderer.line_map(self._owner.template, context, source)
            values = self.values(schedule)
            symbol = self.symbol(values)
            whole = self._valued.whole(source, symbol, self.unit(values))
            return asked.mapped(log, lines, whole, self._valued.places(), symbol)
        except InputError:
            return log

    def _options(self, recipe: Recipe, closure: Closure) -> str:
        try:
            return options_text(recipe, self.toolchain, self.other_headers(closure))
        except ValueError as error:
            keys = self._manifest.written(self.script, self.target.name, "launch")
            raise InputError(Diagnostic(str(error), self._manifest.place(*keys))) from None

    def other_headers(self, closure: Closure) -> tuple[str, ...]:
        """Return the fingerprint's lines for the toolkit's and the system's headers that a source
        with this closure can reach."""
        external = closure.external
        if external not in self._external_digests:
            directories = self.pipeline.headers(self.toolchain)
            self._external_digests[external] = directories.external_header_digests(
                external, self._memory
            )
        return self._external_digests[external]

    def _resolved_signature(self) -> Signature:
        try:
            found = resolve(signature_of(self._owner), self.params)
        except SignatureError as error:
            keys = ("script", self.script, "args", *([error.argument] if error.argument else []))
            place = self._manifest.place(*keys)
            raise InputError(Diagnostic(error.message, place, error.hint)) from None
        # What surrounds an expression is known here, and what a schedule says is not.
        bound = (
            argument if tile is None else replace(argument, tile=tile.substitute(self._around))
            for argument in found.arguments
            for tile in (argument.tile,)
        )
        return Signature(tuple(bound))
