"""`[script.NAME.kernels]`: a template with several kernels, as a script for each of them.

A script with kernels stands for the scripts `NAME.KERNEL`, which share its template, space and
targets; each has arguments, a launch, limits and a dispatch of its own. This is decided of the
document, before anything is checked, so that the rest of the builder knows scripts only; what is
wrong with one of these is reported where it is written: in the kernel's table, else the script's.
"""

from typing import Annotated, Any

from tilusbuild.manifest.document import Document
from tilusbuild.manifest.script_sections import (
    KERNEL_NAME,
    Arg,
    DispatchSection,
    LaunchSection,
    PruneSection,
    TuneSection,
)
from tilusbuild.manifest.table import NOTHING, AnyValue, Entries, Key, Table

KERNELS = "kernels"


class KernelSection(Table, frozen=True):
    """One of the kernels of a script's template: the script `NAME.KERNEL`.

    What is not said here is as the script says it.
    """

    description: Annotated[str | None, Key(examples=["The gradient"])] = None
    """One line for people."""
    kernel: Annotated[
        Annotated[str, Key(pattern=KERNEL_NAME)] | None,
        Key(examples=["ops::backward<{{ block }}>"]),
    ] = None
    """The `__global__` function; without it the name of this table."""
    args: Annotated[Entries[Arg], Key(examples=[{"x": "f32*[n]", "n": "i32"}])] = NOTHING
    """The call signature, in the kernel's order."""
    launch: LaunchSection | None = None
    """The launch geometry."""
    default: Annotated[Entries[AnyValue], Key(examples=[{"block": 128}])] = NOTHING
    """The schedule that is used when nothing better is known."""
    prune: PruneSection = PruneSection()
    """Which compiled kernels are left out."""
    dispatch: DispatchSection | None = None
    """Which schedule serves which sizes."""
    tune: TuneSection | None = None
    """How `run` and `tune` call the kernel."""


_ALONE = ("kernel", "entry", "library")
"""What a script with kernels cannot have beside them."""


def spread(document: Document) -> None:
    """Put the scripts that kernels stand for in place of their script. What is not a table of
    kernels stays as it is, for the checks to report."""
    scripts = document.data.get("script")
    if not isinstance(scripts, dict):
        return
    found: dict[str, Any] = {}
    for name, script in scripts.items():
        kernels = script.get(KERNELS) if isinstance(script, dict) else None
        if (
            kernels is None
            or not _is_right(script, kernels)
            or any(f"{name}.{kernel}" in scripts for kernel in kernels)
        ):
            found[name] = script
        else:
            shared = {key: value for key, value in script.items() if key != KERNELS}
            for kernel, table in kernels.items():
                found[f"{name}.{kernel}"] = {**shared, "kernel": kernel, **table}
    document.data["script"] = found


def _is_right(script: dict[str, Any], kernels: Any) -> bool:
    known = KernelSection.fields_by_key().keys()
    return (
        isinstance(kernels, dict)
        and bool(kernels)
        and all(isinstance(table, dict) and table.keys() <= known for table in kernels.values())
        and not any(key in script for key in _ALONE)
    )
