"""`tilusbuild import setup.py` and Makefiles: what the other build makes is in the manifest.

The oracle is the other build itself: compilers that only write down their words, as separate
programs, know nothing of how the import records them.
"""

import glob
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from support.project import Project
from tilusbuild.errors import InputError
from tilusbuild.intake import builds
from tilusbuild.intake.draft import ManifestDraft
from tilusbuild.manifest.loading import load_manifest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

pytest.importorskip("setuptools", reason="setup.py needs it")

COMPILER = """\
#!{python}
import json, os, sys
with open(os.environ["ORACLE"], "a") as file:
    file.write(json.dumps([os.getcwd(), sys.argv[1:]]) + "\\n")
if "-o" in sys.argv:
    open(sys.argv[sys.argv.index("-o") + 1], "w").close()
"""
OTHERS = ["-std=c++20", "-march=x86-64-v3", "-B/odd"]
FLAGS = ["-O2", "-fwrapv", "-ffast-math", "-Werror=format-security", "-Wno-unused", "-Wreorder"]
SETUP = """\
import os
from setuptools import Extension, setup
os.makedirs("made here", exist_ok=True)
for name in {made!r}:
    open(name, "w").close()
setup(name="drawn", version="1", packages={packages!r}, package_dir={{"": "src"}}, ext_modules=[
    Extension(**each) for each in {extensions!r}
])
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "a project", {"TILUSBUILD_CACHE_DIR": str(tmp_path / ".cache")})


def drawn(draw: random.Random, project: Project) -> None:
    """Write a setup.py of several extensions, and their sources."""
    generated_sources = [f"made here/g{number}.c" for number in range(draw.randint(0, 2))]
    kept = [f"csrc/{name}" for name in ("a.c", "b.cpp", "c d.cc", "e/f.cxx")]
    project.write_all(dict.fromkeys([*kept, "include/x.h", "own dir/y.h"], ""))
    project.write_all({"src/pkg/__init__.py": "", "lib/libfarm.so": ""})
    extensions = [
        {
            "name": draw.choice([f"top{number}", f"pkg._e{number}"]),
            "sources": draw.sample([*kept, *generated_sources], draw.randint(1, 4)),
            "include_dirs": draw.sample(["include", "own dir"], draw.randint(0, 2)),
            "define_macros": [("N", str(number)), ("S", '"a b"')][: draw.randint(0, 2)],
            "extra_compile_args": draw.sample(OTHERS + FLAGS, draw.randint(0, 3)),
            "libraries": draw.sample(["farm", "m"], draw.randint(0, 2)),
            "library_dirs": ["lib"],
            "runtime_library_dirs": draw.sample(["$ORIGIN"], draw.randint(0, 1)),
        }
        for number in range(draw.randint(1, 4))
    ]
    project.write(
        "setup.py", SETUP.format(made=generated_sources, packages=["pkg"], extensions=extensions)
    )


def compiled(project: Project, where: Path) -> list[list[str]]:
    """Return what the setup.py passes to its compilers when it is built."""
    where.mkdir()
    compiler = where / "cc"
    compiler.write_text(COMPILER.format(python=sys.executable))
    compiler.chmod(0o755)
    names = ("CC", "CXX", "LDSHARED", "LDCXXSHARED")
    own = {"ORACLE": str(where / "words"), **dict.fromkeys(names, str(compiler))}
    to = ["--build-lib", str(where / "l"), "--build-temp", str(where / "t")]
    subprocess.run(
        [sys.executable, "setup.py", "build_ext", *to],
        cwd=project.directory, env={**os.environ, **own}, check=True, capture_output=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in (where / "words").read_text().splitlines()]
    return [words for _, words in lines]


def value_of(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


@pytest.mark.parametrize("seed", range(8))
def test_all_that_a_setup_py_compiles_is_in_the_manifest(seed, project: Project, tmp_path) -> None:
    drawn(random.Random(seed), project)
    printed = project.run("import", "setup.py").out
    manifest = tomllib.loads((project.directory / "tilus.toml").read_text())
    load_manifest(str(project.directory / "tilus.toml"))
    sources = sources_of(project, manifest["library"])
    every = compiled(project, tmp_path / "oracle")
    objects: dict[str, list[str]] = {}
    for words in every:
        if "-c" in words:
            objects[value_of(words, "-o")] = words  # over one of another extension
            continue
        output = value_of(words, "-o").partition("/l/")[2]
        path = f"src/{output}" if output.startswith("pkg/") else output
        (name,) = [n for n, item in manifest["library"].items() if path in item.get("output", "")]
        library = manifest["library"][name]
        linked = [objects[word] for word in words if word in objects]
        assert sorted(value_of(w, "-c") for w in linked) == sorted(sources[name])
        for item in linked:
            check(manifest, sources[name][value_of(item, "-c")], item, printed)
        libs = [word[2:] for word in words if word.startswith("-l")]
        assert library.get("link-libs", []) == libs
        assert library.get("link-dirs", []) == (["lib"] if "farm" in libs else [])
        assert library.get("rpath", []) == ["$ORIGIN"] * any("ORIGIN" in item for item in words)


def sources_of(project: Project, every: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the sources of each library, and the table that says how each is compiled."""
    tables_by_library: dict[str, dict[str, dict[str, Any]]] = {}
    for name, table in every.items():
        own = tables_by_library.setdefault(table.get("library", name), {})
        for pattern in table["sources"]:
            for source in glob.glob(pattern, root_dir=project.directory):
                assert source not in own
                own[source] = table
    return tables_by_library


