"""From a request to a project that has just the one program that is wanted.

The manifest is the project's own, with the constants and the schedule of the request in the place
of its lists and defaults; nothing is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from tilusbuild.arch import UnknownArchError, parse_arch
from tilusbuild.build.project import Project
from tilusbuild.errors import did_you_mean, input_error
from tilusbuild.expr import Value
from tilusbuild.jit.request import AUTO, SOURCES, Request, Source
from tilusbuild.manifest import Manifest
from tilusbuild.plan.model import targets_of
from tilusbuild.plan.spaces import imported_space
from tilusbuild.runtime import compat
from tilusbuild.runtime.device import Device, cuda, may_have_cuda
from tilusbuild.runtime.errors import DriverError
from tilusbuild.runtime.places import get_cache_dir


def opened(wanted: Request) -> tuple[Project, str, str, int]:
    """Return the project, the script's name, the target's, and when we began to read the project,
    in ns since 1970. Raises `InputError`."""
    given: dict[str, str | int | None] = {"level": 0}
    if wanted.backend == "nvrtc":
        given["device-compiler"] = "nvrtc"
    since = time.time_ns()
    if isinstance(wanted.source, Source):
        target, declared = _target_of_source(wanted.target)
        above = os.path.join(get_cache_dir(), "state", SOURCES)
        given["cache-dir"] = get_cache_dir()
        directory, script = wanted.source.project(above, target, declared), wanted.source.name
        project = Project.open(directory, given, os.environ)
    else:
        project = Project.open(wanted.directory, given, os.environ)
        script = wanted.source
        if script not in project.manifest.scripts:
            hint = did_you_mean(script, project.manifest.scripts)
            raise input_error(f'no script "{script}" in {project.manifest.path}', hint=hint)
        target = _target_of_script(project.manifest, script, wanted.target)
    project.manifest = _narrowed(project.manifest, script, target, wanted)
    return project, script, target, since


def gpu_here() -> Device | None:
    """cuda:0, or None where there is none."""
    try:
        return cuda(0) if may_have_cuda() else None
    except DriverError:
        return None


def _target_of_source(word: str) -> tuple[str, Mapping[str, Any]]:
    if word == AUTO:
        gpu = gpu_here()
        word = gpu.arch if gpu else "cpu"
    try:
        name = parse_arch(word).name
    except UnknownArchError as error:
        raise input_error(f'target: "{word}" is not an architecture', hint=error.hint) from None
    return name, {"arch": name}


def _target_of_script(manifest: Manifest, script: str, word: str) -> str:
    """Return the target of that name or architecture; with "auto", the best for this machine."""
    targets = targets_of(manifest)
    known = {name: targets[name] for name in manifest.targets_of(script)}
    if word != AUTO:
        fitting = [name for name, each in known.items() if word in (name, each.arch)]
        if not fitting:
            there = ", ".join(f"{name} ({each.arch})" for name, each in known.items())
            raise input_error(f'{script} is not built for "{word}"', hint=f"it is for {there}")
        return fitting[0]
    gpu = gpu_here()
    ranked = []
    for name, each in known.items():
        if gpu is not None and each.kind == "cuda":
            fits = [a.name for a in each.archs if compat.can_run(a.name, gpu.arch)]
            ranked += [(compat.rank(arch, gpu.arch, "sass"), name) for arch in fits]
    if ranked:
        return min(ranked)[1]
    hosts = [name for name, each in known.items() if each.kind == "cpu"]
    if not hosts:
        there = ", ".join(f"{name} ({each.arch})" for name, each in known.items())
        here = f"its GPU is {gpu}" if gpu else "there is no CUDA device"
        raise input_error(
            f"{script} is built for {there}, and here {here}", hint="say target= to build anyway"
        )
    return hosts[0]


def _narrowed(manifest: Manifest, script: str, target: str, wanted: Request) -> Manifest:
    """Return the manifest with one instance and one default."""
    owner = manifest.scripts[script]
    declared = manifest.toolchain
    if wanted.target_host is not None:
        declared = declared.model_copy(update={"host_march": wanted.target_host})
    schedule = _schedule(manifest, script, target, dict(wanted.params))
    override = dict(owner.override)
    if target in override:
        kept = {name: v for name, v in override[target].default.items() if name not in schedule}
        override[target] = override[target].model_copy(update={"default": kept, "params": {}})
    fixed = owner.model_copy(
        update={
            "params": _constants(manifest, script, target, dict(wanted.params)),
            "default": {**owner.default, **schedule},
            "override": override,
        }
    )
    changed: dict[str, Any] = {"scripts": {**manifest.scripts, script: fixed}}
    changed["toolchain"] = declared
    if wanted.config("line_directives"):
        changed["build"] = manifest.build.model_copy(update={"line_directives": True})
    flags = wanted.flags
    if manifest.targets[target].is_cpu:
        host = manifest.targets[target]
        host = host.model_copy(update={"flags": (*host.flags, *flags)})
        return manifest.model_copy(
            update={**changed, "targets": {**manifest.targets, target: host}}
        )
    if wanted.config("disable_ptxas_opt"):
        flags = (*flags, "--ptxas-options=-O0")
    made = manifest.model_copy(update=changed)
    return made.with_last_flags((*manifest.last_flags, *flags)) if flags else made


def _schedule(
    manifest: Manifest, script: str, target: str, params: Mapping[str, Value]
) -> dict[str, Value]:
    """Return what of the request are values of the space. Raises `InputError` for names of
    nothing."""
    owner = manifest.scripts[script]
    constants = {name for each in owner.params_for(target) for name in each.names}
    names = {name for each in owner.space_for(target).values() for name in each.names}
    imported = imported_space(manifest, script)
    names |= {name for each in (imported.parameters if imported else ()) for name in each.names}
    unknown = sorted(params.keys() - names - constants)
    if unknown:
        raise input_error(
            f'{script} has no parameter "{unknown[0]}"',
            hint=did_you_mean(unknown[0], names | constants),
        )
    return {name: value for name, value in params.items() if name in names}


def _constants(
    manifest: Manifest, script: str, target: str, params: Mapping[str, Value]
) -> dict[str, Any]:
    """One row of each constant, by its key. Raises `InputError` when several are left, or none."""
    fixed: dict[str, Any] = {}
    for each in manifest.scripts[script].params_for(target):
        wanted = {name: params[name] for name in each.names if name in params}
        rows = [
            row
            for row in each.values
            if all(_same(row[each.names.index(name)], value) for name, value in wanted.items())
        ]
        if len(rows) != 1:
            label = ", ".join(each.names)
            there = "; ".join(", ".join(map(repr, row)) for row in rows or each.values)
            what = "has several values of" if rows else "has no such value of"
            raise input_error(f"{script} {what} {label}", hint=f"choose by keyword from: {there}")
        fixed[", ".join(each.names)] = rows[0][0] if len(each.names) == 1 else (rows[0],)
    return fixed


def _same(one: Value, other: Value) -> bool:
    return type(one) is type(other) and one == other
