"""`[target.NAME]`: what to compile for."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from tilusbuild.manifest.table import AnyValue, Entries, Table, Text, entries, fault, kind_of


def _arch_list(value: object) -> object:
    """One name, or several, as a tuple; whether they are names of architectures comes later."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, tuple):
        raise fault(
            f"must be an architecture or an array of them, not {kind_of(value)}",
            'as in "sm_90a", ["sm_80", "sm_90a"] or "cpu"',
        )
    if not value:
        raise fault("must name an architecture", 'as in "sm_90a", ["sm_80", "sm_90a"] or "cpu"')
    return value


_ARCH = {"type": "string", "pattern": r"^(sm_[0-9]+[af]?|cpu)$"}


class TargetSection(Table):
    """What to compile for: one GPU architecture, several in one binary, or the CPU."""

    arch: Annotated[
        tuple[Text, ...],
        BeforeValidator(_arch_list),
        WithJsonSchema({"anyOf": [_ARCH, {"type": "array", "items": _ARCH, "minItems": 1}]}),
    ] = Field(
        description="One architecture as nvcc spells it, an array of several for one binary, or "
        "`cpu`.",
        examples=["sm_90a", ["sm_80", "sm_90a"], "cpu"],
    )
    ptx: bool = Field(False, description="Also embed PTX, which the driver compiles on later GPUs.")
    flags: tuple[Text, ...] = Field(
        (),
        description="Arguments for this target's compiler, after those of `[build]`; for `cpu`, "
        "the host compiler's.",
        examples=[["-Xptxas", "-O3"]],
    )
    defines: Entries[AnyValue] = Field(
        default_factory=entries,
        description="Preprocessor macros, over those of `[build]`.",
        examples=[{"USE_TMA": True}],
    )
    facts: Entries[AnyValue] = Field(
        default_factory=entries,
        description="Numbers about the device that expressions read as `facts.NAME`: for models "
        "of cost. They never enter a hash by themselves.",
        examples=[{"sms": 132, "dram_gbs": 3350}],
    )

    @property
    def is_cpu(self) -> bool:
        """Whether the host compiler makes this target's programs."""
        return self.arch == ("cpu",)
