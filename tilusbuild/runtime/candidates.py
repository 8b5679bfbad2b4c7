"""Which instance of a script serves a device: every candidate is judged, with the reason.

What is not known to work is refused: an unknown architecture, host code of another machine, a
driver older than the toolkit that made the code.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from tilusbuild.runtime.device import CodeKind, Device, arch_number, can_run, code_rank
from tilusbuild.runtime.errors import AmbiguousScriptError, ProgramNotFoundError
from tilusbuild.runtime.script import Script


class Evaluation(NamedTuple):
    """One candidate: how well it suits (None: not at all; the least is the best), and why."""

    script: Script
    suits: tuple[int, int] | None
    reason: str

    def __str__(self) -> str:
        verdict = "suits" if self.suits else "refused"
        return f"{self.script.label} ({self.script.arch}): {verdict}: {self.reason}"


def judge(script: Script, device: Device, machine: str | None = None) -> Evaluation:
    """Return whether and how well an instance suits a device, in a host of this machine or of
    another."""
    machine = machine or os.uname().machine
    if script.machine != machine:
        return Evaluation(script, None, f"made for {script.machine}, not {machine}")
    if script.kind != device.kind:
        return Evaluation(script, None, f"{script.kind} code, and the device is {device}")
    if script.kind == "cuda":
        problem = _driver_problem(script, device)
        if problem:
            return Evaluation(script, None, problem)
    refused = []
    best: Evaluation | None = None
    for arch, kind in images(script.archs, script.ptx):
        verdict = can_run(arch, device.arch, kind)
        if not verdict:
            refused.append(verdict.reason)
            continue
        suits = (code_rank(arch, device.arch, kind), -arch_number(arch))
        if best is None or best.suits is None or suits < best.suits:
            best = Evaluation(script, suits, verdict.reason)
    return best or Evaluation(script, None, "; ".join(refused) or "it holds no code")


def images(archs: Sequence[str], ptx: bool) -> list[tuple[str, CodeKind]]:
    """Return (arch, kind) of the code in a library for these architectures.

    PTX is of the newest.
    """
    found: list[tuple[str, CodeKind]] = [(arch, "sass") for arch in archs]
    if ptx:
        plain = [arch for arch in archs if arch[-1:].isdigit()]
        found += [(arch, "ptx") for arch in sorted(plain, key=arch_number)[-1:]]
    return found


def _driver_problem(script: Script, device: Device) -> str | None:
    """Return why a device's driver refuses the code; None when it does not.

    A driver takes code of its own major CUDA version and of older ones; PTX only up to its own
    version (CUDA Compatibility Guide, "Minor Version Compatibility").
    """
    if script.toolkit is None:
        return "which CUDA toolkit made it is not known"
    try:
        major, minor = (int(word) for word in script.toolkit.split(".")[:2])
    except ValueError:
        return f"which CUDA toolkit made it is not known: {script.toolkit!r}"
    theirs = divmod(device.driver // 10, 100)
    supported = f"the driver supports CUDA {theirs[0]}.{theirs[1]}"
    if theirs[0] < major:
        return f"made with CUDA {major}.{minor}, and {supported}"
    only_ptx = not any(can_run(arch, device.arch) for arch in script.archs)
    if script.ptx and only_ptx and theirs < (major, minor):
        return f"its PTX is of CUDA {major}.{minor}, and {supported}"
    return None


def best(
    scripts: Sequence[Script], device: Device, machine: str | None = None
) -> tuple[Script, tuple[Evaluation, ...]]:
    """Return the instance that suits best, and what was thought of each.

    Raises `ProgramNotFoundError`, and `AmbiguousScriptError` when two suit equally well.
    """
    judged = tuple(judge(script, device, machine) for script in scripts)
    suited = sorted((each for each in judged if each.suits), key=lambda each: each.suits or (0, 0))
    if not suited:
        name = scripts[0].name if scripts else "the script"
        raise ProgramNotFoundError(
            f"{name} has no program for {device}", tuple(str(each) for each in judged)
        )
    first = suited[0]
    rivals = [each.script for each in suited if each.suits == first.suits]
    if len(rivals) > 1:
        labels = ", ".join(script.label for script in rivals)
        raise AmbiguousScriptError(
            f"several suit {device} equally well: {labels}\n  say which: target=…"
        )
    return first.script, judged
