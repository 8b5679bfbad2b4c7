"""A program's compile as editors are told it: no placeholder, no copy of a directory, no output."""

from types import SimpleNamespace

import pytest

from support.recipes import make_recipe, make_toolchain
from tilusbuild.builder.compdb import clang_command, compile_command
from tilusbuild.compile.model import Includes

ROOTS = (("project/kernels", True), ("project/include", False), ("other, one", False))
DIRECTORIES = {name: f"/home/me/{name}" for name, _ in ROOTS}


@pytest.mark.parametrize(
    ("pipeline", "changes"),
    [
        ("cpu", {}),
        ("host", {}),
        ("kernel", {}),
        ("kernel", {"archs": ("sm_80", "sm_90a"), "ptx": True}),
        ("kernel", {"archs": ("sm_80", "sm_90a"), "flags": ("-lineinfo",)}),
    ],
)
def test_every_pipeline_has_a_command(pipeline, changes):
    tools = make_toolchain("/cuda/bin/nvcc")
    made = make_recipe(pipeline, includes=Includes(roots=ROOTS), **changes)
    words = compile_command(made, tools, "/cache/source.cu", DIRECTORIES)
    assert words[0] == (tools.cxx.path if pipeline == "cpu" else "/cuda/bin/nvcc")
    assert words[-1] == "/cache/source.cu"
    assert "-o" not in words
    assert [word for word in words if word.startswith("/home")] == list(DIRECTORIES.values())
    assert not [word for word in words if "{" in word or word.startswith("/proc")]


def test_what_nvrtc_compiles_has_clangs_words_alone():
    tools = make_toolchain()
    tools.nvrtc = SimpleNamespace(include_dir="/wheels/cu13/include", command=("python",))
    made = make_recipe("kernel-nvrtc", flags=("--use_fast_math", "-U", "X", "-include", "a.h"))
    with pytest.raises(ValueError, match="has no command"):
        compile_command(made, tools, "/cache/source.cu", {})
    words = clang_command(made, tools, "/cache/source.cu", {})
    assert "--cuda-path=/wheels/cu13" in words
    assert words[-6:] == ("-U", "X", "-include", "a.h", "-fsyntax-only", "/cache/source.cu")
    assert "--use_fast_math" not in words
