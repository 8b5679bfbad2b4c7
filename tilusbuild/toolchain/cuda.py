"""A CUDA toolkit, installed or from NVIDIA's wheels: its parts, their checks and its fingerprint.

The paths of a toolkit's parts come from `nvcc --dryrun`, which prints the variables that it works
with: `nvcc` may be a link or a shell script that runs another one, and installers, distributions,
conda and wheels lay their files out differently. Of that output only the variables are read, never
the command lines, which change with every release.
"""

from __future__ import annotations

import glob
import mmap
import os
import re
import shutil
from collections.abc import Iterator, Mapping

from msgspec import Struct

from tilusbuild.arch import Arch
from tilusbuild.runtime.regular import open_file
from tilusbuild.state.digests import Digests
from tilusbuild.toolchain.headers import HeaderDirectories
from tilusbuild.toolchain.host import ToolFile
from tilusbuild.toolchain.nvrtc_places import list_wheel_roots
from tilusbuild.toolchain.probe import Probe, ProbeError, reraise_shortage

# `#$ TOP=/usr/local/cuda/bin/..`
_VARIABLE = re.compile(r"^#\$ ([_A-Z]+)=(.*)$", re.MULTILINE)
# `INCLUDES="-I/usr/local/cuda/bin/../include"`, and the same without -I in SYSTEM_INCLUDES.
_INCLUDE_DIRECTORY = re.compile(r'"(?:-I)?(/[^"]*)"')
_VERSION = re.compile(r"release \d+\.\d+, V(\d+(?:\.\d+)+)")
_EMBEDDED_VERSION = re.compile(rb"Cuda compilation tools, release \d+\.\d+, V(\d+(?:\.\d+)+)")
# In the help of `--gpu-code`; PTX architectures are `compute_…`.
_REAL_ARCH = re.compile(r"'(sm_\d+[af]?)'")
_PROGRAMS = ("cudafe++", "ptxas", "fatbinary", "nvlink")
_LINKED_FILES = ("libcudart_static.a", "libcudadevrt.a")
# One of each wheel that has headers which every compile includes: runtime, crt, cccl.
_REQUIRED_HEADERS = ("cuda_runtime.h", "crt/host_config.h", "nv/target")


def is_toolkit(directory: str) -> bool:
    """Return whether a directory of headers is a toolkit's."""
    return os.path.isfile(os.path.join(directory, "crt/host_config.h"))


class RejectedError(Exception):
    """A candidate cannot be used. `remedy` is a command that would make it usable, or None."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.remedy = remedy


class Cuda(Struct, frozen=True):
    """A complete toolkit.

    `nvcc` is the real program, not a wrapper, `version` its full version ("13.0.88"), `archs` the
    names of the real architectures that it compiles for. `tools` are its programs, `libdevice` and
    `library_dir` directories. `link_flags` are the `-L` flags with which nvcc finds its libraries:
    in wheels, its profile names a directory that does not exist."""

    nvcc: str
    root: str
    version: str
    archs: tuple[str, ...]
    tools: tuple[ToolFile, ...]
    include_dirs: tuple[str, ...]
    libdevice: str
    library_dir: str
    link_flags: tuple[str, ...]
    cudart: str | None = None
    """The path of the shared CUDA runtime, named by its soname; None if the toolkit has none."""

    @property
    def release(self) -> tuple[int, int]:
        """(13, 0) for CUDA 13.0."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def takes_seed(self) -> bool:
        """Whether nvcc has `-frandom-seed`, as it is known to from CUDA 13.0 on."""
        return self.release >= (13, 0)

    def can_target(self, arch: Arch) -> bool:
        """Return whether nvcc compiles for a GPU architecture."""
        return arch.name in self.archs

    def format_fingerprint(self, memory: Digests) -> tuple[str, ...]:
        """Return the toolkit's lines of `options.txt`: versions and digests, no path. Raises
        `OSError`."""
        headers = HeaderDirectories(self.include_dirs, (), ())
        bin_dir = os.path.dirname(self.nvcc)
        profile = os.path.join(bin_dir, "nvcc.profile")
        stubs = memory.digest_tree(os.path.join(bin_dir, "crt"), "all", lambda _: True)
        linked = memory.digest_tree(self.library_dir, "cudart", lambda name: name in _LINKED_FILES)
        return (
            *(tool.line for tool in self.tools),
            f"nvcc.profile - {memory.digest_file(profile) if os.path.isfile(profile) else '-'}",
            f"crt-stubs - {stubs}",
            f"libdevice - {memory.digest_tree(self.libdevice, 'libdevice', _is_libdevice)}",
            f"cudart - {linked}",
            f"cuda-headers {self.version} {headers.digest_toolkit_core(memory)}",
        )

    def format_cudart_fingerprint(self, memory: Digests) -> tuple[str, ...]:
        """Return the line of `options.txt` for programs that link the shared runtime; () if the
        toolkit has none. Raises `OSError`."""
        if self.cudart is None:
            return ()
        return (f"{os.path.basename(self.cudart)} - {memory.digest_file(self.cudart)}",)

    def format_tile_fingerprint(self, memory: Digests) -> tuple[str, ...]:
        """Return the line of `options.txt` for programs of CUDA Tile; () if the toolkit has no
        compiler for them. Raises `OSError`."""
        tileiras = os.path.join(os.path.dirname(self.nvcc), "tileiras")
        is_there = os.path.isfile(tileiras)
        return (f"tileiras - {memory.digest_file(tileiras)}",) if is_there else ()


