"""A project, opened: each part is made when it is first asked for, and closed with the project.

Opening reads the manifest and decides the settings. Nothing is written before something is built.
Keys of the manifest that the compilers do not support are refused before anything is planned.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TypeAlias

from msgspec.structs import replace

from tilusbuild.cache.tree import Tree
from tilusbuild.compile.model import Pipeline
from tilusbuild.errors import Diagnostic, InputError, Location, input_error
from tilusbuild.manifest import Settings, decide_settings, find_project_manifest
from tilusbuild.manifest.library import SourcesScript
from tilusbuild.manifest.memo import recall_manifest, remember_manifest, reread_manifest
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.script_sections import has_values
from tilusbuild.manifest.settings import BY_DEFAULT
from tilusbuild.plan.instance import choose_pipeline
from tilusbuild.plan.memo import PlanMemo
from tilusbuild.plan.model import PlanSelection, Target, make_target, select_script_targets
from tilusbuild.plan.planner import Plan, Planner, StartAhead
from tilusbuild.process.local import LocalRunner
from tilusbuild.render.environment import Style
from tilusbuild.render.renderer import Renderer
from tilusbuild.runtime import option
from tilusbuild.runtime.where import CACHE_VARIABLE, MANIFEST_NAME, search_directories
from tilusbuild.state.clock import FileClock
from tilusbuild.state.digests import DigestMemory
from tilusbuild.state.files import sweep_temporary_files
from tilusbuild.state.stamp import DeviceStamp, read_device_stamp
from tilusbuild.state.variables import AskedVariables
from tilusbuild.toolchain import DeviceCompiler, Toolchain, ToolchainRequest, discover_toolchain

_FLAGS_WITHOUT_OPTIMIZATION = ("--ptxas-options=-O0",)
Keys: TypeAlias = tuple[str | int, ...]


class Project:
    """An open project. Use as a context manager: its end stops every process and saves digests and
    plans."""

    def __init__(self, manifest: Manifest, chosen: Settings, environment: AskedVariables) -> None:
        self.manifest = manifest
        self.settings = chosen
        self.environment = environment
        self.first_stamps: Mapping[str, DeviceStamp] = {}
        """The manifest, and what it was completed from, as they were before they were read."""
        self._remembers = False
        """Whether `close` writes the manifest's memo."""
        self._options: Mapping[str, str | float | None] = {}
        self.toolchains: dict[tuple[str, bool, bool], Toolchain] = {}
        """The results of `find_toolchain` so far, by its arguments."""

    @classmethod
    def open(
        cls,
        start: str,
        options: Mapping[str, str | float | None],
        environment: Mapping[str, str],
        *,
        remembered: bool = False,
    ) -> Project:
        """Return the project around the directory `start`. Raises `InputError`.

        With `remembered`, use the saved parse of the manifest if its files are unchanged; if not,
        have `close` save the parse. `options` are those of the command line.
        """
        environment = AskedVariables(environment)
        path = find_project_manifest(start)
        # The stamp is taken before the manifest is read, so that a change in between shows. In the
        # other order, the stamp of the new manifest would stand for the content of the old one.
        # A manifest in a directory between would be taken instead of this one.
        manifests = [
            os.path.join(directory, MANIFEST_NAME) for directory in search_directories(start)
        ]
        first_stamps = {
            path: read_device_stamp(path) for path in manifests[: manifests.index(path) + 1]
        }
        manifest = recall_manifest(path, environment) if remembered else None
        project = cls._open_manifest(manifest or _load_manifest(path), options, environment)
        project.first_stamps = {**first_stamps, **project.manifest.reading.first_stamps}
        project._remembers = remembered and manifest is None
        return project

    @classmethod
    def _open_manifest(
        cls,
        manifest: Manifest,
        options: Mapping[str, str | float | None],
        environment: AskedVariables,
    ) -> Project:
        """Return a project with the settings that the options, the environment and the manifest
        decide. Without ptxas optimization, its flag is added to the manifest's."""
        chosen = decide_settings(manifest.root, options, environment, manifest, option.chosen())
        if chosen.disable_ptxas_opt.value:
            manifest = manifest.add_last_flags(_FLAGS_WITHOUT_OPTIMIZATION)
        project = cls(manifest, chosen, environment)
        project._options = dict(options)
        return project

    def reread_manifest(self, *, tools: bool) -> Project:
        """Return the project with its manifest read again, and with this one's runner, digests and
        memo; with `tools`, the compilers are discovered again. Only one of the two is to be closed.
        Raises `InputError`."""
        self.renderer.release_workers()
        manifest = reread_manifest(self.manifest) or _load_manifest(self.manifest.path)
        fresh = self._open_manifest(manifest, self._options, self.environment)
        fresh.__dict__.update(runner=self.runner, clock=self.clock, digests=self.digests)
        # The memo is kept: the code that makes programs was loaded once, so the hashes that it
        # made stay right, even if its files have changed.
        if fresh.settings.cache_dir == self.settings.cache_dir:
            fresh.__dict__.update(cache=self.cache, memo=self.memo)
        if not tools and fresh.manifest.toolchain == self.manifest.toolchain:
            fresh.toolchains = self.toolchains
        return fresh

    def __enter__(self) -> Project:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop every process. Save digests, plans and the manifest's memo if the cache exists."""
        # A cached property is in `__dict__` once it was used. Those that were not used are not made
        # here only to be closed.
        if "renderer" in self.__dict__:
            self.renderer.release_workers()
        if "runner" in self.__dict__:
            self.runner.close()
        # A build that finds everything in a read-only cache leaves no trace.
        if not os.path.isdir(self.cache.state_path):
            return
        sweep_temporary_files(self.cache.state_path, deep=True)
        if self._remembers:
            remember_manifest(self.manifest, self.environment)
        if "memo" in self.__dict__:
            self.memo.save_changes()
        if "digests" in self.__dict__:
            self.digests.save_records()

    @cached_property
    def runner(self) -> LocalRunner:
        return LocalRunner()

    @cached_property
    def cache(self) -> Tree:
        """The cache tree. Raises `InputError` when there can be none."""
        cache = Tree(self.settings.cache_dir.value)
        cache.exists()
        return cache

    @cached_property
    def clock(self) -> FileClock:
        return FileClock(self.cache.state_path)

    @cached_property
    def digests(self) -> DigestMemory:
        return DigestMemory(self.cache.state_path, self.clock.read_recent_time)

    @cached_property
    def memo(self) -> PlanMemo:
        directory = os.path.join(self.cache.state_path, "plans")
        return PlanMemo(directory, self.manifest.path, self.digests)

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.manifest.root, make_generated=self._make_generated)

    def _make_generated(self, root: str, style: Style) -> Renderer:
        """Return the renderer of a style that names a generator."""
        # Imported only here: few projects have generators.
        from tilusbuild.engine.running import MemoryLimit
        from tilusbuild.render.generated import GeneratedRenderer, GeneratorWorkers

        timeout, jobs = self.manifest.build.timeout, self.settings.jobs.value
        can_start = MemoryLimit().can_start
        workers = GeneratorWorkers(self.runner, self.environment, timeout, jobs, can_start)
        return GeneratedRenderer(root, style, workers)

    @property
    def device_compiler(self) -> DeviceCompiler:
        chosen = self.settings.device_compiler
        return DeviceCompiler(chosen.value, chosen.source in BY_DEFAULT)

    def find_toolchain(self, name: str = "", *, cuda: bool, nvrtc: bool = False) -> Toolchain:
        """Return the tools that the manifest declares under a name ("": `[toolchain]`), with nvcc
        if `cuda` and NVRTC if `nvrtc`. They are discovered at the first call with these arguments.
        Raises `InputError` when one is missing."""
        key = name, cuda, nvrtc
        if key not in self.toolchains:
            # nvcc hands the path of its source to a shell, in double quotes.
            if cuda and (command := re.search(r"`|\$[({]", os.path.realpath(self.cache.root))):
                message = f"the cache is {self.cache.root}: nvcc's shell would run its {command[0]}"
                raise input_error(message, hint=f"name another one by {CACHE_VARIABLE}")
            request = replace(
                make_toolchain_request(self.manifest, name),
                needs_cuda=cuda,
                needs_nvrtc=nvrtc,
                device_compiler=self.device_compiler,
            )
            self.toolchains[key] = discover_toolchain(
                request, self.environment, self.runner, self.digests
            )
        return self.toolchains[key]

    def make_plan(self, selection: PlanSelection, start_ahead: StartAhead | None = None) -> Plan:
        """Plan the selected part. Raises `InputError` with all that is wrong."""
        selection = selection.add_objects(self.manifest)
        planner = replace(self.make_planner(selection), start_ahead=start_ahead)
        return planner.make_plan(selection)

    def make_fresh_plan(self, selection: PlanSelection) -> Plan:
        """Plan the selected part as if nothing was planned before, with new processes for
        generators. Raises as `make_plan`."""
        renderer = Renderer(self.manifest.root, make_generated=self._make_generated)
        try:
            selection = selection.add_objects(self.manifest)
            planner = replace(self.make_planner(selection), renderer=renderer, memo=None)
            return planner.make_plan(selection)
        finally:
            renderer.release_workers()

    def make_planner(self, selection: PlanSelection) -> Planner:
        """Return a planner with the tools that the selection needs. Raises `InputError` when a tool
        is missing, or refuses something that the manifest asks of it."""
        selection = selection.add_objects(self.manifest)
        pairs = list(select_script_targets(self.manifest, selection))
        compilers_by_toolchain: dict[str, set[str]] = {}
        for script, target in pairs:
            pipeline = choose_pipeline(self.manifest, script, target, self.device_compiler)
            name = self.manifest.find_toolchain_name(script, target.name)
            compilers_by_toolchain.setdefault(name, set()).add(pipeline.compiler)
        toolchains = {
            name: self.find_toolchain(name, cuda="nvcc" in compilers, nvrtc="NVRTC" in compilers)
            for name, compilers in compilers_by_toolchain.items()
        }
        if refusals := collect_refusals(self.manifest, pairs, toolchains):
            raise InputError(*refusals)
        return Planner(self.manifest, toolchains, self.renderer, self.digests, self.memo)

    def find_launcher(self) -> tuple[str, ...]:
        """Return the command that every compiler is started through, its program as a path; () for
        none.

        Raises `InputError` when there is no such program.
        """
        declared = self.manifest.toolchain.launcher
        if not declared:
            return ()
        path = shutil.which(declared[0], path=self.environment.get("PATH"))
        if path is None:
            location = self.manifest.locate_value("toolchain", "launcher")
            raise input_error(f"no program {declared[0]} on PATH", location=location)
        return (os.path.abspath(path), *declared[1:])


