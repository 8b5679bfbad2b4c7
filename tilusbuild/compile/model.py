"""What a compile is made of: a `Recipe`, its `Pipeline`, and the `Step`s and `Tools` of it.

A `Recipe` holds everything that decides the bytes of a `lib.so` but the toolchain: equal recipes
and equal toolchains give equal libraries, wherever they are compiled. A `Pipeline` is all that
differs between the ways from a source to a `lib.so`. It is a stateless object: its answers follow
from the recipe alone, so that `options.txt`, `compile.sh` and the compile agree; a machine's paths
come in as `Tools` or as a `Toolchain`. Recipes and pipelines name each other, so they are in one
file; all of `compile/` imports it and it imports nothing of `compile/`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from tilusbuild.arch import Arch
from tilusbuild.expr import Expr, Value
from tilusbuild.render.closure import Outside
from tilusbuild.signature.model import Signature

if TYPE_CHECKING:
    from tilusbuild.binary.cubin import KernelUsage, PtxasUsage
    from tilusbuild.binary.fatbin import CodeImage
    from tilusbuild.errors import Diagnostic, Location
    from tilusbuild.process.base import OnWorker
    from tilusbuild.toolchain import HeaderDirectories, Toolchain
    from tilusbuild.toolchain.nvrtc import NvrtcLibrary
    from tilusbuild.toolchain.reach import Reach

# Compilers write names of inputs into debug information, `assert` and symbols. Through this link
# the names are the same in every directory.
HERE = "/proc/self/cwd"
SOURCE = f"{HERE}/source.cu"

PRODUCT, OBJECT = "lib.so", "object.o"
"""The file that a program is compiled to: a library, or one of a library's objects."""

STAND_IN = "needed.s"
"""The assembly file of the empty libraries, one for each soname of `Link.needed`."""
# In a file of words, libiberty's `buildargv` ends a word at a blank, and a quote begins one.
_LIST_ESCAPED, _ESCAPE = re.compile(r"[\s\\'\"]"), r"\\\g<0>"
_NO_MAPPING = '.section .note.GNU-stack,"",%progbits\n'

LINK_OPTIONS, LINK_INPUTS = "link.txt", "objects.txt"
"""The files of the words of a link: the linker's options, and the objects."""

EXPORTS_MAP = "exports.map"
EXPORTS_MAP_TEXT = "{ global: __tvm_ffi_*; launch; launch_error; workspace; local: *; };\n"


class Launch(Struct, frozen=True):
    """How a kernel is launched: up to three expressions each, over constants and arguments."""

    grid: tuple[Expr, ...]
    block: tuple[Expr, ...]
    smem: Expr
    """Bytes of dynamic shared memory of a block."""
    cluster: tuple[Expr, ...] = ()
    """Blocks of a cluster; () for no clusters."""
    cooperative: Expr | None = None
    """Whether all blocks must be resident at once."""
    pdl: Expr | None = None
    """Whether it may start before the kernel ahead of it in the stream has ended."""
    carve_out: Expr | None = None
    """Percent of an SM's memory that should be shared memory."""

    @property
    def has_attributes(self) -> bool:
        """Whether the launch has more than a grid, a block and shared memory."""
        return len(self.lines) > 3

    @property
    def lines(self) -> tuple[tuple[str, tuple[Expr, ...]], ...]:
        """The launch's expressions by the manifest's keys, without those that are not set."""
        optional_lines = (
            ("cooperative", self.cooperative),
            ("pdl", self.pdl),
            ("carve-out", self.carve_out),
        )
        return (
            ("grid", self.grid),
            ("block", self.block),
            ("smem", (self.smem,)),
            *([("cluster", self.cluster)] if self.cluster else []),
            *((name, (value,)) for name, value in optional_lines if value is not None),
        )


class Prune(Struct, frozen=True):
    """Limits that a compiled kernel must keep to be linked. None: no limit."""

    max_registers: int | None = None
    max_spill_bytes: int | None = None
    """Bytes of spill stores and spill loads, together."""
    min_blocks_per_sm: int | None = None


class Link(Struct, frozen=True):
    """How objects become one library, or an entry is linked."""

    soname: str = ""
    inputs: tuple[str, ...] = ()
    """Objects and archives to link as they are: names below `include`."""
    dirs: tuple[str, ...] = ()
    """Directories below `include` that `libs` are looked for in first."""
    libs: tuple[str, ...] = ()
    """Libraries, as after `-l`: those in no directory are the toolkit's or the system's."""
    rpath: tuple[str, ...] = ()
    undefined: bool = False
    """Whether a symbol may be defined by nothing."""
    cudart: str = "static"
    needed: tuple[str, ...] = ()
    """Sonames that the library asks for; what they define is not looked for."""
    objects: tuple[str, ...] = ()
    """Programs, by hash."""