def check(manifest: dict[str, Any], table: dict[str, Any], words: list[str], printed: str) -> None:
    """Compare how a source is compiled."""
    toolchain = {**manifest.get("toolchain", {})}
    if "toolchain" in table:
        toolchain |= manifest["toolchain"]["named"][table["toolchain"]]
    stds = [w for w in words if w.startswith("-std=")]
    if not value_of(words, "-c").endswith(".c"):
        assert toolchain["std"] == (stds[-1].removeprefix("-std=") if stds else "c++17")
    assert ("-march=x86-64-v3" in words) == (toolchain.get("host-march") == "x86-64-v3")
    own = {w[2:] for w in words if w.startswith("-I") and not w.startswith("-I/")}
    assert {
        directory for directory in table.get("include-dirs", []) if not directory.startswith("/")
    } == own
    macros = {n: v for n, v in table.get("defines", {}).items() if n in "NS"}
    assert macros == dict(w[2:].split("=", 1) for w in words if re.match("-D[NS]=", w))
    flags = " ".join(table.get("flags", []))
    for flag in FLAGS:  # nvcc, which knows some of them, would take them for its own
        assert (flag in words) == ((flag if flag == "-O2" else f"-Xcompiler {flag}") in flags)
    assert ("-B/odd" in words) <= ("-B/odd" in printed)


def libraries_of(project: Project) -> dict[str, Any]:
    manifest = tomllib.loads((project.directory / "tilus.toml").read_text())
    load_manifest(str(project.directory / "tilus.toml"))
    return dict(manifest["library"])


@pytest.mark.nvcc
def test_an_imported_extension_is_built_where_its_own_build_puts_it(project: Project) -> None:
    module = 'PyModuleDef m = {PyModuleDef_HEAD_INIT, "x", 0, -1, 0};\n'
    project.write_all(
        {
            "pkg/__init__.py": "",
            "pkg/x.c": '#include <Python.h>\nint two(void);\nstatic struct ' + module +
            'PyMODINIT_FUNC PyInit_x(void) { PyObject *made = PyModule_Create(&m);\n'
            'PyModule_AddIntConstant(made, "two", two()); return made; }\n',
            "two.c": "int two(void) { return N; }\n",
            "setup.py": "from setuptools import Extension, setup\n"
            "setup(name='p', packages=['pkg'],\n"
            "      libraries=[('two', {'sources': ['two.c'], 'macros': [('N', '2')]})],\n"
            "      ext_modules=[Extension('pkg.x', ['pkg/x.c'])])\n",
            ".git/HEAD": "",
        }
    )  # fmt: skip
    project.run("import", "setup.py")
    assert not list(project.directory.glob("**/*.so"))
    assert libraries_of(project)["x_cpp"]["sources"] == ["two.c"]
    assert project.compiled() == 3
    asked = [sys.executable, "-c", "import pkg.x; print(pkg.x.two)"]
    assert subprocess.check_output(asked, cwd=project.directory) == b"2\n"


