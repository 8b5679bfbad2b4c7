"""A CUDA toolkit: what makes it one, whether it is whole, and what it is by content.

A toolkit is asked where it is (`nvcc --dryrun` prints the variables it works with), because `nvcc`
may be a link or a shell script that runs another one, and because installers, distributions, conda
and wheels lay their files out differently. Only those variables are read, never its command lines,
which change with every release.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from tilusbuild.arch import Arch
from tilusbuild.state.digests import DigestMemory
from tilusbuild.toolchain.headers import HeaderDirectories
from tilusbuild.toolchain.host import HostTool
from tilusbuild.toolchain.packages import mixed_releases, pip_command, wheel_releases
from tilusbuild.toolchain.probe import Probe, ProbeError

_VARIABLE = re.compile(r"^#\$ ([_A-Z]+)=(.*)$", re.MULTILINE)
_INCLUDE = re.compile(r'"(?:-I)?(/[^"]*)"')
_VERSION = re.compile(r"release \d+\.\d+, V(\d+(?:\.\d+)+)")
_EMBEDDED_VERSION = re.compile(rb"Cuda compilation tools, release \d+\.\d+, V(\d+(?:\.\d+)+)")
_REAL_ARCH = re.compile(r"'(sm_\d+[af]?)'")
_PROGRAMS = ("cudafe++", "ptxas", "fatbinary", "nvlink")
_HEADERS = {
    "cuda_runtime.h": "nvidia-cuda-runtime",
    "crt/host_config.h": "nvidia-cuda-crt",
    "nv/target": "nvidia-cuda-cccl",
}


class Rejected(Exception):  # noqa: N818 - a finding
    """Why a candidate is not taken; `remedy` is a command that would help, or None."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Cuda:
    """A toolkit that compiles.

    `nvcc` is the real program (no wrapper), `version` its full version ("13.0.88"), `archs` the
    names of the real architectures that it compiles for. `tools` are its programs and
    `libdevice` and `library_dir` its directories; `link_flags` are what nvcc needs to find its
    own libraries where its profile looks in vain, as in wheels."""

    nvcc: str
    root: str
    version: str
    archs: tuple[str, ...]
    tools: tuple[HostTool, ...]
    include_dirs: tuple[str, ...]
    libdevice: str
    library_dir: str
    link_flags: tuple[str, ...]

    @property
    def release(self) -> tuple[int, int]:
        """(13, 0) for CUDA 13.0."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    def knows(self, arch: Arch) -> bool:
        """Return whether it compiles for a GPU architecture."""
        return arch.name in self.archs

    def tool(self, name: str) -> HostTool | None:
        """One of its programs ("ptxas"), by name."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def fingerprint(self, memory: DigestMemory) -> tuple[str, ...]:
        """Return lines: versions and digests, no path. Raises `OSError`."""
        headers = HeaderDirectories(self.include_dirs, (), ())
        bin_dir = os.path.dirname(self.nvcc)
        profile = os.path.join(bin_dir, "nvcc.profile")
        stubs = memory.tree(os.path.join(bin_dir, "crt"), "all", lambda _: True)
        linked = memory.tree(self.library_dir, "cudart", _is_linked_library)
        return (
            *(tool.line for tool in self.tools),
            f"nvcc.profile - {memory.digest(profile) if os.path.isfile(profile) else '-'}",
            f"crt-stubs - {stubs}",
            f"libdevice - {memory.tree(self.libdevice, 'libdevice', _is_libdevice)}",
            f"cudart - {linked}",
            f"cuda-headers {self.version} {headers.core_of_toolkit(memory)}",
        )


def examine(nvcc: str, probe: Probe, ccbin: str) -> Cuda:
    """Return the toolkit that `nvcc` belongs to. Raises `Rejected`.

    `ccbin` is the host compiler: nvcc answers nothing about itself without one.
    """
    if not os.path.isfile(nvcc):
        raise Rejected("no such file")
    if not os.access(nvcc, os.X_OK):
        raise Rejected("not executable", f"chmod +x {nvcc}")
    try:
        return _examine(nvcc, probe, ccbin)
    except (ProbeError, OSError) as error:
        raise Rejected(str(error)) from error


def _examine(nvcc: str, probe: Probe, ccbin: str) -> Cuda:
    variables = _variables(nvcc, probe, ccbin)
    here = os.path.realpath(variables.get("_HERE_") or os.path.dirname(os.path.realpath(nvcc)))
    root = os.path.realpath(variables.get("TOP") or os.path.dirname(here))
    real = os.path.join(here, "nvcc")
    if not os.path.isfile(real):
        real = os.path.realpath(nvcc)
    version = _version(probe, real)
    cicc = os.path.realpath(os.path.join(variables.get("CICC_PATH") or f"{root}/nvvm/bin", "cicc"))
    programs = {name: os.path.join(here, name) for name in _PROGRAMS} | {"cicc": cicc}
    libdevice = variables.get("NVVMIR_LIBRARY_DIR") or f"{root}/nvvm/libdevice"
    _check_whole(root, version, programs, libdevice)
    includes = tuple(
        dict.fromkeys(
            os.path.realpath(directory)
            for name in ("INCLUDES", "SYSTEM_INCLUDES")
            for directory in _INCLUDE.findall(variables.get(name, ""))
            if os.path.isdir(directory)
        )
    ) or (os.path.join(root, "include"),)
    releases = wheel_releases(root)
    _check_headers(includes, releases, version)
    _check_one_release(probe, version, programs, releases)
    memory = probe.memory
    tools = [HostTool("nvcc", real, version, memory.digest(real))]
    tools += [HostTool(n, path, version, memory.digest(path)) for n, path in programs.items()]
    library_dir, link_flags = _libraries(root, variables.get("LIBRARIES", ""))
    return Cuda(
        nvcc=real,
        root=root,
        version=version,
        archs=_archs(probe, real),
        tools=tuple(tools),
        include_dirs=includes,
        libdevice=os.path.realpath(libdevice),
        library_dir=library_dir,
        link_flags=link_flags,
    )