class Includes(Struct, frozen=True):
    """The headers that a program's source can reach."""

    digest: str | None = None
    """The name of their layout in the cache; None without headers."""
    roots: tuple[tuple[str, bool], ...] = ()
    """(directory in the include layout, found by #include "…" only), in order of search."""


class Options(Struct, frozen=True):
    """The options of a compile besides the source. A pipeline need not use all of them."""

    flags: tuple[str, ...] = ()
    """For nvcc, or for the host compiler on the cpu target."""
    defines: tuple[tuple[str, str], ...] = ()
    std: str = "c++17"
    host_march: str | None = None
    """The `-march` of host code; None for x86-64-v2 or armv8-a."""
    cudart: str = "static"
    """How host code gets the CUDA runtime: "static" or "shared"."""
    compress: bool = False
    """Whether device code is packed: `list_compression`."""


class PartOptions(Struct, frozen=True):
    """How a library's object is compiled."""

    language: str = "cu"
    """The language of the source: "cu", "c++" or "c"."""
    rdc: bool = False
    """Whether device code is relocatable, and is linked again with the library."""
    seeded: bool = False
    """Whether nvcc has `-frandom-seed`."""
    written: bool = False
    """Whether the flags are the whole command of another build, with its standard, macros,
    architectures, and directories of headers in their places. Then only those flags are added that
    keep names and directories of this machine out of the object."""


class Recipe(Struct, frozen=True):
    """One program to compile."""

    pipeline: Pipeline
    archs: tuple[Arch, ...]
    ptx: bool
    source: str
    symbol: str
    """The kernel, host function or cpu function: an `extern "C"` name; a kernel's may be of C++."""
    signature: Signature
    """Resolved: no constant is left in it."""
    launch: Launch | None
    """None if the pipeline's launcher starts no kernel."""
    constants: Mapping[str, Value]
    """The values that the launch's expressions see, by name: parameters, schedule, derived."""
    includes: Includes = Includes()
    options: Options = Options()
    prune: Prune | None = None
    unit: tuple[str, ...] = ()
    """The kernels of which the source is one translation unit, `symbol` among them; () for a
    program that is compiled alone."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that were rendered for the program, by the name that it includes them by."""
    part: PartOptions = PartOptions()
    """For a program that is an object, or a library of objects."""
    link: Link | None = None
    """For a program that is a library of objects; None for others."""
    log: str = ""
    """The output of the compiler of a cubin. It is in no identity."""
    recorded: Mapping[str, str] | None = None
    """The generated files, with the launcher, of a program that is compiled again from its entry.
    Signature and launch are then unknown, and are not checked."""

    @property
    def objects(self) -> tuple[str, ...]:
        """The hashes of the programs whose objects are linked; `format_object_name` names the
        file of each."""
        return self.link.objects if self.link is not None else ()


class Findings(Struct):
    """The facts about the outputs that a pipeline's checks have read so far."""

    usages: list[tuple[Arch, KernelUsage]] = field(default_factory=list)
    """Of the kernel, for each architecture."""
    ptxas: tuple[PtxasUsage, ...] = ()
    images: tuple[CodeImage, ...] = ()


class Step(Struct, frozen=True):
    """One command. `argv[0]` is a tool's placeholder; `output` is the file that it must make."""

    name: str
    argv: tuple[str, ...]
    output: str
    of_program: bool = True
    """Whether the step reads the author's text: otherwise no failure is the program's fault."""
    alone: tuple[str, ...] = ()
    """For a step that programs of a unit share: the further arguments with which it compiles one
    program alone, after it has failed for all of them."""
    listed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The words that the command reads from files, by the file's name."""
    code: str = ""
    """The architecture of which the step makes the device code, by steps in a row that programs of
    other architectures share: the last one makes the cubin."""

    @property
    def tool(self) -> str:
        """The tool's name, for messages."""
        return self.argv[0].strip("{}")

    @property
    def by_itself(self) -> Step:
        """The shared step of a unit, changed to compile one program alone."""
        return replace(self, argv=(self.argv[0], *self.alone, *self.argv[1:]), alone=())


TOOLKIT = "{toolkit}"
"""Stands for the directory of the toolkit's headers, in a command of another build."""


class UserWord(str):
    """A user's argument that looks like a placeholder and must not be replaced."""


def is_placeholder(word: str) -> bool:
    """Return whether a word of a command stands for a tool."""
    return word.startswith("{") and word.endswith("}") and not isinstance(word, UserWord)