TORCH = """\
import os, sys, types
from setuptools import setup
from setuptools.command.build_ext import build_ext
torch = types.ModuleType("torch")
torch.version = types.SimpleNamespace(cuda="13.0")
torch.cuda = types.SimpleNamespace(device_count=lambda: 0)
sys.modules["torch"] = sys.modules["torch.utils.cpp_extension"] = torch

class Build(build_ext):
    def build_extensions(self):
        assert self.compiler.compiler_type == "unix"
        self.spawn(["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-dc", "k.cu", "-o", "k.o"])
        self.spawn(["nvcc", "-gencode=arch=compute_80,code=sm_80", "-dc", "k.cu", "-o", "l.o"])
        self.spawn(["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-c", "k.cu", "-o", "m.o"])
        self.spawn(["nvcc", "-dlink", "k.o", "-o", "d.o"])
        self.spawn(["g++", "-shared", "k.o", "l.o", "m.o", "d.o", "-lcudart", "-o", "lib/libk.so"])
        raise SystemExit("list: " + os.environ["TORCH_CUDA_ARCH_LIST"])

setup(name="k", cmdclass={"build_ext": Build}, ext_modules=[])
"""


def test_a_setup_py_that_asks_for_a_gpu_and_fails_at_its_end(project: Project) -> None:
    text = TORCH.replace(
        "ext_modules=[]", "ext_modules=[__import__('setuptools').Extension('k', [])]"
    )
    project.write_all({"setup.py": text, "k.cu": ""})
    printed = project.run("import", "setup.py").out
    assert "setup.py was run, and failed after its command 6: list: 8.0+PTX" in printed
    assert "there is no GPU to ask: TORCH_CUDA_ARCH_LIST=8.0+PTX" in printed
    libraries = libraries_of(project)
    part = {"sources": ["k.cu"], "library": "k"}
    assert libraries["k_cuda"] == {**part, "arch": ["sm_80"]}
    assert libraries["k_cuda_2"] == {**part, "rdc": False}
    manifest = tomllib.loads((project.directory / "tilus.toml").read_text())
    assert manifest["target"] == {"gpu": {"arch": "sm_90a"}}
    library = libraries["k"]
    assert (library["output"], library["rdc"], library["cudart"]) == ("lib/libk.so", True, "shared")


def test_a_setup_py_that_fails_shows_the_end_of_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("import setuptools\nimport nothing_like_it\n")
    with pytest.raises(InputError) as raised:
        builds.record_setup_commands(ManifestDraft("p"), str(tmp_path), "setup.py")
    printed = raised.value.render()
    assert "failed before it compiled anything" in printed
    assert "No module named 'nothing_like_it'" in printed
    assert "recorder.py" not in printed


CMAKE_FAILS = """\
import subprocess, sys
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class Build(build_ext):
    def run(self):
        text = "print('CMake Error at CMakeLists.txt:3: no Farm'); raise SystemExit(1)"
        subprocess.check_call([sys.executable, "-c", text])

setup(name="k", cmdclass={"build_ext": Build}, ext_modules=[Extension("k", [])])
"""


def test_the_error_of_a_program_that_a_setup_py_runs_is_shown(project: Project) -> None:
    project.write_all({"setup.py": CMAKE_FAILS})
    assert (
        "CMake Error at CMakeLists.txt:3: no Farm"
        in project.run("import", "setup.py", status=2).err
    )


def test_a_nested_build_of_cmake_is_read_with_its_links(project: Project) -> None:
    text = (
        "import os\n"
        + CMAKE_FAILS.partition("        text")[0]
        + (
            "        goal = os.environ['GOAL']\n"
            "        subprocess.check_call(['cmake', '--build', 'b', '-t', goal, '-j8'])\n\n"
            "setup(name='k', cmdclass={'build_ext': Build}, ext_modules=[Extension('k', [])])\n"
        )
    )
    makefile = "all:\nlibk.so:\n\tg++ -shared -DN=4 ../k.cpp -o $@\n"
    project.write_all({"setup.py": text, "k.cpp": "", "b/Makefile": makefile, ".git/HEAD": ""})
    project.run("import", "setup.py", "GOAL=libk.so")
    table = libraries_of(project)["k"]
    assert (table["output"], table["defines"]) == ("b/libk.so", {"N": "4"})