def _load_manifest(path: str) -> Manifest:
    # Imported only here: with a memo, this import would take longer than the rest of the start.
    from tilusbuild.manifest.loading import load_manifest

    return load_manifest(path)


def make_toolchain_request(manifest: Manifest, name: str) -> ToolchainRequest:
    """Return the request for the manifest's toolchain of this name."""
    declared = manifest.get_named_toolchain(name)
    return ToolchainRequest(
        nvcc=declared.nvcc,
        cxx=declared.cxx,
        project_root=manifest.root,
        name=name,
        host_march=declared.host_march,
        nvcc_key=".".join(manifest.resolve_toolchain_key(name, "nvcc")),
        cxx_key=".".join(manifest.resolve_toolchain_key(name, "cxx")),
        location=_find_tool_location(manifest, name, "nvcc"),
        cxx_location=_find_tool_location(manifest, name, "cxx"),
    )


def _find_tool_location(manifest: Manifest, name: str, key: str) -> Location | None:
    if getattr(manifest.get_named_toolchain(name), key) is not None:
        return manifest.locate_value(*manifest.resolve_toolchain_key(name, key))
    return manifest.locate_key("toolchain", "named", name) if name else None


def collect_refusals(
    manifest: Manifest, pairs: Iterable[tuple[str, Target]], toolchains: Mapping[str, Toolchain]
) -> list[Diagnostic]:
    """Return everything that the compilers refuse, once each, for pairs of a script's name and a
    target; toolchains are by their names."""
    refusals: list[Diagnostic] = []
    for script, target in pairs:
        toolchain = toolchains[manifest.find_toolchain_name(script, target.name)]
        pipeline = choose_pipeline(manifest, script, target, toolchain.device_compiler)
        refusals += _find_refused_archs(manifest, script, target, pipeline, toolchain)
        refusals += _find_refused_compression(manifest, target, pipeline, toolchain)
        refusals += _find_missing_cudart(manifest, script, target, toolchain)
        refusals += _find_refused_flags(manifest, script, target.name, pipeline)
        refusals += _find_refused_standard(manifest, script, target.name, pipeline)
    return list(dict.fromkeys(refusals))


