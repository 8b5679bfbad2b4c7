"""Which compiled code runs on which device, with the reason, for preflight and for the loader.

NVIDIA's rules (CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility" and
"Architecture-specific / Family-specific features"). SASS without a suffix: same major version,
equal or higher minor. `f`: the same family, equal or higher minor. `a`: that architecture alone.
PTX without a suffix: any equal or later device, compiled by the driver; with one, as the SASS.
A family is a major version so far. What the table does not know is refused: a kernel that is not
loaded is an error message, a kernel that runs where it must not is a wrong number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tilusbuild.arch.names import UnknownArch, parse_arch
from tilusbuild.arch.table import Arch

Kind = Literal["sass", "ptx"]

_FUTURE = re.compile(r"sm_(\d{2,3})")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether code runs on a device, and the rule that says so."""

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok


def can_run(code: Arch | str, device: Arch | str, *, kind: Kind = "sass") -> Verdict:
    """Whether `code` (an image of that architecture) runs on `device` (sm_<compute capability>).

    A device has no suffix; one that is given is ignored. Names may be strings from a binary or a
    driver: an unknown one is a refusal, never an exception.
    """
    try:
        image = parse_arch(code) if isinstance(code, str) else code
    except UnknownArch as error:
        return Verdict(False, f"{error}: nothing is known about where it runs")
    try:
        here = parse_arch(device) if isinstance(device, str) else device
    except UnknownArch as error:
        return _on_unknown(image, str(device), kind, str(error))
    if image.is_cpu or here.is_cpu:
        same = image.is_cpu and here.is_cpu
        return Verdict(same, "host code" if same else f"{image.name} code is not for {here.name}")
    return _between(image, here, kind)


def _between(image: Arch, device: Arch, kind: Kind) -> Verdict:
    what = f"{image.name} {'PTX' if kind == 'ptx' else 'code'}"
    here = f"sm_{device.number}"
    if image.suffix == "a":
        ok = image.number == device.number
        return Verdict(
            ok, f"{what} runs on sm_{image.number} only" + ("" if ok else f", not {here}")
        )
    if kind == "ptx" and not image.suffix:
        if device.number >= image.number:
            return Verdict(True, f"{what} is compiled by the driver for {here}")
        return Verdict(False, f"{what} runs on sm_{image.number} and later, not on {here}")
    rule = "its family, from its own minor version up" if image.suffix else "the same major version"
    if image.major != device.major:
        return Verdict(False, f"{what} runs on {rule} ({image.major}.x), not on {here}")
    if device.minor < image.minor:
        return Verdict(
            False, f"{what} needs minor version {image.minor} or higher; {here} is older"
        )
    return Verdict(True, f"{what} runs on {rule} ({image.major}.{image.minor} and higher)")


def _on_unknown(image: Arch, device: str, kind: Kind, error: str) -> Verdict:
    # PTX without a suffix is the one promise that NVIDIA makes for GPUs that do not exist yet.
    future = _FUTURE.fullmatch(device)
    forward = kind == "ptx" and not image.suffix and not image.is_cpu
    if forward and future and int(future[1]) >= image.number:
        return Verdict(True, f"{image.name} PTX is compiled by the driver for {device}")
    return Verdict(False, f"{error}: whether {image.name} code runs on it is not known")
