"""vLLM's Marlin: the kernels of one combination of types.

vLLM generates a source for each combination, with all of its schedules; that is its unit, compiled
by the flags of its CMake file. Ours is the same unit, or a program for each schedule: alone, or
with one front end for all of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from _bench import ninja, nvcc

from _real import world
from _real.project import Project
from _real.schedules import hold_sources

PACKAGE = "vllm==0.33.0"

_FLAGS = (
    "-O3 -DNDEBUG -std=c++17 -Xcompiler -fPIC --compress-mode=size "
    "--expt-relaxed-constexpr -static-global-template-stub=false "
    "-gencode arch=compute_80,code=sm_80"
)
_NINJA = """\
rule cu
  command = {nvcc} {flags} {includes} -MD -MF $out.d -c $in -o $out
  deps = gcc
  depfile = $out.d
rule link
  command = g++ -shared $in -o $out
build kernels.o: cu kernels.cu
build kernels.so: link kernels.o
"""


WAYS = {"unit": "one unit", "single": "a program each", "group": "a program each, one front end"}


def prepare(kernels: int | None, way: str) -> Project:
    """Lay Marlin out with f16, u4b8 and f16: all of its 60 kernels or so many, in one of `WAYS`; of
    programs whole rows of three, as a rule chooses them."""
    if kernels is not None and way != "unit":
        kernels = -(-kernels // 3) * 3
    tree = world.WORK / "marlin" / way
    marlin_directory = tree / "csrc/quantization/marlin"
    if not marlin_directory.exists():
        csrc = world.source(PACKAGE) / "csrc"
        shutil.copytree(csrc / "quantization/marlin", f"{marlin_directory}.new")
        shutil.copytree(csrc / "core", tree / "csrc/core", dirs_exist_ok=True)
        Path(f"{marlin_directory}.new").rename(marlin_directory)
    world.port("marlin", tree)
    build = tree / "theirs"
    (build / "generated").mkdir(parents=True, exist_ok=True)
    generate = [
        world.python(),
        str(marlin_directory / "generate_kernels.py"),
        "8.0",
        str(build / "generated"),
    ]
    subprocess.run(generate, check=True)
    if way == "unit":
        hold_sources(tree, "unit", (build / "generated").glob("*.cu"), PACKAGE)
    _narrow(tree / "tilus.toml", kernels or 60, way)
    text = (build / "generated/sm80_kernel_float16_u4b8_float16.cu").read_text()
    head, *templates = re.split(r"(?=template __global__)", text)
    chosen = [re.sub(r"\s*}\s*$", "", kernel) for kernel in templates[: kernels or len(templates)]]
    (build / "kernels.cu").write_text(head + "\n".join(chosen) + "\n}\n")
    torch = world.site("torch") / "include"
    includes = f"-I{tree}/csrc -I{marlin_directory} -isystem {torch}"
    rules = _NINJA.format(nvcc=nvcc(), flags=_FLAGS, includes=includes)
    (build / "build.ninja").write_text(rules)
    own = tree / "build/marlin_kernels.so"
    return Project(
        name=f"Marlin, {len(chosen)} of {len(templates)} kernels, {WAYS[way]}",
        tree=tree,
        theirs=[(build, [ninja(), "-j2"])],
        made=lambda: [build / "kernels.o", build / "kernels.so"],
        theirs_again=(build, [ninja(), "-j2"]),
        theirs_code=lambda: [build / "kernels.o"],
        theirs_compiles=1,
        products=(
            lambda: [own] if way == "unit" else list(tree.rglob("programs/**/module/lib.so")),
            lambda: [build / "kernels.so"],
        ),
        header=marlin_directory / "dequant.h",
    )


def _narrow(manifest: Path, kernels: int, way: str) -> None:
    """Leave one of the ways, and so many kernels, in the order of vLLM's generator."""
    text = manifest.read_text()
    unit, single = text.index("[library."), text.index("[script.marlin]")
    if way == "unit":
        text = text[:single].replace("kernels = 1000", f"kernels = {kernels}")
        text = text.rstrip() + "\none = \"a_type == 'float16' and b_type == 'u4b8'\"\n"
    else:
        rules = [
            f"(group_blocks == {g} and m_blocks == {m})" for g in (-1, 2, 4, 8) for m in range(5)
        ]
        chosen = " or ".join(rules[: kernels // 3])
        text = text[:unit] + text[single:].replace("large =", f'sample = "{chosen}"\nlarge =')
        if way == "group":
            text = text.replace("render = false\n", "render = false\ngroup = []\n")
    manifest.write_text(text)
