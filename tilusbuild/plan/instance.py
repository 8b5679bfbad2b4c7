"""One instance of a script: its constants fixed, for one target; what the manifest says of it.

An `InstanceSpec` has what is the same for all schedules of the instance (signature, launch, flags,
limits). It is worked out once, so that a program costs only what its schedule decides. It names no
file that was read: `rendering.py` makes texts of it and returns their inputs. A `PlannedInstance`
adds the chosen schedules and the hashes of their programs, and no texts: a hundred thousand
programs stay small.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.compile.model import Options, PartOptions, Pipeline, Recipe
from tilusbuild.compile.pipelines import select_pipeline
from tilusbuild.errors import Diagnostic, InputError, Location
from tilusbuild.expr import Value
from tilusbuild.manifest.library import LANGUAGES, LinkScript, SourcesScript
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.script import ScriptSection, make_signature
from tilusbuild.manifest.script_sections import split_function
from tilusbuild.manifest.sections import ProductKeys
from tilusbuild.plan.measured import MeasuredRow
from tilusbuild.plan.model import Target, list_target_constants
from tilusbuild.plan.roots import find_link_roots, find_torch_defines
from tilusbuild.plan.valued import Grouping, ProgramTexts
from tilusbuild.render.closure import Closure, Root
from tilusbuild.render.environment import Style
from tilusbuild.render.headers import Headers
from tilusbuild.render.renderer import Renderer
from tilusbuild.rooms import find_contributions
from tilusbuild.runtime.naming import format_instance_name, to_snake_case
from tilusbuild.signature.model import Signature, SignatureError
from tilusbuild.signature.parsing import resolve_constants
from tilusbuild.space.model import Schedule
from tilusbuild.space.space import Space
from tilusbuild.toolchain import DeviceCompiler, DigestMemory, Toolchain
from tilusbuild.toolchain.cuda import Cuda


class InstanceSpec(Struct, frozen=True, eq=False):
    """An instance as the manifest describes it: a script with its constants fixed, for one
    target."""

    manifest: Manifest
    script: str
    target: Target
    params: Mapping[str, Value]
    space: Space
    parameters: tuple[str, ...]
    derived: tuple[str, ...]
    toolchain: Toolchain
    recipe: Recipe
    """What compiles each of its programs, as far as no schedule decides it."""
    valued: ProgramTexts
    grouping: Grouping | None
    """How kernels share translation units; None where each has one of its own."""
    link_roots: tuple[Root, ...]
    """The directories of `link-dirs`, in order."""
    torch_location: Location | None
    """Where the manifest asks for PyTorch, if it does."""
    objects: tuple[tuple[str, str], ...] = ()
    """Of a library: the name and the hash of each program that is linked, in order."""
    tuned: tuple[MeasuredRow, ...] = ()
    """What the repository says was measured."""

    @property
    def owner(self) -> ScriptSection:
        """Return the script's table."""
        return self.manifest.scripts[self.script]

    @property
    def pipeline(self) -> Pipeline:
        return self.recipe.pipeline

    @property
    def signature(self) -> Signature:
        return self.recipe.signature

    @property
    def label(self) -> str:
        """Return the instance's name for people: `matmul[dtype=f16] h100`."""
        return format_instance_name(self.script, self.params, self.target.name)

    @property
    def is_part(self) -> bool:
        """Return whether its programs are objects of a library, or the library."""
        return self.owner.form not in ("kernel", "entry")

    @property
    def is_link(self) -> bool:
        """Return whether its program joins objects, which are planned before it."""
        return isinstance(self.owner, LinkScript)

    def merge_values(self, schedule: Schedule) -> dict[str, Value]:
        """Return constants, parameters and derived values, by name."""
        return {**self.params, **schedule.values}

    def list_unit_kernels(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the kernels of a program's translation unit, its own among them; () for a
        program that is compiled alone. Raises `InputError`."""
        if self.grouping is None or not self.pipeline.groups:
            return ()
        return self.grouping.list_unit_kernels(values)

    def select_shared_values(self, values: Mapping[str, Value]) -> Mapping[str, Value]:
        """Return the values that all kernels of a program's unit have."""
        return values if self.grouping is None else self.grouping.select_shared_values(values)


class ScriptReader:
    """Reads a script's templates and headers, each file once; the next plan makes another
    reader."""

    def __init__(
        self,
        renderer: Renderer,
        generator: Renderer,
        headers: Callable[[str], Headers],
        memory: DigestMemory,
    ) -> None:
        """`renderer` reads the script's templates and sources, `generator` the templates of its
        generated headers. `headers` returns what a template can reach, by the template's name."""
        self.renderer = renderer
        self.generator = generator
        self.headers = headers
        self.memory = memory
        self._external: dict[tuple[Pipeline, tuple[str, ...] | None], tuple[str, ...]] = {}

    def digest_other_headers(self, spec: InstanceSpec, closure: Closure) -> tuple[str, ...]:
        """Return the fingerprint's lines for the headers of the toolkit and the system that a
        source with this closure can reach. The lines are kept for the next such source."""
        # Most schedules reach the same system headers. What a closure has of the project does not
        # matter here, so it is not a part of the key.
        key = spec.pipeline, closure.external
        if key not in self._external:
            directories = spec.pipeline.list_header_directories(spec.toolchain)
            self._external[key] = directories.digest_external_headers(closure.external, self.memory)
        return self._external[key]


class PlanInputs(Struct, frozen=True):
    """The inputs of programs: a change of any of these may change a program."""

    paths: frozenset[str] = frozenset()
    """Files that were read, and files and directories in which one was looked for."""
    templates: frozenset[str] = frozenset()
    """Those of them that were asked for as templates."""
    names: frozenset[str] | None = frozenset()
    """The names that an include asks for, part by part: only a file or directory that is called
    so can, where it appears, change what an include finds. None: one of any name can."""


class PlannedInstance(Struct, frozen=True, eq=False):
    """An instance with its chosen schedules and their programs: the content of one script
    directory."""

    spec: InstanceSpec
    sources: ScriptReader
    schedules: tuple[int, ...]
    """Their places in the space, which are the numbers of their programs, in order."""
    default: int | None
    """The number of the default schedule, when it is planned."""
    programs: tuple[str, ...] = ()
    """Program hashes, one a schedule."""
    inputs: PlanInputs = PlanInputs()
    script_txt: str = ""
    hash: str = ""
    """sha256 of `script_txt`."""

    @property
    def script(self) -> str:
        return self.spec.script

    @property
    def first_number(self) -> int:
        """Return the number of the default schedule, or else of the first one."""
        return self.schedules[0] if self.default is None else self.default

    @property
    def programs_by_number(self) -> dict[int, str]:
        """Return the hashes of the programs, by their numbers."""
        return dict(zip(self.schedules, self.programs, strict=True))

    @property
    def directory(self) -> str:
        """Return the name of the script's directory: the script's name in snake case."""
        return to_snake_case(self.spec.script)

    @property
    def target(self) -> Target:
        return self.spec.target

    @property
    def params(self) -> Mapping[str, Value]:
        return self.spec.params

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.spec.parameters

    @property
    def label(self) -> str:
        return self.spec.label


def find_language(template: str) -> str:
    """Return the language of a template's source, for pipelines that compile several."""
    return LANGUAGES.get(os.path.splitext(template.removesuffix(".j2"))[1], "cu")


def is_source(script: ScriptSection) -> bool:
    """Return whether a script's programs are sources of a library, which are not rendered."""
    return isinstance(script, SourcesScript)


def get_product_keys(script: ScriptSection) -> ProductKeys:
    """Return the table with the link keys: the library's, or the script's own."""
    return script.owner if isinstance(script, LinkScript) else script


def read_style(script: ScriptSection) -> Style:
    """Return how a script's templates are read."""
    jinja = script.jinja
    return Style(
        rendered=script.render,
        trim_blocks=jinja.trim_blocks,
        lstrip_blocks=jinja.lstrip_blocks,
        keep_trailing_newline=jinja.keep_trailing_newline,
        strict=jinja.undefined == "error",
        cpp_values=jinja.cpp_values,
        function=split_function(script.generator or "")[1],
        language=find_contributions("language")[script.language] if script.language else "",
    )


def choose_pipeline(
    manifest: Manifest, script: str, target: Target, compiler: DeviceCompiler
) -> Pipeline:
    """Return the pipeline that compiles a script for a target."""
    compiler_name = manifest.find_script_device_compiler(script, target.name)
    script_compiler = compiler.choose_for_script(compiler_name)
    return select_pipeline(target.kind, manifest.scripts[script].form, script_compiler)


def make_instance_spec(
    manifest: Manifest,
    script: str,
    target: Target,
    params: Mapping[str, Value],
    space: Space,
    toolchain: Toolchain,
    objects: tuple[tuple[str, str], ...] = (),
    tuned: tuple[MeasuredRow, ...] = (),
) -> InstanceSpec:
    """Return an instance as the manifest describes it. Raises `InputError`.

    `objects` are (name, program hash) of what a library links; `tuned` are the instance's rows.
    """
    owner = manifest.scripts[script]
    # The parts of the recipe that depend on a schedule stay empty here; `rendering` fills them in.
    pipeline = choose_pipeline(manifest, script, target, toolchain.device_compiler)
    target_names = list_target_constants(target)
    valued = ProgramTexts(manifest, script, target.name, pipeline, target_names)
    torch_location = manifest.locate_torch(script)
    recipe = Recipe(
        pipeline=pipeline,
        archs=target.archs,
        ptx=target.ptx,
        source="",
        symbol="",
        signature=_resolve_signature(manifest, script, params, target_names),
        launch=valued.make_launch(),
        constants={},
        options=_make_options(manifest, script, target, torch_location, toolchain.host.baseline),
        part=_make_part_options(manifest, script, toolchain.cuda),
    )
    grouping = _make_grouping(manifest, script, params, space, valued, pipeline)
    return InstanceSpec(
        manifest=manifest,
        script=script,
        target=target,
        params=params,
        space=space,
        parameters=space.spec.parameter_names,
        derived=tuple(name for name, _ in space.spec.derived),
        toolchain=toolchain,
        recipe=recipe,
        valued=valued,
        grouping=grouping,
        link_roots=find_link_roots(manifest, script, get_product_keys(owner).link_dirs),
        torch_location=torch_location,
        objects=objects,
        tuned=tuned,
    )


def _make_options(
    manifest: Manifest,
    script: str,
    target: Target,
    torch_location: Location | None,
    baseline: str | None,
) -> Options:
    """Return the options of all schedules of a script for a target. `baseline` is the host
    compiler's `-march` without `host-march`."""
    # The manifest's own macros take precedence.
    defines = {
        **({} if torch_location is None else find_torch_defines(torch_location)),
        **manifest.merge_defines(script, target.name),
    }
    return Options(
        defines=tuple(defines.items()),
        std=manifest.find_std(script, target.name),
        host_march=manifest.find_script_toolchain(script, target.name).host_march or baseline,
        cudart=manifest.find_cudart(script, target.name),
        compress=target.compress,
    )


def _make_part_options(manifest: Manifest, script: str, cuda: Cuda | None) -> PartOptions:
    """Return how a script's code is joined with that of others."""
    owner = manifest.scripts[script]
    # A kernel or an entry has a library of its own; other forms are objects and links.
    is_part = owner.form not in ("kernel", "entry")
    rdc = owner.owner.rdc if isinstance(owner, SourcesScript) else None
    if is_part and rdc is None:
        rdc = manifest.libraries[owner.library or script].rdc
    return PartOptions(
        rdc=bool(rdc),
        seeded=cuda is not None and cuda.takes_seed,
    )


def _make_grouping(
    manifest: Manifest,
    script: str,
    params: Mapping[str, Value],
    space: Space,
    valued: ProgramTexts,
    pipeline: Pipeline,
) -> Grouping | None:
    """Return how kernels share translation units; None if each has one of its own."""
    group = manifest.scripts[script].group
    # A template with several kernels has all of them in one source: they share all parameters.
    if group is None and manifest.list_sibling_kernels(script):
        group = space.spec.parameter_names
    # Without a launcher that starts the kernel (cpu, entry) there is no device code to share.
    if group is None or not pipeline.launcher.starts_kernel:
        return None
    location = manifest.locate_value("script", script, "group")
    return Grouping(group, space.spec, valued, params, location)


def _resolve_signature(
    manifest: Manifest, script: str, params: Mapping[str, Value], target_names: Mapping[str, Value]
) -> Signature:
    """Return a script's signature with the constants of the instance and, in the tiles of its
    arguments, those of the target in place. Raises `InputError`."""
    try:
        signature = resolve_constants(make_signature(manifest.scripts[script]), params)
    except SignatureError as error:
        keys = ["script", script, "args"]
        if error.argument:
            keys.append(error.argument)
        location = manifest.locate_key(*keys)
        raise InputError(Diagnostic(error.message, location, error.hint)) from None
    # A tile and the size of a workspace may depend on the target and on the schedule. Only the
    # target is known here, so the names of the schedule stay in them.
    arguments = []
    for argument in signature.arguments:
        if argument.tile is not None:
            tile = argument.tile.substitute_constants(target_names)
            argument = replace(argument, tile=tile)
        arguments.append(argument)
    return Signature(tuple(arguments)).substitute_bytes({**params, **target_names})
