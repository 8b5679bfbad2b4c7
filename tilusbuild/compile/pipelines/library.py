"""The pipelines of `[library.NAME]`: one object of a source, and the link of many.

An object keeps what its source defines under the names that its compiler gives it. Left alone, nvcc
writes the names of its temporary files into an object, so these have fixed names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.arch import format_gencode
from tilusbuild.compile.launcher import NO_CPU_LAUNCHER, NO_LAUNCHER
from tilusbuild.compile.model import HERE, OBJECT, SOURCE, Link, Pipeline, Recipe, Step
from tilusbuild.compile.pipelines.cpu import MAPPED, Cpu
from tilusbuild.compile.pipelines.nvcc import (
    DRIVER,
    DRIVER_STEPS,
    NvccPipeline,
    link_words,
    linked_runtime,
)
from tilusbuild.compile.steps import (
    DEVICE_LINKER,
    NVCC_HERE,
    host_march,
    linked_libs,
    linker_options,
    object_name,
    stand_ins,
    user_flags,
)
from tilusbuild.state.files import sha256_text

if TYPE_CHECKING:
    from tilusbuild.compile.model import DumpInProgress, Tools
    from tilusbuild.errors import Diagnostic
    from tilusbuild.toolchain import HeaderDirectories, Toolchain

_KEEP = ("-keep", "-keep-dir", f"{HERE}/tmp")  # noqa: S108 - in the private directory
_DEVICE_OBJECT = "device.o"
_DIGITS = 16


class ObjectNvcc(NvccPipeline):
    """An object of a source for the GPU, or of host code that includes the toolkit's headers."""

    name = "object"
    launcher = NO_LAUNCHER
    product = OBJECT
    fixed_files: ClassVar[Mapping[str, str]] = {}

    def name_of_source(self, recipe: Recipe) -> str:
        # A device link distinguishes objects by it. So does the linker: what is in an anonymous
        # namespace is a symbol for all, with a name that is made of this one.
        return f"/tilusbuild/{sha256_text(recipe.source)[:_DIGITS]}/source.cu"

    def commands(self, recipe: Recipe) -> list[Step]:
        if recipe.part.written:
            words = ("-ccbin", "{cxx}", *self.names(recipe), "-Xcompiler", "-frandom-seed=0")
            return [_as_written("{nvcc}", recipe, (*words, *_KEEP, *_seed(recipe)))]
        host = ("-Xcompiler", f"-fPIC,-march={host_march(recipe)},-frandom-seed=0")
        device: tuple[str, ...] = ()
        code: tuple[str, ...] = ("-x", recipe.part.language)
        if recipe.part.language == "cu":
            code = format_gencode(recipe.archs, ptx=recipe.ptx)
            device = (*_KEEP, "-rdc=true") if recipe.part.rdc else _KEEP
            device += _seed(recipe)
        compiler = self.nvcc(recipe, "-c", code)
        if recipe.part.language == "c":
            compiler.remove(f"-std={recipe.options.std}")
        return [Step("source", (*compiler, *host, *device, SOURCE, "-o", OBJECT), OBJECT)]


def _as_written(tool: str, recipe: Recipe, words: Sequence[str]) -> Step:
    argv = (tool, "-c", *words, *user_flags(recipe), SOURCE, "-o", OBJECT)
    return Step("source", argv, OBJECT)


def _seed(recipe: Recipe) -> tuple[str, ...]:
    """Return what stands for nvcc's process id in names of internal linkage.

    cudafe++ and cicc take it where a source has no function of its own that others could call, only
    templates and their instances. Objects that are linked as device code are distinguished by the
    source's name. What the user's flags say is said once: nvcc warns of two.
    """
    own = any(flag.lstrip("-").startswith("frandom-seed") for flag in recipe.options.flags)
    return ("-frandom-seed=0",) if recipe.part.seeded and not own else ()


