"""What the sandbox of a compile costs: the same build from nothing, with it and without.

Both arms list and check what compilers read; only one is held by Landlock. For the kernel pipeline
through nvcc, for the host compiler, and through NVRTC, whose processes stay.
"""

from __future__ import annotations

import os
from pathlib import Path

import _bench
from _bench import Arm, process
from cold import emptied, make_project
from nvrtc import find_version

from tilusbuild.process import landlock


def arm(directory: Path, compiler: str, programs: int, held: bool) -> Arm:
    """A build from nothing but what is known of the tools and of the plan."""
    words = (*_bench.TILUSBUILD, "build", "--device-compiler", compiler)
    environment = {**os.environ, "TILUSBUILD_SANDBOX": str(int(held))}
    make_project(directory, programs)
    process(words, directory, environment)
    return Arm(
        f"{compiler}, {'in' if held else 'without'} a sandbox",
        lambda: process(words, directory, environment),
        lambda: len(list(directory.glob(".cache/programs/*/module/lib.so"))) == programs,
        lambda: emptied(*(directory / ".cache" / name for name in ("programs", "scripts"))),
    )


def main() -> None:
    asked = _bench.arguments(__doc__, rounds=7, programs=24)
    programs = 6 if asked.small else max(6, asked.programs // 6 * 6)
    if not landlock.find_version():
        print("nothing to compare: this machine has no Landlock")
        _bench.finish(asked, [])
        return
    results = []
    with _bench.workshop() as directory:
        for compiler in ("nvcc", "nvrtc") if find_version() else ("nvcc",):
            arms = [
                arm(directory / f"{compiler}-{held}", compiler, programs, held)
                for held in (True, False)
            ]
            _bench.alternate(arms, 1 if asked.small else asked.rounds, warm_up=False)
            title = f"cold, {programs} small kernels, {compiler}"
            results.append(_bench.report(title, arms, per=programs))
    _bench.finish(asked, results)


if __name__ == "__main__":
    main()
