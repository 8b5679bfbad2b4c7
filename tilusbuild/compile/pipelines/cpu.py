"""The cpu pipeline: the host compiler makes a library of a template for `target.kind == "cpu"`."""

from __future__ import annotations

from tilusbuild.compile.launcher import CPU_LAUNCHER
from tilusbuild.compile.model import HERE, SOURCE, DumpInProgress, Link, Pipeline, Recipe, Step
from tilusbuild.compile.steps import (
    EXPORT_FLAGS,
    choose_host_march,
    format_defines,
    format_include_options,
    list_library_arguments,
    list_linker_options,
    make_link_step,
    make_stand_in_steps,
    protect_user_flags,
)
from tilusbuild.toolchain import HeaderDirectories, Toolchain

MAPPED = f"-ffile-prefix-map={HERE}/="
_COMPILE_COMMAND = (
    "{cxx}",
    "-c",
    "-x",
    "c++",
    "-O3",
    "-fPIC",
    # Otherwise names of entities in anonymous namespaces hold random digits.
    "-frandom-seed=0",
    # The same numbers whether or not the CPU can fuse a product with a sum.
    "-ffp-contract=off",
    MAPPED,
)


class CpuPipeline(Pipeline):
    name = "cpu"
    compiler = "g++"
    launcher = CPU_LAUNCHER
    implied_headers = ("stdc-predef.h",)

    def can_compile(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        return target == "cpu"

    def list_commands(self, recipe: Recipe) -> list[Step]:
        options = (
            f"-std={recipe.options.std}",
            f"-march={choose_host_march(recipe)}",
            *format_defines(recipe),
            *format_include_options(recipe),
            *protect_user_flags(recipe),
        )
        link = recipe.link or Link()
        linker = list_linker_options(link, EXPORT_FLAGS)
        # The flags are repeated, since -fopenmp and the like have a meaning for the link, too.
        libraries = (*protect_user_flags(recipe), *list_library_arguments(recipe), "-ldl")
        inputs = ("source.o", "launcher.o", *libraries)
        return [
            Step("source", (*_COMPILE_COMMAND, *options, SOURCE, "-o", "source.o"), "source.o"),
            *make_stand_in_steps(link),
            make_link_step(recipe, ("{cxx}", "-shared"), linker, inputs),
        ]

    def select_fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        return toolchain.fingerprint_host

    def list_header_directories(self, toolchain: Toolchain) -> HeaderDirectories:
        return toolchain.find_header_directories(cuda=False)

    def dump_intermediates(self, recipe: Recipe, dump: DumpInProgress) -> None:
        """Write the preprocessed source, and assembly."""
        source_step, *_ = self.list_commands(recipe)
        words = source_step.argv[: source_step.argv.index("-o")]
        for mode, name in (("-E", "host.ii"), ("-S", "host.s")):
            argv = (*(mode if word == "-c" else word for word in words), "-o", name)
            if dump.run(Step("dump", argv, name)):
                dump.copy(name, name)


CPU = CpuPipeline()
