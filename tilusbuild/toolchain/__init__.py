"""The compilers: found, checked, and known by what they are instead of where they are."""

from tilusbuild.state.digests import DigestMemory
from tilusbuild.toolchain.discovery import (
    DeviceCompiler,
    Toolchain,
    ToolchainRequest,
    discover,
    discover_nvrtc,
)
from tilusbuild.toolchain.headers import HeaderDirectories, package_dir

__all__ = [
    "DeviceCompiler",
    "DigestMemory",
    "HeaderDirectories",
    "Toolchain",
    "ToolchainRequest",
    "discover",
    "discover_nvrtc",
    "package_dir",
]
