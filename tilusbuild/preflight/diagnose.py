"""The findings of `tilusbuild doctor`: each component, whether it is found, what it is needed for.

Nothing here raises for a missing component, initialises a GPU, or prints.
"""

from __future__ import annotations

import glob
import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.errors import InputError
from tilusbuild.process import landlock
from tilusbuild.process.base import Runner
from tilusbuild.runtime.cuda_driver import CudaDriver
from tilusbuild.runtime.errors import DriverError
from tilusbuild.state.digests import DigestMemory
from tilusbuild.toolchain.cuda import NVDISASM, Cuda, find_disassembler
from tilusbuild.toolchain.discovery import (
    NVRTC_REMEDY,
    SearchResult,
    ToolchainRequest,
    find_cuda,
    find_host_compiler,
    find_nvrtc,
)
from tilusbuild.toolchain.host import HostCompiler
from tilusbuild.toolchain.probe import Probe
from tilusbuild.toolchain.reach import SANDBOX, is_sandbox_requested

Status = Literal["ok", "missing", "warning"]


class Finding(Struct, frozen=True):
    """The state of one component: `gives` says what needs it, `remedy` is the command that installs
    it, `searched` are the locations of the search, if there is more than one."""

    component: str
    status: Status
    detail: str
    gives: str
    remedy: str | None = None
    searched: tuple[SearchResult, ...] = ()


def diagnose_components(
    request: ToolchainRequest, env: Mapping[str, str], runner: Runner, memory: DigestMemory
) -> Iterator[Finding]:
    """Yield a finding for every component, in the order in which a project needs them. For a named
    toolchain, yield those of its compilers only."""
    probe = Probe(runner, env, memory)
    host, cxx = _diagnose_host(request, probe)
    cuda, nvcc = _diagnose_nvcc(request, probe, host)
    nvrtc = _diagnose_nvrtc(request, probe)
    if request.name:
        for finding in (cxx, nvcc, nvrtc):
            yield replace(finding, component=name_component(finding.component, request.name))
        return
    yield from (
        cxx,
        nvcc,
        _diagnose_driver(),
        _diagnose_tvm_ffi(),
        nvrtc,
        _diagnose_disassembler(cuda),
        _diagnose_sandbox(env),
    )


def name_component(tool: str, toolchain: str) -> str:
    """Return the name of a tool in messages; `toolchain` is "" for `[toolchain]`."""
    return f"{tool} of toolchain {toolchain}" if toolchain else tool


def _make_failure(component: str, error: InputError, gives: str) -> Finding:
    diagnostic = error.diagnostics[0]
    return Finding(component, "missing", diagnostic.message, gives, diagnostic.hint)


def _diagnose_host(request: ToolchainRequest, probe: Probe) -> tuple[HostCompiler | None, Finding]:
    """Return the host compiler, None without one, and its finding."""
    gives = "launchers, the host and cpu pipelines; nvcc preprocesses with it"
    try:
        host = find_host_compiler(request, probe)
    except InputError as error:
        return None, _make_failure("g++", error, gives)
    detail = (
        f"{host.cxx.version} ({host.cxx.path}), as {host.as_.version}, ld {host.ld.version}, "
        f"C library {host.libc}"
    )
    return host, Finding("g++", "ok", detail, gives)


def _diagnose_nvcc(
    request: ToolchainRequest, probe: Probe, host: HostCompiler | None
) -> tuple[Cuda | None, Finding]:
    """Return the CUDA toolkit, None without one, and its finding."""
    gives = "compiling for GPUs"
    if host is None:
        detail = "not looked for: it needs a host compiler"
        return None, Finding("nvcc", "missing", detail, gives)
    try:
        cuda, searched = find_cuda(request, probe, host)
    except InputError as error:
        return None, _make_failure("nvcc", error, gives)
    locations = tuple(searched)
    if cuda is None:
        remedy = next((e.remedy for e in locations if e.remedy), "pip install 'tilusbuild[cuda]'")
        return None, Finding("nvcc", "missing", "none that can be used", gives, remedy, locations)
    detail = f"{cuda.version} ({cuda.nvcc}), compiles for {', '.join(cuda.archs)}"
    return cuda, Finding("nvcc", "ok", detail, gives, None, locations)


