"""The pipelines of `[library.NAME]`: one object of a source, and the link of many.

An object keeps what its source defines under the names that its compiler gives it. Left alone, nvcc
writes the names of its temporary files into an object, so these have fixed names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from tilusbuild.arch import format_gencode
from tilusbuild.compile.launcher import NO_CPU_LAUNCHER, NO_LAUNCHER
from tilusbuild.compile.model import (
    HERE,
    LINK_INPUTS,
    OBJECT,
    SOURCE,
    DumpInProgress,
    Link,
    Pipeline,
    Recipe,
    Step,
    Tools,
)
from tilusbuild.compile.pipelines.cpu import MAPPED, CpuPipeline
from tilusbuild.compile.pipelines.nvcc import (
    DRIVER,
    DRIVER_STEPS,
    NvccPipeline,
    build_link_command,
    list_compression,
    list_runtime_arguments,
    select_runtime_fingerprint,
)
from tilusbuild.compile.steps import (
    DEVICE_LINKER,
    NVCC_HERE,
    choose_host_march,
    find_commands_names,
    format_object_name,
    list_library_arguments,
    list_linker_options,
    make_link_step,
    make_stand_in_steps,
    protect_user_flags,
)
from tilusbuild.errors import Diagnostic
from tilusbuild.state.files import sha256_text
from tilusbuild.toolchain import HeaderDirectories, Toolchain

# Under names of its own choice nvcc would put its process id into the object.
_KEEP_INTERMEDIATES = ("-keep", "-keep-dir", f"{HERE}/tmp")  # noqa: S108 - in the private directory
_DEVICE_OBJECT = "device.o"
_NO_INPUT = "needed.o"  # of `make_stand_in_steps`
_DIGEST_LENGTH = 16


class ObjectNvcc(NvccPipeline):
    """An object of a source for the GPU, or of host code that includes the toolkit's headers."""

    name = "object"
    launcher = NO_LAUNCHER
    product = OBJECT
    fixed_files: ClassVar[Mapping[str, str]] = {}

    def choose_source_name(self, recipe: Recipe) -> str:
        # A device link distinguishes objects by this name, and so does the linker: nvcc makes a
        # global symbol of an entity in an anonymous namespace, and writes the name into it.
        return f"/tilusbuild/{sha256_text(recipe.source)[:_DIGEST_LENGTH]}/source.cu"

    def list_commands(self, recipe: Recipe) -> list[Step]:
        part = recipe.part
        if part.written:
            seeds = ("-Xcompiler", "-frandom-seed=0", *_KEEP_INTERMEDIATES, *_derive_seed(recipe))
            arguments = ("-ccbin", "{cxx}", *self.list_name_options(recipe), *seeds)
            return [_make_object_step("{nvcc}", recipe, arguments)]
        host = ("-Xcompiler", f"-fPIC,-march={choose_host_march(recipe)},-frandom-seed=0")
        device: tuple[str, ...] = ()
        # nvcc defines the macro for host code too, where the host compiler alone does not.
        code: tuple[str, ...] = ("-x", part.language, "-Xcompiler", "-U__NVCC__")
        if part.language == "cu":
            code = format_gencode(recipe.archs, ptx=recipe.ptx)
            relocatable = ("-rdc=true",) if part.rdc else ()
            device = (*_KEEP_INTERMEDIATES, *relocatable, *_derive_seed(recipe))
        compiler = self.build_nvcc_command(recipe, "-c", code)
        if part.language == "c":  # `std` is a standard of C++
            compiler.remove(f"-std={recipe.options.std}")
        return [Step("source", (*compiler, *host, *device, SOURCE, "-o", OBJECT), OBJECT)]


def _make_object_step(tool: str, recipe: Recipe, arguments: Sequence[str]) -> Step:
    """Return the step that compiles a source with `arguments`, then another build's flags."""
    argv = (tool, "-c", *arguments, *protect_user_flags(recipe), SOURCE, "-o", OBJECT)
    return Step("source", argv, OBJECT)


def _derive_seed(recipe: Recipe) -> tuple[str, ...]:
    """Return the option that replaces nvcc's process id in names of internal linkage; () if the
    user's flags have the option, since nvcc warns of two.

    cudafe++ and cicc use the process id for a source without an external function. The seed may be
    the same for all objects of a device link, since such names also have the source's name.
    """
    has_user_seed = any(
        flag.lstrip("-").startswith("frandom-seed") for flag in recipe.options.flags
    )
    return ("-frandom-seed=0",) if recipe.part.seeded and not has_user_seed else ()


