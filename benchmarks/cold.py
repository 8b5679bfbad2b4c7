"""A cold build: every program from nothing, against what compiles the same sources today.

The peers are ninja with `nvcc -cubin` (the floor: only the device code, no library), with `nvcc
--shared` and its best flags, and with `nvcc --shared` as people call it. A few of
them include the C++ headers of tvm-ffi, as modules do that a binding is compiled into. The sources
are the ones that tilusbuild rendered. sccache takes no part: it does not cache `nvcc --shared` or
`-cubin`, and in a cold build there is nothing to find. Also shown: how busy the
cores were, whether as many compilers ran as could until the end, and what a program costs besides
its compiler, with a compiler that takes no time.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path

import _bench
import _projects
from _bench import Arm, Ran, process

_MANIFEST = """\
edition = 1
[project]
name = "cold"
version = "0.1.0"
[build]
cache-dir = ".cache"
[target.gpu]
arch = "sm_90a"
[script.saxpy]
template = "kernels/saxpy.cu.j2"
kernel = "saxpy"
targets = ["gpu"]
args = {{ a = "f32", x = "f32*[n]", y = {{ type = "f32*[n]", out = true }}, n = "i64" }}
launch = {{ grid = ["cdiv(n, tile)"], block = ["threads"] }}
space = {{ threads = {threads}, vector = [1, 2, 4], unroll = {{ range = [1, {unroll}] }} }}
derived.tile = "threads * vector * unroll"
"""

_WRAPPER = """\
#include <cuda_runtime.h>
{include}
{source}
extern "C" int launch_it(float a, const float *x, float *y, long long n, void *stream) {{
  saxpy<<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>(a, x, y, n);
  return (int)cudaGetLastError();
}}
{export}
"""

_FFI_INCLUDE = "#include <tvm/ffi/container/tensor.h>\n#include <tvm/ffi/function.h>"
_FFI_EXPORT = """
void call_it(double a, tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  launch_it((float)a, (const float *)x.data_ptr(), (float *)y.data_ptr(), x.size(0), nullptr);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(call_it, call_it);
"""

_MAX_UNROLLED = 16
"""Beyond, compiling the code itself takes longer than starting the compiler."""

ONE_PASS = ["-gencode", "arch=compute_90a,code=sm_90a"]
SHARED = ["--shared", "-Xcompiler", "-fPIC"]


def make_project(directory: Path, programs: int) -> Path:
    """A project of three schedules of saxpy, or a multiple of six; the kernels stay small."""
    pairs = max(1, programs // 6)
    unroll = max(number for number in range(1, _MAX_UNROLLED + 1) if pairs % number == 0)
    threads = [32 * number for number in range(1, programs // (3 * unroll) + 1)]
    text = _MANIFEST.format(threads=threads, unroll=unroll)
    _projects.write(directory / "tilus.toml", text)
    source = _bench.ROOT / "examples/quickstart/kernels/saxpy.cu.j2"
    _projects.write(directory / "kernels/saxpy.cu.j2", source.read_text())
    return directory


def sources(directory: Path) -> list[str]:
    """What tilusbuild rendered."""
    paths = sorted(directory.glob(".cache/programs/*/module/source.cu"))
    return [path.read_text() for path in paths]


def peer(
    directory: Path, texts: Sequence[str], flags: Sequence[str], suffix: str, ffi: bool = False
) -> Path:
    """A directory with `build.ninja` that compiles these texts."""
    wrapped = suffix == "so"
    command = " ".join(["$compiler", *flags, "$in", "-o", "$out"])
    lines = ["rule compile", f"  command = {command}"]
    for number, text in enumerate(texts):
        if wrapped:
            include, export = (_FFI_INCLUDE, _FFI_EXPORT) if ffi else ("", "")
            text = _WRAPPER.format(include=include, source=text, export=export)
        _projects.write(directory / f"src/p{number}.cu", text)
        lines.append(f"build out/p{number}.{suffix}: compile src/p{number}.cu")
    _projects.write(
        directory / "build.ninja", f"compiler = {_bench.nvcc()}\n" + "\n".join(lines) + "\n"
    )
    return directory


def runtime(directory: Path) -> list[str]:
    """Options by which nvcc finds CUDA's runtime in NVIDIA's wheels: in a directory where it
    does not look, and under the name of one release only. None for an installed toolkit."""
    root = Path(_bench.nvcc()).resolve().parents[1]
    if (root / "lib64/libcudart.so").exists():
        return []
    directory.mkdir()
    for path in (root / "lib").glob("libcuda*"):
        (directory / f"{path.name.partition('.')[0]}{path.suffixes[0]}").symlink_to(path)
    return [f"-L{directory}"]


def remove_compiled(project: Path) -> None:
    """Remove what compiles left in a project's cache. What is known of the tools and of the plan is
    kept, as the page cache is."""
    kept_by_compiles = (f"state/{name}" for name in ("code", "launchers", "units"))
    emptied(*(project / ".cache" / name for name in ("programs", "scripts", *kept_by_compiles)))


def emptied(*directories: Path) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    asked = _bench.arguments(__doc__, rounds=5, programs=96)
    programs = 3 if asked.small else max(6, asked.programs // 6 * 6)
    rounds = 1 if asked.small else asked.rounds
    jobs = len(os.sched_getaffinity(0))
    ninja = _bench.ninja()
    with _bench.workshop() as directory:
        mine = make_project(directory / "tilus", programs)
        _projects.build(mine)
        texts = sources(mine)
        assert len(texts) == programs, len(texts)
        ran: list[Ran] = []

        def run() -> Ran:
            ran.append(process((*_bench.TILUSBUILD, "build", "-j", str(jobs)), mine))
            return ran[-1]

        def made(where: Path, suffix: str) -> bool:
            return len(list(where.glob(f"out/*.{suffix}"))) == programs

        arms = [
            Arm(
                "tilusbuild",
                run,
                lambda: len(list(mine.glob(".cache/programs/*/module/lib.so"))) == programs,
                lambda: remove_compiled(mine),
            )
        ]
        shared = [*SHARED, *runtime(directory / "lib")]
        kinds: list[tuple[str, list[str], str]] = [
            ("ninja, nvcc -cubin (the floor)", ["-cubin", *ONE_PASS], "cubin"),
            (
                "ninja, nvcc --shared, best flags",
                [*shared, *ONE_PASS, "-cudart", "shared", "-nodlink", "-cudadevrt", "none"],
                "so",
            ),
            ("ninja, nvcc --shared -arch=sm_90a", [*shared, "-arch=sm_90a"], "so"),
        ]
        for name, flags, suffix in kinds[: 1 if asked.small else None]:
            where = peer(directory / name.replace(" ", "_"), texts, flags, suffix)
            arms.append(
                Arm(
                    name,
                    lambda where=where: process((ninja, f"-j{jobs}"), where),  # type: ignore[misc]
                    lambda where=where, suffix=suffix: made(where, suffix),  # type: ignore[misc]
                    lambda where=where: emptied(  # type: ignore[misc]
                        where / "out", where / ".ninja_log", where / ".ninja_deps"
                    ),
                )
            )
        for arm in arms:
            _remove_logs(arm, directory)
        _bench.alternate(arms, rounds, warm_up=False)
        results = [_bench.report(f"cold build, {programs} saxpy kernels", arms, per=programs)]
        _bench.busy(arms[0], jobs)
        for arm in arms[1:]:
            _bench.busy(arm, jobs)
        results.append(places_used(arms, mine, directory / kinds[0][0].replace(" ", "_"), jobs))
        if not asked.small:
            results.append(with_ffi(directory / "ffi", texts[:4], shared, arms[0], programs, jobs))
        results.append(overhead(directory, 40 if asked.small else 2000))
    _bench.finish(asked, results)


def places_used(arms: Sequence[Arm], mine: Path, floor: Path, jobs: int) -> dict[str, object]:
    """Whether as many compilers ran as could, to the end; by their starts and ends, not by CPU."""
    arms[0].prepare()
    ours_used = _bench.use(
        _bench.spans_of_build((*_bench.TILUSBUILD, "build", "--json", "-j", str(jobs)), mine), jobs
    )
    arms[1].once(keep=False)
    ninja_used = _bench.use(_bench.spans_of_ninja(floor), jobs)
    report: dict[str, object] = {"title": "places used"}
    for name, used in ((arms[0].name, ours_used), (arms[1].name, ninja_used)):
        print(
            f"  {name:34}{used.used:10.1%} of {jobs} places in use from the first compile to the "
            f"last; not all in the last {used.tail:.1%}"
        )
        report[name] = {"used": used.used, "tail": used.tail}
    return report


def with_ffi(
    directory: Path,
    texts: Sequence[str],
    shared: Sequence[str],
    mine: Arm,
    programs: int,
    jobs: int,
) -> dict[str, object]:
    """A few of them with the C++ headers of a binding: they take too long for all."""
    import tvm_ffi.libinfo

    includes = (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())
    flags = [*shared, "-arch=sm_90a", "-std=c++17", *(f"-I{path}" for path in includes)]
    peer(directory, texts, flags, "so", ffi=True)
    ran = process((_bench.ninja(), f"-j{jobs}"), directory)
    assert len(list(directory.glob("out/*.so"))) == len(texts)
    program_cpu = ran.cpu / len(texts)
    ours_each = statistics.median(one.cpu for one in mine.runs) / programs
    print(
        f"  with the C++ headers of tvm-ffi, nvcc --shared: {program_cpu:.2f} s of CPU a program, "
        f"{program_cpu / ours_each:.1f} times as much"
    )
    return {"title": "C++ FFI", "cpu": program_cpu, "ratio": program_cpu / ours_each}


def _remove_logs(arm: Arm, directory: Path) -> None:
    before = arm.prepare

    def prepare() -> None:
        before()
        for name in (".ninja_log", ".ninja_deps"):
            for path in directory.glob(f"*/{name}"):
                path.unlink()

    arm.prepare = prepare


def overhead(directory: Path, programs: int) -> dict[str, object]:
    """What a program costs besides its compiler: planned, rendered, scheduled, published."""
    nvcc = _projects.fake_toolkit(directory / "toolkit")
    walls, cpus = [], []
    for number in range(3):
        where = directory / f"overhead{number}"
        _projects.project(where, programs, nvcc)
        filled = _projects.fill(where)
        assert filled.programs == programs
        walls.append(filled.seconds / programs * 1e3)
        cpus.append(filled.cpu / programs * 1e3)
        shutil.rmtree(where)
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    print(
        f"\nwithout a compiler, {programs:,} programs: {cpu:.2f} ms of CPU a program, of which "
        f"{filled.scheduling / programs * 1e3:.2f} ms scheduling; {wall:.2f} ms elapsed, mostly "
        "waiting for the disk"
    )
    return {"title": "overhead", "programs": programs, "cpu_ms": cpu, "wall_ms": wall}


if __name__ == "__main__":
    main()
