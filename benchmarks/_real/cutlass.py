"""CUTLASS: its examples 14, 47 (two programs) and 48, which its package has with their CMake files.

The package lacks the CMake file at the top, so that one is written here: with the options that
CUTLASS 4.2 has by default, it adds the examples' own. Configured is outside the clock.
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

PACKAGE = "nvidia-cutlass==4.2.0.0"
_CURAND = "nvidia-curand>=10.4,<10.5"
"""Some toolkits are installed without its headers."""

EXAMPLES = (
    ("14_ampere_tf32_tensorop_gemm", "ampere_tf32_tensorop_gemm"),
    ("48_hopper_warp_specialized_gemm", "48_hopper_warp_specialized_gemm"),
    ("47_ampere_gemm_universal_streamk", "ampere_gemm_universal_streamk"),
    ("47_ampere_gemm_universal_streamk", "ampere_gemm_universal_streamk_broadcast"),
)
"""Directory and source of each, in the order of the port's libraries."""

_CMAKE = """\
cmake_minimum_required(VERSION 3.19)
project(CUTLASS LANGUAGES CXX CUDA)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
function(cutlass_example_add_executable NAME SOURCE)
  add_executable(${NAME} ${SOURCE})
  target_include_directories(${NAME} PRIVATE
    ${CUTLASS}/include ${CUTLASS}/tools/util/include ${CUTLASS}/examples/common)
  target_compile_options(${NAME} PRIVATE
    -DCUTLASS_ENABLE_TENSOR_CORE_MMA=1 -DCUTLASS_ENABLE_GDC_FOR_SM100=1
    --expt-relaxed-constexpr -ftemplate-backtrace-limit=0
    -DCUTLASS_TEST_LEVEL=0 -DCUTLASS_TEST_ENABLE_CACHED_RESULTS=1
    -DCUTLASS_CONV_UNIT_TEST_RIGOROUS_SIZE_ENABLED=1 -DCUTLASS_DEBUG_TRACE_LEVEL=0
    -Xcompiler=-Wconversion -Xcompiler=-fno-strict-aliasing)
  target_link_libraries(${NAME} PRIVATE cuda)
  if(NAME MATCHES hopper)
    set(ARCH 90a)
  else()
    set(ARCH 80)
  endif()
  set_target_properties(${NAME} PROPERTIES
    CUDA_ARCHITECTURES "${ARCH}-real;${ARCH}-virtual" CUDA_RUNTIME_LIBRARY Shared)
endfunction()
"""


def prepare(count: int | None) -> Project:
    """Lay the examples out, so many of the four."""
    world.install(PACKAGE, _CURAND, alone=True)
    package = world.site("cutlass_library") / "source"
    tree = world.WORK / "cutlass/tree"
    build = tree / "theirs"
    directories = dict.fromkeys(directory for directory, _ in EXAMPLES)
    for directory in directories:
        shutil.copytree(
            package / "examples" / directory, tree / "examples" / directory, dirs_exist_ok=True
        )
    world.port("cutlass", tree)
    chosen = EXAMPLES[:count]
    _narrow(tree / "tilus.toml", len(chosen))
    added = "".join(f"add_subdirectory(examples/{directory})\n" for directory in directories)
    (tree / "CMakeLists.txt").write_text(_CMAKE + added)
    _configure(tree, build, package)
    programs = [_program(*example) for example in chosen]
    objects = [
        build / f"{program.parent}/CMakeFiles/{program.name}.dir/{source}.cu.o"
        for program, (_, source) in zip(programs, chosen, strict=True)
    ]
    named = [ninja(), "-j2", *(str(program) for program in programs)]
    own_libraries = [tree / "build" / f"{program.name}.so" for program in programs]
    return Project(
        name=f"CUTLASS, {len(chosen)} of {len(EXAMPLES)} examples",
        tree=tree,
        theirs=[(build, named)],
        made=lambda: [*objects, *(build / program for program in programs)],
        theirs_again=(build, named),
        theirs_code=lambda: objects,
        theirs_compiles=len(objects),
        products=(lambda: own_libraries, lambda: [build / program for program in programs]),
        header=package / "include/cutlass/gemm/device/gemm_universal_adapter.h",
    )


def _program(directory: str, source: str) -> Path:
    """Return the executable that CMake makes of an example."""
    number = directory.partition("_")[0]
    name = source if source.startswith(number) else f"{number}_{source}"
    return Path("examples", directory, name)


def _configure(tree: Path, build: Path, package: Path) -> None:
    words = [
        "cmake", "-S", str(tree), "-B", str(build), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCUTLASS={package}", f"-DCMAKE_EXE_LINKER_FLAGS=-L{world.driver_stub()}",
        "-DCMAKE_CUDA_ARCHITECTURES=80",
        f"-DCMAKE_CUDA_FLAGS=-isystem {world.site('nvidia/cu13')}/include",
    ]  # fmt: skip
    environment = {**os.environ, **world.environment()}
    subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)


def _narrow(manifest: Path, count: int) -> None:
    """Leave so many libraries in the port."""
    parts = re.split(r"(?m)^(?=\[library\.)", manifest.read_text())
    manifest.write_text("".join(parts[: count + 1]))
