"""What a pipeline is: everything that differs between the ways from a source to a `lib.so`.

A pipeline is a stateless object. What it says about a recipe must follow from the recipe alone, so
that `options.txt`, `compile.sh` and the compile agree; paths of a machine come in as `Tools`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.compile.launcher import LauncherKind
from tilusbuild.compile.model import Findings, Recipe
from tilusbuild.compile.steps import EXPORTS_MAP, EXPORTS_MAP_TEXT, SOURCE, Step
from tilusbuild.compile.tools import Tools

if TYPE_CHECKING:
    from tilusbuild.arch import Arch
    from tilusbuild.compile.dump import Dump
    from tilusbuild.errors import Place
    from tilusbuild.toolchain import HeaderDirectories, Toolchain


@dataclass(frozen=True, slots=True)
class RefusedFlag:
    """A flag that a pipeline's compiler does not know: its index among the flags, and a hint."""

    index: int
    flag: str
    hint: str


class Pipeline(ABC):
    """One way to compile. Subclasses state the facts and give the commands."""

    name: ClassVar[str]
    """As in `options.txt`."""
    compiler: ClassVar[str]
    """What compiles the source, for messages."""
    launcher: ClassVar[LauncherKind]
    needs: ClassVar[frozenset[str]] = frozenset()
    """"nvcc", "nvrtc": what has to be found besides the host tools."""
    fixed_files: ClassVar[Mapping[str, str]] = {EXPORTS_MAP: EXPORTS_MAP_TEXT}
    """Files beside the source that are the same for all programs, and so in no identity."""
    ships_launcher: ClassVar[bool] = False
    """Whether the cache holds the launcher's object: for `compile.sh` without a C compiler."""
    script_tools: ClassVar[str] = "NVCC, CXX, CC, AS and LD"
    """The variables that `compile.sh` takes."""
    script_start: ClassVar[str] = ""
    """What `compile.sh` does first; `@SHARED@` is the directory of the launcher."""
    script_headers: ClassVar[str] = ""
    """What `compile.sh` does once the private directory has its files."""
    needs_no_library: ClassVar[bool] = False
    """Whether a `lib.so` that names a library to load is wrong."""
    has_c_library: ClassVar[bool] = True
    """Whether a source may include the headers of the C and C++ libraries."""
    standards: ClassVar[tuple[str, ...] | None] = None
    """The values of `std` that the compiler knows; None: it says so itself."""

    @abstractmethod
    def applies(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        """Return whether it compiles such a script: `target` is "cpu" or "cuda", `has_kernel`
        whether the template defines a kernel that tilusbuild launches, `device_compiler` the
        setting."""

    @abstractmethod
    def commands(self, recipe: Recipe) -> Sequence[Step]:
        """Return the commands that make `lib.so`, the link last; the launcher's is added before
        it."""

    @abstractmethod
    def fingerprint(self, recipe: Recipe, tools: Tools) -> tuple[str, ...]:
        """Return the lines of `options.txt` that say which tools a recipe's library comes from."""

    @abstractmethod
    def headers(self, toolchain: Toolchain) -> HeaderDirectories:
        """Return the directories that a compile searches besides the program's own."""

    @abstractmethod
    def dump(self, recipe: Recipe, dump: Dump) -> None:
        """Write what `--dump-ir` shows of a compile that has run."""

    def options(self, recipe: Recipe) -> list[str]:
        """Further lines for the head of `options.txt`."""
        return []

    def generated(self, recipe: Recipe) -> Mapping[str, str]:
        """Files beside the source that are made for this recipe. Raises `ValueError`."""
        return {}

    def links(self, recipe: Recipe, tools: Tools) -> Mapping[str, str]:
        """Symbolic links of the private directory, for a compile on this machine."""
        return self.include_links(recipe)

    def include_links(self, recipe: Recipe) -> Mapping[str, str]:
        """Return those of the links that lead to the program's own headers, under other names."""
        return {}

    def copies_headers(self, recipe: Recipe) -> bool:
        """Return whether headers are copied with a fixed time, because the compiler records
        theirs."""
        return False

    def problem(self, recipe: Recipe) -> str | None:
        """Return why there is no point in compiling."""
        return None

    def source_problem(self, recipe: Recipe, headers: str | None) -> str | None:
        """Return what the compiler would accept, and must not; `headers` is the directory of the
        copies. One line, as a compiler words an error."""
        return None

    def judge(self, recipe: Recipe, step: Step, path: str, log: str, found: Findings) -> None:
        """Check what a step made at `path`, and add to what was found. Raises `StepError`."""
        return

    def device_image(self, recipe: Recipe) -> str | None:
        """Return the file of device code, where there is one by itself."""
        return None

    def source_command(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the command that reads the source, for editors. Raises `ValueError` if there is
        none."""
        return next(step.argv for step in self.commands(recipe) if SOURCE in step.argv)

    def toolkit_version(self, toolchain: Toolchain) -> str | None:
        """Return the version of the CUDA toolkit that the device code comes from, where there is
        any."""
        return None

    def check_archs(self, toolchain: Toolchain, archs: Iterable[Arch], place: Place | None) -> None:
        """Raise `InputError` for architectures that the compiler does not compile for."""
        toolchain.check_archs(archs, place)

    def tools_problem(
        self, archs: Sequence[Arch], ptx: bool, toolchain: Toolchain
    ) -> tuple[str, str] | None:
        """Return which tool is missing for these architectures in one library, and a hint."""
        return None

    def refused_flags(self, flags: Iterable[str]) -> Iterator[RefusedFlag]:
        """Return the flags that the compiler does not know, where it would not say so itself."""
        return iter(())
