"""Checks of what is compiled together: `group` names what the space or the constants declare."""

from __future__ import annotations

from functools import partial

from tilusbuild.errors import did_you_mean
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script import ScriptSection


def check_units(checks: Checks) -> None:
    """Check the groups of every script."""
    for path, _, script in checks.scripts():
        if checks.wrote(*path, "kernels") is not None:
            _kernels(checks, path, script)
        if script.group is not None:
            _group(checks, path, script, script.group)


def _kernels(checks: Checks, path: Path, script: ScriptSection) -> None:
    """Report kernels that could not be taken for scripts."""
    place = partial(checks.document.key, *path, "kernels")
    beside = [key for key in ("kernel", "entry", "library") if checks.wrote(*path, key) is not None]
    if beside:
        checks.error(f'both "{beside[0]}" and "kernels" are set', place, "keep one of them")
    elif not checks.keys_in(*path, "kernels"):
        checks.error("there is no kernel in kernels", place, "as in: kernels.forward.args = { … }")
    for kernel in checks.keys_in(*path, "kernels"):
        if (full := f"{path[1]}.{kernel}") in checks.keys_in("script"):
            where = partial(checks.document.key, *path, "kernels", kernel)
            checks.error(f'there is a script "{full}" already', where, "rename one of them")


def _group(checks: Checks, path: Path, script: ScriptSection, group: tuple[str, ...]) -> None:
    if checks.wrote(*path, "kernel") is None:
        checks.error(
            '"group" is for scripts with a kernel',
            checks.document.key(*path, "group"),
            "a host function, and an object, are compiled by themselves",
        )
    known = {
        name
        for section in ("params", "space")
        for table in ((), *(("override", target) for target in script.override))
        for name in checks.names_in(*path, *table, section)
    }
    for number, name in enumerate(group):
        place = partial(checks.document.value, *path, "group", number)
        if name in group[:number]:
            checks.error(f'"{name}" is listed twice', place)
        elif name not in known and script.space_file is None:
            hint = did_you_mean(name, sorted(known)) or "group names parameters of space or params"
            checks.error(f'unknown parameter "{name}"', place, hint)
