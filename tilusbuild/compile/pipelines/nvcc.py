"""The base of kernel pipelines, and the pipelines that use nvcc: `KernelNvcc` for device code
alone, `HostPipeline` for templates that launch their kernels themselves (`entry = …`).

A kernel pipeline compiles no host code of the template, which would be most of nvcc's time on a
small kernel.

Left alone, nvcc's output differs from run to run and from directory to directory; docs/pipelines.md
lists the causes, and the options and steps here remove them.
"""

from __future__ import annotations

import glob
import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from tilusbuild.arch import Arch, format_gencode, list_embedded_archs
from tilusbuild.compile import kernel_names
from tilusbuild.compile.geometry import format_program_source
from tilusbuild.compile.launcher import HOST_LAUNCHER, KERNEL_LAUNCHER
from tilusbuild.compile.model import (
    HERE,
    SOURCE,
    DumpInProgress,
    Findings,
    Link,
    Pipeline,
    Recipe,
    Step,
)
from tilusbuild.compile.steps import (
    DEFINE_FLAGS,
    EXPORT_FLAGS,
    LIBRARY_FLAGS,
    ONE_SEGMENT_FLAGS,
    choose_host_march,
    format_defines,
    format_include_options,
    list_library_arguments,
    list_linker_options,
    make_link_step,
    make_stand_in_steps,
    protect_user_flags,
)
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.toolchain import HeaderDirectories, Toolchain

LINE_INFO = frozenset(
    {"-lineinfo", "--generate-line-info", "-generate-line-info", "-G", "--device-debug"}
)
# nvcc splits words at commas, and hands what is in quotes of its own, or in none, to a shell.
_SAFE_IN_NVCC = re.compile(r"[A-Za-z0-9_+./-]+")

_INTERMEDIATES = "kept"
# `source.cpp1.ii`; with several architectures, `source.compute_90a.cpp1.ii`
_PREPROCESSED_NAME = re.compile(r"source(?:\.compute_(\w+))?\.cpp1\.ii")
_PTX_NAME = re.compile(r"source(?:\.compute_(\w+))?\.ptx")


def has_line_info(recipe: Recipe) -> bool:
    """Return whether the flags make ptxas record the names, sizes and times of source files."""
    return not LINE_INFO.isdisjoint(recipe.options.flags)


# Words that nvcc and its shell leave unchanged: commas are in quotes, and each quote has its end.
_UNCHANGED_BY_NVCC = re.compile(r'(?:[^\\$`,"]|"[^\\$`"]*")*')


def escape_define(word: str) -> str:
    """Return a `-D` word such that the preprocessor gets it unchanged, whatever is in it.

    nvcc splits a word at commas and takes one backslash from each pair, then writes the word in
    double quotes into a command for `sh -c`, in which nvcc escapes `"` and nothing else."""
    if _UNCHANGED_BY_NVCC.fullmatch(word):
        return word
    shell_escaped = re.sub(r"([\\$`])", r"\\\1", word)
    return re.sub(r'([\\," ])', r"\\\1", shell_escaped)


def _escape_defines(flags: Iterable[str]) -> Iterator[str]:
    """Yield flags; those that define a macro are escaped by `escape_define`."""
    follows_define_flag = False  # then the flag is a macro
    for flag in flags:
        # -DM=1 or --define-macro=M=1
        holds_macro = flag.startswith(("-D", *(f"{name}=" for name in DEFINE_FLAGS)))
        yield escape_define(flag) if follows_define_flag or holds_macro else flag
        follows_define_flag = flag in DEFINE_FLAGS


# No C library is linked: its functions are found in the process, whatever its version is.
_KERNEL_LINK = ("-shared", *LIBRARY_FLAGS, *ONE_SEGMENT_FLAGS, "--hash-style=gnu", "--eh-frame-hdr")


def choose_image_name(recipe: Recipe) -> str:
    """Return the name of the file of device code that is linked."""
    is_fatbin = len(recipe.archs) > 1 or recipe.ptx or recipe.options.compress
    return "program.fatbin" if is_fatbin else "program.cubin"


