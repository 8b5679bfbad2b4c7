"""The compiles of a `build.ninja` of torch: the objects are those of its own commands."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.project import Project
from tilusbuild.binary.cubin import read_cubin
from tilusbuild.binary.elf import Elf
from tilusbuild.binary.fatbin import extract_cubins
from tilusbuild.torch.build import REST, BuildFailedError, NinjaRequest, build_ninja_file

RULES = """\
ninja_required_version = 1.3
cxx = c++
nvcc = nvcc

rule compile
  command = $cxx -MMD -MF $out.d {cflags} -c $in -o $out $post
  depfile = $out.d
  deps = gcc

rule cuda_compile
  command = $nvcc -MD -MF $out.d {cuda} -c $in -o $out --compiler-options "'-fPIC'" $post
  depfile = $out.d
  deps = gcc

rule cuda_devlink
  command = $nvcc $in -o $out -dlink -gencode=arch=compute_80,code=sm_80

rule link
  command = $cxx $in -shared -o $out

"""
"""As torch writes them, shortened."""


class Extension:
    """A project with a build directory, as `setup.py` or `load` leave it to ninja."""

    def __init__(self, tmp_path: Path, name: str) -> None:
        self.root = tmp_path / name
        self.write = Project(self.root).write
        self.made = self.root / "build/temp"
        self.made.mkdir(parents=True)
        self.write("setup.py", "")
        self.write("csrc/include/seven.h", "inline int seven() { return 7; }\n")
        self.write("csrc/a.cpp", '#include "seven.h"\nint a() { return seven(); }\n')
        self.write("csrc/b.cpp", "int b() { return 8; }\n")

    def ninja(self, *sources: str, link: bool = False, cflags: str = "", cuda: str = "") -> None:
        include = f"-I{self.root}/csrc/include"
        text = RULES.format(cflags=f"{include} {cflags}", cuda=f"{include} {cuda}")
        outs = []
        for source_line in sources:
            source, _, post = source_line.partition(" ")
            rule = "cuda_compile" if source.endswith(".cu") else "compile"
            outs.append(f"{self.made}/{Path(source).stem}.o")
            text += f"build {outs[-1]}: {rule} {self.root}/{source}\n  post = {post}\n"
        if link:
            text += f"build ext.so: link {' '.join(outs)}\ndefault ext.so\n"
        (self.made / "build.ninja").write_text(text)

    def build(self, *, shown: bool = True) -> str:
        out = io.StringIO()
        build_ninja_file(
            NinjaRequest(str(self.made), "sample", str(self.root), 2, out if shown else None)
        )
        return out.getvalue()

    def object(self, name: str) -> bytes:
        return (self.made / f"{name}.o").read_bytes()

    def build_both(self, names: str, read: Callable[[bytes], Any]) -> list[Any]:
        """Build by us and by torch's own commands; the facts of our objects, equal to theirs."""
        assert f"{len(names)} sources: {len(names)} compiled" in self.build()
        facts = [read(self.object(name)) for name in names]
        subprocess.run(["ninja"], cwd=self.made, check=True, stdout=subprocess.DEVNULL)
        assert facts == [read(self.object(name)) for name in names]
        return facts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILUSBUILD_CACHE_DIR", str(tmp_path / "cache"))
    if shutil.which("ninja") is None:
        pytest.skip("no ninja on PATH (pip install ninja)")
    return tmp_path / "cache"


def test_another_copy_compiles_nothing_and_an_edit_its_includers(tmp_path: Path) -> None:
    # given: an extension that was built
    first = Extension(tmp_path, "first")
    first.ninja("csrc/a.cpp -DX=1", "csrc/b.cpp")
    assert "2 sources: 2 compiled, 0 from the cache" in first.build()
    assert not (first.made / REST).exists(), "nothing is left for ninja"

    # when: the same is built elsewhere, then: nothing is compiled, and the objects are the same
    other = Extension(tmp_path / "elsewhere", "other")
    other.ninja("csrc/a.cpp -DX=1", "csrc/b.cpp")
    assert "2 sources: 0 compiled, 2 from the cache" in other.build()
    assert other.object("a") == first.object("a")

    # when: a header is edited, then: its includer is compiled
    other.write("csrc/include/seven.h", "inline int seven() { return 9; }\n")
    assert "2 sources: 1 compiled, 1 from the cache" in other.build()
    assert other.object("a") != first.object("a")
    assert other.object("b") == first.object("b")


