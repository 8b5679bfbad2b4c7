"""Which compiled code runs on which device, with the reason, and which of several runs best.

NVIDIA's rules (CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility" and
"Architecture-specific / Family-specific features"). SASS without a suffix: same major version,
equal or higher minor. `f`: the same family, equal or higher minor. `a`: that architecture alone.
PTX without a suffix: any equal or later device, compiled by the driver; with one, as the SASS.
A family is a major version so far. What is not in `KNOWN` is refused: a kernel that is not loaded
is an error message, a kernel that runs where it must not is a wrong number.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["sass", "ptx"]

KNOWN = frozenset(
    ["cpu"]
    + [f"sm_{n}" for n in (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89)]
    + [f"sm_{n}{s}" for n, s in ((90, ""), (90, "a"))]
    + [f"sm_{n}{s}" for n in (100, 101, 103, 110, 120, 121) for s in ("", "a", "f")]
)
"""Architectures whose rules are known; a test holds it to the builder's table."""


class Verdict(NamedTuple):
    """Whether code runs on a device, and the rule that says so."""

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok


def can_run(code: str, device: str, kind: Kind = "sass") -> Verdict:
    """Return whether `code` (an image of that architecture) runs on `device` (sm_<compute
    capability>).

    A device has no suffix; one that is given is ignored. An unknown name is a refusal.
    """
    if code not in KNOWN:
        return Verdict(
            False, f'unknown architecture "{code}": nothing is known about where it runs'
        )
    if device not in KNOWN:
        return _on_unknown(code, device, kind)
    if "cpu" in (code, device):
        same = code == device
        return Verdict(same, "host code" if same else f"{code} code is not for {device}")
    return _between(code, device, kind)


def rank(code: str, device: str, kind: Kind = "sass") -> int:
    """Return how well suited code is that can run, 0 the best: `a`, the exact architecture, `f`, an
    older minor version, PTX. Of two with the same number the newer is the better."""
    if kind == "ptx":
        return 4
    number, suffix = _split(code)
    if suffix == "a":
        return 0
    if suffix == "f":
        return 2
    return 1 if number == _split(device)[0] else 3


def number_of(name: str) -> int:
    """Return the digits of an architecture's name; 0 for the cpu and for what is not a name."""
    return _split(name)[0]


def _split(name: str) -> tuple[int, str]:
    suffix = name[-1:] if name[-1:] in ("a", "f") else ""
    digits = name.removeprefix("sm_").removesuffix(suffix)
    plain = name.startswith("sm_") and 2 <= len(digits) <= 3
    return (int(digits), suffix) if plain and digits.isascii() and digits.isdigit() else (0, "")


def _between(code: str, device: str, kind: Kind) -> Verdict:
    number, suffix = _split(code)
    other = _split(device)[0]
    what, here = f"{code} {'PTX' if kind == 'ptx' else 'code'}", f"sm_{other}"
    if suffix == "a":
        ok = number == other
        return Verdict(ok, f"{what} runs on sm_{number} only" + ("" if ok else f", not {here}"))
    if kind == "ptx" and not suffix:
        if other >= number:
            return Verdict(True, f"{what} is compiled by the driver for {here}")
        return Verdict(False, f"{what} runs on sm_{number} and later, not on {here}")
    (major, minor), (own_major, own_minor) = divmod(number, 10), divmod(other, 10)
    rule = "its family, from its own minor version up" if suffix else "the same major version"
    if major != own_major:
        return Verdict(False, f"{what} runs on {rule} ({major}.x), not on {here}")
    if own_minor < minor:
        return Verdict(False, f"{what} needs minor version {minor} or higher; {here} is older")
    return Verdict(True, f"{what} runs on {rule} ({major}.{minor} and higher)")


def _on_unknown(code: str, device: str, kind: Kind) -> Verdict:
    # PTX without a suffix is the one promise that NVIDIA makes for GPUs that do not exist yet.
    number, suffix = _split(code)
    future, future_suffix = _split(device)
    forward = kind == "ptx" and not suffix and code != "cpu"
    if forward and not future_suffix and future >= number:
        return Verdict(True, f"{code} PTX is compiled by the driver for {device}")
    return Verdict(
        False, f'unknown architecture "{device}": whether {code} code runs on it is not known'
    )
