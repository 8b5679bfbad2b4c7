"""llama.cpp: the CUDA backend, template instances and sources, as one library.

Its own build is CMake with Ninja, configured outside the clock. Of a sample the same objects are
built both ways, and linked with its own link line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from _bench import ninja

from _real import world
from _real.project import Project

PACKAGE = "llama-cpp-python==0.3.36"

_TYPES = ("F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16")
_TILES = (40, 64, 72, 80, 96, 112, 128, (192, 128), 256, (320, 256), 512, (576, 512))
_QUANTS = """
    Q1_0 Q2_0 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ2_S IQ3_XXS
    IQ3_S IQ1_S IQ4_NL IQ4_XS MXFP4 NVFP4
"""


def _families() -> dict[str, list[tuple[str, str]]]:
    """Return by script: the name of its own file, and our condition, of each instance."""
    tiles = [tile if isinstance(tile, tuple) else (tile, tile) for tile in _TILES]
    pairs = [(k, v) for k in _TYPES for v in _TYPES]
    columns = [(n, m) for n in (8, 16, 32, 64) for m in (1, 2, 4, 8, 16, 32) if m <= n]
    return {
        "mmf": [(f"mmf-instance-ncols_{n}", f"ncols == {n}") for n in range(1, 17)],
        "fattn_vec": [
            (
                f"fattn-vec-instance-{k.lower()}-{v.lower()}",
                f"type_k == '{k}' and type_v == '{v}'",
            )
            for k, v in pairs
        ],
        "mmq": [(f"mmq-instance-{t.lower()}", f"type == '{t}'") for t in _QUANTS.split()],
        "fattn_tile": [
            (f"fattn-tile-instance-dkq{k}-dv{v}", f"dkq == {k} and dv == {v}") for k, v in tiles
        ],
        "fattn_mma": [
            (
                f"fattn-mma-f16-instance-ncols1_{n // m}-ncols2_{m}",
                f"ncols == {n} and ncols2 == {m}",
            )
            for n, m in columns
        ],
    }


def prepare(instances: int | None) -> Project:
    """Lay llama.cpp out; `instances` of its 120, and a third as many sources, or all of it."""
    tree, build = world.WORK / "llama_cpp/tree", world.WORK / "llama_cpp/build"
    if not tree.exists():
        below = world.source(PACKAGE) / "vendor/llama.cpp"
        fresh = Path(f"{tree}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(below, fresh, symlinks=True)
        fresh.rename(tree)
    world.python()
    world.cublas(tree)
    world.port("llama_cpp", tree)
    if not (build / "build.ninja").exists():
        _configure(tree, build)
    families = _families()
    backend = tree / "ggml/src/ggml-cuda"
    hosts = sorted(path.stem for path in backend.glob("*.cu"))
    chosen = {script: list(family) for script, family in families.items()}
    if instances is not None:
        hosts = hosts[:: max(1, len(hosts) * 3 // instances)][: max(1, instances // 3)]
        chosen = _sample(families, instances)
        _narrow(tree / "tilus.toml", chosen, hosts)
    names = [
        f"template-instances/{name}" for family in chosen.values() for name, _ in family
    ] + hosts
    objects = [f"ggml/src/ggml-cuda/CMakeFiles/ggml-cuda.dir/{name}.cu.o" for name in names]
    library = build / "sample.so" if instances else build / "bin/libggml-cuda.so"
    return Project(
        name=f"llama.cpp, {len(names) - len(hosts)} of 120 instances, {len(hosts)} sources",
        tree=tree,
        theirs=[(build, [ninja(), "-j2", *objects]), (build, _link(build, objects, library))],
        made=lambda: [build / name for name in objects],
        theirs_again=(build, [ninja(), "-j2", *objects]),
        theirs_code=lambda: [build / name for name in objects],
        theirs_compiles=len(objects),
        products=(lambda: [tree / "build/libggml-cuda.so"], lambda: [library]),
        header=backend / "vecdotq.cuh",
    )


def _configure(tree: Path, build: Path) -> None:
    cublas = tree / "cublas"
    words = [
        "cmake", "-S", str(tree), "-B", str(build), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        "-DGGML_CUDA=ON", "-DGGML_CUDA_FA_QUANTS=all", "-DCMAKE_CUDA_ARCHITECTURES=80-real",
        "-DGGML_NATIVE=OFF", "-DGGML_CUDA_NCCL=OFF", "-DGGML_CUDA_NO_VMM=ON", "-DGGML_CCACHE=OFF",
        "-DLLAMA_BUILD_COMMON=OFF", f"-DCMAKE_CUDA_FLAGS=-isystem {cublas}/include",
        f"-DCUDA_cublas_LIBRARY={cublas}/lib/libcublas.so",
        f"-DCUDA_cublasLt_LIBRARY={world.site('nvidia/cu13')}/lib/libcublasLt.so.13",
    ]  # fmt: skip
    environment = {**os.environ, **world.environment()}
    subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run([ninja(), "-j2", "ggml-base"], cwd=build, check=True, stdout=subprocess.DEVNULL)


def _sample(
    families: dict[str, list[tuple[str, str]]], instances: int
) -> dict[str, list[tuple[str, str]]]:
    """Return so many instances: of each family in turn, from its first on."""
    chosen: dict[str, list[tuple[str, str]]] = {script: [] for script in families}
    longest = max(map(len, families.values()))
    turns = [
        (script, family[turn])
        for turn in range(longest)
        for script, family in families.items()
        if turn < len(family)
    ]
    for script, instance in turns[:instances]:
        chosen[script].append(instance)
    return chosen


def _narrow(manifest: Path, chosen: dict[str, list[tuple[str, str]]], hosts: list[str]) -> None:
    """Restrict a port to a sample: rules over constants, and fewer sources."""
    text = manifest.read_text()
    listed = ", ".join(f'"ggml/src/ggml-cuda/{name}.cu"' for name in hosts)
    text = text.replace('sources = ["ggml/src/ggml-cuda/*.cu"]', f"sources = [{listed}]")
    text = text.replace('restrict = { whole = "ncols2 <= ncols" }\n', "")
    for script, instances in chosen.items():
        rule = " or ".join(f"({condition})" for _, condition in instances)
        if rule:
            text += f'\n[script.{script}.restrict]\nsample = "{rule}"\n'
        else:
            text = re.sub(
                rf"(?ms)^\[script\.{script}[].].*?(?=^\[(?!script\.{script}\.)|\Z)", "", text
            )
    manifest.write_text(text)


def _link(build: Path, objects: list[str], library: Path) -> list[str]:
    """Return the project's own link command, for these objects."""
    listed = subprocess.run(
        [ninja(), "-t", "commands", "ggml-cuda"],
        cwd=build, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    (line,) = [
        output_line
        for output_line in listed.stdout.splitlines()
        if "-soname,libggml-cuda" in output_line
    ]
    words = [word for word in line.split()[2:-2] if not word.endswith(".cu.o")]
    words[words.index("-o") + 1] = str(library)
    return ["sh", "-c", " ".join([*words, *objects, *words[-9:]])]
