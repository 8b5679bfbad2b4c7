"""Find the compilers: one search, in a documented order, that reports every searched location.

The order: the path in the manifest and nothing else; or `CUDA_HOME`, `CUDA_PATH`, every nvcc on
PATH, `/usr/local/cuda` and `/usr/local/cuda-*` (newest first), NVIDIA's wheels in the environment.
The first that is complete and meets the manifest's requirement is taken. The location has no other
effect: fingerprints hold versions and content, never a path.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from tilusbuild.arch import Arch
from tilusbuild.errors import Diagnostic, InputError, Location
from tilusbuild.manifest.sections import is_path, parse_requirement
from tilusbuild.manifest.table import ValueFault
from tilusbuild.process.base import Runner
from tilusbuild.state.digests import DigestMemory
from tilusbuild.toolchain.cuda import Cuda, RejectedError, examine_toolkit
from tilusbuild.toolchain.headers import HeaderDirectories
from tilusbuild.toolchain.host import (
    WRAPPERS,
    HostCompiler,
    ToolFile,
    find_host,
    list_cpu_features,
)
from tilusbuild.toolchain.nvrtc import NvrtcLibrary, list_library_candidates
from tilusbuild.toolchain.nvrtc import examine_library as examine_nvrtc
from tilusbuild.toolchain.nvrtc_places import extract_numbers, list_wheel_roots
from tilusbuild.toolchain.probe import LIBRARY_PATH, Probe, ToolDigests
from tilusbuild.toolchain.reach import Reach, find_reach, is_sandbox_requested

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

_CUDA_VARIABLES = ("CUDA_HOME", "CUDA_PATH")
_INSTALL_ROOT = "/usr/local"
_IN_WHEELS = "NVIDIA's wheels in this Python environment"
NVRTC_REMEDY = "pip install 'tilusbuild[nvrtc]'"

_Tool = TypeVar("_Tool", Cuda, NvrtcLibrary)
_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


class DeviceCompiler(Struct, frozen=True):
    """The compiler of kernels: "nvcc" or "nvrtc"."""

    name: str = "nvcc"
    scripts_choose: bool = True
    """Whether a script's own `device-compiler` overrides it: false if the command line, the
    environment or the running program chose the compiler."""

    def choose_for_script(self, requested: str | None) -> str:
        """Return the compiler for a script whose manifest names `requested` (None for no name)."""
        is_chosen = requested == "none" or (requested is not None and self.scripts_choose)
        return requested if requested is not None and is_chosen else self.name


class ToolchainRequest(Struct, frozen=True):
    """A project's requirements on its compilers.

    `nvcc` is a requirement (">=12.4"), a path (relative to `project_root`) or None for any; `cxx` a
    name to look up on PATH, a path or None for the first. `location` and `cxx_location` are the
    positions of these values in the manifest, `nvcc_key` and `cxx_key` their keys; `name` is the
    toolchain's.
    """

    nvcc: str | None = None
    needs_cuda: bool = True
    project_root: str = "."
    location: Location | None = None
    needs_nvrtc: bool = False
    name: str = ""
    cxx: str | None = None
    cxx_location: Location | None = None
    nvcc_key: str = "toolchain.nvcc"
    cxx_key: str = "toolchain.cxx"
    host_march: str | None = None
    """The manifest's `host-march`."""
    device_compiler: DeviceCompiler = DeviceCompiler()
    """The compiler of kernels; `needs_cuda` and `needs_nvrtc` say which tools are searched for."""


class SearchResult(Struct, frozen=True):
    """One location of a search, whether the tool is there, and why it was chosen or not."""

    where: str
    found: bool
    note: str
    remedy: str | None = None


