"""Mistakes that were answered badly once: each is named, and the advice is one that works."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from support.nvcc_journal import FakeCuda
from support.processes import run_to_end
from support.project import NewProject, Project
from support.recipes import make_recipe
from support.scale import TEMPLATE, manifest, script
from tilusbuild.compile import checks
from tilusbuild.engine.events import FailureGroup, Summary
from tilusbuild.errors import InputError
from tilusbuild.expr import ExprError, parse_expression
from tilusbuild.manifest.loading import load_manifest
from tilusbuild.render.messages import explain_missing_header
from tilusbuild.report.summary import format_summary


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("a && b", 'written "and"', 3),
        ("a||b", 'written "or"', 2),
        ("!a", 'written "not"', 1),
        ("a ? b : c", "a if c else b", 3),
        ("a = 3", '"=="', 3),
        ('a == "&&" &&', 'written "and"', 11),
    ],
)
def test_operators_of_c_are_named(text: str, message: str, column: int) -> None:
    with pytest.raises(ExprError) as caught:
        parse_expression(text)
    assert message in caught.value.message
    assert caught.value.column == column


@pytest.mark.parametrize(
    "table",
    [
        'args = {\n  a = "f32",\n}\n',
        'args = { a = "f32", # why\n  b = "i32" }\n',
        'args = { a = ["x", { b = 1,\n c = 2 }] }\n',
    ],
)
def test_an_inline_table_of_several_lines_is_explained(tmp_path: Path, table: str) -> None:
    (tmp_path / "tilus.toml").write_text(f"edition = 1\n[script.k]\n{table}")
    with pytest.raises(InputError) as caught:
        load_manifest(str(tmp_path / "tilus.toml"))
    assert "an inline table must be on one line" in str(caught.value)


def test_other_mistakes_of_toml_are_not_taken_for_one(tmp_path: Path) -> None:
    for text in ("a = {b = 1}\nc = oops\n", "a = [\n1,\n2 3]\n", "[a\n"):
        (tmp_path / "tilus.toml").write_text(text)
        with pytest.raises(InputError) as caught:
            load_manifest(str(tmp_path / "tilus.toml"))
        assert "inline" not in str(caught.value), text


def test_the_sizes_that_are_advised_are_taken(project: Project) -> None:
    text = manifest().replace('y = { type = "f32*[n]"', 'z = "f32*[n, m]", y = { type = "f32*[n]"')
    project.write("tilus.toml", text.replace('n = "i64" }', 'n = "i64", m = "i64" }'))
    project.write(
        "kernels/scale.cu.j2",
        TEMPLATE.replace(
            "float *y, long long n)", "const float *z, float *y, long long n, long long m)"
        ),
    )
    for verb in ("run", "tune"):
        refused = project.run(verb, "scale", "-t", "cpu", status=2).err
        (advice,) = re.findall(r"--size \S+", refused)
        more = ["--unchecked", "--budget", "2"] if verb == "tune" else []
        words = (*shlex.split(advice), *more)
        assert "no size" not in project.run(verb, "scale", "-t", "cpu", *words, status=None).err
        one = project.run(verb, "scale", "-t", "cpu", "--size", "n=64", status=2).err
        assert "n=64,m=1024" in one


def test_a_misspelt_header_and_one_that_is_nowhere(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/tiles.cuh").write_text("")
    directories = [str(tmp_path)]

    def message(name: str) -> str:
        log = f"source.cu:1:10: fatal error: {name}: No such file or directory"
        return explain_missing_header(log, (), directories=directories)

    assert 'did you mean "deep/tiles.cuh"?' in message("deep/tile.cuh")
    assert "headers = " not in message("cublasLt.h")
    assert "include-dirs" in message("cublasLt.h")
    assert 'headers = ["deep/tiles.cuh"]' in message("deep/tiles.cuh")


def test_a_template_is_not_told_to_be_extern_c() -> None:
    source = (
        "template <class T>\n__global__ void saxpy(T a) {}\ntemplate __global__ void saxpy(float);"
    )
    problem = checks.find_symbol_problem(make_recipe(source=source), ["_Z5saxpyIfEvT_"])
    assert problem is not None
    assert "is a C++ template" in problem
    plain = checks.find_symbol_problem(make_recipe(), ["_Z5saxpyfPKfPfi"])
    assert str(plain).endswith('declare it extern "C"')


def test_the_constants_of_an_empty_space_are_said(project: Project) -> None:
    text = manifest().replace("launch = {", "params = { k = [1, 7] }\nlaunch = {")
    project.write("tilus.toml", text + '[script.scale.restrict]\nfew = "k + unroll < 5"\n')
    assert "scale[k=7] for cpu: the space is empty" in project.run("plan", status=2).err


def test_braces_of_cpp_in_a_template_get_a_hint(project: Project) -> None:
    project.edit("kernels/scale.cu.j2", "constexpr", "int a[2][2] = {{1,2},{3,4}};\nconstexpr")
    assert '"{ {"' in project.run("build", status=2).err


def test_words_of_other_build_systems_are_understood(project: Project) -> None:
    assert "cache gc" in project.run("clean", status=2).err
    for flag in ("--force", "-B", "--rebuild"):
        stderr = project.run("build", flag, status=2).err
        assert "whenever something that it depends on changes" in stderr


def test_a_text_is_not_quoted_as_bytes(project: Project) -> None:
    result = project.run("verify", "tilus.toml", status=None)
    assert "b'" not in result.out + result.err
    assert "it is text" in result.out + result.err


def test_a_failed_link_shows_what_is_not_defined() -> None:
    link = "\n".join(
        [f"ptxas info    : Used {n} registers" for n in range(30)]
        + ["/usr/bin/ld: source.o: in function `f':", "undefined reference to `cublasCreate_v2'"]
    )
    assert "cublasCreate_v2" in str(checks.explain_link_error(make_recipe("host"), link))
    rdc = "undefined reference to `__cudaRegisterLinkedBinary_3d5c'"
    assert "-rdc=true" in str(checks.explain_link_error(make_recipe("host"), rdc))
    assert "[library.NAME] with rdc = true" in str(
        checks.explain_link_error(make_recipe("host"), rdc)
    )
    group = FailureGroup("error: no", 1, ("f/0",), "failed", link, None)
    summary = Summary(1, 0, 0, 1, 0, 0, 0, 1, 1.0, 1, failures=(group,))
    text = format_summary(summary)
    assert "cublasCreate_v2" in text
    assert "ptxas info" not in text


def test_compile_sh_refuses_what_the_build_refused(project: Project) -> None:
    """The compilers accept it: a parameter of another type is our own finding."""
    project.edit(
        "kernels/scale.cu.j2", "const float *x, float *y", 'const {{ "double" }} *x, float *y'
    )
    project.build("-t", "cpu", status=1)
    for directory in project.programs.values():
        script = ["bash", str(directory / "module/compile.sh")]
        done = run_to_end(script, status=1)
        assert "recorded it as failed" in done.stderr
        assert 'parameter 2 of "scale" is const double*' in done.stderr  # in words, not as JSON
        assert not (directory / "module/lib.so").exists()
        subprocess.run([*script, str(project.directory / "l.so")], check=True)
    project.run("cache", "verify")


@pytest.mark.nvcc
def test_a_kernel_that_nobody_links_is_not_built(new_project: NewProject) -> None:
    project = new_project(manifest(script(target="gpu"), build='flags = ["-rdc=true"]'))
    ran = project.run("build", status=1)
    assert "[library.NAME] with rdc = true" in ran.err
    assert project.build(status=1)["attempts"] == 0  # as any verdict about a source


@pytest.mark.parametrize("wrong", ["n / 7", "unroll / 7"])
@pytest.mark.parametrize("text", ["grid 0", "grid 1", "grid 2", "block 0", "block 2", "smem", "x"])
def test_a_number_of_the_launch_that_is_wrong_is_shown_where_it_stands(
    project: Project, fake_cuda: FakeCuda, text: str, wrong: str
) -> None:
    """In a table, or by dotted keys."""
    numbers = {"grid 0": "n", "grid 1": "2", "grid 2": "3", "block 0": "4", "block 2": "5"}
    numbers = {**numbers, "block 1": "6", "smem": "7", "x": "n", text: wrong}
    lines = [
        f"{name} = [" + ", ".join(f'"{numbers[f"{name} {axis}"]}"' for axis in range(3)) + "]"
        for name in ("grid", "block")
    ] + [f'smem = "{numbers["smem"]}"']
    dotted = (text[-1] in "02") == (wrong[0] == "n")
    head, before = ("", "launch.") if dotted else ("[script.scale.launch]\n", "")
    launch = head + "".join(f"{before}{line}\n" for line in lines)
    project.edit("tilus.toml", 'launch = { grid = ["cdiv(n, 256)"], block = [256] }\n', "")
    project.edit("tilus.toml", "[script.scale.space]", launch + "[script.scale.space]")
    project.edit("tilus.toml", 'x = "f32*[n]"', f'x = "f32*[{numbers["x"]}]"')
    project.edit("tilus.toml", 'targets = ["cpu"]', 'targets = ["gpu"]')
    messages = project.run("plan", status=2, NVCC=fake_cuda.nvcc).err.splitlines()
    location = re.fullmatch(r"tilus\.toml:(\d+):(\d+): error: .*", messages[0])
    assert location is not None, messages
    written = (project.directory / "tilus.toml").read_text().splitlines()
    assert wrong in written[int(location[1]) - 1][int(location[2]) - 1 :]
    assert written[int(location[1]) - 1] in messages[1]


def test_a_mistake_in_a_header_has_the_headers_own_path(
    new_project: NewProject, tmp_path: Path
) -> None:
    """Given headers below the project and outside, when one does not compile, then every message
    names the file that an editor opens, and none the copy that the compiler saw."""
    text = manifest(build='include-dirs = ["inc", "../outside"]')
    template = '#include "wrap.cuh"\n' + TEMPLATE
    project = new_project(text, {"kernels/scale.cu.j2": template})
    project.write("inc/wrap.cuh", '#include "util.cuh"\n#include <other.cuh>\n')
    project.write("inc/util.cuh", "inline int f() { return missing; }\n")
    other = project.write("../outside/other.cuh", "inline int g() { return absent; }\n")
    stderr = project.run("build", status=1).err
    assert "inc/util.cuh:1:25: error: 'missing' was not declared" in stderr
    assert "In file included from inc/wrap.cuh:1" in stderr
    assert f"{other.resolve()}:1:25: error: 'absent' was not declared" in stderr
    for words in (("build",), ("explain", "-v"), ("report", "--json"), ("build", "--json")):
        ran = project.run(*words, status=None)
        assert "inc/util.cuh:1:25" in ran.out + ran.err, words
        assert "include/project" not in ran.out + ran.err, words


def test_a_default_outside_of_the_space_is_shown_with_its_instance_and_rule(
    project: Project,
) -> None:
    project.edit("tilus.toml", "[script.scale.space]", _DEFAULT + "[script.scale.space]")
    stderr = project.run("plan", status=2).err
    assert "[script.scale.default]" in stderr.splitlines()[1]
    assert "scale for cpu: the default is outside the space" in stderr
    assert 'rules to check: "small"' in stderr


_DEFAULT = '[script.scale.restrict]\nsmall = "unroll < 2"\n[script.scale.default]\nunroll = 2\n'


def test_cuda_for_a_cpu_target_is_answered_by_a_branch_and_by_targets(project: Project) -> None:
    project.write("kernels/scale.cu.j2", TEMPLATE + "\n__global__ void f() {}\n")
    stderr = project.run("build", status=1).err
    assert '{% if target.kind == "cpu" %}' in stderr
    assert "targets = [" in stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("script.scale", f"script.{'k' * 300}"),
        ("[target.cpu]", f"[target.{'k' * 300}]"),
        ('name = "p"', f'name = "{"k" * 300}"'),
        ('version = "0.1.0"', f'version = "{"1" * 300}"'),
    ],
)
def test_a_name_that_no_file_can_have_is_refused_where_it_is_read(
    project: Project, old: str, new: str
) -> None:
    text = (project.directory / "tilus.toml").read_text()
    assert old in text
    project.write("tilus.toml", text.replace(old, new))
    stderr = project.run("plan", status=2).err
    assert stderr.startswith("tilus.toml:")
    assert "at most 100 characters" in stderr