def _variables(nvcc: str, probe: Probe, ccbin: str) -> dict[str, str]:
    with open(nvcc, "rb") as file:
        is_program = file.read(4) == b"\x7fELF"
    # What a script answers depends on whatever it looks at.
    arguments = ("-ccbin", ccbin, "--dryrun", "-x", "cu", "-E", "/dev/null")
    said = probe.ask(nvcc, *arguments, remember=is_program)
    return {name: value.strip() for name, value in _VARIABLE.findall(said)}


def _archs(probe: Probe, nvcc: str) -> tuple[str, ...]:
    # `--list-gpu-code` leaves out the names with a suffix.
    names = set(_REAL_ARCH.findall(probe.ask(nvcc, "--help")))
    return tuple(sorted(names, key=lambda name: (int(re.sub(r"\D", "", name)), name)))


def _version(probe: Probe, nvcc: str) -> str:
    found = _VERSION.search(probe.ask(nvcc, "--version"))
    if not found:
        raise Rejected("says no version that is one of nvcc's")
    return found[1]


def _check_whole(root: str, version: str, programs: dict[str, str], libdevice: str) -> None:
    wheels = bool(wheel_releases(root))
    remedy = pip_command(version) if wheels else None
    for name, path in programs.items():
        if not os.path.isfile(path):
            raise Rejected(f"incomplete: no {name} ({path})", remedy)
        if not os.access(path, os.X_OK):
            raise Rejected(f"{name} is not executable", f"chmod +x {path}")
    if not os.path.isdir(libdevice):
        raise Rejected(f"incomplete: no libdevice ({libdevice})", remedy)


def _check_headers(directories: tuple[str, ...], releases: object, version: str) -> None:
    lacking = [
        (header, wheel)
        for header, wheel in _HEADERS.items()
        if not any(os.path.isfile(os.path.join(directory, header)) for directory in directories)
    ]
    # libcu++ came with CUDA 11: an older toolkit lacks no part of itself.
    if lacking and int(version.partition(".")[0]) >= 11:
        names = ", ".join(header for header, _ in lacking)
        raise Rejected(f"incomplete: no {names}", pip_command(version) if releases else None)


def _check_one_release(
    probe: Probe, version: str, programs: dict[str, str], releases: object
) -> None:
    """Parts of another release do not fit, and fail late with messages about PTX versions."""
    if isinstance(releases, dict) and releases:
        mixed = mixed_releases(releases, version)
        if mixed:
            raise Rejected(f"mixed releases: {mixed}", pip_command(version))
    found = {
        "ptxas": _VERSION.search(probe.ask(programs["ptxas"], "--version")),
        "cicc": embedded_version(probe, programs["cicc"]),
    }
    for name, match in found.items():
        theirs = match if isinstance(match, str) else match[1] if match else None
        if theirs and theirs.split(".")[:2] != version.split(".")[:2]:
            raise Rejected(f"mixed releases: nvcc is {version}, but {name} is {theirs}")


def embedded_version(probe: Probe, program: str) -> str | None:
    """Return the version that a program carries in its data: cicc prints none."""
    key = f"embedded version {probe.memory.digest(program)}"
    known = probe.memory.recall(key)
    if known is None:
        with open(program, "rb") as file:
            found = _EMBEDDED_VERSION.search(file.read())
        known = found[1].decode("ascii") if found else ""
        probe.memory.record(key, known)
    return known or None


def _libraries(root: str, listed: str) -> tuple[str, tuple[str, ...]]:
    """Return the directory of cudart, and the flag that leads nvcc there when its own do not."""
    own = [os.path.realpath(path) for path in re.findall(r'"-L(/[^"]*)"', listed)]
    fallbacks = [os.path.join(root, name) for name in ("lib64", "lib")]
    for directory in (*own, *fallbacks):
        if os.path.isfile(os.path.join(directory, "libcudart_static.a")):
            directory = os.path.realpath(directory)
            return directory, () if directory in own else (f"-L{directory}",)
    return fallbacks[-1], ()


def _is_libdevice(name: str) -> bool:
    return name.startswith("libdevice") and name.endswith(".bc")


def _is_linked_library(name: str) -> bool:
    return name in ("libcudart_static.a", "libcudadevrt.a")
