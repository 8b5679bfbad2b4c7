"""Can schedules share nvcc's front end? An experiment, not a part of the build.

N schedules of one script are compiled alone, and in these other ways:

- one source with all of them, each in a namespace of its own: one cubin that holds N kernels;
- the PTX of that source, taken apart into one module a kernel, each for ptxas alone;
- from a source whose includes were preprocessed once for all;
- alone, with `--split-compile`.

Each is compared with the compiles alone: CPU time a program, how many kernels have the same machine
code, and how many programs the same cubin, byte for byte. Only the last would let an entry's
`compile.sh` make the same library from its own source.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import _bench
from _bench import process

from tilusbuild.arch import format_gencode
from tilusbuild.binary.cubin import open_cubin
from tilusbuild.builder.project import Project
from tilusbuild.compile.model import Recipe
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import iterate_jobs
from tilusbuild.render.closure import map_layout

Cubins = dict[int, bytes]
_ENTRY = re.compile(r"^\.visible \.entry (\w+)\(", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[^\n]*\n", re.MULTILINE)
_BEGIN = "// a marker between includes and the program: 5b21c0\n"


@dataclass(frozen=True)
class Work:
    """Schedules of one script: their sources, their kernel, and how nvcc is called."""

    name: str
    sources: tuple[str, ...]
    symbol: str
    flags: tuple[str, ...]


def work(example: Path, script: str, target: str, count: int, directory: Path) -> Work:
    """The first schedules of a script that have the same constants."""
    shutil.copytree(example, directory / "project", ignore=shutil.ignore_patterns(".cache"))
    recipes: list[Recipe] = []
    headers: Mapping[str, bytes | str] = {}
    environment = {**os.environ, "TILUSBUILD_CACHE_DIR": str(directory / "cache")}
    with Project.open(str(directory / "project"), {}, environment) as project:
        plan = project.make_plan(PlanSelection((script,), (target,), 2))
        jobs = [job for job in iterate_jobs(plan) if job.planned is plan.instances[0]]
        for job in jobs[:: max(1, len(jobs) // count)][:count]:
            rendering = job.render()
            recipes.append(rendering.recipe)
            headers = map_layout(rendering.closure) if rendering.closure.headers else {}
    for name, content in headers.items():
        path = directory / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else Path(content).read_bytes())
    first, options = recipes[0], recipes[0].options
    flags = [
        *format_gencode(first.archs, ptx=False),
        f"-std={options.std}",
        "-Xptxas",
        "-v",
        *options.flags,
    ]
    flags += [f"-D{key}={value}" if value else f"-D{key}" for key, value in options.defines]
    for root, _ in first.includes.roots:
        flags += ["-I", str(directory / "include" / root)]
    return Work(script, tuple(r.source for r in recipes), first.symbol, tuple(flags))


def joined(kernel_work: Work) -> str:
    """One source: every include first, then each program in a namespace, its kernel renamed."""
    parts = list(dict.fromkeys(i for s in kernel_work.sources for i in _INCLUDE.findall(s)))
    for number, source in enumerate(kernel_work.sources):
        body = _INCLUDE.sub("\n", source)
        macros = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", body, re.MULTILINE)
        parts += [
            f"#define {kernel_work.symbol} {kernel_work.symbol}_{number}\n",
            f"namespace program_{number} {{\n{body}\n}}\n",
            *(f"#undef {name}\n" for name in dict.fromkeys([*macros, kernel_work.symbol])),
        ]
    return "".join(parts)


def taken_apart(ptx: str) -> dict[str, str]:
    """A PTX module as one module for each of its kernels: what the kernel names comes with it."""
    head, *items = re.split(r"\n(?=(?:\.visible|\.weak|\.extern|\.func|\.global|\.const)\b)", ptx)
    names = {}
    for item in items:
        text = item.split("{", 1)[0].split("=", 1)[0]
        tokens = re.findall(r"[A-Za-z_$][\w$]*(?=\s*[(\[;=]|\s*$)", text)
        names[item] = [name for name in tokens if name != "align"]
    modules = {}
    for item in items:
        if (entry := _ENTRY.match(item)) is None:
            continue
        wanted = {item}
        growing = True
        while growing:
            text = "\n".join(wanted)
            more = {
                other
                for other in items
                if other not in wanted
                and _ENTRY.match(other) is None
                and any(
                    re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text)
                    for name in names[other]
                )
            }
            wanted |= more
            growing = bool(more)
        modules[entry[1]] = (
            "\n".join([head, *(ptx_item for ptx_item in items if ptx_item in wanted)]) + "\n"
        )
    return modules


def compile_(directory: Path, words: Sequence[str]) -> float:
    """CPU seconds of one nvcc."""
    return process((_bench.nvcc(), *words), directory, {"TMPDIR": str(directory)}).cpu


def alone(kernel_work: Work, directory: Path, *more: str) -> tuple[float, Cubins]:
    cpu, cubins = 0.0, {}
    for number, source in enumerate(kernel_work.sources):
        (directory / "source.cu").write_text(source)
        cpu += compile_(
            directory, ["-cubin", *kernel_work.flags, *more, "source.cu", "-o", "p.cubin"]
        )
        cubins[number] = (directory / "p.cubin").read_bytes()
    return cpu, cubins


def split_compile(kernel_work: Work, directory: Path) -> tuple[float, Cubins]:
    return alone(kernel_work, directory, "--split-compile", "2")


def one_source(kernel_work: Work, directory: Path) -> tuple[float, Cubins]:
    (directory / "source.cu").write_text(joined(kernel_work))
    cpu = compile_(directory, ["-cubin", *kernel_work.flags, "source.cu", "-o", "p.cubin"])
    return cpu, dict.fromkeys(range(len(kernel_work.sources)), (directory / "p.cubin").read_bytes())


def one_ptx(kernel_work: Work, directory: Path) -> tuple[float, Cubins]:
    (directory / "source.cu").write_text(joined(kernel_work))
    arch = next(word for word in kernel_work.flags if word.startswith("arch="))
    virtual = arch.removeprefix("arch=").split(",")[0]
    code = kernel_work.flags.index("-gencode")
    plain = kernel_work.flags[:code] + kernel_work.flags[code + 2 :]
    cpu = compile_(directory, ["-ptx", "-arch", virtual, *plain, "source.cu", "-o", "all.ptx"])
    cubins = {}
    for name, text in taken_apart((directory / "all.ptx").read_text()).items():
        number = int(name.rpartition("_")[2])
        text = re.sub(rf"(?<![\w$]){name}(?![\w$])", kernel_work.symbol, text)
        text = text.replace(f"{name}_param_", f"{kernel_work.symbol}_param_")
        (directory / "source.ptx").write_text(text)
        cpu += compile_(directory, ["-cubin", *kernel_work.flags, "source.ptx", "-o", "p.cubin"])
        cubins[number] = (directory / "p.cubin").read_bytes()
    return cpu, cubins


def includes_once(kernel_work: Work, directory: Path) -> tuple[float, Cubins]:
    """nvcc -E of the includes alone gives the device's view of them, in place of the includes."""
    includes = "".join(dict.fromkeys(i for s in kernel_work.sources for i in _INCLUDE.findall(s)))
    (directory / "head.cu").write_text(includes + _BEGIN)
    code = kernel_work.flags.index("-gencode")
    cpu = compile_(
        directory,
        ["-E", *kernel_work.flags[:code], *kernel_work.flags[code:], "head.cu", "-o", "h.i"],
    )
    head = re.sub(
        r"^# (\d+) (\"[^\"]*\").*$",
        r"#line \1 \2",
        (directory / "h.i").read_text(),
        flags=re.MULTILINE,
    )
    cubins = {}
    for number, source in enumerate(kernel_work.sources):
        (directory / "source.cu").write_text(head + _INCLUDE.sub("\n", source))
        # nvcc includes its own header first in any case; by now that is in the text.
        words = ["-cubin", *kernel_work.flags, "-D__CUDA_RUNTIME_H__", "source.cu", "-o", "p.cubin"]
        cpu += compile_(directory, words)
        cubins[number] = (directory / "p.cubin").read_bytes()
    return cpu, cubins