def list_compression(recipe: Recipe) -> tuple[str, ...]:
    """Return the option of nvcc, fatbinary and libnvfatbin of CUDA 13 that packs all code by zstd
    if the recipe asks for it. Drivers unpack it since CUDA 12.4 (NVIDIA CUDA Compiler Driver 13.0,
    `--compress-mode`)."""
    return ("-compress-mode=size",) if recipe.options.compress else ()


class KernelPipeline(Pipeline):
    """The base of pipelines for kernels: a subclass compiles the device code, which is checked and
    then linked with a launcher. A kernel that cannot be launched or exceeds a limit is not
    linked."""

    name = "kernel"
    launcher = KERNEL_LAUNCHER
    fixed_files: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def list_device_steps(self, recipe: Recipe, image: str) -> list[Step]:
        """Return the commands that make the device code, `image`."""

    def list_commands(self, recipe: Recipe) -> list[Step]:
        link = ("{ld}", *_KERNEL_LINK, "program.o", "launcher.o", "-o", "lib.so")
        return [
            *self.list_device_steps(recipe, choose_image_name(recipe)),
            Step("image", ("{as}", "program.s", "-o", "program.o"), "program.o", of_program=False),
            Step("link", link, "lib.so", of_program=False),
        ]

    def generate_files(self, recipe: Recipe) -> dict[str, str]:
        return {"program.s": format_program_source(recipe, choose_image_name(recipe))}

    def check_output(
        self, recipe: Recipe, step: Step, path: str, log: str, findings: Findings
    ) -> None:
        """Check the device code against the signature, the launch and the limits."""
        from tilusbuild.compile.checks import check_device_code, check_symbol

        work = os.path.dirname(path)
        if step.output == kernel_names.SYMBOL_FILE:
            check_symbol(recipe, work)
        elif step.output == choose_image_name(recipe):
            check_device_code(recipe, step, read_bytes(path), work, log, findings)


