"""A define arrives in the compiled program byte by byte, whatever reads it on the way: a shell of
nvcc's, NVRTC, gcc, and the shell that runs `compile.sh`. Nothing in it is run; no text is none."""

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from support.recipes import make_recipe

PRINTABLE = "".join(map(chr, range(32, 127)))
ODD = "\\$`\"',; &|<>()*#~!%{}[]=-@^\t"
TEXTS = [
    PRINTABLE,
    *PRINTABLE,
    *map("".join, itertools.product(ODD, repeat=2)),
    *("$(touch hacked)", "`touch hacked`", "'; touch hacked; '", '"; touch hacked; "', "{cxx}"),
    *("\\\\\\", "\\\\\\\\", '\\"\\"', "é", "/*", "//", "%s%n", "$HOME", "${PATH}", "!!", "a\\"),
]
SEPARATOR = b"\x01"
KERNEL = """
static_assert(1 EMPTY);
__device__ const char texts[] = {texts};
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {{ y[0] = texts[n]; }}
"""
HOST = """
static_assert(1 EMPTY);
extern "C" const char texts[] = {texts};
extern "C" {result} saxpy(float a, const float *x, float *y, int n{stream}) {{
  y[0] = texts[n];
  {end}
}}
"""


def literal(text: str) -> str:
    """A C string literal, which holds what a shell and nvcc have a meaning for, and backslashes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def recipe_of(pipeline: str):
    defines = tuple((f"T{number}", literal(text)) for number, text in enumerate(TEXTS))
    texts = ' "\\001" '.join(name for name, _ in defines)
    source = KERNEL if pipeline.startswith("kernel") else HOST
    stream, end = (", void *stream", "return 0;") if pipeline == "host" else ("", "")
    source = source.format(
        texts=texts, stream=stream, end=end, result="int" if pipeline == "host" else "void"
    )
    flags = ("-DFLAG=$(touch hacked)`touch hacked`",)
    return make_recipe(pipeline, source=source, defines=(("EMPTY", ""), *defines), flags=flags)


EXPECTED = SEPARATOR.join(text.encode() for text in TEXTS) + b"\0"


def check(outcome, stage: Path) -> None:
    assert outcome.cause is None, outcome.log[:2000]
    assert EXPECTED in (stage / "module/lib.so").read_bytes()
    assert not [name for _, _, names in os.walk(stage) for name in names if "hacked" in name]


@pytest.mark.nvcc
def test_through_nvcc_for_the_host(compile_in, cuda_toolchain, tmp_path):
    check(compile_in(recipe_of("host"), cuda_toolchain, tmp_path), tmp_path)


def test_through_gcc(compile_in, host_toolchain, tmp_path):
    check(compile_in(recipe_of("cpu"), host_toolchain, tmp_path), tmp_path)


def test_through_nvrtc(compile_in, nvrtc_toolchain, tmp_path):
    check(compile_in(recipe_of("kernel-nvrtc"), nvrtc_toolchain, tmp_path), tmp_path)


@pytest.mark.nvcc
def test_through_compile_sh(compile_in, cuda_toolchain, tmp_path):
    stage = tmp_path / "programs" / "hash"
    check(compile_in(recipe_of("kernel"), cuda_toolchain, stage), stage)
    library = (stage / "module/lib.so").read_bytes()
    (stage / "module/lib.so").unlink()
    environment = {**os.environ, "NVCC": cuda_toolchain.cuda.nvcc}
    ran = subprocess.run(
        ["bash", "compile.sh"], cwd=stage / "module", env=environment, capture_output=True
    )
    assert ran.returncode == 0, ran.stderr
    assert (stage / "module/lib.so").read_bytes() == library
    assert not list(tmp_path.rglob("*hacked*"))
