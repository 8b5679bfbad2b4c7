"""Commands of other builds: what is said of a source arrives in the manifest, or in a note."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from support.project import Project
from tilusbuild.intake import commands, ninja
from tilusbuild.intake.draft import Draft, manifest_text
from tilusbuild.manifest import load

NINJA = """\
ninja_required_version = 1.3
cxx = c++
nvcc = /usr/local/cuda/bin/nvcc

cflags = -DTORCH_EXTENSION_NAME=ext -I{root}/include -fPIC -std=c++17
cuda_cflags = -DTORCH_EXTENSION_NAME=ext -DWIDE=4 -I{root}/include -D__CUDA_NO_HALF_OPERATORS__ $
    --expt-relaxed-constexpr -gencode=arch=compute_80,code=compute_80 $
    -gencode=arch=compute_80,code=sm_80 --compiler-options '-fPIC' -O3 -std=c++17
ldflags = -shared -L/nowhere/torch/lib -ltorch

rule compile
  command = $cxx -MMD -MF $out.d $cflags -c $in -o $out
  depfile = $out.d
  deps = gcc

rule cuda_compile
  depfile = $out.d
  command = $nvcc --generate-dependencies-with-compile --dependency-output $out.d $cuda_cflags $
      -c $in -o $out

rule link
  command = $cxx $in $ldflags -o $out