def test_what_torch_links_is_linked_once(tmp_path: Path) -> None:
    project = Extension(tmp_path, "p")
    project.ninja("csrc/a.cpp", "csrc/b.cpp", link=True)
    project.build(shown=False)
    linked = project.made / "ext.so"
    before = linked.stat().st_mtime_ns

    project.build(shown=False)
    assert linked.stat().st_mtime_ns == before

    project.write("csrc/b.cpp", "int b() { return 9; }\n")
    project.build(shown=False)
    assert linked.stat().st_mtime_ns != before


@pytest.mark.parametrize(
    "flags", ["-O2 -std=c++17 -DN=3 -fno-exceptions", "-Os -std=gnu++20 -DN=4 -mavx2 -mfma"]
)
def test_host_code_is_that_of_the_command(tmp_path: Path, flags: str) -> None:
    project = Extension(tmp_path, "p")
    project.write(
        "csrc/a.cpp",
        '#include "seven.h"\nlong v = __cplusplus;\n'
        "void f(double *x, double *y) { for (int i = 0; i < N; i++) x[i] = x[i] * y[i] + y[0]; }\n",
    )
    project.ninja(f"csrc/a.cpp {flags}")
    project.build_both("a", sections)


def sections(data: bytes) -> dict[str, bytes]:
    elf = Elf(data)
    return {
        name: elf.read_section(section)
        for name in (".text", ".data")
        if (section := elf.find_section(name))
    }


@pytest.mark.nvcc
def test_device_code_is_that_of_each_command(tmp_path: Path) -> None:
    # given: sources that differ in standard, macros and architectures
    project = Extension(tmp_path, "p")
    for name in ("k", "l"):
        project.write(
            f"csrc/{name}.cu",
            "namespace { __global__ void inner(float *x) { x[threadIdx.x] *= N; } }\n"
            "__global__ void outer(float *x) { x[0] = __cplusplus / 100 % 100; }\n"
            "void go(float *x) { inner<<<1, 32>>>(x); outer<<<1, 1>>>(x); }\n",
        )
    project.ninja(
        "csrc/k.cu -DN=2 -std=c++17 -gencode=arch=compute_80,code=sm_80 --threads 2",
        "csrc/l.cu -DN=3 -std=c++20 -gencode arch=compute_80,code=[sm_80,compute_80]"
        " -gencode arch=compute_90,code=sm_90 -U__CUDA_NO_HALF_OPERATORS__ --use_fast_math",
    )
    # when: it is built both ways, then: every kernel is the same, for every architecture
    assert [len(kernels) for kernels in project.build_both("kl", code)] == [2, 4]


@pytest.mark.nvcc
def test_relocatable_code_is_linked_by_torchs_command(tmp_path: Path) -> None:
    # given: a kernel that calls a function of another source, which both have a name of their own
    project = Extension(tmp_path, "p")
    for name in "kl":
        project.write(
            f"csrc/{name}.cu",
            f"namespace {{ __device__ int own = {ord(name)}; }}\n"
            f"extern __device__ int of_{'l' if name == 'k' else 'k'}();\n"
            f"__device__ int of_{name}() {{ return own; }}\n"
            f"__global__ void kernel_{name}(int *x) {{ *x = own + of_k() + of_l(); }}\n",
        )
    project.ninja(*(f"csrc/{name}.cu -dc -gencode=arch=compute_80,code=sm_80" for name in "kl"))
    with (project.made / "build.ninja").open("a") as file:
        file.write(f"build dlink.o: cuda_devlink {project.made}/k.o {project.made}/l.o\n")
    # when: it is built, then: torch's device link takes the objects, and is not run again
    assert "2 sources: 2 compiled" in project.build()
    linked = project.made / "dlink.o"
    assert {name for _, name in code(linked.read_bytes())} == {"Z8kernel_kPi", "Z8kernel_lPi"}
    before = linked.stat().st_mtime_ns
    assert "0 compiled, 2 from the cache" in project.build()
    assert linked.stat().st_mtime_ns == before


