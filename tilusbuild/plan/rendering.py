"""From an instance and a schedule to a program's texts, with what they were made of.

`render_program` reads templates and headers through a `ScriptReader`, writes nothing, and returns
the names of everything that it read, for the no-op record, the memo and `watch`. A program that is
only planned is rendered and dropped: it stays out of memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.compile.geometry import LaunchError
from tilusbuild.compile.model import Includes, Pipeline, Recipe
from tilusbuild.compile.module import format_options
from tilusbuild.compile.pipelines.cubin import KERNEL_CUBIN
from tilusbuild.compile.steps import DEFINE_FLAGS
from tilusbuild.errors import Diagnostic, InputError, Location, input_error
from tilusbuild.manifest.check_files import make_missing_file_error
from tilusbuild.manifest.library import SOURCE
from tilusbuild.plan import identity, library
from tilusbuild.plan.instance import (
    InstanceSpec,
    PlanInputs,
    ScriptReader,
    find_language,
    is_source,
)
from tilusbuild.plan.valued import format_launch
from tilusbuild.render.closure import Closure, add_files
from tilusbuild.render.problems import UndefinedVariableError
from tilusbuild.render.renderer import Renderer, Rendering
from tilusbuild.space.model import Schedule
from tilusbuild.state.files import sha256_text
from tilusbuild.state.patterns import PatternTooWideError
from tilusbuild.toolchain import Toolchain


class RenderedProgram(Struct, frozen=True):
    """One program: the two texts that its hash is of, and its recipe."""

    program_txt: str
    options_txt: str
    recipe: Recipe
    toolchain: Toolchain
    closure: Closure
    """The headers that the compile sees."""
    templates: tuple[str, ...] = ()
    """Every template that the rendering asked for, also missing ones."""
    scanned: str = ""
    """The text whose includes were followed: source, generated headers, macros of the command."""
    files: tuple[str, ...] = ()
    """The paths that a link read or looked for, besides the closure's files."""

    @property
    def hash(self) -> str:
        """Return what `cat program.txt options.txt | sha256sum` prints."""
        return sha256_text(self.program_txt + self.options_txt)


class ReadsCollector:
    """Collects the inputs of an instance's programs. Most programs have the same inputs."""

    def __init__(self) -> None:
        self._distinct_reads: dict[tuple[object, ...], tuple[tuple[str, ...], Closure]] = {}
        self._linked_paths: set[str] = set()

    def add_program(self, program: RenderedProgram) -> RenderedProgram:
        """Add the inputs of a program, and return the program."""
        self._linked_paths.update(program.files)
        self.add_reads(program.templates, program.closure)
        return program

    def add_reads(self, templates: tuple[str, ...], closure: Closure) -> None:
        """Add the templates and the closure of one program, or of many with the same."""
        # The key has only parts of the closure: the digest stands for all headers, which would be
        # slow to hash for each program.
        key = templates, closure.digest, closure.external, closure.probed
        self._distinct_reads.setdefault(key, (templates, closure))

    def collect_inputs(self, spec: InstanceSpec, sources: ScriptReader) -> PlanInputs:
        """Return all inputs that were added, with the templates as paths."""
        templates: set[str] = set()
        paths = set(self._linked_paths)
        names: set[str] = set()
        # A new file of any name can match a pattern of `headers`.
        is_any_name = bool(spec.manifest.list_header_patterns(spec.script))
        for template_names, closure in self._distinct_reads.values():
            paths_of_templates = {*map(sources.renderer.resolve_path, template_names)}
            templates |= paths_of_templates
            # A generator listed the directory.
            is_any_name |= any(map(os.path.isdir, paths_of_templates))
            paths.update(header.path for header in closure.headers if header.path)
            # If a header appears in a probed path, an include finds it instead of the present one.
            paths.update(closure.probed)
            # The property is read once: it splits the names of all headers.
            sought_names = closure.sought
            is_any_name |= sought_names is None
            names.update(sought_names or ())
        return PlanInputs(
            frozenset(paths | templates),
            frozenset(templates),
            None if is_any_name else frozenset(names),
        )


