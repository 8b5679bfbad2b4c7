"""`[toolchain]`: which compilers, and how they are asked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tilusbuild.manifest.requirement import RequirementError, parse_requirement
from tilusbuild.manifest.table import Table, Text, fault


def is_nvcc_path(text: str) -> bool:
    """Whether `toolchain.nvcc` is a path, not a requirement."""
    return "/" in text or text.startswith(("~", "."))


def _nvcc(text: str) -> str:
    if not is_nvcc_path(text):
        try:
            parse_requirement(text)
        except RequirementError as error:
            raise fault(str(error), error.hint) from None
    return text


def _march(text: str) -> str:
    if text == "native":
        raise fault(
            'must not be "native": a package must run on other machines than this',
            'name the oldest CPU that it runs on: "x86-64-v2", "x86-64-v3", "armv8-a"',
        )
    return text


class ToolchainSection(Table):
    """Which compilers, and how they are asked."""

    nvcc: Annotated[Text, AfterValidator(_nvcc)] | None = Field(
        None,
        description="Which nvcc: a requirement on its version, or a path (relative to the "
        "manifest). Looked for in: here, `CUDA_HOME` and `CUDA_PATH`, `PATH`, `/usr/local/cuda*`, "
        "NVIDIA's wheels.",
        examples=[">=12.4,<14", "/opt/cuda-13.0/bin/nvcc"],
    )
    std: Literal["c++14", "c++17", "c++20", "c++23"] = Field(
        "c++17", description="The language standard, for device and host code."
    )
    host_march: Annotated[Text, AfterValidator(_march)] | None = Field(
        None,
        description="The oldest CPU that host code runs on, as the host compiler's `-march` names "
        "it; never `native`. Without it: `x86-64-v2`, or `armv8-a` on aarch64.",
        examples=["x86-64-v2"],
    )
    device_compiler: Literal["nvcc", "nvrtc"] = Field(
        "nvcc",
        description="What compiles device code of the kernel pipeline. The two make different "
        "programs. `--device-compiler` and `TILUSBUILD_DEVICE_COMPILER` go before it.",
    )
    launcher: tuple[Text, ...] = Field(
        (),
        description="A command that every compiler is started through.",
        examples=[["srun", "-n1"]],
    )