@pytest.mark.nvcc
def test_anonymous_namespaces_of_two_sources_are_two(tmp_path: Path) -> None:
    project = Extension(tmp_path, "p")
    # A kernel's template makes nvcc give the functions beside it names for the linker, of which
    # nothing but the file's name is the source's own where it has no function for others.
    shared = (
        "namespace { int own(int x) { return x + 1; }\n"
        "template <class T> __global__ void one(T *x) { *x = T(1); } }\n"
    )
    project.write("csrc/include/shared.cuh", shared)
    for name in "kl":
        use = "namespace { int f(int *x) { one<int><<<1, 1>>>(x); return own(*x); }\n"
        use += f"int (*volatile of_{name})(int *) = f; }}\n"
        project.write(f"csrc/{name}.cu", f'#include "shared.cuh"\n{use}')
    project.ninja("csrc/k.cu", "csrc/l.cu")
    project.build()
    words = ["c++", "-shared", "-o", "both.so", "k.o", "l.o"]
    subprocess.run(words, cwd=project.made, check=True)


def code(data: bytes) -> dict[tuple[str, str], bytes]:
    """Return the code of each kernel, by its architecture and the end of its name."""
    code_by_kernel = {}
    for cubin in extract_cubins(data):
        elf = Elf(cubin.data)
        for kernel in read_cubin(cubin.data):
            section = elf.find_section(f".text.{kernel.name}")
            assert section is not None
            code_by_kernel[cubin.image.arch, kernel.name[-12:]] = elf.read_section(section)
    return code_by_kernel


def test_a_source_that_does_not_compile(tmp_path: Path) -> None:
    project = Extension(tmp_path, "p")
    project.write("csrc/include/seven.h", "int seven() { return not_there; }\n")
    project.ninja("csrc/a.cpp")
    for _ in range(2):
        with pytest.raises(BuildFailedError) as failed:
            project.build()
        assert f"{project.root}/csrc/include/seven.h:1:22: error: 'not_there'" in str(failed.value)
    assert not (project.made / "a.o").exists()


def test_what_cannot_be_shared_is_compiled_as_torch_wrote_it(tmp_path: Path) -> None:
    # given: one source with a file of flags, one with a profile, one with a header by its path
    project = Extension(tmp_path, "p")
    project.write("flags", "-DB=5")
    outside = tmp_path / "outside.h"
    outside.write_text("int outside() { return 1; }\n")
    project.write("csrc/b.cpp", "int b() { return B; }\n")
    project.write("csrc/c.cpp", f'#include "{outside}"\n')
    flags = f"@{project.root}/flags"
    project.ninja("csrc/a.cpp -fprofile-use", f"csrc/b.cpp {flags}", "csrc/c.cpp")
    # when: it is built, then: each is there, and it is said why two are not cached
    output = project.build()
    assert "1 compiled, 0 from the cache" in output
    assert "a.cpp: -fprofile-use may name files" in output
    assert f"{outside} is outside" in output
    assert all(project.object(name) for name in "abc")


def test_a_failing_command_of_torch_is_shown(tmp_path: Path) -> None:
    project = Extension(tmp_path, "p")
    project.write("csrc/b.cpp", "int a() { return 8; }\n")
    project.ninja("csrc/a.cpp", "csrc/b.cpp", link=True)
    with pytest.raises(BuildFailedError, match="multiple definition of"):
        project.build(shown=False)


def test_directories_are_searched_by_kind_as_a_compiler_does(tmp_path: Path) -> None:
    # given: one name in four directories, and words whose order is not that of the search
    project = Extension(tmp_path, "p")
    for number, name in enumerate(("system", "plain", "last", "quoted"), 1):
        project.write(f"{name}/n.h", f"const int found = {number};\n")
    root = project.root
    kinds = f"-idirafter {root}/last -isystem {root}/system -I{root}/plain -isystem {root}/plain"
    project.write("csrc/a.cpp", "#include <n.h>\nint f() { return found; }\n")
    project.write("csrc/b.cpp", '#include "n.h"\nint f() { return found; }\n')
    project.ninja(
        f"csrc/a.cpp {kinds}", f"csrc/b.cpp {kinds} -iquote {root}/last -iquote {root}/quoted"
    )
    # when: it is built both ways, then: each takes the same header
    angled, quoted = project.build_both("ab", sections)
    assert angled != quoted
