"""What a pipeline is: all that differs between the ways from a source to a `lib.so`.

A pipeline is a stateless object. Its answers follow from the recipe alone, so that `options.txt`,
`compile.sh` and the compile agree; a machine's paths come in as `Tools` or as a `Toolchain`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.compile.launcher import LauncherKind
from tilusbuild.compile.model import Findings, Recipe, RefusedFlag
from tilusbuild.compile.module import ScriptParts
from tilusbuild.compile.steps import (
    EXPORTS_MAP,
    EXPORTS_MAP_TEXT,
    PRODUCT,
    SOURCE,
    Step,
    Tools,
)
from tilusbuild.render.outside import Outside

if TYPE_CHECKING:
    from tilusbuild.arch import Arch
    from tilusbuild.compile.dump import Dump
    from tilusbuild.errors import Diagnostic, Place
    from tilusbuild.process.base import OnWorker
    from tilusbuild.toolchain import HeaderDirectories, Toolchain


TIMES_OF_HEADERS = "-lineinfo writes the times of headers into the code, and a worker has its own"


class Pipeline(ABC):
    """One way to compile: five methods to write, and defaults for the rest."""

    name: ClassVar[str]  # as in options.txt
    compiler: ClassVar[str]  # of the source: "nvcc", "NVRTC" or a host compiler
    launcher: ClassVar[LauncherKind]
    product: ClassVar[str] = PRODUCT
    """The file of `module/` that is made."""
    has_source: ClassVar[bool] = True
    """Whether a program has a source; else it is made of other programs."""
    host_code: ClassVar[bool] = True
    """Whether the compiler compiles host code too, and so searches the system's headers."""
    fixed_files: ClassVar[Mapping[str, str]] = {EXPORTS_MAP: EXPORTS_MAP_TEXT}
    """Files beside the source, by name. The same for all programs, so they are in no identity."""
    script: ClassVar[ScriptParts] = ScriptParts()
    implied_headers: ClassVar[tuple[str, ...]] = ()
    """The headers that the compiler includes by itself, by name."""
    groups: ClassVar[bool] = False
    """Whether programs with one source can be one translation unit."""
    standards: ClassVar[tuple[str, ...] | None] = None
    """The values of `std` that the compiler knows; None: it reports an unknown one itself."""

    @abstractmethod
    def applies(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        """Return whether it compiles a script: `target` is "cpu" or "cuda", `has_kernel` whether
        tilusbuild launches the script's kernel, `device_compiler` "nvcc" or "nvrtc"."""

    @abstractmethod
    def commands(self, recipe: Recipe) -> Sequence[Step]:
        """Return the commands that make `lib.so`, without the launcher's; the link is the last."""

    @abstractmethod
    def fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        """Return the lines of `options.txt` on the tools: one for each that can change a byte."""

    @abstractmethod
    def headers(self, toolchain: Toolchain) -> HeaderDirectories:
        """Return the directories that the compiler searches besides the program's own."""

    def outside(self, toolchain: Toolchain) -> Outside:
        """Return what is searched after the program's own headers."""
        found = self.headers(toolchain)
        directories = (*found.toolkit, *found.compiler, *found.system)
        return Outside(directories, self.implied_headers)

    @abstractmethod
    def dump(self, recipe: Recipe, dump: Dump) -> None:
        """Write what `--dump-ir` shows of a compile that has run."""

    # What stands in a program's directory

    def source(self, text: str, symbol: str, unit: Sequence[str] = ()) -> str:
        """Return what is compiled of a source for its kernel or function, `symbol`; for all kernels
        of a `unit`."""
        return text

    def options(self, recipe: Recipe) -> list[str]:
        """Return further lines for the head of `options.txt`."""
        return []

    def generated(self, recipe: Recipe) -> Mapping[str, str]:
        """Return the files beside the source that follow from the recipe. Raises `ValueError`."""
        return {}

    def written(self, recipe: Recipe) -> Mapping[str, str]:
        """Return all files beside the source that are the program's own: `generated`, and rendered
        headers. Raises `ValueError`."""
        return {**self.generated(recipe), **recipe.headers}

    def links(self, recipe: Recipe, tools: Tools) -> Mapping[str, str]:
        """Return the symbolic links, name to target, of the private directory on this machine."""
        return self.include_links(recipe)

    def include_links(self, recipe: Recipe) -> Mapping[str, str]:
        """Return those of the links that give the program's own headers another name."""
        return {}

    def copies_headers(self, recipe: Recipe) -> bool:
        """Return whether headers are copied with a fixed time: the compiler records their times."""
        return False

    def on_worker(self, step: Step, tools: Tools) -> OnWorker | None:
        """Return how another machine runs a step of which there is something in `made_elsewhere`;
        None for in the same words."""
        return None

    def made_elsewhere(self, step: Step) -> tuple[str, ...]:
        """Return the files that a step makes, if it is one that other machines may have where
        `stays_here` allows it: that which compiles. The others take milliseconds."""
        reads = step.argv[0] in ("{nvcc}", "{cxx}") and SOURCE in step.argv
        return (step.output,) if reads else ()

    def stays_here(self, recipe: Recipe, notes: Sequence[Diagnostic] = ()) -> str | None:
        """Return why no other machine may run the step that reads the source; None where one
        may. `notes` are those of the closure."""
        if self.copies_headers(recipe):
            return TIMES_OF_HEADERS
        return self.unsafe(recipe)

    def unsafe(self, recipe: Recipe) -> str | None:
        """Return the flag that may mean another thing on another machine, in words; None for
        none."""
        if not recipe.flags:
            return None
        # Imported only here: a manifest that was checked before needs none of it.
        from tilusbuild.manifest.pure_flags import impure

        cpu = self.compiler == "g++"
        named = next((words for _, words in impure(recipe.flags, cpu=cpu)), None)
        if named is None:
            return None
        return f"{named} is taken with unsafe-flags: what it reads or means there is in no hash"

    # What is checked, before a compile and after each of its steps

    def problem(self, recipe: Recipe) -> str | None:
        """Return why the recipe cannot work, however its source compiles."""
        return None

    def source_problem(self, recipe: Recipe, headers: str | None) -> str | None:
        """Return an error, worded as a compiler's, that the compiler itself would not report;
        `headers` is the directory of the program's headers."""
        return None

    def judge(self, recipe: Recipe, step: Step, path: str, log: str, found: Findings) -> None:
        """Check what a step wrote to `path`, and add to `found`. Raises `StepError`."""
        return

    # What others ask

    def device_image(self, recipe: Recipe) -> str | None:
        """Return the name of the file of device code, if a step makes one."""
        return None

    def source_command(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the command that reads the source, for editors. Raises `ValueError` for none."""
        return next(step.argv for step in self.commands(recipe) if SOURCE in step.argv)

    def toolkit_version(self, toolchain: Toolchain) -> str | None:
        """Return the version of the CUDA toolkit that makes the device code, if there is any."""
        return None

    def check_archs(
        self, toolchain: Toolchain, archs: Sequence[Arch], ptx: bool, place: Place | None
    ) -> None:
        """Raise `InputError` for architectures that the tools cannot put into one library."""
        toolchain.check_archs(archs, place)

    def refused_flags(self, flags: Iterable[str]) -> Iterator[RefusedFlag]:
        """Return the flags that the compiler would refuse only once it runs."""
        return iter(())