def test_a_build_of_ninja_is_read_as_it_was_when_it_ran(project: Project) -> None:
    """torch's BuildExtension writes one file for each extension, each over the one before."""
    text = CMAKE_FAILS.partition("    def run")[0] + (
        "    def build_extension(self, extension):\n"
        "        name = extension.name\n"
        "        with open('b/build.ninja', 'w') as file:\n"
        "            file.write('rule c\\n command = g++ -c $in -o $out\\n')\n"
        "            file.write(f'build {name}.o: c ../{name}.cpp\\n')\n"
        "        subprocess.check_call(['ninja', '-v'], cwd='b')\n"
        "        self.spawn(['g++', '-shared', f'b/{name}.o', '-o', f'{name}.so'])\n\n"
        "parts = [Extension('one', []), Extension('two', [])]\n"
        "setup(name='k', cmdclass={'build_ext': Build}, ext_modules=parts)\n"
    )
    files = {"setup.py": text, "one.cpp": "", "two.cpp": "", "b/build.ninja": "", ".git/HEAD": ""}
    project.write_all(files)
    project.run("import", "setup.py")
    libraries = libraries_of(project)
    sources = {name: library["sources"] for name, library in libraries.items()}
    assert sources == {"one": ["one.cpp"], "two": ["two.cpp"]}
    project.edit("setup.py", "rule c", "role c")
    stderr = project.run("import", "setup.py", "--stdout", status=2).err
    assert "build.ninja cannot be imported: ninja: error: build.ninja:1: " in stderr


def test_a_manifest_that_exists_is_an_error_before_the_build_is_read(project: Project) -> None:
    project.write_all({"Makefile": "$(error was read)\n", "tilus.toml": ""})
    assert "tilus.toml already exists" in project.run("import", "Makefile", status=2).err


SCALED = """\
GPU = 0
SIZE ?= 1
libk.so: k.cpp
\tg++ -shared -DGPU=$(GPU) -DSIZE=$(SIZE) $< -o $@
other.so: k.cpp
\tg++ -shared $< -o $@
"""


@pytest.mark.parametrize(
    ("words", "shell", "defines"),
    [
        ((), {}, {"GPU": "0", "SIZE": "1"}),
        (("GPU=1",), {}, {"GPU": "1", "SIZE": "1"}),
        ((), {"GPU": "1", "SIZE": "7"}, {"GPU": "0", "SIZE": "7"}),
        (("other.so",), {}, None),
    ],
)
def test_variables_and_goals_are_makes(project: Project, words, shell, defines) -> None:
    project.write_all({"Makefile": SCALED, "k.cpp": ""})
    printed = project.run("import", "Makefile", *words, **shell).out
    (table,) = libraries_of(project).values()
    assert table.get("defines") == defines
    note = "Makefile sets GPU: to override it, tilusbuild import Makefile GPU=1"
    assert (note in printed) == ("GPU" in shell)


def test_makefiles_of_cmake_link_by_scripts(project: Project) -> None:
    """A target of CMake's needs the files of others, for which its own Makefile has no rule."""
    project.write_all(
        {
            "Makefile": "all:\n\t$(MAKE) -f a.mk\n\t$(MAKE) -f b.mk\n",
            "a.mk": "all: liba.a\na.o: a.cpp\n"
            "\tif [ -n '$<' ]; then g++ -c $< -o $@; else g++ -c x.cpp -o $@; fi\n"
            "liba.a: a.o\n\techo $^ > list\n\tar qc $@ $$(cat list)\n",
            "b.mk": "b.so: liba.a\n\tcd . && cmake -E cmake_link_script b.txt --verbose=\n",
            "b.txt": 'g++ -shared -o b.so liba.a -Wl,-rpath,"\\$ORIGIN:/home/me"\n',
            "a.cpp": "",
        }
    )
    project.run("import", "Makefile")
    (table,) = libraries_of(project).values()
    assert (table["sources"], table["output"]) == (["a.cpp"], "b.so")
    assert table["rpath"] == ["$ORIGIN"]


MAKEFILE = """\
all: prog libstatic.a
\t$(MAKE) -C sub
prog: main.cu
\tnvcc -arch=sm_90 -O3 $^ -o $@ -lcublas
%.o: %.cpp
\tmkdir -p x && g++ -c $< -o $@
libstatic.a: part.o
\tar rcs $@ $^
"""


