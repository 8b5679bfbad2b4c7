"""Compile one program: run its steps in a private folder, judge what came out, keep what is good.

The stage's `module` folder holds what `module_files` gave; after `built` it holds `lib.so` too, and
always `nvcc_output.txt`. Nothing else is left in the stage, however the compile ends.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from tilusbuild.arch import Arch, parse_arch
from tilusbuild.binary import (
    BinaryError,
    CodeImage,
    KernelUsage,
    PtxasUsage,
    extract_cubins,
    parse_ptxas,
    read_cubin,
)
from tilusbuild.compile import checks
from tilusbuild.compile.causes import StepError, failure, not_started
from tilusbuild.compile.launcher import launcher_source, program_source
from tilusbuild.compile.model import Outcome, Recipe
from tilusbuild.compile.nvrtc import CUDA_HEADERS, NVRTC_COMMAND, dated
from tilusbuild.compile.parameters import parameter_problem, parameter_sizes
from tilusbuild.compile.script import ENVIRONMENT, compile_script
from tilusbuild.compile.scrub import scrub
from tilusbuild.compile.steps import (
    CC_FLAGS,
    LAUNCHER,
    LAUNCHER_OBJECT,
    Step,
    copies_headers,
    image_name,
    include_links,
    steps,
)
from tilusbuild.compile.tools import Tools, tools_of
from tilusbuild.process.base import Command, CompletedCommand, Runner
from tilusbuild.state.hashing import sha256_bytes, sha256_text
from tilusbuild.state.objects import LauncherStore
from tilusbuild.status import Cause
from tilusbuild.toolchain import nvrtc_command

if TYPE_CHECKING:
    from tilusbuild.toolchain import Toolchain

_EXPORT_MAP = "{ global: __tvm_ffi_launch; launch; launch_error; local: *; };\n"


def module_files(
    recipe: Recipe, toolchain: Toolchain, launcher: str | None = None
) -> Mapping[str, bytes]:
    """What a module folder holds before the compile: the source and everything generated.

    `launcher` is the digest of the launcher's folder; None works it out, which takes no object.
    Raises `ValueError` for a recipe that no launcher can serve.
    """
    texts = {"source.cu": recipe.source}
    if recipe.pipeline == "kernel":
        texts["program.s"] = program_source(recipe, image_name(recipe))
    else:
        texts["exports.map"] = _EXPORT_MAP
    fingerprint = tools_of(toolchain).fingerprint(recipe)
    digest = launcher or launcher_folder(recipe)[0]
    texts["compile.sh"] = compile_script(recipe, tuple(texts), digest, fingerprint)
    return {name: text.encode("utf-8", "surrogateescape") for name, text in texts.items()}


def launcher_folder(recipe: Recipe, made: bytes | None = None) -> tuple[str, Mapping[str, bytes]]:
    """The launcher as a folder that programs share: its digest, and its files by name.

    It is laid out like a folder of headers, so that one rule finds, checks and collects both.
    `made` is the launcher's object, for programs whose `compile.sh` must do without a compiler for
    it (`launcher_object`). Raises `ValueError` for a recipe that no launcher can serve.
    """
    return _launcher_folder(launcher_source(recipe), made)


@lru_cache(maxsize=64)
def _launcher_folder(source: str, made: bytes | None) -> tuple[str, Mapping[str, bytes]]:
    files = {LAUNCHER: source.encode()}
    if made is not None:
        with open(nvrtc_command.__file__, "rb") as script:
            files |= {LAUNCHER_OBJECT: made, NVRTC_COMMAND: script.read()}
    manifest = "".join(f"{sha256_bytes(data)}  {name}\n" for name, data in files.items())
    return sha256_text(manifest), {**files, "MANIFEST": manifest.encode()}


def launcher_object(
    recipe: Recipe,
    toolchain: Toolchain,
    stage: str,
    runner: Runner,
    launchers: LauncherStore,
    timeout: float | None = None,
) -> bytes | Outcome:
    """The launcher, compiled: once for all programs of a script. An outcome when it could not be.

    Raises `CancelledError` and `OSError`.
    """
    work = os.path.join(stage, "work")
    compiling = Compile(recipe, tools_of(toolchain), stage, work, runner, launchers, timeout)
    try:
        os.makedirs(os.path.join(work, "tmp"))
        return compiling.launcher(next(s for s in steps(recipe) if s.name == "launcher"))
    except StepError as stop:
        return Outcome(stop.cause, "".join(compiling.logs), reason=stop.reason)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def compile_program(
    recipe: Recipe,
    toolchain: Toolchain,
    stage: str,
    include_dir: str | None,
    runner: Runner,
    launchers: LauncherStore,
    timeout: float | None = None,
) -> Outcome:
    """Make `module/lib.so` in the stage, whose `module` folder holds the module's files.

    `include_dir` is the folder of the recipe's include layout, `timeout` is in seconds for each
    process. Raises `CancelledError` and `OSError` (of the stage's file system).
    """
    if recipe.pipeline == "kernel" and (problem := checks.launch_problem(recipe)):
        return _finish(stage, Outcome(Cause.SOURCE, "", reason=problem))
    work = os.path.join(stage, "work")
    try:
        compiling = Compile(recipe, tools_of(toolchain), stage, work, runner, launchers, timeout)
        compiling.prepare(include_dir)
        return _finish(stage, compiling.run())
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _finish(stage: str, outcome: Outcome) -> Outcome:
    log = outcome.log
    if outcome.reason and outcome.reason not in log:
        log = f"{log}{outcome.reason}\n"
    with open(os.path.join(stage, "module", "nvcc_output.txt"), "w", encoding="utf-8") as file:
        file.write(log)
    return outcome


@dataclass(slots=True)
class Compile:
    """One compile in progress: what it has printed, used and found so far."""

    recipe: Recipe
    tools: Tools
    stage: str
    work: str
    runner: Runner
    launchers: LauncherStore
    timeout: float | None
    logs: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak_rss: int = 0
    usages: list[tuple[Arch, KernelUsage]] = field(default_factory=list)
    ptxas: tuple[PtxasUsage, ...] = ()

    def prepare(self, include_dir: str | None) -> None:
        """The private folder: copies of the inputs that carry no time, and the headers' link."""
        module = os.path.join(self.stage, "module")
        os.makedirs(os.path.join(self.work, "tmp"))
        for name in ("source.cu", "program.s", "exports.map"):
            source = os.path.join(module, name)
            if os.path.exists(source):
                shutil.copyfile(source, os.path.join(self.work, name))
                os.utime(os.path.join(self.work, name), (1, 1))
        headers = os.path.join(self.work, "include")
        if include_dir is not None and copies_headers(self.recipe):
            shutil.copytree(include_dir, headers)
            for folder, _, names in os.walk(headers):
                for name in names:
                    os.utime(os.path.join(folder, name), (1, 1))
        elif include_dir is not None:
            os.symlink(os.path.abspath(include_dir), headers)
        for link, folder in include_links(self.recipe).items():
            os.symlink(folder, os.path.join(self.work, link))
        if self.recipe.through_nvrtc and self.tools.cuda_headers is not None:
            os.symlink(self.tools.cuda_headers, os.path.join(self.work, CUDA_HEADERS))

    def run(self, *, device_only: bool = False) -> Outcome:
        """All steps; with `device_only`, those that make the kernel pipeline's device code."""
        images: tuple[CodeImage, ...] = ()
        cause: Cause | None = None
        reason = ""
        try:
            if self.recipe.through_nvrtc:
                self._refuse_dates()
            for step in steps(self.recipe):
                if step.name == "launcher":
                    with open(os.path.join(self.work, step.output), "wb") as made:
                        made.write(self.launcher(step))
                else:
                    self._step(step)
                if self.recipe.pipeline == "kernel" and step.output == image_name(self.recipe):
                    images = self._judge_kernel()
                    if device_only:
                        break
            else:
                images = self._publish()
        except StepError as stop:
            cause, reason = stop.cause, stop.reason
        return Outcome(
            cause=cause,
            log="".join(self.logs),
            usages=tuple(usage for _, usage in self.usages),
            ptxas=self.ptxas,
            images=images,
            seconds=self.seconds,
            peak_rss=self.peak_rss,
            reason=reason,
        )

    def _refuse_dates(self) -> None:
        headers = os.path.join(self.work, "include")
        if error := dated(
            self.recipe.source, os.path.realpath(headers) if os.path.exists(headers) else None
        ):
            self.logs.append(error + "\n")
            raise StepError(Cause.SOURCE, error)

    @property
    def compiler(self) -> str:
        """What compiles the device code, for messages."""
        return "nvrtc" if self.recipe.through_nvrtc else "nvcc"

    def _step(self, step: Step) -> None:
        tool = step.argv[0].strip("{}")
        try:
            finished = self.execute(step)
        except OSError as error:
            raise not_started(tool, error) from None
        log = self.scrub(finished.output)
        if log:
            self.logs.append(log if log.endswith("\n") else log + "\n")
        if ended := failure(tool, finished, log, checks.link_problem(self.recipe, log)):
            raise ended
        if not os.path.isfile(os.path.join(self.work, step.output)):
            raise StepError(Cause.OUTPUT, f"{tool} ended well but made no {step.output}")

    def execute(self, step: Step) -> CompletedCommand:
        """Run one step's command in the private folder. Raises `OSError` if it cannot start."""
        environment = {**self.tools.environment, **ENVIRONMENT}
        command = Command(self.tools.fill(step.argv), self.work, environment, self.timeout)
        finished = self.runner.run(command)
        self.seconds += finished.seconds
        self.peak_rss = max(self.peak_rss, finished.peak_rss)
        return finished

    def scrub(self, output: bytes) -> str:
        return scrub(output, {self.work: "", "/proc/self/cwd": "", **self.tools.folders})

    def launcher(self, step: Step) -> bytes:
        """The launcher's object, made unless it is in the store."""
        source = launcher_source(self.recipe)

        def make() -> bytes:
            path = os.path.join(self.work, LAUNCHER)
            with open(path, "w", encoding="utf-8") as copy:
                copy.write(source)
            self._step(step)
            with open(os.path.join(self.work, step.output), "rb") as output:
                return output.read()

        key = LauncherStore.key(source, CC_FLAGS, self.tools.cc_fingerprint)
        return self.launchers.get(key, make)

    def _judge_kernel(self) -> tuple[CodeImage, ...]:
        """Hold the device code against what was declared; the images that it holds."""
        name = image_name(self.recipe)
        with open(os.path.join(self.work, name), "rb") as file:
            data = file.read()
        try:
            cubins = extract_cubins(data)
            found = [(parse_arch(cubin.image.arch), read_cubin(cubin.data)) for cubin in cubins]
            sizes = [parameter_sizes(cubin.data, self.recipe.symbol) for cubin in cubins]
        except BinaryError as error:
            raise StepError(
                Cause.OUTPUT, f"{self.compiler} ended well but {name} cannot be read: {error}"
            ) from None
        if not found:
            raise StepError(Cause.OUTPUT, f"{self.compiler} ended well but {name} holds no code")
        self.ptxas = parse_ptxas("".join(self.logs))
        for _, kernels in found:
            if problem := checks.symbol_problem(self.recipe, [kernel.name for kernel in kernels]):
                raise StepError(Cause.SOURCE, problem)
        self.usages = [
            (arch, kernel)
            for arch, kernels in found
            for kernel in kernels
            if kernel.name == self.recipe.symbol
        ]
        for taken in sizes:
            if problem := parameter_problem(self.recipe.signature, taken):
                raise StepError(Cause.SOURCE, problem)
        if problem := checks.kernel_problem(self.recipe, self.usages):
            raise StepError(Cause.SOURCE, problem)
        if reason := checks.prune_reason(self.recipe, self.usages, self.ptxas):
            raise StepError(Cause.LIMIT, reason)
        return tuple(cubin.image for cubin in cubins)

    def _publish(self) -> tuple[CodeImage, ...]:
        made = os.path.join(self.work, "lib.so")
        with open(made, "rb") as file:
            data = file.read()
        images = checks.images_of(data)
        if self.recipe.pipeline == "host":
            self.ptxas = parse_ptxas("".join(self.logs))
        if problem := checks.library_problem(self.recipe, data, images):
            raise StepError(Cause.OUTPUT, problem)
        os.chmod(made, 0o755)  # noqa: S103 - a library, as linkers leave it
        os.replace(made, os.path.join(self.stage, "module", "lib.so"))
        return images
