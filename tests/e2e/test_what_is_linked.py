"""What `objects`, `link-libs` and `link-dirs` name, and what is said of what cannot be linked."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from support.project import NewProject, Project, head, needs_cxx
from tilusbuild.binary.elf import read_needs

Linking = Callable[..., Project]


@pytest.fixture
def linking(new_project: NewProject) -> Linking:
    """A library that calls part(), with these keys; whoever calls it makes `vendor`."""
    needs_cxx()

    def make(keys: str) -> Project:
        text = head()
        text += f'[library.l]\nsources = ["src/*.cpp"]\noutput = "l.so"\n{keys}\n'
        source = 'int part();\nextern "C" int run() { return 10 * part(); }\n'
        project = new_project(text, {"src/a.cpp": source})
        (project.directory / "vendor").mkdir()
        return project

    return make


def part(project: Project, value: int, *words: str) -> None:
    """Compile a part() that gives `value`, in `vendor`."""
    text = f"int part() {{ return {value}; }}\n"
    subprocess.run(
        ["g++", "-fPIC", "-x", "c++", "-", *words],
        input=text.encode(),
        cwd=project.directory / "vendor",
        check=True,
    )


def needed(project: Project) -> tuple[str, ...]:
    """The libraries that the product asks for."""
    return read_needs((project.directory / "l.so").read_bytes()).libraries


def run(project: Project) -> int:
    """What the product computes, in a process of its own, with the libraries of `vendor`."""
    vendor = sorted(str(path) for path in project.directory.glob("vendor/*.so.*"))
    code = (
        "import ctypes, sys\n"
        "for path in sys.argv[1:]: last = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)\n"
        "print(last.run())\n"
    )
    words = [sys.executable, "-c", code, *vendor, str(project.directory / "l.so")]
    return int(subprocess.run(words, capture_output=True, check=True).stdout)


def test_a_library_that_is_nowhere_is_named(linking: Linking):
    project = linking('link-libs = ["no_such", "m"]')
    stderr = project.run("build", status=1).err
    assert "libno_such.so or libno_such.a is neither in link-dirs, nor in the toolkit" in stderr
    assert "hash does not cover" not in stderr
    project.edit("tilus.toml", '"no_such"', '":libm.so.99"')
    assert "error: libm.so.99 is neither in link-dirs" in project.run("build", status=1).err


def test_a_versioned_library_is_named_by_its_file(linking: Linking):
    """As packages of Python ship them, with no link for the linker."""
    project = linking('link-libs = [":libpart.so.2"]\nlink-dirs = ["vendor"]')
    part(project, 4, "-shared", "-Wl,-soname,libpart.so.2", "-o", "libpart.so.2")
    assert project.compiled() == 2
    assert "libpart.so.2" in needed(project)
    assert b"\0l.so\0" in (project.directory / "l.so").read_bytes(), "what links to it asks for it"
    assert run(project) == 40
    part(project, 5, "-shared", "-Wl,-soname,libpart.so.2", "-o", "libpart.so.2")
    assert project.compiled() == 1, "its content is in the hash"


def test_what_a_linkers_script_names_beside_itself_comes_with_it(linking: Linking):
    project = linking('link-libs = ["part"]\nlink-dirs = ["vendor"]')
    part(project, 6, "-shared", "-Wl,-soname,libp.so.6", "-o", "libp.so.6")
    script = project.write("vendor/libpart.so", "/* GNU ld script */\nINPUT(libp.so.6)\n")
    project.build()
    assert "libp.so.6" in needed(project)
    assert run(project) == 60
    part(project, 7, "-shared", "-Wl,-soname,libq.so.7", "-o", "libp.so.6")
    assert project.compiled() == 1
    assert "libq.so.7" in needed(project)
    script.write_text(f"GROUP({project.directory}/vendor/libp.so.6)\n")
    stderr = project.run("build", status=1).err
    assert "vendor/libp.so.6, and the program's hash does not cover it; a [library.NAME]" in stderr


def test_a_thin_archive_is_refused_where_it_is_named(linking: Linking):
    project = linking('objects = ["vendor/*.a"]')
    part(project, 8, "-c", "-o", "part.o")
    vendor = project.directory / "vendor"
    subprocess.run(["ar", "rcsDT", "libpart.a", "part.o"], cwd=vendor, check=True)
    stderr = project.run("build", status=2).err
    assert "vendor/libpart.a is a thin archive: it names objects, and holds none" in stderr
    assert 'objects = ["vendor/*.a"]' in stderr


def test_a_linkers_log_has_the_files_of_the_project(linking: Linking):
    """Also where the end of a file's name is what an object is called in the compile."""
    project = linking('objects = ["vendor/*.o"]')
    part(project, 9, "-Dpart=other", "-c", "-o", "d0.o")
    part(project, 9, "-Dpart=other", "-c", "-o", "e0.o")
    stderr = project.run("build", status=1).err
    assert "ld: vendor/e0.o: in function" in stderr
    assert "ld: src/a.cpp: in function" in stderr


