"""The compilers: found, checked, and known by what they are instead of where they are."""

from tilusbuild.state.digests import DigestMemory
from tilusbuild.toolchain.cuda import Cuda
from tilusbuild.toolchain.discovery import (
    DeviceCompiler,
    SearchResult,
    Toolchain,
    ToolchainRequest,
    discover,
    discover_nvrtc,
)
from tilusbuild.toolchain.headers import HeaderDirectories, package_dir
from tilusbuild.toolchain.host import HostCompiler, ToolFile
from tilusbuild.toolchain.nvrtc import NvrtcLibrary
from tilusbuild.toolchain.probe import ToolsChangedError

__all__ = [
    "Cuda",
    "DeviceCompiler",
    "DigestMemory",
    "HeaderDirectories",
    "HostCompiler",
    "NvrtcLibrary",
    "SearchResult",
    "ToolFile",
    "Toolchain",
    "ToolchainRequest",
    "ToolsChangedError",
    "discover",
    "discover_nvrtc",
    "package_dir",
]