build {root}/build/two.cuda.o: cuda_compile {root}/csrc/two.cu
build {root}/build/one.cuda.o: cuda_compile {root}/csrc/one.cu
build {root}/build/gone.cuda.o: cuda_compile {root}/csrc/gone.cu
build ext.so: link {root}/build/one.cuda.o
default ext.so
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("csrc/one.cu", "csrc/two.cu", "include/wide.h"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


def test_a_build_of_pytorch_becomes_a_library(folder: Path) -> None:
    draft = Draft("ext")
    text = NINJA.replace("{root}", str(folder))
    commands.read(draft, str(folder), ninja.commands(draft, text, str(folder)))
    (library,) = draft.libraries
    assert library.sources == ["csrc/one.cu", "csrc/two.cu"]
    assert library.include_dirs == ["include"]
    assert library.defines["WIDE"] == "4"
    assert library.flags == ["--expt-relaxed-constexpr", "-O3"]
    assert (draft.archs, draft.ptx, draft.std) == (["sm_80"], True, "c++17")
    (note,) = draft.notes
    assert "csrc/gone.cu" in note
    (folder / "tilus.toml").write_text(manifest_text(draft))
    assert load(str(folder / "tilus.toml")).libraries["ext"].undefined


def test_a_level_that_nvcc_does_not_know_is_the_host_compiler_s() -> None:
    assert commands.understood(["-Os", "-c", "k.cpp"], "/p").flags == ["-Xcompiler", "-Os"]


def test_what_nvcc_does_not_know_is_the_host_compiler_s() -> None:
    found = commands.understood(["-Wall", "-fwrapv", "-O2", "-B/x", "-c", "k.cpp"], "/p")
    assert found.flags == ["-Xcompiler", "-Wall", "-Xcompiler", "-fwrapv", "-O2", "-B/x"]


def test_a_macro_that_is_taken_back_is_not_defined() -> None:
    """As extensions of PyTorch do with its `__CUDA_NO_HALF_OPERATORS__`."""
    found = commands.understood(["-DA", "-DB=2", "-UA", "-U", "B", "-UC", "-DB=3", "k.cu"], "/p")
    assert found.defines == {"B": "3"}
    assert found.flags == ["-UC"]


def test_directories_of_packages_and_of_the_toolkit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, toolkit = folder / "site-packages", folder / "toolkit/include"
    (site / "torch/include").mkdir(parents=True)
    (toolkit / "crt").mkdir(parents=True)
    (toolkit / "crt/host_config.h").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    words = ["nvcc", "-DTORCH_EXTENSION_NAME=ops_2", f"-I{toolkit}", f"-I{site}/torch/include"]
    draft = Draft("p")
    commands.read(draft, str(folder), iter([(str(folder), [*words, "-c", "csrc/one.cu"])]))
    (library,) = draft.libraries
    assert library.name == "ops_2"
    assert library.include_dirs == [{"package": "torch", "path": "include"}]


SPELLINGS = {
    "include": [["-I", "@"], ["-I@"], ["-isystem", "@"]],
    "define": [["-D", "@"], ["-D@"]],
    "arch": [["-arch", "sm_@"], ["-arch=sm_@"], ["-gencode", "arch=compute_@,code=sm_@"],
             ["--generate-code=arch=compute_@,code=[sm_@]"]],
    "std": [["-std=@"], ["-std", "@"], ["--std=@"]],
    "flag": [["@"]],
    "ours": [["@"]],
}  # fmt: skip
OURS = ["-fPIC", "-MMD", "-c", "-Xcompiler=-fPIC", "--compiler-options=-fPIC"]
KEPT = ["-O3", "-use_fast_math", "--expt-relaxed-constexpr", "-maxrregcount=64", "-lineinfo"]


@pytest.mark.parametrize("seed", range(200))
def test_every_word_of_a_command_is_understood_kept_or_noted(seed: int, tmp_path: Path) -> None:
    """Drawn: what is said, and how it is spelled; what is said must come out again."""
    draw = random.Random(seed)
    includes = draw.sample(["a", "b/c", "d e"], draw.randint(0, 3))
    defines = {f"M{n}": draw.choice(["1", "a,b", '"x"']) for n in range(draw.randint(0, 3))}
    arch, std = draw.choice(["80", "90a", "100"]), draw.choice(["c++14", "c++17", "c++20"])
    flags = draw.sample(KEPT, draw.randint(0, len(KEPT)))
    said = [
        *(("include", each) for each in includes),
        *(("define", f"{name}={value}") for name, value in defines.items()),
        *(("flag", each) for each in flags),
        *(("ours", each) for each in draw.sample(OURS, 3)),
        *(("arch", arch), ("std", std)),
    ]
    draw.shuffle(said)
    words = ["nvcc"]
    for kind, value in said:
        words += [word.replace("@", value) for word in draw.choice(SPELLINGS[kind])]
    words += draw.choice([["-c", "k.cu", "-o", "k.o"], ["-o", "k.o", "k.cu"]])
    found = commands.understood(words[1:], "/p")
    assert sorted(found.include_dirs) == sorted(f"/p/{each}" for each in includes)
    assert found.defines == defines
    assert sorted(found.flags) == sorted(flags)
    assert (found.archs, found.std, found.sources) == ([f"sm_{arch}"], std, ["/p/k.cu"])


def test_compile_commands_are_imported_by_the_command(folder: Path) -> None:
    entries: list[dict[str, object]] = [
        {"directory": str(folder), "file": name, "command": f"nvcc -DN=3 -arch=sm_90 -c {name}"}
        for name in ("csrc/one.cu", "csrc/two.cu")
    ]
    entries.append({"directory": str(folder), "arguments": ["nvcc", "-Xcompiler", "-B/evil", "-c",
                                                            "csrc/one.cu"]})  # fmt: skip
    (folder / "build").mkdir()
    (folder / "build/compile_commands.json").write_text(json.dumps(entries))
    project = Project(folder)
    told = project.run("import", "build/compile_commands.json").out
    assert "-B/evil" in told
    manifest = load(str(folder / "tilus.toml"))
    assert manifest.project.name == folder.name.replace("_", "-")  # and not "build"
    assert dict(manifest.targets)["gpu"].arch == ("sm_90",)
    assert [library.sources for library in manifest.libraries.values()] == [
        ("csrc/one.cu", "csrc/two.cu"),
        ("csrc/one.cu",),
    ]
    assert "already exists" in project.run("import", ".", status=2).err