class Toolchain(Struct, frozen=True, eq=False):
    """The compilers of a build. `cuda` is None for a build of cpu targets.

    `fingerprint_cuda` and `fingerprint_host` are lines for `options.txt`; a program that includes
    headers which they do not cover adds those of `HeaderDirectories.digest_external_headers`.
    """

    cuda: Cuda | None
    host: HostCompiler
    fingerprint_cuda: tuple[str, ...]
    fingerprint_host: tuple[str, ...]
    searched: tuple[SearchResult, ...]
    nvrtc: NvrtcLibrary | None = None
    """The compiler of the kernel pipeline's device code; None: nvcc."""
    fingerprint_nvrtc: tuple[str, ...] = ()
    fingerprint_joiner: tuple[str, ...] = ()
    """Further lines for programs of several architectures."""
    fingerprint_cudart: tuple[str, ...] = ()
    """Further lines for programs that link the shared CUDA runtime."""
    fingerprint_tile: tuple[str, ...] = ()
    """Further lines for programs of CUDA Tile."""
    sandboxed: bool = True
    """Whether compiles run in a sandbox, if the machine has Landlock."""
    device_compiler: DeviceCompiler = DeviceCompiler()
    name: str = ""
    """The toolchain's name in the manifest; "" for `[toolchain]`. It is in no hash."""
    cpu_features: tuple[str, ...] = ()
    """The features of a CPU that the manifest's `host-march` asks for."""
    digests: ToolDigests | None = None
    """The digests behind the fingerprints; None for a toolchain that is not watched for changes."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Toolchain):
            return False
        # Two searches that find the same compilers have different `digests`.
        return asdict(replace(self, digests=None)) == asdict(replace(other, digests=None))

    def __hash__(self) -> int:
        return hash((self.name, self.fingerprint_cuda, self.fingerprint_host))

    def find_reach(self) -> Reach:
        """Return the files of the machine that a compile needs."""
        return find_reach(self.host, self.cuda, self.nvrtc, sandboxed=self.sandboxed)

    def build_environment(self) -> dict[str, str]:
        """Return the complete environment of a compile; the caller adds TMPDIR.

        PATH holds the directories of the host's tools and the system's. Dates are fixed, so that
        `__DATE__` is the same in every build.
        """
        directories = [os.path.dirname(tool.path) for tool in self.host.tools]
        path = os.pathsep.join(dict.fromkeys((*directories, *_SYSTEM_PATH)))
        libraries = {LIBRARY_PATH: self.host.library_path} if self.host.library_path else {}
        dates = {"TZ": "UTC", "SOURCE_DATE_EPOCH": "0"}
        return {"PATH": path, "LANG": "C", "LC_ALL": "C", **dates, **libraries}

    def find_header_directories(self, *, cuda: bool, nvrtc: bool = False) -> HeaderDirectories:
        """Return the directories that a compile searches besides a program's own: NVRTC's with
        `nvrtc`, else the host compiler's and, with `cuda`, the toolkit's."""
        if nvrtc and self.nvrtc is not None:
            return self.nvrtc.find_header_directories()
        toolkit = self.cuda.include_dirs if cuda and self.cuda else ()
        return HeaderDirectories(toolkit, self.host.compiler_headers, self.host.system_headers)

    def find_device_compiler(self, name: str) -> Cuda | NvrtcLibrary | None:
        """Return the compiler of device code that pipelines call "nvcc" or "NVRTC"; None for
        another one, and without it."""
        return {"nvcc": self.cuda, "NVRTC": self.nvrtc}.get(name)

    def list_watched_paths(self) -> tuple[str, ...]:
        """Return the paths of all tools. While none of the files changes, the toolchain is the
        same."""
        libraries = self.nvrtc.files if self.nvrtc else ()
        return tuple(dict.fromkeys((*(tool.path for tool in self.list_tools()), *libraries)))

    def find_changed_path(self, *, is_exhaustive: bool = False) -> str | None:
        """Return the path of a file that has changed since the toolchain was found; None if none
        has. `is_exhaustive` as in `ToolDigests.find_changed_path`."""
        return (
            None
            if self.digests is None
            else self.digests.find_changed_path(is_exhaustive=is_exhaustive)
        )

    def list_tools(self) -> tuple[ToolFile, ...]:
        """Return the files of the host compiler and of nvcc."""
        cuda = self.cuda.tools if self.cuda else ()
        return (*self.host.tools, *self.host.parts, *cuda)

    def check_archs(
        self, archs: Iterable[Arch], location: Location | None = None, *, nvrtc: bool = False
    ) -> None:
        """Raise `InputError` for architectures that nvcc, or NVRTC, does not compile for."""
        diagnostics: list[Diagnostic] = []
        for arch in archs:
            if nvrtc and self.nvrtc is not None:
                diagnostic = _make_nvrtc_arch_error(arch, self.nvrtc, location)
            else:
                diagnostic = _make_arch_error(arch, self.cuda, location)
            if diagnostic is not None:
                diagnostics.append(diagnostic)
        if diagnostics:
            raise InputError(*diagnostics)


def discover_toolchain(
    request: ToolchainRequest, env: Mapping[str, str], runner: Runner, memory: DigestMemory
) -> Toolchain:
    """Return the compilers of a request; the compilers' files are watched for changes from now on.

    Raises `InputError` with the searched locations and a remedy, and `ToolsChangedError` if a tool
    changes meanwhile.
    """
    probe = Probe(runner, env, memory)
    host = find_host_compiler(request, probe)
    digests = ToolDigests(memory)
    # The assembler and the linker are the host's for every program, so its lines are in all.
    fingerprint_host = host.format_fingerprint(digests)
    march = request.host_march or host.baseline or ""
    toolchain = Toolchain(
        cuda=None,
        host=host,
        fingerprint_cuda=(),
        fingerprint_host=fingerprint_host,
        searched=(),
        device_compiler=request.device_compiler,
        name=request.name,
        digests=digests,
        sandboxed=is_sandbox_requested(env),
        cpu_features=list_cpu_features(probe, host.cxx.path, march),
    )
    if request.needs_cuda:
        cuda, searched = find_cuda(request, probe, host)
        if cuda is None:
            raise _make_no_cuda_error(request, searched)
        toolchain = replace(
            toolchain,
            cuda=cuda,
            searched=tuple(searched),
            fingerprint_cuda=(*cuda.format_fingerprint(digests), *fingerprint_host),
            fingerprint_cudart=cuda.format_cudart_fingerprint(digests),
            fingerprint_tile=cuda.format_tile_fingerprint(digests),
        )
    for tool in toolchain.list_tools():
        digests.record_tool(tool.path, tool.digest)
    if request.needs_nvrtc:
        nvrtc = discover_nvrtc(request, env, runner, memory)
        toolchain = replace(
            toolchain,
            nvrtc=nvrtc,
            fingerprint_nvrtc=(*nvrtc.format_fingerprint(digests), *fingerprint_host),
            fingerprint_joiner=nvrtc.format_joiner_fingerprint(digests),
        )
    return toolchain


def find_host_compiler(request: ToolchainRequest, probe: Probe) -> HostCompiler:
    """Return the host compiler of the manifest, of NVCC_CCBIN or of CXX, else the first on PATH.
    Raises `InputError`."""
    if request.cxx is None:
        return _find_host_of_environment(probe) or find_host(probe)
    cxx = _resolve_in_project(request, request.cxx) if is_path(request.cxx) else request.cxx
    return find_host(probe, cxx, request.cxx_location, request.cxx_key)


def _find_host_of_environment(probe: Probe) -> HostCompiler | None:
    """Return the host compiler that NVCC_CCBIN or CXX names; None if neither is set. Raises
    `InputError`."""
    for name in ("NVCC_CCBIN", "CXX"):
        text = probe.env.get(name, "")
        # "ccache g++": wrappers are skipped, as on PATH.
        words = [word for word in text.split() if os.path.basename(word) not in WRAPPERS]
        if not words:
            continue
        cxx, *options = words
        if options:
            message = f'{name} = "{text}": options of the host compiler are not used'
            hint = f"put them into the manifest's flags, and set {name}={cxx}"
            raise InputError(Diagnostic(message, hint=hint))
        # nvcc takes a directory, too.
        cxx = os.path.join(cxx, "g++") if os.path.isdir(cxx) else cxx
        return find_host(probe, os.path.abspath(cxx) if is_path(cxx) else cxx, None, name)
    return None


def discover_nvrtc(
    request: ToolchainRequest, env: Mapping[str, str], runner: Runner, memory: DigestMemory
) -> NvrtcLibrary:
    """Return the NVRTC of a request; the machine need not have another compiler. Raises
    `InputError`."""
    nvrtc, searched = find_nvrtc(request, Probe(runner, env, memory))
    if nvrtc is not None:
        return nvrtc
    lines = [f"  {entry.where}: {entry.note}" for entry in searched]
    if not lines:
        lines = ["  there is no libnvrtc beside an nvcc, in a CUDA toolkit or in NVIDIA's wheels"]
    hint = "\n".join(["looked in:", *lines, f"to install one: {NVRTC_REMEDY}"])
    raise InputError(Diagnostic("no NVRTC found", request.location, hint))


def find_nvrtc(
    request: ToolchainRequest, probe: Probe
) -> tuple[NvrtcLibrary | None, list[SearchResult]]:
    """Return the NVRTC of a request (None if there is none) and a note on each location of the
    search.

    The locations are those of nvcc, and a requirement on nvcc's version holds for NVRTC too. Raises
    `InputError` for a malformed requirement.
    """
    roots = [(where, root) for where, root, _ in _list_toolkits(probe)]
    # The toolkit that the manifest names comes first. Others follow, since it may have no NVRTC.
    if (requested_path := _find_requested_path(request)) is not None:
        roots.insert(0, (request.nvcc_key, _find_root(requested_path)))
    directories = [root for _, root in roots]

    def examine_candidate(path: str) -> tuple[NvrtcLibrary, str]:
        return examine_nvrtc(path, probe, directories), path

    return _search_locations(request, list_library_candidates(roots), examine_candidate)


def find_cuda(
    request: ToolchainRequest, probe: Probe, host: HostCompiler
) -> tuple[Cuda | None, list[SearchResult]]:
    """Return the toolkit of a request (None if there is none) and a note on each location.

    Raises `InputError` for a malformed requirement, and for a CUDA_HOME without nvcc.
    """
    if _find_requested_path(request) is None:
        _check_cuda_home(probe.env)

    def examine_candidate(path: str) -> tuple[Cuda, str]:
        cuda = examine_toolkit(path, probe, host.cxx.path)
        return cuda, cuda.nvcc  # several names on PATH can lead to one toolkit

    return _search_locations(request, _list_candidates(request, probe), examine_candidate)


def _search_locations(
    request: ToolchainRequest,
    locations: Iterable[tuple[str, str | None]],
    examine: Callable[[str], tuple[_Tool, str]],
) -> tuple[_Tool | None, list[SearchResult]]:
    """Return the first tool that meets the request's requirement, and one result per location.

    A location is its description and the path there; None where the description leads to no path.
    `examine` returns the tool at a path and its identity, or raises `RejectedError`. A tool is not
    compared twice under one identity.
    """
    requirement = _parse_requirement(request)
    chosen: _Tool | None = None
    searched: list[SearchResult] = []
    seen: set[str] = set()
    for where, path in locations:
        if path is None:
            searched.append(SearchResult(where, found=False, note="none"))
            continue
        # Further locations are not examined, which takes time. They are named all the same, since
        # users ask why one was not chosen.
        if chosen is not None:
            note = "not needed: an earlier one was used"
            searched.append(SearchResult(where, found=True, note=note))
            continue
        try:
            tool, identity = examine(path)
        except RejectedError as rejected:
            exists = os.path.exists(path)
            searched.append(SearchResult(where, exists, str(rejected), rejected.remedy))
            continue
        if identity in seen:
            note = f"the same as before: {identity}"
        elif requirement is not None and tool.version not in requirement:
            note = f"version {tool.version} does not meet {request.nvcc}"
        else:
            chosen = tool
            note = f"version {tool.version}: taken"
        searched.append(SearchResult(where, found=True, note=note))
        seen.add(identity)
    return chosen, searched


def _list_toolkits(probe: Probe) -> Iterator[tuple[str, str, str]]:
    """Yield (location in words, root, path of nvcc) of each toolkit in the order of preference.

    Root and path may not exist: a variable may be wrong, and a toolkit with NVRTC alone has no
    nvcc.
    """
    variables = ((name, probe.env.get(name)) for name in _CUDA_VARIABLES)
    newest_first = sorted(glob.glob(f"{_INSTALL_ROOT}/cuda-*"), key=extract_numbers, reverse=True)
    installed = (f"{_INSTALL_ROOT}/cuda", *newest_first)
    # Wheels come last: other packages bring them along, while the user installed the toolkits.
    yield from ((name, root, os.path.join(root, "bin", "nvcc")) for name, root in variables if root)
    yield from (("PATH", _find_root(path), path) for path in probe.find_all_executables("nvcc"))
    yield from ((f"{_INSTALL_ROOT}/cuda*", root, f"{root}/bin/nvcc") for root in installed)
    yield from (
        (_IN_WHEELS, root, os.path.join(root, "bin", "nvcc")) for root in list_wheel_roots()
    )


def _check_cuda_home(env: Mapping[str, str]) -> None:
    """Raise `InputError` if CUDA_HOME, or CUDA_PATH without one, names a directory without nvcc:
    another toolkit than the user's would be taken."""
    for name in _CUDA_VARIABLES:
        if root := env.get(name):
            nvcc = os.path.join(root, "bin", "nvcc")
            if not os.path.isfile(nvcc):
                hint = f"set it to the root of a toolkit, or unset {name}"
                raise InputError(Diagnostic(f"{name} is {root}, but there is no {nvcc}", hint=hint))
            return