class Tools(Struct, frozen=True):
    """The tools of one toolchain as a compile uses them: paths and environment.

    `collect_tools` looks for files, so a compile calls it, and a plan does not."""

    paths: Mapping[str, tuple[str, ...]]
    environment: Mapping[str, str]
    directories: Mapping[str, str]
    """Absolute paths of directories and tools, and the names that replace them in a log."""
    cc_fingerprint: tuple[str, ...] = ()
    """The fingerprint of the C compiler: a part of the keys of launchers and checks."""
    nvrtc: NvrtcLibrary | None = None
    """The NVRTC library, also for the commands of workers."""
    links: Mapping[str, str] = field(default_factory=dict)
    """The tools that others look up by name, in `TOOLS`: name to path."""
    reach: Reach | None = None
    """The files of the machine that a compile needs; with None, reads are not checked."""
    ld_lists: bool = False
    """Whether the linker can list the files that it read."""

    def fill_placeholders(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return a command with its placeholders replaced by paths."""
        command: list[str] = []
        for word in argv:
            replacement = self.paths.get(word) if is_placeholder(word) else None
            command += (word,) if replacement is None else replacement
        return tuple(command)


class LauncherKind(Struct, frozen=True):
    """What a launcher does after it has checked the arguments."""

    part: str
    """The C fragment that does it, in `launcher_parts`."""
    cuda: bool
    """Whether it is for a GPU: with devices and streams, and tensors in device memory."""
    starts_kernel: bool
    """Whether it starts the kernel itself, with the manifest's launch; else it calls the template's
    function. Such a library is linked by ld alone and needs no other library."""
    passes_stream: bool
    """Whether the template's function takes a stream and returns an error number."""

    @property
    def is_there(self) -> bool:
        """Whether there is a launcher: objects and libraries of objects have none."""
        return bool(self.part)


class DumpInProgress(Protocol):
    """The interface by which a pipeline runs commands and adds files for `--dump-ir`."""

    def run(self, step: Step, /) -> bool: ...
    def disassemble(self, path: str, /) -> None: ...
    def copy(self, output: str, name: str, /) -> None: ...
    @property
    def work(self) -> str: ...


TIMES_OF_HEADERS = "-lineinfo writes the times of headers into the code, and a worker has its own"


class Pipeline(ABC):
    """One way to compile: five methods to write, and defaults for the rest."""

    name: ClassVar[str]  # as in options.txt
    compiler: ClassVar[str]  # of the source: "nvcc", "NVRTC" or a host compiler
    launcher: ClassVar[LauncherKind]
    product: ClassVar[str] = PRODUCT
    """The file of `module/` that is made."""
    source_name: ClassVar[str] = "source.cu"
    """The file of the source in `module/`."""
    has_source: ClassVar[bool] = True
    """Whether a program has a source; else it is made of other programs."""
    host_code: ClassVar[bool] = True
    """Whether the compiler compiles host code too, and so searches the system's headers. If not,
    the cache holds the launcher's object, so that `compile.sh` needs no C compiler."""
    fixed_files: ClassVar[Mapping[str, str]] = {EXPORTS_MAP: EXPORTS_MAP_TEXT}
    """Files beside the source, by name. The same for all programs, so they are in no identity."""
    implied_headers: ClassVar[tuple[str, ...]] = ()
    """The headers that the compiler includes by itself, by name."""
    groups: ClassVar[bool] = False
    """Whether programs with one source can be one translation unit."""
    standards: ClassVar[tuple[str, ...] | None] = None
    """The values of `std` that the compiler knows; None if the compiler itself reports others."""

    def can_compile(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        """Return whether the pipeline compiles a script: `target` is "cpu" or "cuda", `has_kernel`
        whether tilusbuild launches the script's kernel, `device_compiler` "nvcc", "nvrtc" or
        "none". False for pipelines of libraries, which are chosen by a script's form."""
        return False

    @abstractmethod
    def list_commands(self, recipe: Recipe) -> Sequence[Step]:
        """Return the commands that make `lib.so`, without the launcher's; the link is the last."""

    @abstractmethod
    def select_fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        """Return the lines of `options.txt` on the tools: one for each that can change a byte."""

    @abstractmethod
    def list_header_directories(self, toolchain: Toolchain) -> HeaderDirectories:
        """Return the directories that the compiler searches besides the program's own."""

    def list_outside_directories(self, toolchain: Toolchain) -> Outside:
        """Return the directories that are searched after the program's own headers."""
        by_owner = self.list_header_directories(toolchain)
        directories = (*by_owner.toolkit, *by_owner.compiler, *by_owner.system)
        return Outside(directories, self.implied_headers)

    @abstractmethod
    def dump_intermediates(self, recipe: Recipe, dump: DumpInProgress) -> None:
        """Write the intermediate files of a finished compile for `--dump-ir`."""

    # What stands in a program's directory

    def derive_source(self, text: str, symbol: str, unit: Sequence[str] = ()) -> str:
        """Return the text to compile for `symbol`, made of a rendered source; with `unit`, for all
        kernels of the unit."""
        return text

    def generate_files(self, recipe: Recipe) -> Mapping[str, str]:
        """Return the files beside the source that follow from the recipe. Raises `ValueError`."""
        if recipe.link is None:
            return {}
        steps = self.list_commands(recipe)
        stand_in = {STAND_IN: _NO_MAPPING} if any(STAND_IN in s.argv for s in steps) else {}
        return stand_in | {
            name: "".join(f"{_LIST_ESCAPED.sub(_ESCAPE, word)}\n" for word in words)
            for step in steps
            for name, words in step.listed.items()
        }

    def collect_own_files(self, recipe: Recipe) -> Mapping[str, str]:
        """Return all files beside the source that are the program's own: `generate_files`, and
        rendered headers. Raises `ValueError`."""
        generated = self.generate_files(recipe) if recipe.recorded is None else recipe.recorded
        return {**generated, **recipe.headers}

    def list_links(self, recipe: Recipe, tools: Tools) -> Mapping[str, str]:
        """Return the symbolic links, name to target, of the private directory on this machine."""
        return self.list_include_links(recipe)

    def list_include_links(self, recipe: Recipe) -> Mapping[str, str]:
        """Return the links of `list_links` that rename the program's own headers."""
        return {}

    def copies_headers(self, recipe: Recipe) -> bool:
        """Return whether headers are copied with a fixed time: the compiler records their times."""
        return False

    def find_worker_command(self, step: Step, tools: Tools) -> OnWorker | None:
        """Return how another machine runs a step that has `list_remote_outputs`; None where it
        runs the same command."""
        return None

    def list_remote_outputs(self, step: Step) -> tuple[str, ...]:
        """Return the outputs of a step that a worker may run if `explain_local_only` returns None:
        only the step that compiles, since the others take milliseconds."""
        compiles_source = step.argv[0] in ("{nvcc}", "{cxx}") and SOURCE in step.argv
        return (step.output,) if compiles_source else ()

    def explain_local_only(self, recipe: Recipe, notes: Sequence[Diagnostic] = ()) -> str | None:
        """Return why no other machine may run the step that reads the source; None where one
        may. `notes` are those of the closure."""
        if self.copies_headers(recipe):
            return TIMES_OF_HEADERS
        return self.explain_denied_flag(recipe)

    def explain_denied_flag(self, recipe: Recipe) -> str | None:
        """Return a sentence on the first flag that may mean something else on a worker; None
        without one."""
        if not recipe.options.flags:
            return None
        # Imported only here: a manifest that was checked before needs none of it.
        from tilusbuild.manifest.denied_flags import find_denied_flags

        is_cpu = self.compiler == "g++"
        for denied in find_denied_flags(recipe.options.flags, cpu=is_cpu):
            return (
                f"{denied.text} needs unsafe-flags: no hash covers what it reads or means on a "
                "worker"
            )
        return None

    # What is checked, before a compile and after each of its steps

    def find_source_problem(self, recipe: Recipe, headers: str | None) -> str | None:
        """Return a compiler's error line for a mistake that the compiler would not report; None
        without one. `headers` is the directory of the program's headers."""
        return None

    def check_output(
        self, recipe: Recipe, step: Step, path: str, log: str, findings: Findings
    ) -> None:
        """Check what a step wrote to `path`, and add to `findings`. Raises `StepError`."""
        return

    # What others ask

    def find_toolkit(self, recipe: Recipe) -> str | None:
        """Return the version of the CUDA toolkit that made the program's code, if that is not the
        toolchain's; else None."""
        return None

    def find_source_command(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the command that reads the source, for editors. Raises `ValueError` for none."""
        return next(step.argv for step in self.list_commands(recipe) if SOURCE in step.argv)

    def check_archs(
        self, toolchain: Toolchain, archs: Sequence[Arch], ptx: bool, location: Location | None
    ) -> None:
        """Raise `InputError` for architectures that the tools cannot put into one library."""
        toolchain.check_archs(archs, location)

    def find_refused_flags(self, flags: Iterable[str]) -> Iterator[tuple[int, str, str]]:
        """Yield the flags that the compiler would refuse only once it runs: the index of each among
        the flags, the flag, and a hint."""
        return iter(())
