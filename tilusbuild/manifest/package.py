"""`[package.NAME]`: what to carry away from a cache."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tilusbuild.manifest.table import Size, Table, Text


class PackageSection(Table):
    """What to carry away from a cache, for machines that compile nothing."""

    scripts: tuple[Text, ...] | None = Field(
        None, description="Which scripts; all without it.", examples=[["matmul"]]
    )
    targets: tuple[Text, ...] | None = Field(
        None, description="Which targets; all without it.", examples=[["h100"]]
    )
    formats: tuple[Literal["dir", "tar.zst", "wheel", "oci"], ...] = Field(
        ("tar.zst",), min_length=1, description="The carriers to make."
    )
    include: tuple[Literal["sources", "logs", "all"], ...] = Field(
        (),
        description="What to carry besides libraries, options and tables: `sources` (and headers, "
        "so that `compile.sh` works), `logs` (of compilers and of tuning), or `all`.",
        examples=[["sources"]],
    )
    exclude: tuple[Literal["sources", "logs"], ...] = Field(
        (), description="What not to carry of what `include` says.", examples=[["logs"]]
    )
    programs: Literal["all", "dispatched"] = Field(
        "all",
        description="`dispatched`: only the programs that a rule, a dispatch table or the default "
        "can choose; of a script that has a model and no table, all.",
    )
    split: bool = Field(True, description="A wheel for each target, and one that finds them.")
    max_size: Size | None = Field(
        None,
        description="The most bytes that a carrier may have; more is an error.",
        examples=["100MB"],
    )