def _list_candidates(request: ToolchainRequest, probe: Probe) -> Iterator[tuple[str, str | None]]:
    """Yield (location in words, path of nvcc) in the order of preference. The path is None for a
    location without any nvcc, so that messages name the location."""
    if (requested_path := _find_requested_path(request)) is not None:
        yield f"{request.nvcc_key} ({requested_path})", requested_path
        return
    toolkits = [*_list_toolkits(probe)]
    for location in (*_CUDA_VARIABLES, "PATH", f"{_INSTALL_ROOT}/cuda*", _IN_WHEELS):
        paths = [path for where, _, path in toolkits if where == location]
        # A variable that leads to no nvcc is a mistake, which its note shows; elsewhere a toolkit
        # may well have none.
        if location not in _CUDA_VARIABLES:
            paths = [path for path in paths if os.path.isfile(path)]
        yield from ((f"{location} ({path})", path) for path in paths)
        if not paths:
            yield location, None


def _find_root(nvcc: str) -> str:
    return os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))


def _find_requested_path(request: ToolchainRequest) -> str | None:
    """Return the absolute path of nvcc in a request; None if the request names none by path."""
    if request.nvcc is None or not is_path(request.nvcc):
        return None
    path = _resolve_in_project(request, request.nvcc)
    return os.path.join(path, "bin", "nvcc") if os.path.isdir(path) else path