def render_program(
    spec: InstanceSpec, sources: ScriptReader, schedule: Schedule
) -> RenderedProgram:
    """Return the program of a schedule: its rendered source, the headers that it can reach, and its
    recipe. A library's link and its sources have no rendering. Raises `InputError`."""
    if spec.is_link:
        return _make_link_program(spec, sources)
    if is_source(spec.owner):
        return _read_source_program(spec, sources, schedule)
    variables = make_context(spec, schedule)
    template = spec.owner.template
    rendering = _render_template(spec, sources.renderer, template, variables, "template")
    source = rendering.text
    if spec.manifest.build.line_directives:
        source = sources.renderer.map_lines(template, variables, source).insert_directives()
    headers = {
        name: _render_template(spec, sources.generator, header, variables, "generate", name)
        for name, header in spec.owner.generate.items()
    }
    return _make_program(spec, sources, schedule, source, template, rendering, headers)


def render_programs(
    spec: InstanceSpec, sources: ScriptReader, schedules: Iterable[Schedule]
) -> Iterator[RenderedProgram]:
    """Yield the programs of schedules, in order. Those of a generator are made several at once.
    Raises `InputError`."""
    render = partial(render_program, spec, sources)
    if sources.renderer.jobs == 1:
        yield from map(render, schedules)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(sources.renderer.jobs) as pool:
        try:
            yield from pool.map(render, schedules)
        except BaseException:
            sources.renderer.cancel_calls()  # the end of the pool waits for them
            raise


def make_context(spec: InstanceSpec, schedule: Schedule) -> dict[str, object]:
    """Return the variables of the template; in a unit those that all of its kernels share."""
    values = spec.merge_values(schedule)
    # All kernels of a unit have one source, so the template sees the pattern of their names and not
    # the name of the kernel that is rendered now.
    is_grouped = spec.grouping is not None
    symbol = (spec.owner.kernel or "") if is_grouped else spec.valued.name_symbol(values)
    target, owner = spec.target, spec.owner
    target_names = spec.valued.target_names.items()
    return {
        **spec.select_shared_values(values),
        "target": {
            "kind": target.kind,
            "name": target.name,
            "arch": target.archs[0].name,
            "archs": tuple(arch.name for arch in target.archs),
        },
        "arch": {
            name.removeprefix("arch."): value
            for name, value in target_names
            if name.startswith("arch.")
        },
        "args": {argument.name: argument for argument in spec.signature.arguments},
        "script": {
            "name": spec.script,
            "symbol": symbol,
            **(spec.valued.describe_calls(spec.recipe.launch, values) if owner.language else {}),
        },
    }


def _render_template(
    spec: InstanceSpec,
    renderer: Renderer,
    template: str,
    variables: Mapping[str, object],
    *keys: str,
) -> Rendering:
    """Render the template that a script's table names at `keys`. Raises `InputError`, for a file
    that is no longer there at the place of `keys`."""
    try:
        return renderer.render(template, variables)
    except InputError as error:
        # The template was there when the manifest was checked, and was deleted since.
        if not os.path.lexists(renderer.resolve_path(template)):
            location = spec.manifest.locate_value("script", spec.script, *keys)
            raise InputError(
                make_missing_file_error(spec.manifest.root, template, location)
            ) from None
        if spec.grouping is not None and isinstance(error, UndefinedVariableError):
            raise spec.grouping.explain_undefined(error) from None
        raise


def _read_source_program(
    spec: InstanceSpec, sources: ScriptReader, schedule: Schedule
) -> RenderedProgram:
    """Return the program of a library's source, which is not rendered. It starts with a `#line`
    directive, so that errors and `__FILE__` show the path in the project."""
    name = get_source_file(schedule)
    rendering = sources.renderer.read_plain(name)
    quoted_name = name.replace("\\", r"\\").replace('"', r"\"")
    source = f'#line 1 "{quoted_name}"\n{rendering.text}'
    return _make_program(spec, sources, schedule, source, name, rendering, headers={})


def get_source_file(schedule: Schedule) -> str:
    """Return the source's name in the project, for a schedule of a library."""
    return str(schedule.values[SOURCE])


