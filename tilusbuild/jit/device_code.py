"""Kernels through NVRTC alone: no nvcc, no host compiler, no linker; the driver launches.

What NVRTC made is kept among the cache's state, in a file that is called by its program's hash: one
that is damaged counts as missing and is made again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.builder.project import Project, requested
from tilusbuild.cache.includes import publish_include
from tilusbuild.compile import nvrtc_tools
from tilusbuild.compile.model import Launch
from tilusbuild.compile.program import compile_device
from tilusbuild.dispatch.describe import script_json
from tilusbuild.errors import input_error
from tilusbuild.expr import Value
from tilusbuild.jit.make import DEVICE_CODE, Inputs, KernelNotBuilt
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import Planner
from tilusbuild.plan.rendering import render
from tilusbuild.render.closure import layout
from tilusbuild.runtime.script import Script, script_of
from tilusbuild.runtime.sealed import unseal
from tilusbuild.state.clock import Moment
from tilusbuild.state.envelope import Envelope
from tilusbuild.status import Status
from tilusbuild.toolchain import (
    DeviceCompiler,
    HostCompiler,
    Toolchain,
    ToolFile,
    discover_nvrtc,
)
from tilusbuild.toolchain.reach import sandbox_wanted

_ENVELOPE = Envelope("device code 3")
_NONE = ToolFile("-", "", "-", "-")
_NO_HOST = HostCompiler(_NONE, _NONE, _NONE, _NONE, (), "-", "-", (), ())


class DeviceKernel(Struct, frozen=True):
    """Device code, and all that a launch of it needs."""

    script: Script
    source: str
    image: bytes
    symbol: str
    launch: Launch
    constants: Mapping[str, Value]
    compiled: bool
    inputs: Inputs


def build(project: Project, script: str, target: str, since: Moment) -> DeviceKernel:
    """Have the device code; `since` is when reading began. Raises `InputError`
    and `KernelNotBuilt`."""
    if project.manifest.targets[target].is_cpu:
        raise input_error(
            f"{script}: the backend nvrtc compiles for GPUs, and {target} is the cpu",
            hint='execution_backend="tvm_ffi" or "ctypes" run there',
        )
    if project.manifest.scripts[script].kernel is None:
        raise input_error(f"{script} has an entry of its own, which is host code: nvcc compiles it")
    name = project.manifest.toolchain_of(script, target)
    toolchain = _toolchain(project, name)
    selection = PlanSelection((script,), (target,), 0)
    planner = Planner(project.manifest, {name: toolchain}, project.renderer, project.digests)
    plan = planner.plan(selection)
    (instance,) = plan.instances
    (schedule,) = instance.spec.space.take(instance.schedules)
    made = render(instance.spec, instance.sources, schedule)
    inputs = Inputs(project, plan.inputs, since)
    described = script_of("", unseal(script_json(project.manifest, instance, [None])))
    path = os.path.join(project.cache.state_path, DEVICE_CODE, f"{instance.programs[0]}.bin")
    kept, compiled = _ENVELOPE.read(path), False
    if kept is None:
        project.cache.ensure()
        private = project.cache.private()
        try:
            headers = None
            if made.recipe.include_digest is not None:
                files = layout(made.closure)
                headers = publish_include(project.cache, made.recipe.include_digest, files)
            done = compile_device(
                made.recipe,
                nvrtc_tools(toolchain),
                private.path,
                headers,
                project.runner,
                project.manifest.build.timeout,
                made.closure.notes,
            )
        finally:
            private.discard()
        if done.outcome.status != Status.BUILT:
            from tilusbuild.plan.readable import readable

            log = readable(instance.spec, instance.sources, schedule, done.outcome.log)
            why = f"{instance.label} was not built: {done.outcome.reason}\n{log}"
            raise KernelNotBuilt(why, project.manifest.root)
        kept, compiled = done.symbol.encode() + b"\0" + done.image, True
        _ENVELOPE.write(path, kept)
    symbol, _, image = kept.partition(b"\0")
    if made.recipe.launch is None:
        raise input_error(f"{script} has no launch")
    return DeviceKernel(
        described,
        made.recipe.source,
        image,
        symbol.decode(),
        made.recipe.launch,
        made.recipe.constants,
        compiled,
        inputs,
    )


def _toolchain(project: Project, name: str) -> Toolchain:
    request = replace(requested(project.manifest, name), needs_nvrtc=True)
    nvrtc = discover_nvrtc(request, project.environment, project.runner, project.digests)
    return Toolchain(
        cuda=None,
        host=_NO_HOST,
        fingerprint_cuda=(),
        fingerprint_host=(),
        searched=(),
        name=name,
        nvrtc=nvrtc,
        device_compiler=DeviceCompiler("nvrtc", scripts_choose=False),
        fingerprint_nvrtc=nvrtc.fingerprint(project.digests),
        fingerprint_joiner=nvrtc.joiner_fingerprint(project.digests),
        fingerprint_assembler=nvrtc.assembler_fingerprint(project.digests),
        sandboxed=sandbox_wanted(project.environment),
    )
