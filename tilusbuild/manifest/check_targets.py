"""Checks of what is built for what: architectures, references to targets and scripts, pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from tilusbuild.arch import PtxNeedsBase, UnknownArch, gencode, parse_arch
from tilusbuild.errors import did_you_mean
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.locate import Path
from tilusbuild.manifest.script import ScriptSection
from tilusbuild.manifest.sections import TargetSection


def check_targets(checks: Checks) -> None:
    """Every target has known architectures, and every name of a target or a script exists."""
    if not checks.wrote("target"):
        checks.error(
            "the manifest has no target",
            checks.document.key(),
            'add one, such as:\n[target.h100]\narch = "sm_90a"',
        )
    if not checks.wrote("script"):
        checks.error(
            "the manifest has no script",
            checks.document.key(),
            'add one, such as:\n[script.saxpy]\ntemplate = "kernels/saxpy.cu.j2"\nkernel = "saxpy"',
        )
    for name, target in checks.manifest.targets.items():
        _archs(checks, name, target)
    for path, name, script in checks.scripts():
        _references(checks, (*path, "targets"), script.targets, "target")
        _override_names(checks, path, name, script)
        _pipeline(checks, path, name, script)
    for name, package in checks.manifest.packages.items():
        _references(checks, ("package", name, "targets"), package.targets, "target")
        _references(checks, ("package", name, "scripts"), package.scripts, "script")


def _archs(checks: Checks, name: str, target: TargetSection) -> None:
    found, known = [], True
    for number, arch in enumerate(target.arch):
        place = partial(checks.document.value, "target", name, "arch", number)
        if isinstance(checks.wrote("target", name, "arch"), str):
            place = partial(checks.document.value, "target", name, "arch")
        try:
            found.append(parse_arch(arch))
        except UnknownArch as error:
            known = False
            checks.error(str(error), place, error.hint)
            continue
        if arch in target.arch[:number]:
            checks.error(f'"{arch}" is listed twice', place)
    archs = partial(checks.document.value, "target", name, "arch")
    if "cpu" in target.arch and len(target.arch) > 1:
        checks.error("cpu cannot share a binary with a GPU", archs, "make it a target of its own")
    elif target.ptx and known:
        ptx = partial(checks.document.key, "target", name, "ptx")
        if target.is_cpu:
            checks.error("a cpu target has no PTX", ptx, "leave ptx out")
            return
        try:
            gencode(found, ptx=True)
        except PtxNeedsBase as error:
            checks.error(str(error), ptx, error.hint)


def _references(checks: Checks, path: Path, names: Sequence[str] | None, kind: str) -> None:
    known = checks.keys_in(kind)
    for number, name in enumerate(names or ()):
        place = partial(checks.document.value, *path, number)
        if name not in known:
            checks.error(f'unknown {kind} "{name}"', place, _known(name, known, kind))
        elif name in (names or ())[:number]:
            checks.error(f'"{name}" is listed twice', place)


def _known(name: str, known: Iterable[str], kind: str) -> str:
    return did_you_mean(name, known) or f"a {kind} is declared as [{kind}.{name}]"


def _override_names(checks: Checks, path: Path, name: str, script: ScriptSection) -> None:
    known = checks.keys_in("target")
    for target in checks.names_in(*path, "override"):
        place = partial(checks.document.key, *path, "override", target)
        if target not in known:
            checks.error(
                f'override for an unknown target "{target}"', place, _known(target, known, "target")
            )
        elif script.targets is not None and target not in script.targets:
            checks.error(
                f'script "{name}" is not built for "{target}"',
                place,
                f'add "{target}" to its targets, or remove the override',
            )


def _pipeline(checks: Checks, path: Path, name: str, script: ScriptSection) -> None:
    place = partial(checks.document.key, *path)
    has_kernel = checks.wrote(*path, "kernel") is not None
    has_entry = checks.wrote(*path, "entry") is not None
    if has_kernel and has_entry:
        checks.error(
            'both "kernel" and "entry" are set',
            checks.document.key(*path, "entry"),
            "kernel: tilusbuild writes the launcher; entry: the template holds it. Keep one.",
        )
    elif not has_kernel and not has_entry:
        checks.error(
            f'script "{name}" sets neither "kernel" nor "entry"',
            place,
            'kernel = "NAME" for an extern "C" __global__ function, entry = "NAME" for a host '
            "launch function",
        )
    elif has_entry and checks.wrote(*path, "launch") is not None:
        checks.error(
            '"launch" is for scripts with a kernel',
            checks.document.key(*path, "launch"),
            "with entry, the template's own function launches",
        )
    if has_kernel and not has_entry:
        _geometry(checks, path, name, script)


def _geometry(checks: Checks, path: Path, name: str, script: ScriptSection) -> None:
    """A GPU kernel needs to know its grid and block."""
    for target in checks.known_targets(name):
        if checks.manifest.targets[target].is_cpu:
            continue
        written = [(*path, "launch"), (*path, "override", target, "launch")]
        for key in ("grid", "block"):
            if not any(checks.wrote(*table, key) is not None for table in written):
                has_table = checks.wrote(*path, "launch") is not None
                checks.error(
                    f'script "{name}" is missing launch.{key}, which GPU targets need',
                    checks.document.key(*path, *(["launch"] if has_table else [])),
                    f'as in:\n[script.{name}.launch]\ngrid = ["cdiv(n, 256)"]\nblock = [256]',
                )
                if not has_table:
                    return
