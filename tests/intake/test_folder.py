"""Folders of .cu files, Kernel Tuner scripts and T1 files: manifests that build."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.project import Project
from tilusbuild.intake import folder
from tilusbuild.intake.complaints import Complaint, Preprocess, Preprocessed, files_left
from tilusbuild.intake.draft import Draft, manifest_text
from tilusbuild.manifest import load
from tilusbuild.manifest.sources import files_of
from tilusbuild.render.preprocessor import Scan, scan

SCRIPT = '''\
"""Tunes the sum of two vectors."""
from collections import OrderedDict
import numpy
from kernel_tuner import tune_kernel

kernel_string = """
__global__ void vector_add(float *c, const float *a, const float *b, int n) {
    int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i<n) {
        c[i] = a[i] + b[i];
    }
}
"""

size = 80 * 1000
n = numpy.int32(size)
tune_params = OrderedDict()
tune_params["block_size_x"] = [32 * i for i in range(1, 5)]
tune_params["unroll"] = [1, 2]
restrict = ["block_size_x * unroll <= 128", "lambda p: p"]

tune_kernel("vector_add", kernel_string, size, [1, 2, 3, n], tune_params, restrictions=restrict)
tune_kernel("other", open("x.cu").read(), size, [], tune_params)
'''


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, {"TILUSBUILD_CACHE_DIR": str(tmp_path / ".cache")})


FOLDER = {
    "src/a.cu": '#include "ops/add.cuh"\n__global__ void a(float *x) { *x = add(*x, 1); }\n',
    "src/part.cu": "__device__ int part;\n",
    "src/whole.cu": '#include "part.cu"\n__global__ void w(int *x) { *x = part; }\n',
    "src/main.cu": "int main() { return 0; }\n",
    "src/lost.cu": "#include <nowhere_at_all/x.h>\n",
    "src/wrong.cu": "__global__ void f(int *x) { *x = TILE; }\n",
    "src/maybe.cu": "#ifdef OTHER\n#include <nowhere_at_all/x.h>\n#endif\n",
    "include/ops/add.cuh": "#pragma once\n#include <cuda_fp16.h>\n"
    "__device__ inline float add(float a, float b) { return a + b; }\n",
    "build/left.cu": "nonsense",
}


def test_a_folder_says_what_it_leaves_out(project: Project) -> None:
    project.write_all({**FOLDER, "include/ops/add.cuh": "#pragma once\n"})
    told = project.run("import", ".").out
    library = next(iter(load(str(project.directory / "tilus.toml")).libraries.values()))
    assert library.sources == ("src/a.cu", "src/maybe.cu", "src/whole.cu", "src/wrong.cu")
    assert [each.path for each in library.include_dirs] == ["include"]
    for name in ("src/lost.cu", "src/main.cu", "src/part.cu"):
        assert name in told


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of installed packages, with a `deep` one as torch is."""
    site = tmp_path / "site-packages"
    for name in ("deep/include/csrc/api/include/deep/all.h", "deep/include/core/x.h"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("#pragma once\n#if 1\n#include <core/x.h>\n#endif\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    return site


def drafted(files: dict[str, str], root: Path, preprocess: Preprocess | None = None) -> Draft:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    draft = Draft("p")
    folder.read(draft, str(root), [], preprocess)
    return draft


def test_a_package_s_header_is_found_where_its_name_begins_with_the_package(
    packages: Path, tmp_path: Path
) -> None:
    draft = drafted({"a.cu": "#include <deep/all.h>\n"}, tmp_path / "p")
    (library,) = draft.libraries
    assert library.include_dirs == [{"package": "deep", "path": "include/csrc/api/include"}]


def test_a_header_that_many_sources_include_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[str] = []

    def counted(text: str) -> Scan:
        scanned.append(text)
        return scan(text)

    monkeypatch.setattr(folder, "scan", counted)
    sources = {f"{name}.cu": f'#include "a.h"\n// {name}\n' for name in ("x", "y", "z")}
    draft = drafted({**sources, "a.h": "// header\n", "m.cu": "int main() {}\n"}, tmp_path)
    assert draft.libraries[0].sources == ["x.cu", "y.cu", "z.cu"]
    assert sorted(scanned) == sorted([*sources.values(), "// header\n"])


OTHER_PLATFORMS = {
    "a.cu": '#include "helper.h"\n',
    "b.cu": '#include "helper.h"\n#include "sycl.h"\n',
    "helper.h": "#ifdef USE_SYCL\n#include <sycl.h>\n#else\n#include <cuda.h>\n#endif\n",
    "sycl.h": "#pragma once\n#include <sycl/sycl.hpp>\n",
    "cuda.h": "",
}


def test_what_a_header_asks_for_counts_only_where_the_header_does(tmp_path: Path) -> None:
    """As in XGBoost, whose header of SYCL is included on a condition, and MMCV's of Parrots."""
    draft = drafted(OTHER_PLATFORMS, tmp_path / "p")
    assert draft.libraries[0].sources == ["a.cu"]
    assert "left out: b.cu: sycl/sycl.hpp is nowhere" in draft.notes


def test_no_directory_hides_a_header_of_the_compilers(tmp_path: Path) -> None:
    """As NATTEN's `natten/cuda/utils/cuda.h` would, which is always included by that name."""
    toolkit = tmp_path / "toolkit"
    toolkit.mkdir()
    (toolkit / "cuda.h").write_text("")
    root = tmp_path / "p"
    (root / "include/own/utils").mkdir(parents=True)
    (root / "include/own/utils/cuda.h").write_text("")
    (root / "a.cu").write_text('#include "cuda.h"\n#include <own/utils/cuda.h>\n')
    draft = Draft("p")
    folder.read(draft, str(root), [str(toolkit)])
    assert draft.libraries[0].include_dirs == ["include"]


OUTSIDE = {
    "repo/setup.py": "",
    "repo/csrc/vendor/include/vendor/core.h": "#include <nowhere/x.h>\n",
    "repo/csrc/common/helper.h": "",
    "repo/csrc/ops/a.cu": '#include <vendor/core.h>\n#include "helper.h"\n',
    "other/include/other.h": "",
}


def test_headers_beside_the_folder_are_of_its_project(packages: Path, tmp_path: Path) -> None:
    (packages / "deep/include/vendor").mkdir()
    (packages / "deep/include/vendor/core.h").write_text("")
    drafted(OUTSIDE, tmp_path)
    draft = drafted({}, tmp_path / "repo/csrc/ops")
    (library,) = draft.libraries
    assert library.include_dirs == ["../vendor/include", "../common"]
    assert "a directory outside of the folder: ../vendor/include" in draft.notes


def test_no_header_is_taken_from_beyond_the_project(tmp_path: Path) -> None:
    drafted(OUTSIDE, tmp_path)
    draft = drafted({"a.cu": "#include <other.h>\n"}, tmp_path / "repo/csrc/ops")
    assert not draft.libraries
    (tmp_path / "setup.py").write_text("")
    draft = drafted({}, tmp_path / "repo/csrc/ops")
    (library,) = draft.libraries
    assert library.include_dirs == ["../../../other/include"]


def test_what_the_preprocessor_misses_is_looked_for(packages: Path, tmp_path: Path) -> None:
    def preprocess(source: str, include_dirs: Sequence[str]) -> Preprocessed:
        if str(packages / "deep/include") in include_dirs:
            return Preprocessed()
        asker = f"{packages}/deep/include/csrc/api/include/deep/all.h"
        return Preprocessed(Complaint(asker, 3, "", "core/x.h"))

    draft = drafted({"a.cu": "#include <deep/all.h>\n"}, tmp_path / "p", preprocess)
    (library,) = draft.libraries
    assert {"package": "deep", "path": "include"} in library.include_dirs


def test_what_the_preprocessor_refuses_is_left_out_by_name(packages: Path, tmp_path: Path) -> None:
    def preprocess(source: str, include_dirs: Sequence[str]) -> Preprocessed:
        if source.endswith("a.cu"):
            asker = f"{packages}/deep/include/core/x.h"
            return Preprocessed(Complaint(asker, 7, "", "made/by_cmake.h"))
        return Preprocessed(Complaint(source, 2, "#error not for this compiler"))

    files = {"a.cu": "#include <deep/all.h>\n", "b.cu": "", "made.h.in": ""}
    assert list(drafted(files, tmp_path / "p", preprocess).notes) == [
        "left out: a.cu: made/by_cmake.h is nowhere (for deep/include/core/x.h)",
        "left out: b.cu: b.cu:2: #error not for this compiler",
        "no .cu file is left to compile",
    ]


def test_sources_are_asked_about_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one alone, since it finds directories for all."""
    monkeypatch.setattr(folder, "usable_cores", lambda: 3)
    meeting = threading.Barrier(3)

    def preprocess(source: str, include_dirs: Sequence[str]) -> Preprocessed:
        if not source.endswith("a.cu"):
            meeting.wait(30)
        return Preprocessed()

    draft = drafted(dict.fromkeys(("a.cu", "b.cu", "c.cu", "d.cu"), ""), tmp_path, preprocess)
    assert draft.libraries[0].sources == ["a.cu", "b.cu", "c.cu", "d.cu"]


@pytest.mark.parametrize("cores", [1, 8])
def test_what_is_found_is_the_same_on_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    """Each source needs what the one before it needs, in another directory, and one header more."""
    monkeypatch.setattr(folder, "usable_cores", lambda: cores)
    root = tmp_path / "p"
    headers = {f"{way}/{way}.h": "" for way in "xyz"}

    def preprocess(source: str, include_dirs: Sequence[str]) -> Preprocessed:
        for way in "xyz?"[: int(Path(source).stem)]:
            if str(root / way) not in include_dirs:
                return Preprocessed(Complaint(source, 1, "", f"{way}.h"))
        return Preprocessed()

    draft = drafted({**headers, **{f"{n}.cu": "" for n in range(5)}}, root, preprocess)
    assert draft.libraries[0].sources == ["0.cu", "1.cu", "2.cu", "3.cu"]
    assert draft.libraries[0].include_dirs == ["x", "y", "z"]
    assert next(iter(draft.notes)) == "left out: 4.cu: ?.h is nowhere"


def test_files_that_a_manifest_cannot_have_are_noted(tmp_path: Path) -> None:
    (tmp_path / "gone.cu").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.cu")
    draft = drafted({"a\nb.cu": "", "k[1].cu": "", "k1.cu": ""}, tmp_path)
    assert list(draft.notes)[:3] == [
        "left out, because a manifest cannot have its name: a\ufffdb.cu",
        "left out, because it is not a regular file that is there: gone.cu",
        "left out, because it is not a regular file that is there: pipe.cu",
    ]
    (tmp_path / "tilus.toml").write_text(manifest_text(draft))
    (library,) = load(str(tmp_path / "tilus.toml")).libraries.values()
    assert library.sources == ("k1.cu", "k[[]1].cu")
    assert files_of(str(tmp_path), library.sources) == ("k1.cu", "k[1].cu")


def test_a_source_without_code_is_noted(tmp_path: Path) -> None:
    draft = drafted({"a.cu": "\n"}, tmp_path, lambda *_: Preprocessed(left=frozenset()))
    assert next(iter(draft.notes)) == "nothing is left of a.cu: no code of its own"


def test_a_generated_header_is_told_by_what_it_is_made_of(tmp_path: Path) -> None:
    files = {f"{n}.cu": '#include "lib/config.h"\n' for n in range(6)}
    draft = drafted({**files, "lib/config.h.in": ""}, tmp_path / "p")
    assert next(iter(draft.notes)) == (
        "left out: 0.cu, 1.cu, 2.cu, 3.cu and 2 more: lib/config.h is missing, which its own build "
        "makes of lib/config.h.in"
    )


def test_a_header_does_not_include_itself_by_its_own_name(tmp_path: Path) -> None:
    files = {"x/a.cu": '#include "x/odd.h"\n', "x/odd.h": "#pragma once\n#include <odd.h>\n"}
    assert next(iter(drafted(files, tmp_path / "p").notes)) == "left out: x/a.cu: odd.h is nowhere"


def test_files_left_are_those_with_more_than_blanks_and_directives() -> None:
    text = b'# 1 "/a.cu"\n\n# 1 "/x \\"y\\".h" 1\nint i;\n#pragma once\n# 3 "/a.cu" 2\n  \n'
    assert files_left(text) == {'/x "y".h'}


SWITCHED = {
    "a.cu": '#include <vector>\n# ifdef USE_CUDA  // set by CMake\n#include "k.h"\n#endif\n',
    "b.cu": "#if defined(USE_CUDA)\n__global__ void b() {}\n#endif\n",
    "c.cu": "#if USE_CUDA > 1\n__global__ void c() {}\n#endif\n",
    "d.cu": '#include "k.h"\n#ifdef NOT_ALL_OF_IT\n#endif\n',
    "k.h": "__global__ void k() {}\n",
}


@pytest.mark.nvcc
@pytest.mark.slow
def test_sources_that_a_condition_leaves_nothing_of_are_noted(project: Project) -> None:
    project.write_all(SWITCHED)
    told = project.run("import", ".", "--stdout").out
    hint = "(--define USE_CUDA makes it hold)"
    assert [line for line in told.splitlines() if "nothing is left" in line] == [
        f"# nothing is left of a.cu: #ifdef USE_CUDA does not hold {hint}",
        f"# nothing is left of b.cu: #if defined(USE_CUDA) does not hold {hint}",
        "# nothing is left of c.cu: #if USE_CUDA > 1 does not hold",
    ]
    assert "nothing is left" not in project.run("import", ".", "--define", "USE_CUDA=2").out
    (library,) = load(str(project.directory / "tilus.toml")).libraries.values()
    assert library.defines == {"USE_CUDA": "2"}


@pytest.mark.parametrize(
    ("what", "given", "message"),
    [
        (".", "2=3", "--define 2=3: '2' is not the name of a macro"),
        ("tune.py", "USE_CUDA", "--define is for a folder; tune.py says its macros itself"),
    ],
)
def test_a_macro_that_cannot_be_is_refused(
    project: Project, what: str, given: str, message: str
) -> None:
    project.write_all({"tune.py": "", "a.cu": ""})
    told = project.run("import", what, "--define", given, status=2)
    assert message in told.err


CONDITIONAL = {
    "a.cu": "#ifndef MADE\n#include <odd/needed.h>\n#endif\n#ifdef MADE\n#include <no.h>\n#endif\n"
    "template <class F> __global__ void k(F f) { f(); }\n"
    "void run() { k<<<1, 1>>>([] __device__ {}); }\n",
    "far/away/odd/needed.h": "#pragma once\n",
    "b.cu": "#ifndef MADE\n#include <odd/nowhere.h>\n#endif\n",
}


@pytest.mark.nvcc
@pytest.mark.slow
def test_includes_count_as_the_preprocessor_has_them(project: Project) -> None:
    project.write_all(CONDITIONAL)
    told = project.run("import", ".", "--build").out
    library = next(iter(load(str(project.directory / "tilus.toml")).libraries.values()))
    assert library.sources == ("a.cu",)
    assert [each.path for each in library.include_dirs] == ["far/away"]
    assert library.flags == ("-O3", "--extended-lambda")  # nvcc's message names it
    assert "left out: b.cu: odd/nowhere.h is nowhere" in told
    assert "flag added, because the compiler asks for it: --extended-lambda" in told


@pytest.mark.nvcc
@pytest.mark.slow
def test_what_does_not_compile_is_left_out_on_demand(project: Project) -> None:
    project.write_all(FOLDER)
    told = project.run("import", ".", "--build").out
    assert 'src/wrong.cu does not compile: src/wrong.cu(1): error: identifier "TILE"' in told
    assert project.build()["failed"] == 0


def test_a_script_of_kernel_tuner_is_run(project: Project) -> None:
    project.write("tune.py", SCRIPT)
    told = project.run("import", "tune.py").out
    assert "tune.py was run, and failed after its call 1: FileNotFoundError" in told
    script = load(str(project.directory / "tilus.toml")).scripts["vector_add"]
    assert script.kernel == "::vector_add"
    assert dict(script.space)["block_size_x"].values == (32, 64, 96, 128)
    assert {name: arg.type for name, arg in script.args.items()} == {
        "c": "f32*[n]", "a": "f32*[n]", "b": "f32*[n]", "n": "i32",
    }  # fmt: skip
    assert script.args["c"].out
    assert not script.args["a"].out
    assert script.launch is not None
    assert script.launch.grid == ("cdiv(n, block_size_x)",)


FILLED = SCRIPT.replace(
    "__global__ void",
    "#define WIDTH 33\n__constant__ float filter[WIDTH*WIDTH]; // __constant__ int scale[2];\n"
    "__constant__ unsigned int scale = 1;\n__constant__ Odd odd;\n__global__ void",
).replace(
    "restrictions=restrict)",
    'restrictions=restrict, cmem_args={"filter": [3.0], "scale": 1, "odd": 2, "none": n})',
)


def test_the_constants_that_a_script_fills_are_arguments(project: Project) -> None:
    project.write("tune.py", FILLED)
    told = project.run("import", "tune.py").out
    args = load(str(project.directory / "tilus.toml")).scripts["vector_add"].args
    assert [*args] == ["c", "a", "b", "n", "filter", "filter_size", "scale"]
    assert (args["filter"].type, args["filter"].constant) == ("f32*[filter_size]", True)
    assert (args["filter_size"].type, args["filter_size"].parameter) == ("i32", False)
    assert (args["scale"].type, args["scale"].constant) == ("u32", True)
    for name in ("odd", "none"):
        assert f"vector_add: what fills {name} is not understood: declare it in args" in told


@pytest.mark.nvcc
def test_a_script_that_fills_constants_builds(project: Project) -> None:
    project.write("tune.py", FILLED)
    project.edit("tune.py", "__constant__ Odd odd;\n", "")
    project.edit("tune.py", "a[i] + b[i]", "a[i] * filter[i % WIDTH] + b[i] * scale")
    project.run("import", "tune.py")
    assert project.compiled("--level", "0") == 1


def test_a_t1_file_names_its_kernel(project: Project) -> None:
    project.write("k.cu", 'extern "C" __global__ void k(double *x, int n) { x[n] = BLOCK; }\n')
    space = {
        "ConfigurationSpace": {
            "TuningParameters": [{"Name": "BLOCK", "Type": "int", "Values": "[32, 64]"}],
            "Conditions": [],
        },
        "KernelSpecification": {"KernelName": "k", "KernelFile": "k.cu"},
    }
    project.write("k.json", json.dumps(space))
    project.run("import", "k.json")
    script = load(str(project.directory / "tilus.toml")).scripts["k"]
    assert (script.kernel, script.template, script.render) == ("k", "k.cu", False)
    assert script.flags == ("-DBLOCK={{ BLOCK }}",)
    assert script.args["x"].out


HOSTILE = {
    "deep.py": "x = " + "(" * 5000 + ")" * 5000,  # Python itself refuses it
    "deep.json": "[" * 100_000,
    "odd.json": '[1, {"directory": 3, "arguments": 4}, {"command": "nvcc \'"}]',
    "loop.ninja": "a = $a\nrule c\n  command = $a\nbuild a: c b\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_trusted_ends_as_an_error(project: Project, name: str) -> None:
    project.write(name, HOSTILE[name])
    refused = project.run("import", name, status=2)
    assert "imported" in refused.err or "was run, and failed" in refused.err


def test_nothing_to_import_is_an_error(project: Project) -> None:
    project.write("tune.py", "print(1)\n")
    assert "tune_kernel" in project.run("import", "tune.py", status=2).err
    project.write("wrong.json", "{")
    assert "cannot be imported" in project.run("import", "wrong.json", status=2).err
