"""`[script.NAME.kernels]`: a template with several kernels, as a script for each of them.

A script with kernels stands for the scripts `NAME.KERNEL`, which share its template, space and
targets; each has arguments, a launch, limits and a dispatch of its own. This is decided of the
document, before anything is checked, so that the rest of the builder knows scripts only; what is
wrong with one of these is reported where it is written: in the kernel's table, else the script's.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tilusbuild.manifest.document import Document
from tilusbuild.manifest.script_sections import (
    KERNEL_NAME,
    Arg,
    DispatchSection,
    LaunchSection,
    PruneSection,
    TuneSection,
)
from tilusbuild.manifest.table import AnyValue, Entries, ManifestTable, entries

KERNELS = "kernels"


class KernelSection(ManifestTable):
    """One of the kernels of a script's template: the script `NAME.KERNEL`.

    What is not said here is as the script says it.
    """

    description: str | None = Field(
        None, description="One line for people.", examples=["The gradient"]
    )
    kernel: Annotated[str, Field(pattern=KERNEL_NAME)] | None = Field(
        None,
        description="The `__global__` function; without it the name of this table.",
        examples=["ops::backward<{{ block }}>"],
    )
    args: Entries[Arg] = Field(
        default_factory=entries,
        description="The call signature, in the kernel's order.",
        examples=[{"x": "f32*[n]", "n": "i32"}],
    )
    launch: LaunchSection | None = Field(None, description="The launch geometry.")
    default: Entries[AnyValue] = Field(
        default_factory=entries,
        description="The schedule that is used when nothing better is known.",
        examples=[{"block": 128}],
    )
    prune: PruneSection = Field(
        default_factory=PruneSection, description="Which compiled kernels are left out."
    )
    dispatch: DispatchSection | None = Field(None, description="Which schedule serves which sizes.")
    tune: TuneSection | None = Field(None, description="How `run` and `tune` call the kernel.")


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
    known = {field.alias or name for name, field in KernelSection.model_fields.items()}
    return (
        isinstance(kernels, dict)
        and bool(kernels)
        and all(isinstance(table, dict) and table.keys() <= known for table in kernels.values())
        and not any(key in script for key in _ALONE)
    )