class ObjectCpu(Cpu):
    """An object of host code."""

    name = "cpu object"
    launcher = NO_CPU_LAUNCHER
    product = OBJECT
    fixed_files: ClassVar[Mapping[str, str]] = {}

    def applies(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        return False

    def commands(self, recipe: Recipe) -> list[Step]:
        if recipe.part.written:
            fixed = ("-x", recipe.part.language, "-frandom-seed=0", MAPPED)
            return [_as_written("{cxx}", recipe, fixed)]
        source = super().commands(recipe)[0].argv
        words = [OBJECT if word == "source.o" else word for word in source]
        if recipe.part.language == "c":
            words[words.index("c++")] = "c"
            words.remove(f"-std={recipe.options.std}")
        return [Step("source", tuple(words), OBJECT)]


class ObjectBeside(ObjectCpu):
    """An object of host code that includes the toolkit's headers, by another build's command."""

    name = "host object"

    def fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        return toolchain.fingerprint_cuda

    def headers(self, toolchain: Toolchain) -> HeaderDirectories:
        return toolchain.headers(cuda=True)


class LinkPipeline(Pipeline):
    """The common part of what links objects: there is no source, and no header."""

    has_source = False
    fixed_files: ClassVar[Mapping[str, str]] = {}

    def stays_here(self, recipe: Recipe, notes: Sequence[Diagnostic] = ()) -> str | None:
        return "a link reads the objects and the system's libraries, which are here"

    def made_elsewhere(self, step: Step) -> tuple[str, ...]:
        return (step.output,) if step.output == self.product else ()

    def dump(self, recipe: Recipe, dump: DumpInProgress) -> None:
        """Write nothing: each object has its own."""

    def source_command(self, recipe: Recipe) -> tuple[str, ...]:
        raise ValueError("a library is linked, and has no source of its own")


class LinkNvcc(LinkPipeline, NvccPipeline):
    """A shared library with the CUDA runtime, through nvcc, which also links device code."""

    name = "shared library"
    launcher = NO_LAUNCHER

    def commands(self, recipe: Recipe) -> list[Step]:
        link = _link_of(recipe)
        inputs = [DRIVER[0], *_inputs(recipe), DRIVER[1], *linked_runtime(link.cudart)]
        if recipe.part.rdc:
            inputs = [_DEVICE_OBJECT, *inputs, "-lcudadevrt"]
        words = link_words(link.cudart, linker_options(link))
        link_step = Step("link", (*words, *inputs, "-o", self.product), self.product)
        return [*DRIVER_STEPS, *stand_ins(link), *_device_link(recipe), link_step]

    def links(self, recipe: Recipe, tools: Tools) -> Mapping[str, str]:
        if not recipe.part.rdc:
            return {}
        return {NVCC_HERE: os.path.abspath(os.path.dirname(tools.paths["{nvcc}"][0]))}

    def fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        runtime = toolchain.fingerprint_cudart if linked_runtime(_link_of(recipe).cudart) else ()
        return (*super().fingerprint(recipe, toolchain), *runtime)


def _device_link(recipe: Recipe) -> Iterator[Step]:
    """Yield the step that links relocatable device code: nvcc leaves it out, and says nothing, of a
    link whose options ask for no runtime."""
    if recipe.part.rdc:
        # It compiles a stub, whose name would be in the library.
        how = ("-ccbin", "{cxx}", "-dlink", "-Xcompiler", "-fPIC", *_KEEP)
        archs = format_gencode(recipe.archs, ptx=recipe.ptx)
        words = (DEVICE_LINKER, *how, *archs, *_inputs(recipe), "-o", _DEVICE_OBJECT)
        yield Step("device link", words, _DEVICE_OBJECT)


class LinkCpu(LinkPipeline, Cpu):
    """A shared library of host code."""

    name = "cpu shared library"
    launcher = NO_CPU_LAUNCHER

    def commands(self, recipe: Recipe) -> list[Step]:
        link = _link_of(recipe)
        linker = [f"-Wl,{flag}" for flag in linker_options(link)]
        words = ("{cxx}", "-shared", *linker, *_inputs(recipe), "-o", self.product)
        return [*stand_ins(link), Step("link", words, self.product)]


class Archive(LinkCpu):
    """A static library."""

    name = "static library"
    product = "lib.a"

    def commands(self, recipe: Recipe) -> list[Step]:
        words = ("{ar}", "rcsD", self.product, *_inputs(recipe))
        return [Step("archive", words, self.product, False)]


def _link_of(recipe: Recipe) -> Link:
    if recipe.link is None:
        raise ValueError("a library's recipe says how it is linked")
    return recipe.link


def _inputs(recipe: Recipe) -> tuple[str, ...]:
    link = _link_of(recipe)
    objects = (object_name(number) for number in range(len(link.objects)))
    return (*objects, *(f"include/{name}" for name in link.inputs), *linked_libs(link))


LIBRARY_PIPELINES: dict[tuple[str, str], Pipeline] = {
    ("cuda", "object"): ObjectNvcc(),
    ("cpu", "object"): ObjectCpu(),
    ("beside", "object"): ObjectBeside(),
    ("cuda", "shared"): LinkNvcc(),
    ("cpu", "shared"): LinkCpu(),
    ("cuda", "static"): Archive(),
    ("cpu", "static"): Archive(),
}
"""By the target's kind, or "beside" for host code beside its kernels; and the script's form."""