def examine_toolkit(nvcc: str, probe: Probe, ccbin: str) -> Cuda:
    """Return the toolkit that `nvcc` belongs to. Raises `RejectedError`.

    `ccbin` is the host compiler: without one, `nvcc --dryrun` fails. Raises `OSError` for a
    shortage of the machine.
    """
    if not os.path.isfile(nvcc):
        raise RejectedError("no such file")
    if not os.access(nvcc, os.X_OK):
        raise RejectedError("not executable", f"chmod +x {nvcc}")
    try:  # a shortage of the machine is not a defect of the toolkit, and ends the search
        return _examine_nvcc(nvcc, probe, ccbin)
    except (ProbeError, OSError) as error:
        reraise_shortage(error)
        raise RejectedError(str(error)) from error


def _examine_nvcc(nvcc: str, probe: Probe, ccbin: str) -> Cuda:
    """Return the toolkit of an executable nvcc. Raises `RejectedError`, `ProbeError` and
    `OSError`."""
    variables = _read_variables(nvcc, probe, ccbin)
    bin_dir = os.path.realpath(variables.get("_HERE_") or os.path.dirname(os.path.realpath(nvcc)))
    root = os.path.realpath(variables.get("TOP") or os.path.dirname(bin_dir))
    program = os.path.join(bin_dir, "nvcc")
    if not os.path.isfile(program):  # a distribution may rename the program behind its wrapper
        program = os.path.realpath(nvcc)
    match = _VERSION.search(probe.query_program(program, "--version"))
    if match is None:
        raise RejectedError("prints no version of nvcc")
    version = match[1]
    cicc = os.path.realpath(os.path.join(variables.get("CICC_PATH") or f"{root}/nvvm/bin", "cicc"))
    programs = {name: os.path.join(bin_dir, name) for name in _PROGRAMS} | {"cicc": cicc}
    libdevice = variables.get("NVVMIR_LIBRARY_DIR") or f"{root}/nvvm/libdevice"
    releases = read_wheel_releases(root)
    remedy = format_pip_command(version) if releases else None
    _check_complete(programs, libdevice, remedy)
    include_options = f"{variables.get('INCLUDES')} {variables.get('SYSTEM_INCLUDES')}"
    own_dirs = _INCLUDE_DIRECTORY.findall(include_options)
    existing = filter(os.path.isdir, own_dirs)
    include_dirs = tuple(dict.fromkeys(map(os.path.realpath, existing)))
    # `targets/aarch64-linux` of a host compiler for another machine is a part of its own.
    if own_dirs and not include_dirs:
        missing = f"no headers for {os.path.basename(ccbin)} ({os.path.normpath(own_dirs[0])})"
        raise RejectedError(missing, remedy or "install its cross toolkit, or use NVIDIA's wheels")
    if not include_dirs:
        include_dirs = (os.path.join(root, "include"),)
    _check_headers(include_dirs, remedy)
    # Parts of another release would fail during a compile, with a message about PTX versions.
    if releases and (mixed := find_mixed_releases(releases, version)):
        raise RejectedError(f"mixed releases: {mixed}", remedy)
    tools = [
        ToolFile(name, path, version, probe.memory.digest_file(path))
        for name, path in {"nvcc": program, **programs}.items()
    ]
    library_dir, link_flags = _find_libraries(root, variables.get("LIBRARIES", ""))
    # The shortest name is the soname, `libcudart.so.13`, which linked libraries load.
    runtimes = glob.glob(f"{glob.escape(library_dir)}/libcudart.so.*")
    return Cuda(
        nvcc=program,
        root=root,
        version=version,
        archs=_list_archs(probe, program),
        tools=tuple(tools),
        include_dirs=include_dirs,
        libdevice=os.path.realpath(libdevice),
        library_dir=library_dir,
        link_flags=link_flags,
        cudart=min(runtimes, key=lambda path: (len(path), path), default=None),
    )