def test_a_makefile_says_what_it_would_run(project: Project) -> None:
    files = dict.fromkeys(["main.cu", "part.cpp", "sub/inner.cpp"], "")
    inner = (
        "inner.so: inner.cpp\n\tg++ -shared -fopenmp -Wl,-z,defs,-Map=x ../part.o k.o l.s $< -o $@"
    )
    project.write_all({**files, "Makefile": MAKEFILE, "sub/Makefile": inner, "sub/k.o": ""})
    printed = project.run("import", "Makefile", NVCC_APPEND_FLAGS="-G").out
    assert "left out: NVCC_APPEND_FLAGS=-G: no compile gets that from the shell" in printed
    assert "prog is a program: its objects are archived in libprog.a" in printed
    assert "option of the linker left out: -Map=x" in printed
    assert "left out of inner.so, because nothing makes it here" in printed
    libraries = libraries_of(project)
    assert {name: library["sources"] for name, library in libraries.items()} == {
        "prog": ["main.cu"], "static": ["part.cpp"], "inner": ["sub/inner.cpp"],
        "inner_cpp": ["part.cpp"],
    }  # fmt: skip
    assert libraries["inner"]["objects"] == ["sub/k.o"]
    assert (libraries["inner"]["output"], libraries["inner"]["link-libs"]) == (
        "sub/inner.so",
        ["gomp"],
    )
    assert "undefined" not in libraries["inner"]


def test_a_program_takes_the_place_of_no_library(project: Project) -> None:
    """As in darknet: one name for a program, the archive that it links, and a library."""
    # given: sources that are in an archive and in a library, and a program with a `main` of its own
    project.write_all(dict.fromkeys(["src/main.c", "src/a.c", "src/b.cu"], ""))
    project.write(
        "Makefile",
        "all: libnet.so libnet.a net\n"
        "libnet.a: a.o b.o\n\tar rcs $@ $^\n"
        "libnet.so: a.o b.o\n\tnvcc -shared $^ -o $@\n"
        "net: main.o libnet.a\n\tg++ main.o libnet.a -lm -o $@\n"
        "%.o: src/%.c\n\tgcc -c $< -o $@\n%.o: src/%.cu\n\tnvcc -arch=sm_80 -c $< -o $@\n",
    )
    # when: it is imported, then: each is what the other build makes, and the link is noted
    printed = project.run("import", "Makefile").out
    sources_by_output = {
        library["output"]: library["sources"]
        for library in libraries_of(project).values()
        if "output" in library
    }
    assert sources_by_output == {
        "libnet.so": ["src/a.c", "src/b.cu"], "libnet.a": ["src/a.c", "src/b.cu"],
        "libnet_program.a": ["src/main.c"],
    }  # fmt: skip
    assert "tilus.toml: 3 sources;" in printed
    assert "g++ -Wl,--whole-archive libnet_program.a -Wl,--no-whole-archive libnet.a -lm" in printed


def test_the_page_shows_what_becomes_of_its_makefile(tmp_path: Path) -> None:
    page = (ROOT / "docs/moving-in.md").read_text()
    project = Project(tmp_path / "ops")
    project.write("Makefile", page.partition("```make\n")[2].partition("```")[0])
    project.write_all(dict.fromkeys(["csrc/ops.cu", "csrc/api.cpp", "csrc/fast.cpp"], ""))
    printed = project.run("import", "Makefile", "--stdout").out
    assert f"```toml\n{printed}```" in page


@pytest.mark.parametrize("named", [(), ("-o", "..")])
def test_sources_outside_of_the_project_are_named(project: Project, named: Any) -> None:
    other = project.directory.parent / "other/y.cu"
    other.parent.mkdir()
    other.write_text("")
    project.write_all({"src/x.cu": "", "build/a/x.txt": ""})
    entries = [
        {"directory": str(project.directory), "command": f"nvcc -arch=sm_90 -c '{path}' -o {n}.o"}
        for n, path in enumerate([project.directory / "src/x.cu", other])
    ]
    project.write("build/compile_commands.json", json.dumps(entries))
    printed = project.run("import", "build/compile_commands.json", *named).out
    root = project.directory.parent if named else project.directory
    assert (root / "tilus.toml").is_file()
    assert ("left out, because it is outside" in printed) == (not named)
