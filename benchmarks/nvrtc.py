"""Device code through NVRTC, in processes that stay, against nvcc's.

Both compile the sources that tilusbuild rendered, small kernels for sm_90a: ninja with `nvcc
-cubin` makes device code and stops there, tilusbuild makes libraries. There are more programs than
in `cold.py`, because the start is the greater part of so little.
"""

from __future__ import annotations

import os
from pathlib import Path

import _bench
from _bench import Arm, process
from cold import ONE_PASS, emptied, make_project, peer, remove_compiled, sources

from tilusbuild.errors import InputError
from tilusbuild.process.local import LocalRunner
from tilusbuild.toolchain import DigestMemory, ToolchainRequest, discover_nvrtc


def find_version() -> str | None:
    """The version of this machine's NVRTC."""
    with LocalRunner() as runner:
        try:
            return discover_nvrtc(ToolchainRequest(), os.environ, runner, DigestMemory()).version
        except InputError as error:
            print(f"nothing to compare: {error.diagnostics[0].message}")
            return None


def tilusbuild(directory: Path, compiler: str, programs: int, jobs: int) -> Arm:
    """A build from nothing but what is known of the tools and of the plan."""
    words = (*_bench.TILUSBUILD, "build", "-j", str(jobs), "--device-compiler", compiler)
    make_project(directory, programs)
    process(words, directory)
    return Arm(
        f"tilusbuild, {compiler}",
        lambda: process(words, directory),
        lambda: len(list(directory.glob(".cache/programs/*/module/lib.so"))) == programs,
        lambda: remove_compiled(directory),
    )


def ninja(directory: Path, texts: list[str], jobs: int) -> Arm:
    """The floor: device code alone."""
    peer(directory, texts, ["-cubin", *ONE_PASS], "cubin")
    return Arm(
        "ninja, nvcc -cubin",
        lambda: process((_bench.ninja(), f"-j{jobs}"), directory),
        lambda: len(list(directory.glob("out/*.cubin"))) == len(texts),
        lambda: emptied(directory / "out"),
    )


def main() -> None:
    asked = _bench.arguments(__doc__, rounds=3, programs=480)
    programs = 6 if asked.small else max(6, asked.programs // 6 * 6)
    jobs = len(os.sched_getaffinity(0))
    version = find_version()
    if version is None:
        return
    with _bench.workshop() as directory:
        mine = tilusbuild(directory / "nvrtc", "nvrtc", programs, jobs)
        texts = sources(directory / "nvrtc")
        assert len(texts) == programs, len(texts)
        arms = [
            mine,
            tilusbuild(directory / "nvcc", "nvcc", programs, jobs),
            ninja(directory / "ninja", texts, jobs),
        ]
        _bench.alternate(arms, 1 if asked.small else asked.rounds, warm_up=False)
        title = f"cold build through NVRTC {version}, {programs} saxpy kernels"
        results = [_bench.report(title, arms, per=programs)]
        for arm in arms:
            _bench.busy(arm, jobs)
    _bench.finish(asked, results)


if __name__ == "__main__":
    main()
