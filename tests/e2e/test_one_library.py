"""`[library.NAME]`: many objects, one product; what is compiled again, and what the product is."""

import ctypes
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.one_library import FILES, MANIFEST, archive
from support.processes import run_to_end, wait_until
from support.project import NewProject, Project, head, needs_cxx
from tilusbuild.binary.fatbin import read_archs

LAYOUTS = ("tilus", "hidet")


@pytest.fixture(scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    needs_cxx()
    project = Project(tmp_path_factory.mktemp("backend") / "project")
    project.write_all({"tilus.toml": MANIFEST.replace("LIBRARY\n", ""), **FILES})
    summary = project.build()
    assert (summary["programs"], summary["compiled"]) == (6, 6)
    return project


@pytest.fixture
def backend(_built: Project, tmp_path: Path) -> Project:
    """A copy of a project that was built."""
    return _built.copy(tmp_path / "project")


def product(project: Project) -> Path:
    return project.directory / "out" / "cpu" / "libbackend.so"


def run(project: Project, x: int = 1) -> int:
    # Under a name of its own: the loader knows what it has opened by its path.
    copy = project.directory / f"{random.random()}.so"
    shutil.copy(product(project), copy)
    return int(ctypes.CDLL(str(copy)).run(x))


def test_sources_of_three_languages_and_programs_of_a_script_are_one_library(backend: Project):
    assert run(backend) == 2 + 30 + 100 + 2000
    library = ctypes.CDLL(str(product(backend)))
    library.where.restype = ctypes.c_char_p
    assert library.where() == b"src/main.cpp"
    library["_Z5scaleILi3EEii"]  # names keep their C++ linkage
    with pytest.raises(AttributeError):
        library["_ZN12_GLOBAL__N_15twiceEi"]
    assert backend.compiled() == 0
    assert "\n1 program, 0 to compile" in backend.run("plan", "backend.sources[source=src/c.c]").out
    assert "no problems" in backend.run("cache", "verify").out
    programs = backend.programs
    backend.run("cache", "gc")
    assert backend.programs == programs


def test_an_edit_compiles_what_it_is_in_and_links_once(backend: Project):
    backend.build()
    backend.edit("src/c.c", "100", "200")
    why = backend.run("explain").out
    assert "the rendered source changed" in why
    assert "objects src/c.c changed" in why
    assert backend.compiled() == 2
    assert run(backend) == 2 + 30 + 200 + 2000
    backend.edit("src/deep/part.h", "2", "4")
    assert backend.compiled() == 2
    backend.write("src/deep/more.cpp", "int more;\n")
    assert backend.compiled() == 2, "a new file that a pattern matches"
    (backend.directory / "src/deep/more.cpp").unlink()
    assert backend.compiled() == 0, "the library of before is there"
    backend.write("src/scale.h", "// other\n" + FILES["src/scale.h"])
    assert backend.compiled() == 4, "the header is in three sources"
    product(backend).unlink()
    backend.run("build")
    assert run(backend) == 2 + 30 + 200 + 4000


def test_a_part_has_macros_and_a_standard_of_its_own(project: Project):
    """As the C++ and the CUDA sources of an extension have."""
    needs_cxx()
    source = "long NAME() { return __cplusplus + WIDE; }\n"
    project.write("one.cpp", 'extern "C" ' + source.replace("NAME", "one"))
    project.write("two.cpp", 'extern "C" ' + source.replace("NAME", "two"))
    project.write(
        "tilus.toml",
        """\
edition = 1
[toolchain.named.newer]
std = "c++20"
[target.cpu]
arch = "cpu"
[library.both]
sources = ["one.cpp"]
defines = { WIDE = 1 }
output = "libboth.so"
[library.both_newer]
library = "both"
sources = ["two.cpp"]
defines = { WIDE = 2 }
toolchain = "newer"
""",
    )
    assert project.compiled() == 3
    library = ctypes.CDLL(str(project.directory / "libboth.so"))
    assert (library.one(), library.two()) == (201703 + 1, 202002 + 2)
    project.edit("two.cpp", "WIDE", "2 * WIDE")
    assert project.compiled("both") == 2, "the source of the part, and the link"


def test_an_object_of_several_libraries_is_compiled_once(project: Project):
    """As the sources of an archive and of a shared library are."""
    needs_cxx()
    # given: two libraries and an archive of the same sources, of which one has another macro
    project.write("one.c", "int one(void) { return N; }\n")
    project.write("two.cpp", "int two() { return N; }\n")
    sources = 'sources = ["one.c", "two.cpp"]\n'
    project.write(
        "tilus.toml",
        head()
        + f'[library.a]\nkind = "static"\n{sources}defines = {{ N = 1 }}\n'
        + f"[library.b]\n{sources}defines = {{ N = 1 }}\n"
        + f"[library.c]\n{sources}defines = {{ N = 2 }}\n",
    )
    # then: there are two objects for each value of the macro, and the three products
    assert "7 programs, 7 to compile" in project.run("plan").out
    assert project.compiled() == 2 + 2 + 3
    # when: one source is edited, then: it is compiled once for each value
    project.edit("one.c", "return N", "return 3 * N")
    assert project.compiled() == 2 + 3
    # when: a library is gone, then: gc keeps the objects of the other
    project.edit("tilus.toml", "[library.a]", "[library.d]")
    project.build()
    project.run("cache", "gc")
    assert project.compiled() == 0


def test_the_same_bytes_elsewhere_and_from_every_compile_sh(backend: Project, tmp_path: Path):
    elsewhere = backend.copy(tmp_path / "a" / "b c", cache=False)
    elsewhere.build()
    assert product(elsewhere).read_bytes() == product(backend).read_bytes()
    assert list(elsewhere.programs) == list(backend.programs)
    for name, path in backend.programs.items():
        (file,) = [*path.glob("module/lib.so"), *path.glob("module/object.o")]
        assert (elsewhere.programs[name] / "module" / file.name).read_bytes() == file.read_bytes()
        subprocess.run([path / "module" / "compile.sh", tmp_path / "made"], check=True)
        assert (tmp_path / "made").read_bytes() == file.read_bytes()


def test_one_source_that_does_not_compile_leaves_the_library_as_it_was(backend: Project):
    before = product(backend).read_bytes()
    backend.edit("src/deep/part.cpp", "return 1000", "retrn 1000")
    result = backend.run("build", status=1)
    assert "src/deep/part.cpp:3:" in result.err
    assert "1 of its parts does not build" in result.err
    assert product(backend).read_bytes() == before
    backend.edit("src/deep/part.cpp", "retrn 1000", "return 3000")
    assert backend.compiled() == 2
    assert run(backend) == 2 + 30 + 100 + 6000


def test_what_nothing_defines_is_said_once_and_may_be_allowed(new_project: NewProject):
    needs_cxx()
    files = {**FILES, "src/deep/part.cpp": "int unused;\n"}
    project = new_project(MANIFEST.replace("LIBRARY\n", ""), files)
    result = project.run("build", status=1)
    assert "nothing that is linked defines host_part(int)" in result.err
    assert project.build(status=1)["attempts"] == 0, "the same inputs will not link"
    project.edit("tilus.toml", "output =", "undefined = true\noutput =")
    project.build()
    symbols = run_to_end(["nm", "-DC", product(project)]).stdout
    assert "U host_part(int)" in symbols


@pytest.mark.parametrize(
    "linked",
    [
        'objects = ["vendor/x.o"]',
        'objects = ["vendor/*.a"]',
        'link-libs = ["part", "m"]\nlink-dirs = ["vendor"]',
        'link-libs = ["part"]\nlink-dirs = ["../outside"]',
    ],
)
def test_an_archive_or_an_object_is_in_the_hash_by_content(new_project: NewProject, linked: str):
    needs_cxx()
    project = new_project(MANIFEST.replace("LIBRARY", linked + '\nrpath = ["$ORIGIN/lib"]'), FILES)
    (project.directory / "src/deep/part.cpp").unlink()
    vendor = project.directory / ("../outside" if "outside" in linked else "vendor")
    archive(vendor, 5)
    project.build()
    assert run(project) == 2 + 30 + 100 + 5
    dynamic = run_to_end(["readelf", "-d", product(project)]).stdout
    assert "[$ORIGIN/lib]" in dynamic
    assert "[libbackend.so]" in dynamic
    assert str(project.directory) not in dynamic
    assert "vendor" not in dynamic
    archive(vendor, 7)
    assert project.compiled() == 1, "the link alone"
    assert run(project) == 2 + 30 + 100 + 7
    (link,) = [path for path in project.programs.values() if (path / "module/lib.so").exists()][:1]
    subprocess.run([link / "module" / "compile.sh"], check=True)


def test_a_static_library_is_for_another_link(new_project: NewProject, tmp_path: Path):
    needs_cxx()
    text = MANIFEST.replace("LIBRARY", 'kind = "static"').replace("libbackend.so", "libbackend.a")
    project = new_project(text, FILES)
    project.build()
    archive = project.directory / "out/cpu/libbackend.a"
    (tmp_path / "main.cpp").write_text(
        'extern "C" int run(int);\nint main() { return run(1) == 2132 ? 0 : 1; }\n'
    )
    subprocess.run(["g++", tmp_path / "main.cpp", archive, "-o", tmp_path / "main"], check=True)
    subprocess.run([tmp_path / "main"], check=True)
    elsewhere = project.copy(tmp_path / "other", cache=False)
    elsewhere.edit("tilus.toml", "libbackend.a", "renamed.a")  # an archive has no name of its own
    elsewhere.build()
    assert (elsewhere.directory / "out/cpu/renamed.a").read_bytes() == archive.read_bytes()
    scripts = [
        {
            digest: (path / "module/compile.sh").read_text()
            for digest, path in checkout.programs.items()
        }
        for checkout in (project, elsewhere)
    ]
    assert scripts[0] == scripts[1]


def test_a_library_is_packaged_without_its_objects_and_found_by_name(backend, tmp_path):
    backend.run("package", "--format", "dir", "-o", tmp_path / "out")
    (shipped,) = (tmp_path / "out").iterdir()
    assert len([*shipped.glob("programs/*")]) == 1
    code = (
        "import sys, ctypes, tilusbuild\n"
        f"path = tilusbuild.library_path('backend', where={str(shipped)!r})\n"
        "assert ctypes.CDLL(path).run(1) == 2132\n"
        "try: tilusbuild.load('backend', where=sys.argv[1])\n"
        "except tilusbuild.LoadError as error: assert 'library_path' in str(error)\n"
        "else: raise SystemExit('loaded')\n"
        "try: tilusbuild.library_path('scale', where=sys.argv[1])\n"
        "except tilusbuild.LoadError as error: assert 'not a shared library' in str(error)\n"
        "else: raise SystemExit('found')\n"
    )
    subprocess.run([sys.executable, "-c", code, backend.cache], check=True, cwd=tmp_path)


def test_a_package_says_that_it_cannot_link_a_library_again(backend: Project, tmp_path: Path):
    manifest = (backend.directory / "tilus.toml").read_text()
    backend.write("tilus.toml", manifest + '[package.all]\ninclude = ["all"]\n')
    backend.build()
    backend.run("package", "--format", "dir", "-o", tmp_path / "out")
    (shipped,) = (tmp_path / "out").iterdir()
    result = backend.run("verify", shipped, "--rebuild", status=1)
    assert "5 of the objects that it links are missing: a package holds none" in (
        result.out + result.err
    )
    backend.run("verify", backend.cache, "--rebuild")


def test_every_verb_knows_what_a_library_was_made_into(new_project: NewProject):
    """Given a cache with a static library, and a copy in which one object differs, when a verb
    reads them, then it ends well, and counts the bytes of what was made."""
    text = MANIFEST.replace("LIBRARY\n", 'kind = "static"\n').replace(".so", ".a")
    project = new_project(text, FILES)
    project.build()
    project.copy(project.directory / "other", cache=True)
    project.edit("src/c.c", "100", "200")
    project.build()
    every = (
        *(("diff", ".cache", "other/.cache"), ("report",)),
        *(("cache", "ls"), ("cache", "show", "backend/0"), ("cache", "verify")),
        *(("cache", "export", "--layout", item, item) for item in LAYOUTS),
        ("cache", "merge", "other/.cache"),
    )
    output_by_words = {words: project.run(*words).out for words in every}
    assert "backend" in output_by_words[every[0]]
    libraries = [*project.cache.glob("programs/*/module/lib.*")]
    lines = project.run("report", "--json").events
    sizes = {item["library"] for item in lines if item.get("script") == "backend"}
    assert sizes
    assert sizes <= {path.stat().st_size for path in libraries}


def test_a_name_of_the_library_selects_its_objects(backend: Project):
    shutil.rmtree(backend.cache)
    product(backend).unlink()
    assert backend.compiled("scale") == 2
    assert not product(backend).exists()
    assert backend.compiled("backend") == 4
    assert run(backend) == 2132


def test_every_verb_knows_that_a_library_is_not_called(backend: Project, tmp_path: Path):
    for verb in ("run", "tune"):
        for name in ("backend", "scale"):
            result = backend.run(verb, name, status=2)
            assert f"{name} is a library, or an object of one" in result.err
    for words in (
        *(("plan",), ("report",), ("build", "--dump-ir"), ("build", "--dry-run")),
        *(("cache", "show", "backend.sources/0"), ("explain",), ("build", "--level", "0")),
        *(("cache", "export", "--layout", kind, tmp_path / kind) for kind in LAYOUTS),
    ):
        backend.run(*words)
    listed = json.loads(backend.run("compdb").out)
    files = {Path(entry["file"]).name for entry in listed}
    assert {"main.cpp", "part.cpp", "c.c", "source.cu"} == files


def test_watch_links_after_each_save(backend: Project):
    watching = backend.start("watch")
    try:
        wait_until(lambda: product(backend).exists() and run(backend) == 2132)
        backend.edit("src/c.c", "100", "300")
        wait_until(lambda: run(backend) == 2332)
        backend.write("src/late.c", "int late = 1;\n")
        wait_until(lambda: b"late" in product(backend).read_bytes())
    finally:
        watching.terminate()
        watching.communicate()
    assert backend.compiled() == 0


CUDA = {
    "src/a.cu": "#include <cuda_runtime.h>\nnamespace { __device__ int hidden = 1; }\n"
    "extern __device__ int other(int);\n"
    "namespace { __global__ void k(int *p) { *p = CALL + hidden; } }\n"
    'int two();\nextern "C" int run(int *p) { k<<<1, 1>>>(p); return two(); }\n',
    "src/b.cu": "namespace { __device__ int hidden = 2; }\n"
    "__device__ int other(int n) { return n + hidden; }\n"
    "namespace { __global__ void k(int *p) { *p = hidden; } }\n"
    "int two() { k<<<1, 1>>>(nullptr); return 2; }\n",
    "src/host.cpp": "#include <cuda_runtime_api.h>\n"
    'extern "C" int version() { int v; cudaRuntimeGetVersion(&v); return v; }\n',
}


@pytest.mark.nvcc
def test_device_code_is_linked_where_it_is_asked_for(new_project: NewProject, tmp_path: Path):
    """examples/library has device code that is not."""
    text = head("gpu", "sm_80") + (
        '[library.l]\nsources = ["src/*"]\noutput = "l.so"\n'
        'rdc = true\ndefines = { CALL = "other(*p)" }\n'
    )
    project = new_project(text, CUDA)
    project.build()
    library = project.directory / "l.so"
    assert ctypes.CDLL(str(library)).version() > 12000
    (link,) = (path for path in project.programs.values() if (path / "module/lib.so").exists())
    assert "-dlink" in (link / "options.txt").read_text()
    # nvlink notes where it looked for libraries, and the hash does not know where a toolkit is.
    looked = re.findall(rb"-arch sm_80 [^\0]* -L (/[^\0 ]+)", library.read_bytes())
    assert looked
    assert all(
        directory.startswith(b"/proc/self/cwd/")
        for path in looked
        for directory in path.split(b",")
    )
    elsewhere = project.copy(tmp_path / "x y", cache=False)
    elsewhere.build()
    assert (elsewhere.directory / "l.so").read_bytes() == library.read_bytes()
    subprocess.run([link / "module" / "compile.sh", tmp_path / "made.so"], check=True)
    assert (tmp_path / "made.so").read_bytes() == library.read_bytes()
    project.edit("src/host.cpp", "int v;", "int v = 0;")
    assert project.compiled() == 2


@pytest.mark.nvcc
def test_a_part_has_architectures_of_its_own(new_project: NewProject):
    text = head("gpu", "sm_80") + (
        '[library.l]\nsources = ["src/b.cu"]\noutput = "l.so"\nrdc = true\n'
        '[library.newer]\nsources = ["src/a.cu"]\nlibrary = "l"\narch = "sm_90"\nptx = true\n'
        "rdc = false\ndefines = { CALL = 1 }\n"
    )
    project = new_project(text, CUDA)
    project.build("--target", "gpu")
    images = read_archs((project.directory / "l.so").read_bytes())
    assert {(image.kind, image.arch) for image in images} == {
        ("sass", "sm_80"), ("sass", "sm_90"), ("ptx", "sm_90")
    }  # fmt: skip
    project.edit("tilus.toml", '"sm_90"\nptx = true', '["sm_90a"]')
    assert project.compiled() == 2


@pytest.mark.nvcc
def test_a_device_link_needs_no_runtime(new_project: NewProject):
    """nvcc leaves the device link out of one that takes no runtime: the library would not load."""
    text = head("gpu", "sm_80") + (
        '[library.l]\nsources = ["src/*.cu"]\noutput = "l.so"\nrdc = true\ncudart = "none"\n'
        'undefined = true\ndefines = { CALL = "other(*p)" }\n'
    )
    project = new_project(text, CUDA)
    project.build()
    words = ["nm", "-D", "--undefined-only", str(project.directory / "l.so")]
    missing = run_to_end(words).stdout
    assert "__cudaRegisterFatBinary" in missing
    assert "__cudaRegisterLinkedBinary" not in missing
    project.edit("tilus.toml", '"none"\nundefined = true', '"shared"')
    assert project.compiled() == 1


@pytest.mark.nvcc
def test_relocatable_device_code_without_a_device_link_is_told(new_project: NewProject):
    text = head("gpu", "sm_80") + (
        '[library.l]\nsources = ["src/a.cu"]\nflags = ["-rdc=true"]\ndefines = { CALL = 1 }\n'
    )
    project = new_project(text, CUDA)
    project.edit("src/a.cu", "return two();", "return 2;")
    stderr = project.run("build", status=1).err
    assert "device code needs a device link: rdc = true in [library.NAME]" in stderr
    project.edit(
        "tilus.toml", 'flags = ["-rdc=true"]\ndefines = { CALL = 1', 'defines = { CALL = "other(1)"'
    )
    stderr = project.run("build", status=1).err
    assert (
        "error: this source does not define _Z5otheri, and another object needs a device" in stderr
    )


@pytest.mark.nvcc
def test_a_library_without_device_code_is_packaged_for_a_gpu(new_project, tmp_path):
    """As the part of a backend that only calls the CUDA runtime."""
    text = head("gpu", "sm_80") + '[library.l]\nsources = ["src/*.cpp"]\n'
    project = new_project(text, CUDA)
    project.build()
    project.run("package", "--format", "dir", "-o", tmp_path / "out")
    (shipped,) = (tmp_path / "out").iterdir()
    project.run("verify", shipped)
    where = tmp_path / "installed"
    project.run("install", shipped, "--cache-dir", where)
    code = (
        "import ctypes, tilusbuild\n"
        f"path = tilusbuild.library_path('l', where={str(where)!r}, target='gpu')\n"
        "assert ctypes.CDLL(path).version() > 12000\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "missing" not in project.run("preflight", shipped, "--device", "sm_80").out