def _make_program(
    spec: InstanceSpec,
    sources: ScriptReader,
    schedule: Schedule,
    source: str,
    template: str,
    rendering: Rendering,
    headers: Mapping[str, Rendering],
) -> RenderedProgram:
    """Return the program of `source`, the text to which `template` was rendered.

    `headers` are the rendered headers (`generate`), by name. Raises `InputError`.
    """
    renderings = (rendering, *headers.values())
    values = spec.merge_values(schedule)
    valued = spec.valued
    unit_kernels = spec.list_unit_kernels(values)
    limits = valued.evaluate_limits(values)
    # A unit is one command: its flags must not depend on one of its kernels.
    shared_values = spec.select_shared_values(values)
    parts, is_cubin = rendering.parts, rendering.is_cubin
    pipeline = choose_program_pipeline(spec, is_cubin=is_cubin)
    if is_cubin:
        unit_kernels = ()
    symbol = parts.get("symbol") or valued.name_symbol(values)
    signature = spec.signature.substitute_bytes(values)
    signature = valued.select_parameters(signature, parts.get("parameters"))
    flags = valued.make_flags(shared_values)
    defines = valued.make_defines(dict(spec.recipe.options.defines), shared_values)
    # A macro of the command may name a header, and a generated header may include one, so headers
    # are looked for in these texts, too.
    texts = ("" if is_cubin else source, *(header.text for header in headers.values()))
    scanned = "\n".join((*texts, *format_definitions(defines, flags)))
    closure_of_source = find_closure(spec, sources, scanned, template)
    launch = valued.override_launch(spec.recipe.launch, parts)
    link, library_files, probed_paths = library.make_entry_link(spec, sources.memory)
    closure = add_files(closure_of_source, library_files)
    # If there are no headers there is no copy of them, and so no directory to search.
    roots = closure_of_source.roots if closure_of_source.headers else ()
    recipe = replace(
        spec.recipe,
        pipeline=pipeline,
        source=source if is_cubin else valued.make_full_source(source, symbol, unit_kernels),
        symbol=symbol,
        signature=signature,
        launch=launch,
        constants=values,
        includes=Includes(
            closure.digest if closure.headers else None,
            tuple((root.name, root.quoted_only) for root in roots),
        ),
        options=replace(spec.recipe.options, flags=flags, defines=defines),
        prune=limits,
        unit=unit_kernels,
        headers={name: header.text for name, header in headers.items()},
        part=replace(spec.recipe.part, language=find_language(template)),
        link=link,
        log=parts.get("log", ""),
    )
    program_txt = identity.format_program_text(
        script="" if spec.is_part else spec.script,
        entry=(spec.owner.form, symbol or template),
        params=spec.params,
        schedule={name: schedule.values[name] for name in spec.parameters},
        derived={name: schedule.values[name] for name in spec.derived},
        signature=spec.signature.format_text().splitlines(),
        launch=[*format_launch(recipe.launch), *signature.format_parameters()],
        source=recipe.source,
        compiler=parts.get("compiler", ""),
        headers=[(header.sha256, header.name) for header in closure.headers],
        program=parts.get("program", ""),
    )
    return RenderedProgram(
        program_txt=program_txt,
        options_txt=_format_options(spec, sources, recipe, closure, parts),
        recipe=recipe,
        toolchain=spec.toolchain,
        closure=closure,
        templates=(
            *(name for rendering in renderings for name in rendering.templates),
            *(name for rendering in renderings for name in rendering.missing),
        ),
        scanned=scanned,
        files=probed_paths,
    )


def choose_program_pipeline(spec: InstanceSpec, *, is_cubin: bool) -> Pipeline:
    """Return the pipeline of a source or a cubin. Raises `InputError` where a script cannot have
    it."""
    if is_cubin == (spec.pipeline is KERNEL_CUBIN):
        return spec.pipeline
    if is_cubin and spec.pipeline.launcher.starts_kernel:
        return KERNEL_CUBIN
    location = spec.manifest.locate_value("script", spec.script, "generator")
    kind, needs = (
        ("cubin", f"a kernel for a GPU, which {spec.label} is not")
        if is_cubin
        else ("source", 'a compiler: leave out device-compiler = "none"')
    )
    raise input_error(f"it returned a {kind}, which needs {needs}", location=location)