WAYS: dict[str, Callable[[Work, Path], tuple[float, Cubins]]] = {
    "alone": alone,
    "alone again": alone,
    "alone, --split-compile": split_compile,
    "one source, one cubin": one_source,
    "one source, PTX taken apart": one_ptx,
    "includes preprocessed once": includes_once,
}


def code(cubin: bytes, names: Sequence[str]) -> bytes | None:
    """The machine code of the first of these kernels that a cubin has."""
    elf = open_cubin(cubin)
    for name in names:
        if (section := elf.find_section(f".text.{name}")) is not None:
            return elf.read_section(section)
    return None


def compared(kernel_work: Work, directory: Path) -> dict[str, object]:
    """Every way once, and a line for each."""
    count = len(kernel_work.sources)
    base = 0.0
    reference: Cubins = {}
    result_by_way: dict[str, object] = {}
    print(f"\n{kernel_work.name}, {count} schedules, {' '.join(kernel_work.flags[:2])}")
    print(f"  {'':32}{'CPU a program':>15}{'by alone':>10}{'same code':>12}{'same cubin':>12}")
    for name, way in WAYS.items():
        where = directory / name.replace(" ", "_")
        where.mkdir()
        try:
            cpu, cubins = way(kernel_work, where)
        except _bench.WorkNotDoneError as error:
            reason = next((line for line in str(error).splitlines() if "error" in line), "")
            print(f"  {name:32} does not compile: {reason.strip()[:150]}")
            result_by_way[name] = {"error": reason}
            continue
        base = base or cpu
        reference = reference or cubins
        symbol = kernel_work.symbol
        codes = sum(
            code(cubins[i], (f"{symbol}_{i}", symbol)) == code(reference[i], (symbol,))
            for i in range(count)
        )
        same = sum(cubins[i] == reference[i] for i in range(count))
        print(
            f"  {name:32}{cpu / count * 1e3:12.0f} ms{cpu / base:10.2f}{codes:9}/{count}"
            f"{same:9}/{count}",
            flush=True,
        )
        result_by_way[name] = {
            "cpu": cpu / count,
            "ratio": cpu / base,
            "code": codes,
            "cubins": same,
        }
    return {"script": kernel_work.name, "schedules": count, "ways": result_by_way}


def main() -> None:
    asked = _bench.arguments(__doc__, programs=8)
    count = 2 if asked.small else asked.programs
    examples = _bench.ROOT / "examples"
    kernels = [("quickstart", "saxpy", "sm_90a", count)]
    if not asked.small:
        kernels += [
            ("quickstart", "rms_norm", "sm_80", count),
            ("gemm", "gemm", "ampere", count),
            ("cutlass", "linear", "sm_90a", 3),
        ]
    results = []
    with _bench.workshop() as directory:
        for example, script, target, number in kernels:
            script_directory = directory / script
            script_directory.mkdir()
            try:
                kernel_work = work(examples / example, script, target, number, script_directory)
            except Exception as error:  # an example whose headers are not installed here
                print(f"\n{script}: left out ({str(error).splitlines()[0]})")
                continue
            results.append(compared(kernel_work, script_directory))
    _bench.finish(asked, results)


if __name__ == "__main__":
    main()