def _read_variables(nvcc: str, probe: Probe, ccbin: str) -> dict[str, str]:
    """Return the variables that `nvcc --dryrun` prints: {"TOP": "/usr/local/cuda/bin/..", …}."""
    with open_file(nvcc) as file:
        is_program = file.read(4) == b"\x7fELF"
    # A wrapper script's answer may depend on anything, so it is not remembered by the content.
    arguments = ("-ccbin", ccbin, "--dryrun", "-x", "cu", "-E", "/dev/null")
    output = probe.query_program(nvcc, *arguments, remember=is_program)
    return {name: value.strip() for name, value in _VARIABLE.findall(output)}


def _list_archs(probe: Probe, nvcc: str) -> tuple[str, ...]:
    # Not `--list-gpu-code`: it leaves out the names with a suffix (sm_90a).
    names = set(_REAL_ARCH.findall(probe.query_program(nvcc, "--help")))
    return tuple(sorted(names, key=lambda name: (int(re.sub(r"\D", "", name)), name)))


def _check_complete(programs: Mapping[str, str], libdevice: str, remedy: str | None) -> None:
    """Raise `RejectedError` for a program or a libdevice that is missing or may not be executed."""
    for name, path in programs.items():
        if not os.path.isfile(path):
            raise RejectedError(f"incomplete: no {name} ({path})", remedy)
        if not os.access(path, os.X_OK):
            raise RejectedError(f"{name} is not executable", f"chmod +x {path}")
    if not os.path.isdir(libdevice):
        raise RejectedError(f"incomplete: no libdevice ({libdevice})", remedy)


def _check_headers(directories: tuple[str, ...], remedy: str | None) -> None:
    """Raise `RejectedError` for headers that none of the directories has."""
    missing = [
        header
        for header in _REQUIRED_HEADERS
        if not any(os.path.isfile(os.path.join(directory, header)) for directory in directories)
    ]
    if missing:
        raise RejectedError(f"incomplete: no {', '.join(missing)}", remedy)


