"""Which programs other machines may compile: all but those that say why not."""

from types import SimpleNamespace

import pytest

from support.recipes import make_recipe, make_toolchain
from tilusbuild.compdb.verb import make_clang_command, make_compile_command
from tilusbuild.compile.pipelines.library import LinkCpu, LinkNvcc, ObjectCpu, ObjectNvcc
from tilusbuild.errors import Diagnostic

LINES = {"flags": ("-lineinfo",)}
WRITES = {"flags": ("-O2", "-Xcompiler", "-fstack-usage")}


@pytest.mark.parametrize(
    ("pipeline", "changes", "why"),
    [
        ("cpu", {}, None),
        ("kernel", {}, None),
        ("kernel", {"archs": ("sm_80", "sm_90a"), "ptx": True}, None),
        ("kernel", LINES, None),
        ("host", {}, None),
        ("host", LINES, "-lineinfo writes the times of headers"),
        ("host", WRITES, "-Xcompiler -fstack-usage needs unsafe-flags"),
        ("cpu", {"flags": ("-O2", "-funroll-loops")}, None),
        ("cpu", {"flags": ("-fstack-usage",)}, "-fstack-usage needs unsafe-flags"),
        ("kernel-nvrtc", {"flags": ("--fdevice-time-trace=x",)}, "--fdevice-time-trace=x needs"),
        ("kernel-nvrtc", {}, None),
        ("kernel-nvrtc", LINES, "-lineinfo writes the times of headers"),
    ],
)
def test_a_pipeline_says_why_a_program_stays(pipeline, changes, why):
    recipe = make_recipe(pipeline, **changes)
    reason = recipe.pipeline.explain_local_only(recipe)
    assert (reason or "").startswith(why or "")
    assert (reason is None) == (why is None)
    if pipeline == "kernel-nvrtc":  # which is held to its headers here only
        notes = [Diagnostic("a computed include")]
        reason = recipe.pipeline.explain_local_only(recipe, notes) or ""
        assert "its includes are not known" in reason


def test_objects_are_compiled_elsewhere_and_linked_here():
    recipe, lines = make_recipe("host"), make_recipe("host", **LINES)
    assert ObjectNvcc().explain_local_only(recipe) is ObjectCpu().explain_local_only(recipe) is None
    for link in (LinkNvcc(), LinkCpu()):
        assert "a link reads" in str(link.explain_local_only(recipe))
    # ptxas writes the times of headers into the line table, so they are copied with a fixed one.
    assert ObjectNvcc().copies_headers(lines)
    assert not ObjectNvcc().copies_headers(recipe)


def test_what_nvrtc_compiles_has_clangs_words_alone():
    tools = make_toolchain()
    tools.nvrtc = SimpleNamespace(include_dir="/wheels/cu13/include", command=("python",))
    recipe = make_recipe("kernel-nvrtc", flags=("--use_fast_math", "-U", "X", "-include", "a.h"))
    with pytest.raises(ValueError, match="has no command"):
        make_compile_command(recipe, tools, "/cache/source.cu", {})
    words = make_clang_command(recipe, tools, "/cache/source.cu", {})
    assert "--cuda-path=/wheels/cu13" in words
    assert words[-6:] == ("-U", "X", "-include", "a.h", "-fsyntax-only", "/cache/source.cu")
    assert "--use_fast_math" not in words
