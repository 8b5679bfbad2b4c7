"""What the pipelines that use nvcc have in common: its words, its traps, what it can keep."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tilusbuild.compile.model import Recipe
from tilusbuild.compile.pipelines.base import Pipeline
from tilusbuild.compile.steps import HERE, Step, defines, includes
from tilusbuild.compile.tools import Tools
from tilusbuild.process.base import Command, CompletedCommand, Runner

if TYPE_CHECKING:
    from tilusbuild.compile.dump import Dump
    from tilusbuild.toolchain import HeaderDirectories, Toolchain

_LINE_INFO = frozenset(
    {"-lineinfo", "--generate-line-info", "-generate-line-info", "-G", "--device-debug"}
)
# nvcc cuts -I at commas, and hands it to a shell with quotes of its own around it.
_TAKEN_APART = frozenset("'\"`,$\\\n")
_OUTPUT_MODES = ("-cubin", "-fatbin", "-ptx", "-c")

_KEPT = "kept"
_DEVICE_II = re.compile(r"source(?:\.compute_(\w+))?\.cpp1\.ii")
_PTX = re.compile(r"source(?:\.compute_(\w+))?\.ptx")


def has_line_info(recipe: Recipe) -> bool:
    """Return whether the flags make ptxas record the names, sizes and times of source files."""
    return not _LINE_INFO.isdisjoint(recipe.flags)


class NvccPipeline(Pipeline):
    """A pipeline whose device code nvcc compiles."""

    compiler = "nvcc"
    needs = frozenset({"nvcc"})

    def fingerprint(self, recipe: Recipe, tools: Tools) -> tuple[str, ...]:
        return tools.cuda_fingerprint

    def headers(self, toolchain: Toolchain) -> HeaderDirectories:
        return toolchain.headers(cuda=True)

    def toolkit_version(self, toolchain: Toolchain) -> str | None:
        return toolchain.cuda.version if toolchain.cuda is not None else None

    def include_links(self, recipe: Recipe) -> dict[str, str]:
        """Links to the header directories whose own names nvcc would take apart."""
        names = [name for name, _ in recipe.include_roots]
        return {
            f"include-{number}": f"include/{name}"
            for number, name in enumerate(names)
            if not _TAKEN_APART.isdisjoint(name)
        }

    def nvcc(self, recipe: Recipe, mode: str, code: tuple[str, ...]) -> list[str]:
        """Return nvcc's command without inputs and output; `mode` says what to make."""
        return [
            "{nvcc}",
            mode,
            *code,
            "-ccbin",
            "{cxx}",
            f"-std={recipe.std}",
            *defines(recipe),
            *includes(recipe, ("-Xcompiler", "-iquote")),
            "-Xcompiler",
            f"-ffile-prefix-map={HERE}/=",
            # The names of entities with internal linkage hold a hash of the source's directory,
            # and this is where cudafe++ and cicc take it from. The last one given wins.
            "-Xcudafe",
            "--orig_src_path_name",
            "-Xcudafe",
            "/tilusbuild/source.cu",
            "-Xptxas",
            "-v",
            *recipe.flags,
        ]

    def dump(self, recipe: Recipe, dump: Dump) -> None:
        """One run of nvcc for device and host, its intermediate files kept."""
        first = self.commands(recipe)[0].argv
        source = list(first[: first.index("-o")])
        mode = next(i for i, word in enumerate(source) if word in _OUTPUT_MODES)
        source[mode] = "-c"
        os.mkdir(os.path.join(dump.work, _KEPT))
        argv = (*source, "-lineinfo", "-keep", "-keep-dir", _KEPT, "-o", "kept.o")
        dump.run(Step("compile for host and device, with line numbers", argv, "kept.o"))
        for path in sorted(glob.glob(os.path.join(glob.escape(dump.work), _KEPT, "*"))):
            name = f"{_KEPT}/{os.path.basename(path)}"
            if match := _DEVICE_II.fullmatch(os.path.basename(path)):
                dump.copy(name, f"device{_arch_suffix(recipe, match[1])}.ii")
            elif name.endswith(".cpp4.ii"):
                dump.copy(name, "host.ii")
            elif match := _PTX.fullmatch(os.path.basename(path)):
                suffix = _arch_suffix(recipe, match[1])
                dump.copy(name, f"{suffix.removeprefix('.') or 'kernel'}.ptx")
            elif name.endswith(".cubin"):
                dump.disassemble(path)


def _arch_suffix(recipe: Recipe, number: str | None) -> str:
    """Return the part of a name that says which architecture; nvcc leaves it out when there is
    one."""
    if number is None and len(recipe.archs) == 1:
        return f".{recipe.archs[0].name}"
    return f".sm_{number}" if number else ""


FIRST_RELEASE = (13, 0)
"""The first CUDA release whose nvcc has `--jobserver`."""
_THREADS = ("-t", "--threads", "-threads")


class ThreadsRunner:
    """Has nvcc take jobserver tokens for its threads, in its commands on `runner`.

    nvcc compiles for several architectures one after the other, unless the user gives it
    `--threads`, which changes no byte of what it makes, but the order of what it prints. The
    program's identity and its `compile.sh` say of threads what the user wrote and no more.
    """

    def __init__(self, nvcc: str, makeflags: str, runner: Runner) -> None:
        self._nvcc = nvcc
        self._makeflags = makeflags
        self._runner = runner

    def run(self, command: Command) -> CompletedCommand:
        images = sum(word == "-gencode" for word in command.argv)
        threads = any(word.split("=")[0] in _THREADS for word in command.argv)
        if command.argv[0] != self._nvcc or images < 2 or not threads:
            return self._runner.run(command)
        finished = self._runner.run(
            replace(
                command,
                argv=(*command.argv, "--jobserver"),
                env={**command.env, "MAKEFLAGS": self._makeflags},
            )
        )
        # Each thread is a process with memory of its own, and the largest is all that is known.
        return replace(finished, peak_rss=images * finished.peak_rss)

    def cancel(self) -> None:
        self._runner.cancel()

    def close(self) -> None:
        self._runner.close()