def _find_refused_archs(
    manifest: Manifest, script: str, target: Target, pipeline: Pipeline, toolchain: Toolchain
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each architecture, of a target or a part of a library, that the
    compiler does not support."""
    owner = manifest.scripts[script]
    path = ("script", script)
    if not isinstance(owner, SourcesScript) or not owner.owner.arch:
        # A library also has the architectures of its parts, which are reported there.
        path, target = ("target", target.name), make_target(manifest, target.name)
    try:
        pipeline.check_archs(toolchain, target.archs, target.ptx, None)
    except InputError as error:
        # The place is looked up only here, after an error: that scans the text of the manifest,
        # which takes milliseconds.
        location = manifest.locate_value(*path, "arch")
        prefix = f"toolchain {toolchain.name}: " if toolchain.name else ""
        for diagnostic in error.diagnostics:
            yield diagnostic._replace(message=prefix + diagnostic.message, location=location)


def _find_refused_compression(
    manifest: Manifest, target: Target, pipeline: Pipeline, toolchain: Toolchain
) -> Iterator[Diagnostic]:
    """Yield a diagnostic if the code of a target cannot be packed, or need not be unpacked by a
    driver that runs it otherwise."""
    compiler = toolchain.find_device_compiler(pipeline.compiler)
    if not target.compress or compiler is None:
        return
    problem = hint = ""
    if compiler.release < (13, 0):
        problem = f"compress needs CUDA 13 or later, not {compiler.version}"
        hint = "the first drivers of CUDA 12 do not unpack code: leave compress out"
    elif pipeline.compiler == "NVRTC" and not toolchain.fingerprint_joiner:
        problem = "compress needs libnvfatbin beside NVRTC"
        hint = "pip install 'tilusbuild[nvrtc]'"
    if problem:
        yield Diagnostic(problem, manifest.locate_value("target", target.name, "compress"), hint)


def _find_missing_cudart(
    manifest: Manifest, script: str, target: Target, toolchain: Toolchain
) -> Iterator[Diagnostic]:
    """Yield a diagnostic if a script's host code, or a library, is linked with the shared CUDA
    runtime and the toolkit has none."""
    cuda = toolchain.cuda
    if target.kind != "cuda" or cuda is None or cuda.cudart:
        return
    declared = manifest.scripts[script]
    keys: tuple[str, ...]
    linkage: str
    if script in manifest.libraries:
        linkage = manifest.libraries[script].cudart
        keys = ("library", script, "cudart")
    elif declared.entry is None:
        return  # a kernel has no host code of its own
    else:
        linkage = manifest.find_cudart(script, target.name)
        keys = ("script", script, "cudart")
        if declared.cudart is None:
            keys = manifest.resolve_toolchain_key(toolchain.name, "cudart")
    if linkage == "shared":
        yield Diagnostic(
            f"{cuda.library_dir} has no libcudart.so.{cuda.release[0]} to link with",
            manifest.locate_value(*keys),
            'install it, or link a copy into each library: cudart = "static"',
        )


def _find_refused_flags(
    manifest: Manifest, script: str, target: str, pipeline: Pipeline
) -> Iterator[Diagnostic]:
    """Yield a diagnostic, at its place in the manifest, for each flag that the compiler does not
    know."""
    script_keys = manifest.resolve_override(script, target, "flags")
    flags_by_keys: dict[Keys, tuple[str, ...]] = {
        ("build", "flags"): manifest.build.flags,
        ("target", target, "flags"): manifest.targets[target].flags,
        script_keys: manifest.scripts[script].merge_flags(target),
    }
    for keys, flags in flags_by_keys.items():
        # Flags with values of a schedule are checked when the program is planned.
        if any(map(has_values, flags)):
            continue
        for index, flag, hint in pipeline.find_refused_flags(flags):
            location = manifest.locate_value(*keys, index)
            message = f'{pipeline.compiler} does not know "{flag}"'
            yield Diagnostic(message, location, hint)


def _find_refused_standard(
    manifest: Manifest, script: str, target: str, pipeline: Pipeline
) -> Iterator[Diagnostic]:
    """Yield a diagnostic if the compiler does not know the C++ standard of a script. Its place is
    the key of the script, else that of the toolchain."""
    std = manifest.find_std(script, target)
    if pipeline.standards is not None and std not in pipeline.standards:
        keys: tuple[str, ...] = ("script", script, "std")
        if manifest.scripts[script].std is None:
            keys = manifest.resolve_toolchain_key(
                manifest.find_toolchain_name(script, target), "std"
            )
        hint = f"it knows {', '.join(pipeline.standards)}"
        message = f"{pipeline.compiler} does not know {std}"
        yield Diagnostic(message, manifest.locate_value(*keys), hint)