# `-DNAME=1`, `--define-macro=NAME=1`: the group is `NAME=1`.
_DEFINE_FLAG = re.compile(r"(?:-D|--?define-macro=)(.+)", re.DOTALL)


def format_definitions(defines: Iterable[tuple[str, str]], flags: Iterable[str]) -> Iterator[str]:
    """Yield a `#define` line for each macro: those of `defines`, and those of options `-D` in
    `flags`. The search for headers reads these lines, since an `#include` may be of a macro."""
    for name, value in defines:
        yield f"#define {name} {value}"
    previous_flag = ""
    for flag in flags:
        # `-D NAME=1` may be two flags: `-D` and `NAME=1`.
        definition = f"-D{flag}" if previous_flag in DEFINE_FLAGS else flag
        if match := _DEFINE_FLAG.match(definition):
            name, equals, value = match[1].partition("=")
            yield f"#define {name} {value if equals else 1}"
        previous_flag = flag


def _make_link_program(spec: InstanceSpec, sources: ScriptReader) -> RenderedProgram:
    """Return the program that joins a library's objects. Its identity names their programs: it
    changes if and only if one of them does."""
    link, closure, probed_paths = library.make_library_link(spec, sources.memory)
    includes = Includes(closure.digest if closure.headers else None)
    recipe = replace(spec.recipe, includes=includes, link=link)
    program_txt = identity.format_program_text(
        script=spec.script,
        entry=("library", library.get_library_section(spec).kind),
        params={},
        schedule={},
        derived={},
        signature=(),
        launch=(),
        source="",
        headers=[(header.sha256, header.name) for header in closure.headers],
        objects=spec.objects,
    )
    options_txt = _format_options(spec, sources, recipe, closure)
    return RenderedProgram(
        program_txt, options_txt, recipe, spec.toolchain, closure, files=probed_paths
    )


def _format_options(
    spec: InstanceSpec,
    sources: ScriptReader,
    recipe: Recipe,
    closure: Closure,
    parts: Collection[str] = (),
) -> str:
    """Return the content of `options.txt`. Raises `InputError` for a launch value that no kernel
    can have, at its place in the manifest, or at the generator for one of `parts`, which it set."""
    try:
        return format_options(recipe, spec.toolchain, sources.digest_other_headers(spec, closure))
    except ValueError as error:
        table_keys = error.keys if isinstance(error, LaunchError) else ("launch",)
        # A tensor map that it set is an argument, too.
        arguments = {a.name for a in recipe.signature.arguments} - spec.owner.args.keys()
        if not {*table_keys}.isdisjoint({*parts, *arguments}):
            table_keys = ("generator",)
        keys = spec.manifest.resolve_override(spec.script, spec.target.name, *table_keys)
        location = spec.manifest.locate_value(*keys)
        raise InputError(Diagnostic(str(error), location)) from None


def find_closure(spec: InstanceSpec, sources: ScriptReader, source: str, template: str) -> Closure:
    """Return the headers that a source of `template` can reach, and those that `headers` declares.
    Raises `InputError`, also for a pattern that no header matches."""

    def find_pattern_location(pattern: str) -> Location | None:
        """Return the place of a pattern of `headers`, of the script or else of [build]."""
        is_of_script = pattern in spec.owner.headers
        keys = ("script", spec.script, "headers") if is_of_script else ("build", "headers")
        return spec.manifest.locate_key(*keys)

    try:
        closure = sources.headers(template).find_closure(
            source,
            extra=spec.manifest.list_header_patterns(spec.script),
            rendered=spec.owner.generate.keys(),
        )
    except PatternTooWideError as error:
        hint = "name the directory that they are in, or a smaller one in include-dirs"
        raise input_error(
            str(error), location=find_pattern_location(error.pattern), hint=hint
        ) from None
    if closure.unmatched:
        hint = "patterns are relative to the directories of include-dirs, or to the project"
        raise InputError(
            *(
                Diagnostic(f'no header matches "{pattern}"', find_pattern_location(pattern), hint)
                for pattern in closure.unmatched
            )
        )
    return closure