def read_embedded_version(probe: Probe, program: str) -> str | None:
    """Return the last version string in a program's file; None without one.

    This is for programs that do not print their version. The version is stored in the probe's
    memory by the file's content. Raises `OSError`, and `ValueError` for an empty file.
    """
    key = f"embedded version {probe.memory.digest_file(program)}"
    version = probe.memory.get_answer(key)
    if version is None:
        with (
            open_file(program) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            versions = _EMBEDDED_VERSION.findall(data)
        version = versions[-1].decode("ascii") if versions else ""
        probe.memory.put_answer(key, version)
    return version or None


def _find_libraries(root: str, flags: str) -> tuple[str, tuple[str, ...]]:
    """Return the directory of cudart, and the `-L` that nvcc needs to find it; () if it needs none.

    `flags` is nvcc's variable LIBRARIES. Without cudart the directory is `root`'s lib.
    """
    # `"-L/usr/local/cuda/bin/../targets/x86_64-linux/lib/stubs" "-L/…/lib"`
    searched = [os.path.realpath(path) for path in re.findall(r'"-L(/[^"]*)"', flags)]
    fallbacks = [os.path.join(root, name) for name in ("lib64", "lib")]
    for directory in (*searched, *fallbacks):
        if os.path.isfile(os.path.join(directory, "libcudart_static.a")):
            real_directory = os.path.realpath(directory)
            return real_directory, () if real_directory in searched else (f"-L{real_directory}",)
    return fallbacks[-1], ()


def _is_libdevice(name: str) -> bool:
    return name.startswith("libdevice") and name.endswith(".bc")


NVDISASM = "nvdisasm"


def find_disassembler(cuda: Cuda | None) -> str | None:
    """Return the path of nvdisasm, which shows SASS: beside nvcc, on PATH, or in NVIDIA's wheels.

    It reads cubins of its own release and of older ones. No compile needs it."""
    return next((path for path in _list_disassemblers(cuda) if os.access(path, os.X_OK)), None)


def _list_disassemblers(cuda: Cuda | None) -> Iterator[str]:
    """Yield the paths at which nvdisasm may be, the best first."""
    if cuda is not None:
        yield os.path.join(os.path.dirname(cuda.nvcc), NVDISASM)
    if (path := shutil.which(NVDISASM)) is not None:
        yield path
    for root in list_wheel_roots():
        yield os.path.join(root, "bin", NVDISASM)


_WHEELS_OF_RELEASE = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime")
"""The wheels of one compiler, by their names on the package index.

nvidia-cuda-cccl is not one of them. Since CUDA 13.3 its version is CCCL's own (13.3.5.0.6 in CUDA
13.5). Its headers compare the runtime's release with the compiler's themselves.
"""

_DIST_INFO = re.compile(r"(?P<name>[a-z0-9_]+)-(?P<version>\d+(?:\.\d+)*)\.dist-info")


def read_wheel_releases(root: str) -> Mapping[str, str]:
    """Return the versions of the compiler wheels in a root: {"nvidia-nvvm": "13.0.88"}.

    Empty for a root outside NVIDIA's wheels.
    """
    # The root of wheels is `site-packages/nvidia/cu13`.
    site = os.path.dirname(os.path.dirname(root))
    if os.path.basename(os.path.dirname(root)) != "nvidia":
        return {}
    releases = {}
    for file_name in sorted(os.listdir(site)):
        match = _DIST_INFO.fullmatch(file_name)
        if match and (name := match["name"].replace("_", "-")) in _WHEELS_OF_RELEASE:
            releases[name] = match["version"]
    return releases


def find_mixed_releases(releases: Mapping[str, str], nvcc_version: str) -> str | None:
    """Return a phrase that names the wheels which are missing or of another release than nvcc; None
    if all fit. `releases` are versions by wheel."""
    release = parse_release(nvcc_version)
    problems = [
        f"{name} {releases[name]}" if name in releases else f"no {name}"
        for name in _WHEELS_OF_RELEASE
        if name not in releases or parse_release(releases[name]) != release
    ]
    return f"nvcc is {nvcc_version}, but there is {', '.join(problems)}" if problems else None


def format_pip_command(nvcc_version: str) -> str:
    """Return the command that installs an nvcc of this version with the wheels that NVIDIA's own
    cuda-toolkit pins beside it."""
    release = ".".join(map(str, parse_release(nvcc_version)))
    toolkit = f"cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]=={release}.*"
    return f"pip install {_WHEELS_OF_RELEASE[0]}=={nvcc_version} '{toolkit}'"


def parse_release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version's release: (13, 0) of "13.0.88"."""
    return tuple(int(part) for part in version.split(".")[:2])
