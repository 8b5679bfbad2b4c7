"""The toolchain as the pipelines use it: placeholders filled, one environment, names in logs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilusbuild.toolchain import Nvrtc, Toolchain


@dataclass(frozen=True, slots=True)
class Tools:
    """Where the tools of one toolchain are, and what is known of them."""

    paths: Mapping[str, tuple[str, ...]]
    environment: Mapping[str, str]
    directories: Mapping[str, str]
    """Absolute paths of directories and tools, and what stands for them in a log."""
    cuda_fingerprint: tuple[str, ...]
    cc_fingerprint: tuple[str, ...]
    nvrtc_fingerprint: tuple[str, ...] = ()
    joiner_fingerprint: tuple[str, ...] = ()
    """Of libnvfatbin, which joins the code of several architectures."""
    cuda_headers: str | None = None
    """The toolkit's headers, which a compile through NVRTC finds under `cuda`."""

    def fill(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command with paths for its placeholders."""
        return tuple(word for part in argv for word in self.paths.get(part, (part,)))


def tools_of(toolchain: Toolchain) -> Tools:
    """Return the tools of a toolchain; what it does not have has no placeholder."""
    paths: dict[str, tuple[str, ...]] = {
        "{cxx}": (toolchain.cxx.path,),
        "{cc}": (toolchain.cc.path,),
        "{as}": (toolchain.as_.path,),
        "{ld}": (toolchain.ld.path,),
        "{sed}": ("sed",),
    }
    host = {"g++": toolchain.cxx, "gcc": toolchain.cc, "as": toolchain.as_, "ld": toolchain.ld}
    directories = {tool.path: name for name, tool in host.items()}
    cuda = toolchain.cuda
    if cuda is not None:
        paths["{nvcc}"] = (cuda.nvcc,)
        paths["{link_flags}"] = tuple(cuda.link_flags)
        paths["{fatbinary}"] = (os.path.join(os.path.dirname(cuda.nvcc), "fatbinary"),)
        directories[cuda.root] = "{cuda}"
    nvrtc = toolchain.nvrtc
    if nvrtc is not None:
        paths["{nvrtc}"] = nvrtc.command
    return Tools(
        paths=paths,
        environment=toolchain.environment(),
        directories=directories,
        cuda_fingerprint=tuple(toolchain.fingerprint_cuda),
        cc_fingerprint=tuple(toolchain.fingerprint_host),
        nvrtc_fingerprint=tuple(toolchain.fingerprint_nvrtc),
        joiner_fingerprint=tuple(toolchain.fingerprint_joiner),
        cuda_headers=nvrtc.include_dir if nvrtc is not None else None,
    )


def nvrtc_tools(nvrtc: Nvrtc) -> Tools:
    """Return what `compile_device` needs of a machine that has NVRTC and no other compiler."""
    return Tools(
        paths={"{nvrtc}": nvrtc.command},
        environment={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
        directories={},
        cuda_fingerprint=(),
        cc_fingerprint=(),
        cuda_headers=nvrtc.include_dir,
    )