class ObjectCpu(CpuPipeline):
    """An object of host code."""

    name = "cpu object"
    launcher = NO_CPU_LAUNCHER
    product = OBJECT
    fixed_files: ClassVar[Mapping[str, str]] = {}

    def can_compile(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        return False

    def list_commands(self, recipe: Recipe) -> list[Step]:
        if recipe.part.written:
            arguments = ("-x", recipe.part.language, "-frandom-seed=0", MAPPED)
            return [_make_object_step("{cxx}", recipe, arguments)]
        # The first step of the cpu pipeline compiles the source; the others link.
        source_step, *_ = super().list_commands(recipe)
        words = [OBJECT if word == "source.o" else word for word in source_step.argv]
        if recipe.part.language == "c":
            words[words.index("c++")] = "c"
            words.remove(f"-std={recipe.options.std}")
        return [Step("source", tuple(words), OBJECT)]


class ObjectBeside(ObjectCpu):
    """An object of host code that includes the toolkit's headers, by another build's command."""

    name = "host object"

    def select_fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        return toolchain.fingerprint_cuda

    def list_header_directories(self, toolchain: Toolchain) -> HeaderDirectories:
        return toolchain.find_header_directories(cuda=True)


class LinkPipeline(Pipeline):
    """The base of pipelines that link objects: their programs have no source and no headers."""

    has_source = False
    fixed_files: ClassVar[Mapping[str, str]] = {}

    def explain_local_only(self, recipe: Recipe, notes: Sequence[Diagnostic] = ()) -> str | None:
        return "a link reads the objects and the system's libraries, which are here"

    def list_remote_outputs(self, step: Step) -> tuple[str, ...]:
        return (step.output,) if step.output == self.product else ()

    def dump_intermediates(self, recipe: Recipe, dump: DumpInProgress) -> None:
        """Write nothing: the objects have intermediate files, and a link has none."""

    def find_source_command(self, recipe: Recipe) -> tuple[str, ...]:
        raise ValueError("a library is linked, and has no source of its own")


class LinkNvcc(LinkPipeline, NvccPipeline):
    """A shared library with the CUDA runtime, through nvcc, which also links device code."""

    name = "shared library"
    launcher = NO_LAUNCHER

    def list_commands(self, recipe: Recipe) -> list[Step]:
        link = _require_link(recipe)
        driver_directory, driver_library = DRIVER
        # nvcc has to see an object, and the others are in a file.
        rest = [_DEVICE_OBJECT if recipe.part.rdc else _NO_INPUT, "-Xlinker", f"@{LINK_INPUTS}"]
        rest += [driver_directory, *list_library_arguments(recipe), driver_library]
        rest += list_runtime_arguments(link.cudart)
        if recipe.part.rdc:
            rest.append("-lcudadevrt")
        command, options = build_link_command(link.cudart), list_linker_options(link)
        return [
            *DRIVER_STEPS,
            *make_stand_in_steps(link, has_input=False),
            *_list_device_link_steps(recipe),
            make_link_step(recipe, command, options, rest, _list_inputs(recipe)),
        ]

    def list_links(self, recipe: Recipe, tools: Tools) -> Mapping[str, str]:
        links = self.list_include_links(recipe)
        if recipe.part.rdc:
            links[NVCC_HERE] = os.path.abspath(os.path.dirname(tools.paths["{nvcc}"][0]))
        return links

    def select_fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        runtime = select_runtime_fingerprint(_require_link(recipe).cudart, toolchain)
        return (*super().select_fingerprint(recipe, toolchain), *runtime)


def _list_device_link_steps(recipe: Recipe) -> Iterator[Step]:
    """Yield the step that links relocatable device code. nvcc silently leaves this step out of a
    link without the CUDA runtime."""
    if recipe.part.rdc:
        # nvcc compiles a stub here, whose temporary name would be in the library.
        options = ("-ccbin", "{cxx}", "-dlink", "-Xcompiler", "-fPIC", *_KEEP_INTERMEDIATES)
        archs = (*format_gencode(recipe.archs, ptx=recipe.ptx), *list_compression(recipe))
        inputs = (_NO_INPUT, "-Xnvlink", f"-optf={LINK_INPUTS}")
        words = (DEVICE_LINKER, *options, *archs, *inputs, "-o", _DEVICE_OBJECT)
        yield Step("device link", words, _DEVICE_OBJECT)


class LinkCpu(LinkPipeline, CpuPipeline):
    """A shared library of host code."""

    name = "cpu shared library"
    launcher = NO_CPU_LAUNCHER

    def list_commands(self, recipe: Recipe) -> list[Step]:
        link = _require_link(recipe)
        options, driver = list_linker_options(link), ("{cxx}", "-shared")
        rest = (f"@{LINK_INPUTS}", *list_library_arguments(recipe))
        step = make_link_step(recipe, driver, options, rest, _list_inputs(recipe))
        return [*make_stand_in_steps(link), step]


class Archive(LinkCpu):
    """A static library."""

    name = "static library"
    product = "lib.a"

    def list_commands(self, recipe: Recipe) -> list[Step]:
        words, listed = ("{ar}", "rcsD", self.product), {LINK_INPUTS: _list_inputs(recipe)}
        argv = (*words, f"@{LINK_INPUTS}")
        return [Step("archive", argv, self.product, of_program=False, listed=listed)]


def _require_link(recipe: Recipe) -> Link:
    """Return a recipe's link. Raises `ValueError` for a recipe without one."""
    if recipe.link is None:
        raise ValueError("a library's recipe says how it is linked")
    return recipe.link


def _list_inputs(recipe: Recipe) -> tuple[str, ...]:
    """Return what a link joins: the programs' objects, and other files as they are."""
    link, names = _require_link(recipe), find_commands_names(recipe)
    objects = (format_object_name(number) for number in range(len(link.objects)))
    files = (f"include/{name}" for name in link.inputs)
    return (*objects, *(names.get(file, file) for file in files))


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