def entry(new_project: NewProject, target: str, keys: str, source: str) -> Project:
    needs_cxx()
    text = head(*target.split()) + (
        '[script.e]\ntemplate = "e.cu"\nrender = false\nentry = "run"\n'
        f'args = {{ x = "f32*[n]", n = "i32" }}\n{keys}\n'
    )
    project = new_project(text, {"e.cu": source})
    (project.directory / "vendor").mkdir()
    return project


def library(project: Project) -> bytes:
    """The last that was made."""
    paths = project.cache.glob("programs/*/module/lib.so")
    return max(paths, key=lambda path: path.stat().st_mtime_ns).read_bytes()


def test_an_entry_is_linked_as_a_library_is(new_project: NewProject):
    source = 'int part();\nextern "C" void run(float *x, int n) { x[0] = part(); }\n'
    project = entry(new_project, "cpu cpu", 'link-libs = ["part"]\nlink-dirs = ["vendor"]', source)
    assert "libpart.so or libpart.a is neither in link-dirs" in project.run("build", status=1).err
    part(project, 4, "-shared", "-Wl,-soname,libpart.so.4", "-o", "libpart.so")
    assert project.compiled() == 1, "it was looked for there"
    assert read_needs(library(project)).libraries[0] == "libpart.so.4"
    part(project, 5, "-shared", "-Wl,-soname,libpart.so.5", "-o", "libpart.so")
    assert project.compiled() == 1, "its content is in the hash"
    project.edit(
        "tilus.toml", 'link-libs = ["part"]\nlink-dirs = ["vendor"]', 'needed = ["lib.so.7"]'
    )
    assert project.compiled() == 1
    assert "lib.so.7" in read_needs(library(project)).libraries
    project.edit("tilus.toml", 'needed = ["lib.so.7"]', "")
    assert "nothing that is linked defines part()" in project.run("build", status=1).err
    project.edit("tilus.toml", 'entry = "run"', 'entry = "run"\nundefined = true')
    assert project.compiled() == 1
    project.edit("tilus.toml", 'entry = "run"', 'kernel = "run"')
    stderr = project.run("build", status=2).err
    assert '"undefined" is for scripts with an entry' in stderr


@pytest.mark.nvcc
def test_an_entry_calls_the_driver(new_project: NewProject):
    """No toolkit of wheels has a library to link for it; `cuda.h` says what it defines."""
    source = (
        "#include <cuda.h>\n#include <cuda_runtime.h>\nCUresult cuCtxGetCurent(CUcontext *);\n"
        'extern "C" int run(float *, int, cudaStream_t) {\n'
        "  CUcontext context;\n  return cuCtxGetCurrent(&context) + cuMemcpyHtoD(0, 0, 0);\n}\n"
    )
    project = entry(new_project, "gpu sm_80", 'link-libs = ["cuda"]', source)
    project.build()
    assert "libcuda.so.1" in read_needs(library(project)).libraries
    project.edit("tilus.toml", 'link-libs = ["cuda"]', "")
    project.edit("e.cu", "cuCtxGetCurrent(&", "cuCtxGetCurent(&")
    stderr = project.run("build", status=1).err
    assert "nothing that is linked defines cuCtxGetCurent(" in stderr