def _diagnose_driver() -> Finding:
    """Return the finding on libcuda and the GPU devices; no GPU is initialised."""
    gives = "running and tuning kernels here; building needs none"
    try:
        driver = CudaDriver()
    except DriverError as error:
        return Finding("GPU driver", "missing", str(error), gives, "install NVIDIA's driver")
    try:
        version = driver.get_version()  # without cuInit, which would initialise the devices
    # A stub library has the names that it was made with, and no driver behind them.
    except (DriverError, AttributeError) as error:
        detail = f"libcuda.so.1 was found, but does not answer: {error}"
        return Finding("GPU driver", "warning", detail, gives)
    major, minor = version // 1000, version % 1000 // 10  # as cuDriverGetVersion has it
    devices = len(glob.glob("/dev/nvidia[0-9]*"))
    if not devices:
        detail = f"driver for CUDA {major}.{minor}, but no device in /dev"
        return Finding("GPU driver", "warning", detail, gives)
    return Finding("GPU driver", "ok", f"for CUDA {major}.{minor}, {devices} device(s)", gives)


def _diagnose_tvm_ffi() -> Finding:
    """Return the finding on the Python package; it is not imported."""
    gives = "calling kernels from Python (torch, JAX, CuPy, NumPy)"
    try:
        version = importlib.metadata.version("apache-tvm-ffi")
    except importlib.metadata.PackageNotFoundError:
        remedy = "pip install apache-tvm-ffi"
        return Finding("tvm-ffi", "missing", "not installed", gives, remedy)
    return Finding("tvm-ffi", "ok", version, gives)


def _diagnose_nvrtc(request: ToolchainRequest, probe: Probe) -> Finding:
    """Return the finding on NVRTC: a warning if its headers or libnvfatbin are missing."""
    gives = 'device-compiler = "nvrtc": small kernels compile 2 to 11 times faster'
    try:
        nvrtc, searched = find_nvrtc(request, probe)
    except InputError as error:
        return _make_failure("NVRTC", error, gives)
    locations = tuple(searched)
    if nvrtc is None:
        detail = "none that can be used" if locations else "no libnvrtc"
        return Finding("NVRTC", "missing", detail, gives, NVRTC_REMEDY, locations)
    detail = f"{nvrtc.version} ({nvrtc.library})"
    gaps = []
    if not nvrtc.include_dir:
        gaps.append("no headers of its release (cuda_fp16.h and the like)")
    if not nvrtc.joiner:
        gaps.append("no libnvfatbin (several architectures in one library)")
    if gaps:
        detail = f"{detail}; {', '.join(gaps)}"
        return Finding("NVRTC", "warning", detail, gives, NVRTC_REMEDY, locations)
    return Finding("NVRTC", "ok", f"{detail}, headers {nvrtc.include_dir}", gives, None, locations)


def _diagnose_disassembler(cuda: Cuda | None) -> Finding:
    """Return the finding on nvdisasm, which is searched beside `cuda`'s nvcc first."""
    gives = "SASS in module/ir with --dump-ir"
    path = find_disassembler(cuda)
    if path is None:
        remedy = f"pip install nvidia-cuda-{NVDISASM}"
        return Finding(NVDISASM, "missing", "not found", gives, remedy)
    return Finding(NVDISASM, "ok", path, gives)


def _diagnose_sandbox(environment: Mapping[str, str]) -> Finding:
    """Return the finding on Landlock: a warning if it is absent or switched off."""
    gives = "a compile cannot open files that its hash does not cover; else they are checked"
    if not is_sandbox_requested(environment):
        return Finding("sandbox", "warning", f"switched off by {SANDBOX}", gives)
    version = landlock.find_version()  # 0 without Landlock
    if not version:
        detail = "the kernel, or the container, offers no Landlock"
        return Finding("sandbox", "warning", detail, gives, "Linux 5.13 has Landlock")
    return Finding("sandbox", "ok", f"Landlock {version}", gives)
