"""Headers by any spelling: what a compiler reads of a copy of the closure is what it reads of the
project. `SPELLINGS=5000` tries so many sources."""

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.closures import closure, copy_to
from support.project import needs_cxx
from support.spellings import SYSTEM, World, options, world
from tilusbuild.errors import InputError
from tilusbuild.plan.rendering import format_definitions
from tilusbuild.render.closure import Outside, make_root
from tilusbuild.toolchain.nvrtc_library import Nvrtc

COUNT = int(os.environ.get("SPELLINGS", "150"))
SEED = os.environ.get("SPELLINGS_SEED", "1")

Ask = Callable[[Path, World, Sequence[str]], tuple[int, object]]


def preprocessed(*command: str, quoted: Sequence[str] = ("-iquote",)) -> Ask:
    def ask(directory: Path, world: World, roots: Sequence[str]) -> tuple[int, object]:
        words = [*command, *options(world, roots, f"../real/{SYSTEM}", *quoted), "source.cu"]
        done = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)
        # Where a header lies is not compared, but what is in it.
        lines = (line for line in done.stdout.splitlines() if not line.startswith("#"))
        return done.returncode, [line for line in lines if line.strip()]

    return ask


def compiled(library: str) -> Ask:
    nvrtc = Nvrtc(library)

    def ask(directory: Path, world: World, roots: Sequence[str]) -> tuple[int, object]:
        source = (directory / "source.cu").read_bytes()
        words = options(world, roots, f"../real/{SYSTEM}")
        with contextlib.chdir(directory):
            words += ["-arch=compute_80", "-default-device"]
            status, log, ptx = nvrtc.compile(source, "source.cu", words, ("PTX",))
        return (status, ptx) if status == 0 else (status, log)

    return ask


def different(directory: Path, world: World, ask: Ask, *, quotes: bool) -> tuple[bool, str]:
    """Return whether the project compiles, and how a compile of the copy differs; "" for not."""
    real, copy = directory / "real", directory / "copy"
    world.write(real)
    for name in ("project/kernels", "project/inc", "pkg/inc", SYSTEM):
        (real / name).mkdir(parents=True, exist_ok=True)
        (copy / name).mkdir(parents=True)
    roots = [
        *([make_root("project", str(real / "project"), "kernels", quoted_only=True)] * quotes),
        make_root("project", str(real / "project"), "inc"),
        make_root("pkg", str(real / "pkg"), "inc"),
    ]
    source = (real / "source.cu").read_bytes().decode()
    full_source = "\n".join(
        (source, *format_definitions((), [f"-D{define}" for define in world.defines]))
    )
    try:
        header_closure = closure(full_source, roots, outside=Outside((str(real / SYSTEM),)))
    except InputError as error:
        # docs/headers.md: the copy has no links.
        if '".." after a symbolic link' not in str(error):
            raise
        return False, ""
    copy_to(copy, header_closure)
    shutil.copyfile(real / "source.cu", copy / "source.cu")
    wanted = ask(real, world, [root.name for root in roots])
    # An include that climbs out of a root lies deeper in the copy, and so do its roots.
    got = ask(copy, world, [root.name for root in header_closure.roots])
    if wanted == got:
        return wanted[0] == 0, ""
    shown = "\n".join(f"--- {name}\n{text}" for name, text in world.files.items())
    return True, f"{wanted}\n{got}\n{[h.name for h in header_closure.headers]}\n{shown}"


def tried(directory: Path, count: int, ask: Ask, label: str, *, quotes: bool = True) -> None:
    failures = []
    well = 0
    for number in range(count):
        seed = f"{SEED}:{label}:{number}"
        case = directory / str(number)
        narrow = label == "nvrtc" and number % 5 > 0
        compiles, wrong = different(
            case, world(random.Random(seed), narrow=narrow), ask, quotes=quotes
        )
        well += compiles
        if wrong:
            failures.append(f"seed {seed}, {case}\n{wrong}")
        else:
            shutil.rmtree(case)
    assert not failures, f"{len(failures)} of {count} are different\n" + "\n\n".join(failures[:3])
    assert well > count // 3


@pytest.mark.parametrize("std", ["c++14", "c++17", "gnu++20"])
def test_the_host_compiler_sees_the_same(tmp_path: Path, std: str) -> None:
    needs_cxx()
    tried(tmp_path, COUNT // 3, preprocessed("g++", "-xc++", f"-std={std}", "-E", "-P", "-w"), std)


def test_nvcc_sees_the_same(tmp_path: Path, cuda_toolchain: Any) -> None:
    command = (cuda_toolchain.cuda.nvcc, "-x", "cu", "-E", "-w", "-arch=sm_80")
    ask = preprocessed(*command, quoted=("-Xcompiler", "-iquote", "-Xcompiler"))
    tried(tmp_path, COUNT // 15, ask, "nvcc")


def test_nvrtc_sees_the_same(tmp_path: Path, nvrtc_toolchain: Any) -> None:
    ask = compiled(nvrtc_toolchain.nvrtc.library)
    tried(tmp_path, COUNT // 3, ask, "nvrtc", quotes=False)
