"""The compilers: found, checked, and known by what they are instead of where they are."""

from tilusbuild.state.digests import DigestMemory
from tilusbuild.toolchain.discovery import (
    DeviceCompiler,
    Toolchain,
    ToolchainRequest,
    discover_nvrtc,
    discover_toolchain,
)
from tilusbuild.toolchain.headers import HeaderDirectories, find_package_directory

__all__ = [
    "DeviceCompiler",
    "DigestMemory",
    "HeaderDirectories",
    "Toolchain",
    "ToolchainRequest",
    "discover_nvrtc",
    "discover_toolchain",
    "find_package_directory",
]
