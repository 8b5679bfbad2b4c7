"""Which compiled code runs on which device: the rules that a deployment follows, on `Arch`es."""

from __future__ import annotations

from tilusbuild.arch.table import Arch
from tilusbuild.runtime import compat
from tilusbuild.runtime.compat import Kind, Verdict

__all__ = ["Kind", "Verdict", "can_run"]


def can_run(code: Arch | str, device: Arch | str, *, kind: Kind = "sass") -> Verdict:
    """Return whether `code` (an image of that architecture) runs on `device` (sm_<compute
    capability>).

    A device has no suffix; one that is given is ignored. Names may be strings from a binary or a
    driver: an unknown one is a refusal, never an exception.
    """
    return compat.can_run(_name(code), _name(device), kind)


def _name(arch: Arch | str) -> str:
    return arch if isinstance(arch, str) else arch.name