def _resolve_in_project(request: ToolchainRequest, path: str) -> str:
    return os.path.abspath(os.path.join(request.project_root, os.path.expanduser(path)))


def _parse_requirement(request: ToolchainRequest) -> SpecifierSet | None:
    """Return the requirement on the version of nvcc; None for a path or none. Raises
    `InputError`."""
    if request.nvcc is None or is_path(request.nvcc):
        return None
    try:
        return parse_requirement(request.nvcc)
    except ValueFault as error:
        raise InputError(
            Diagnostic(f"{request.nvcc_key} {error}", request.location, error.hint)
        ) from error


def _make_no_cuda_error(request: ToolchainRequest, searched: Sequence[SearchResult]) -> InputError:
    """Return the error with the searched locations and the remedies."""
    lines = ["looked in:", *(f"  {entry.where}: {entry.note}" for entry in searched)]
    remedies = dict.fromkeys(entry.remedy for entry in searched if entry.remedy)
    lines += [f"to fix it: {remedy}" for remedy in remedies]
    if not remedies:
        lines.append("to install one: pip install 'tilusbuild[cuda]'")
    if request.name:
        lines.append("or give the path of one beside others (docs/toolchain.md)")
    message = "no nvcc found"
    if request.nvcc is not None:
        message += f' for {request.nvcc_key} = "{request.nvcc}"'
    return InputError(Diagnostic(message, request.location, "\n".join(lines)))