class NvccPipeline(Pipeline):
    """The common part: nvcc's fingerprint, headers, command and intermediate files."""

    compiler = "nvcc"
    implied_headers = ("stdc-predef.h", "cuda_runtime.h", "crt/host_runtime.h")

    def select_fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        return toolchain.fingerprint_cuda

    def list_header_directories(self, toolchain: Toolchain) -> HeaderDirectories:
        return toolchain.find_header_directories(cuda=True)

    def copies_headers(self, recipe: Recipe) -> bool:
        # ptxas records the headers' times. The kernel pipeline edits the names of headers in the
        # PTX; a compile for the host has no such step.
        compiles_host = self.has_source and not self.launcher.starts_kernel
        return compiles_host and has_line_info(recipe)

    def check_output(
        self, recipe: Recipe, step: Step, path: str, log: str, findings: Findings
    ) -> None:
        if step.output == self.product:
            from tilusbuild.binary.cubin import parse_ptxas

            findings.ptxas = parse_ptxas(log)

    def list_include_links(self, recipe: Recipe) -> dict[str, str]:
        """Return links, by name, to the directories of headers and libraries and to the linked
        files whose own names nvcc would split or its shell would read."""
        link = recipe.link or Link()
        directories = (*(name for name, _ in recipe.includes.roots), *link.dirs)
        # nvcc and nvlink know an object and an archive by the end of its name.
        endings = dict.fromkeys(directories, "") | {name: name[-2:] for name in link.inputs}
        return {
            f"include-{number}{ending}": f"include/{name}"
            for number, (name, ending) in enumerate(endings.items())
            if not _SAFE_IN_NVCC.fullmatch(name)
        }

    def choose_source_name(self, recipe: Recipe) -> str:
        """Return the path that nvcc puts into names of internal linkage instead of the source's
        own."""
        return "/tilusbuild/source.cu"

    def list_name_options(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the options that keep directories of this machine out of names in the output."""
        # cudafe++ and cicc write a hash of this path's directory into the names of entities with
        # internal linkage. nvcc gives the path, too: of two, the last one counts.
        source = ("-Xcudafe", "--orig_src_path_name", "-Xcudafe", self.choose_source_name(recipe))
        return ("-Xcompiler", f"-ffile-prefix-map={HERE}/=", *source)

    def build_nvcc_command(self, recipe: Recipe, mode: str, code: tuple[str, ...]) -> list[str]:
        """Return nvcc's command without inputs and output; `mode` is "-cubin", "-ptx", "-c", …"""
        return [
            "{nvcc}",
            mode,
            *code,
            *(list_compression(recipe) if mode == "-c" else ()),
            "-ccbin",
            "{cxx}",
            f"-std={recipe.options.std}",
            *map(escape_define, format_defines(recipe)),
            *format_include_options(recipe, ("-Xcompiler",)),
            *self.list_name_options(recipe),
            "-Xptxas",
            "-v",
            *_escape_defines(protect_user_flags(recipe)),
        ]

    def dump_intermediates(self, recipe: Recipe, dump: DumpInProgress) -> None:
        """Run nvcc once for device and host, and keep its intermediate files."""
        # The recipe's own steps are not used: with line information each of them compiles for one
        # architecture, and begins with PTX.
        code = format_gencode(recipe.archs, ptx=recipe.ptx)
        command = self.build_nvcc_command(recipe, "-c", code)
        directory = os.path.join(dump.work, _INTERMEDIATES)
        os.mkdir(directory)
        options = ("-lineinfo", "-keep", "-keep-dir", _INTERMEDIATES)
        argv = (*command, SOURCE, *options, "-o", "kept.o")
        dump.run(Step("compile for host and device, with line numbers", argv, "kept.o"))
        for path in sorted(glob.glob(os.path.join(glob.escape(directory), "*"))):
            file_name = os.path.basename(path)
            output = f"{_INTERMEDIATES}/{file_name}"
            if match := _PREPROCESSED_NAME.fullmatch(file_name):
                dump.copy(output, f"device{_format_arch_suffix(recipe, match[1])}.ii")
            elif file_name.endswith(".cpp4.ii"):
                dump.copy(output, "host.ii")
            elif match := _PTX_NAME.fullmatch(file_name):
                suffix = _format_arch_suffix(recipe, match[1])
                dump.copy(output, f"{suffix.removeprefix('.') or 'kernel'}.ptx")
            elif file_name.endswith(".cubin"):
                dump.disassemble(path)


def _format_arch_suffix(recipe: Recipe, number: str | None) -> str:
    """Return the architecture's part of a dump's file name; nvcc omits a single architecture."""
    if number is None and len(recipe.archs) == 1:
        return f".{recipe.archs[0].name}"
    return f".sm_{number}" if number else ""


# For lines of PTX such as `.file 1 "/proc/self/cwd/source.cu"`. The first puts /tilusbuild/ before
# each name, the second shortens those of the toolkit's headers, and the third takes the prefix away
# from all other absolute names.
_ANONYMOUS_FILES = (
    "-e",
    rf's#^([[:space:]]*\.file[[:space:]]+[0-9]+[[:space:]]+")({HERE}/)?#\1/tilusbuild/#',
    "-e",
    r's#^([[:space:]]*\.file[[:space:]]+[0-9]+[[:space:]]+")[^"]*/bin/\.\./[^"]*/?include/#\1/cuda/include/#',
    "-e",
    r's#^([[:space:]]*\.file[[:space:]]+[0-9]+[[:space:]]+")/tilusbuild//#\1/#',
)


class KernelNvcc(KernelPipeline, NvccPipeline):
    def can_compile(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        return target == "cuda" and has_kernel and device_compiler == "nvcc"

    groups = True

    def derive_source(self, text: str, symbol: str, unit: Sequence[str] = ()) -> str:
        if unit:
            return text + kernel_names.format_unit_anchors(unit)
        if kernel_names.is_cpp_name(symbol):
            return text + kernel_names.format_anchor(symbol)
        return text

    def list_device_steps(self, recipe: Recipe, image: str) -> list[Step]:
        """Return a compile for each architecture. It goes through PTX, edited with sed, if line
        information, a C++ kernel name or PTX is wanted: the cubin is the same. For a fatbin, the
        last step joins them."""
        # ptxas writes the name, time and size of each source file that it finds into the cubin. So
        # the `.file` lines get names that lead to no file, whatever the toolkit's directory is.
        edits_ptx = has_line_info(recipe) or kernel_names.is_symbol_looked_up(recipe)
        steps: list[Step] = []
        images: list[str] = []
        is_fatbin = image.endswith(".fatbin")
        for arch, with_ptx in list_embedded_archs(recipe.archs, ptx=recipe.ptx):
            base_name = arch.name if is_fatbin else "program"
            ptx, cubin = f"{base_name}.ptx", f"{base_name}.cubin"
            code = format_gencode([arch], ptx=False)
            command = self.build_nvcc_command(recipe, "-cubin", code)
            input_file = SOURCE
            if edits_ptx or with_ptx:
                input_file = ptx
                ptx_command = self.build_nvcc_command(recipe, "-ptx", ("-arch", arch.virtual))
                ptx_argv = (*ptx_command, SOURCE, "-o", ptx)
                alone = _list_unit_options(recipe)
                steps.append(Step("ptx", ptx_argv, ptx, alone=alone, code=arch.name))
                steps += self._list_ptx_edits(recipe, arch, ptx)
                # Of the kernels of a unit, ptxas compiles the program's own.
                if recipe.unit:
                    command += ["-optf", kernel_names.ENTRY_FILE]
            device_argv = (*command, input_file, "-o", cubin)
            steps.append(Step("device", device_argv, cubin, code=arch.name))
            number = arch.name.removeprefix("sm_")
            images.append(f"--image3=kind=elf,sm={number},file={cubin}")
            if with_ptx:
                images.append(f"--image3=kind=ptx,sm={number},file={ptx}")
        if is_fatbin:
            join = ("{fatbinary}", f"--create={image}", "-64", *list_compression(recipe), *images)
            steps.append(Step("fatbinary", join, image, of_program=False))
        return steps

    def _list_ptx_edits(self, recipe: Recipe, arch: Arch, ptx: str) -> Iterator[Step]:
        """Yield the steps that edit the PTX in place and write the symbol of a C++ name to its
        file."""

        def edit(name: str, edits: Iterable[str], output: str) -> Step:
            argv = ("{sed}", "-E", "-i", *edits, ptx)
            return Step(name, argv, output, of_program=False, code=arch.name)

        if has_line_info(recipe):
            yield edit("names", _ANONYMOUS_FILES, ptx)
        if kernel_names.is_symbol_looked_up(recipe):
            edits = kernel_names.make_symbol_edits(recipe)
            yield edit("symbol", edits, kernel_names.SYMBOL_FILE)


def _list_unit_options(recipe: Recipe) -> tuple[str, ...]:
    """Return the arguments that compile the program's kernel of a unit alone."""
    return (f"-D{kernel_names.ONLY}={kernel_names.find_unit_index(recipe)}",) if recipe.unit else ()


KERNEL_NVCC = KernelNvcc()


def build_link_command(cudart: str) -> tuple[str, ...]:
    """Return the first words of nvcc's command for a link. `cudart` is the CUDA runtime, "static",
    "shared" or "none"."""
    # For a shared runtime nvcc would ask for libcudart.so, which wheels do not have: it is linked
    # by `list_runtime_arguments` instead.
    runtime = ("-cudart", "none" if cudart == "shared" else cudart, "-cudadevrt", "none")
    return ("{nvcc}", "{link_flags}", "-shared", "-ccbin", "{cxx}", *runtime, "-nodlink")


def list_runtime_arguments(kind: str) -> tuple[str, ...]:
    """Return the arguments after the objects that link the CUDA runtime."""
    return ("{cudart}",) if kind == "shared" else ()


def select_runtime_fingerprint(kind: str, toolchain: Toolchain) -> tuple[str, ...]:
    """Return the lines of `options.txt` on the CUDA runtime that is linked, besides nvcc's own."""
    return toolchain.fingerprint_cudart if kind == "shared" else ()


# `CUresult cuInit(unsigned int Flags);` becomes assembly that defines cuInit, and its variants for
# per-thread streams.
_SYMBOLS_OF_DECLARATIONS = (
    r"s/^(extern )?CUresult +(cu[A-Za-z0-9_]+)\(.*/"
    r".globl \2,\2_ptds,\2_ptsz\n.set \2,0\n.set \2_ptds,0\n.set \2_ptsz,0/w driver.s"
)
_LIST_DECLARATIONS = ("{nvcc}", "-E", "-x", "c", "-ccbin", "{cxx}", "-include", "cuda.h")
_DRIVER_LINK = ("-shared", "--build-id=none", "-soname", "libcuda.so.1", "driver.o")
_DRIVER_COMMANDS = {
    "driver.i": (*_LIST_DECLARATIONS, "/dev/null", "-o", "driver.i"),
    "driver.s": ("{sed}", "-nE", _SYMBOLS_OF_DECLARATIONS, "driver.i"),
    "driver.o": ("{as}", "--noexecstack", "driver.s", "-o", "driver.o"),
    "libcuda.so": ("{ld}", *_DRIVER_LINK, "-o", "libcuda.so"),
}
DRIVER_STEPS = tuple(
    Step("driver", argv, output, of_program=False) for output, argv in _DRIVER_COMMANDS.items()
)
"""The steps that make a stand-in for the driver's library at a link. The stand-in has the names
that the toolkit's `cuda.h` declares, so that a misspelt name is an error; toolkits of wheels have
no `stubs`. A library that uses one of the names asks for `libcuda.so.1` when it is loaded."""
DRIVER = (f"-L{HERE}", "-lcuda")


class HostPipeline(NvccPipeline):
    name = "host"
    launcher = HOST_LAUNCHER

    def can_compile(self, target: str, has_kernel: bool, device_compiler: str) -> bool:
        # Whatever the device compiler is: NVRTC compiles no host code.
        return target == "cuda" and not has_kernel

    def list_commands(self, recipe: Recipe) -> list[Step]:
        host_options = f"-fPIC,-march={choose_host_march(recipe)},-frandom-seed=0"
        code = format_gencode(recipe.archs, ptx=recipe.ptx)
        compiler = (*self.build_nvcc_command(recipe, "-c", code), "-Xcompiler", host_options)
        link, cudart = recipe.link or Link(), recipe.options.cudart
        linker = list_linker_options(link, EXPORT_FLAGS)
        # The driver's library comes after the user's, which may use it.
        driver_directory, driver_library = DRIVER
        user_libraries = (*_select_link_flags(recipe), *list_library_arguments(recipe))
        libraries = (driver_directory, *user_libraries, driver_library, "-ldl")
        inputs = ("source.o", "launcher.o", *libraries, *list_runtime_arguments(cudart))
        return [
            Step("source", (*compiler, SOURCE, "-o", "source.o"), "source.o"),
            *DRIVER_STEPS,
            *make_stand_in_steps(link),
            make_link_step(recipe, build_link_command(cudart), linker, inputs),
        ]

    def select_fingerprint(self, recipe: Recipe, toolchain: Toolchain) -> tuple[str, ...]:
        runtime = select_runtime_fingerprint(recipe.options.cudart, toolchain)
        return (*super().select_fingerprint(recipe, toolchain), *runtime)


def _select_link_flags(recipe: Recipe) -> list[str]:
    """Return the user's flags that are for the link, each with its value: -l, -L and -Xlinker."""
    flags: list[str] = []
    words = iter(protect_user_flags(recipe))
    for word in words:
        if word in ("-l", "-L", "-Xlinker"):
            flags += [word, next(words, "")]
        elif word.startswith(("-l", "-L")) and not word.startswith("-lineinfo"):
            flags.append(word)
    return flags


HOST = HostPipeline()
