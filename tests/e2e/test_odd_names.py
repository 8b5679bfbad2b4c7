"""A project compiles to the same bytes whatever its directories are called, and its files may have
any encoding that the compiler takes."""

import json
import subprocess
from pathlib import Path

import pytest

from support.project import Project, head, needs_cxx
from tilusbuild.manifest.table import format_toml

ODD = "a b(c)[d]{e};f|g&h<i>j$k'l\"m`n,o*p?q#r!s~t%u=v@w:x\\y\té"
"""A name of characters that mean something to a shell, nvcc, make or a linker's file of options."""

SCRIPT = """
[script.{name}]
template = {directory}
{form}
targets = ["{target}"]
include-dirs = [{headers}]
args = {{ x = {{ type = "f32*[n]", out = true }}, n = "i32" }}
"""
KERNEL = """\
#include "near.h"
#include <far.h>
#ifdef __CUDACC__
extern "C" __global__ void fill(float *x, int n) {
  if (threadIdx.x < n) x[threadIdx.x] = NEAR + FAR;
}
#else
extern "C" void fill(float *x, int n) { for (int i = 0; i < n; ++i) x[i] = NEAR + FAR; }
#endif
"""
HOST = """\
#include "near.h"
#include <far.h>
extern "C" int other();
extern "C" int fill(float *x, int n, void *) { return NEAR + FAR - 3 + other(); }
"""
PART = "#include <far.h>\n__device__ int other_part() { return FAR; }\n"
"""In a plain directory: a compiler writes the name of a source into relocatable code."""


def make_project(directory: Path, odd: str, targets: tuple[str, ...]) -> Project:
    """A project whose every directory has this name, with scripts and a library for each target."""
    needs_cxx()
    project = Project(directory / f"p{odd.replace('`', '')}\udcff")
    quoted = {n: format_toml(f"{n}{odd}") for n in ("near", "far")}
    text = head(build="unsafe-flags = false") + '[target.gpu]\narch = "sm_80"\n'
    forms = {
        "cpu": 'kernel = "fill"',
        "gpu": 'kernel = "fill"\nlaunch = { grid = [1], block = [32] }',
    }
    link = (
        f'link-libs = ["other"]\nlink-dirs = [{format_toml("lib" + odd)}]\nrpath = ["/r,1 2(3)"]\n'
    )
    for target in targets:
        for name, form, file in (
            (target, forms[target], "kernel.cu"),
            *([("host", f'entry = "fill"\n{link}', "host.cu")] if target == "gpu" else []),
        ):
            template = format_toml(f"near{odd}/{file}")
            text += SCRIPT.format(
                name=name, directory=template, form=form, target=target, headers=quoted["far"]
            )
        text += (
            f'[library.l{target}]\ntargets = ["{target}"]\ninclude-dirs = [{quoted["far"]}]\n{link}'
            f"sources = [{format_toml(f'near{escape(odd)}/part.*')}, 'src/*']\n"
            f"objects = [{format_toml(f'lib{escape(odd)}/*.o')}]\n"
            f"output = {format_toml(f'out (1)/{target}/lib x.so')}\n"
            + ("rdc = true\n" if target == "gpu" else "")
        )
    project.write("tilus.toml", text)
    for name, content in {
        f"near{odd}/kernel.cu": KERNEL,
        f"near{odd}/host.cu": HOST,
        f"near{odd}/near.h": "#define NEAR 1\n",
        f"far{odd}/far.h": "#define FAR 2\n",
        f"near{odd}/part.cpp": "#include <far.h>\nint part() { return FAR; }\n",
        f"lib{odd}/one.c": "int one() { return 1; }\n",
        **({"src/part.cu": PART} if "gpu" in targets else {"src/part.c": "int c;\n"}),
        f"lib{odd}/other.c": "int other() { return 0; }\n",
    }.items():
        project.write(name, content)
    library = project.directory / f"lib{odd}"
    for words in (
        ["gcc", "-c", "-fPIC", "-g0", "one.c", "-o", "one.o"],
        ["gcc", "-shared", "-fPIC", "-g0", "other.c", "-o", "libother.so"],
    ):
        subprocess.run(words, cwd=library, check=True)
    return project


def escape(name: str) -> str:
    """The name as a pattern that matches it alone."""
    return name.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")


def products(project: Project) -> dict[str, bytes]:
    content_by_name = {}
    for name, path in project.programs.items():
        for file in ("lib.so", "object.o"):
            if (path / "module" / file).exists():
                content_by_name[name] = (path / "module" / file).read_bytes()
    return content_by_name


def check_same_bytes(tmp_path: Path, odd: str, *targets: str) -> None:
    plain, strange = (make_project(tmp_path, name, targets) for name in ("", odd))
    for project in (plain, strange):
        project.build()
    assert sorted(products(plain).values()) == sorted(products(strange).values())
    for name, content in products(strange).items():
        module = strange.programs[name] / "module"
        subprocess.run([module / "compile.sh", tmp_path / "made"], check=True)
        assert (tmp_path / "made").read_bytes() == content
    for entry in json.loads(strange.run("compdb").out):
        words = entry["arguments"]
        # Who reads the list starts no nvcc, whose shell would read the names.
        assert str(strange.directory / f"far{odd}") in words
        if not words[0].endswith("nvcc"):
            subprocess.run([*words, "-E", "-o", "/dev/null"], check=True)


def test_for_the_host(tmp_path: Path) -> None:
    check_same_bytes(tmp_path, ODD, "cpu")


@pytest.mark.nvcc
def test_for_a_gpu(tmp_path: Path) -> None:
    check_same_bytes(tmp_path, ODD, "gpu")


@pytest.mark.parametrize(
    ("odd", "mark"), [("`touch x`", "`"), ("$(touch x)", "$("), ("${x?}", "${")]
)
def test_a_cache_whose_name_nvcc_would_run(tmp_path: Path, odd: str, mark: str) -> None:
    script = '[script.k]\ntemplate = "k.cu"\nlaunch = { grid = "n", block = 1 }\n'
    manifest = head("gpu", "sm_80").replace(".cache", odd) + script
    project = Project(tmp_path).write_all({"tilus.toml": manifest, "k.cu": KERNEL})
    ran = project.run("plan", status=2)
    assert ran.err == (
        f"error: the cache is {tmp_path}/{odd}: nvcc's shell would run its {mark}\n"
        "  name another one by TILUSBUILD_CACHE_DIR\n"
    )


@pytest.mark.parametrize("rendered", [False, True])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_comment_a_text_and_a_name_in_latin_1(
    tmp_path: Path, rendered: bool, mark: bytes
) -> None:
    project = make_project(tmp_path, "", ("cpu",))
    project.edit("tilus.toml", "[script.cpu]", f"[script.cpu]\nrender = {str(rendered).lower()}")
    near = bytes(project.directory / "near")
    source = b"""// \xe9t\xe9
#include "\xe9.h"
extern "C" __attribute__((used)) const char *text() { return "caf\xe9!"; }
extern "C" void fill(float *x /* entr\xe9e */, int n) { x[0] = NEAR; }
"""
    for name, text in {b"kernel.cu": source, b"\xe9.h": b"#define NEAR 1 // \xe9\n"}.items():
        with open(near + b"/" + name, "wb") as file:
            file.write(mark + text)
    assert project.compiled("cpu") == 1
    assert any(b"caf\xe9!\0" in library for library in project.libraries.values())
    assert project.compiled("cpu") == 0
    assert "no problems" in project.run("cache", "verify").out