def _make_nvrtc_arch_error(
    arch: Arch, nvrtc: NvrtcLibrary, location: Location | None
) -> Diagnostic | None:
    """Return the diagnostic for an architecture that NVRTC does not compile for; None if it
    does."""
    if nvrtc.can_target(arch):
        return None
    supported = ", ".join(f"sm_{number}" for number in nvrtc.numbers)
    return Diagnostic(
        f"NVRTC {nvrtc.version} does not compile for {arch.name}", location, f"it knows {supported}"
    )


def _make_arch_error(arch: Arch, cuda: Cuda | None, location: Location | None) -> Diagnostic | None:
    """Return the diagnostic for an architecture that nvcc does not compile for; None if it does."""
    if arch.is_cpu or (cuda is not None and cuda.can_target(arch)):
        return None
    if cuda is None:
        return Diagnostic(f"{arch.name} needs nvcc, and this toolchain has none", location)
    hint = f"this nvcc ({cuda.version}) knows {', '.join(cuda.archs)}"
    if arch.since > cuda.release:
        since = ".".join(map(str, arch.since))
        hint = f"it needs CUDA {since} or later; {hint}"
    elif arch.until is not None and cuda.release >= arch.until:
        until = ".".join(map(str, arch.until))
        hint = f"it needs a CUDA before {until}; {hint}"
    return Diagnostic(f"nvcc {cuda.version} does not compile for {arch.name}", location, hint)
