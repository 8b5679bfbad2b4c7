"""Drawn builds of make, ninja and CMake, built by themselves and by their import: what is equal.

Each source returns the macros that its compile saw, as a text, and each product is compared by its
exports, its NEEDED and RPATH, the texts, and the machine code of its kernels.
`INTAKE_SEEDS=200` draws more.
"""

import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.project import Project
from tilusbuild.binary.elf import Elf, read_needs
from tilusbuild.binary.fatbin import extract_cubins

SEEDS = int(os.environ.get("INTAKE_SEEDS", "4"))
TOOLKIT = "/usr/local/cuda/lib64"
pytestmark = [
    pytest.mark.nvcc,
    pytest.mark.skipif(
        not (os.path.exists(f"{TOOLKIT}/libcudart.so") and shutil.which("nvcc")),
        reason="needs a toolkit where other builds look for it",
    ),
    pytest.mark.skipif(not shutil.which("ninja"), reason="needs ninja"),
    pytest.mark.skipif(not shutil.which("cmake"), reason="needs CMake"),
]

MACROS = ["A", "B", "C", "D(2)", "E", "WHICH", "__OPTIMIZE__", "__FAST_MATH__", "_OPENMP",
          "__AVX2__", "__cplusplus", "__OPTIMIZE_SIZE__", "__NO_MATH_ERRNO__",
          "__NVCC__"]  # fmt: skip
SOURCE = """\
#if __has_include(<which.h>)
#include <which.h>
#endif
#define TEXT_OF(...) #__VA_ARGS__
#define TEXT(...) TEXT_OF(__VA_ARGS__)
extern "C" __attribute__((visibility("default"))) const char *seen_{name}() {{
    return ""
{lines}
    ;
}}
extern "C" int plain_{name}() {{ return 1; }}
"""
KERNEL = """\
#ifndef E
#define E 1.5f
#endif
__global__ void k_{name}(float *x) {{ x[0] = sinf(x[1]) / x[2] + E; }}
"""
# The words of a compile, as a shell gets them. Each row is drawn at most once.
EITHER = [
    ["-DA", "-DA=1", "-D A=7", "-DA=1 -UA", "-DA -DA=2", "-DA= "],
    ["-Iinc/a", "-I inc/b -Iinc/a", "-isystem inc/b -Iinc/a", "-isystem inc/b"],
    ["-O1", "-O2", "-O3", "-O0"],
    ["-std=c++14", "-std=c++20"],
    ["-g", "-MMD", "-MD -MF {name}.d"],
]
HOST = [
    ["-DB=1,2", "'-DB=\"x y\"'", "-D'B=f(1, 2)'", "-Wp,-DB=3,-DC"],
    ["'-DD(x)=((x)+1)'"],
    ["-ffast-math", "-Ofast", "-Os", "-fno-math-errno -O2"],
    ["-fopenmp", "-pthread", "-pipe"],
    ["-march=x86-64-v3", "-msse4.1", "-std=gnu++17"],
    ["-fvisibility=hidden", "-fvisibility=hidden -fvisibility-inlines-hidden"],
    ["-Wall -Wextra", "-Wformat -Werror=format-security", "-fdiagnostics-color=always"],
    ["-fstack-protector-strong", "-funroll-loops", "-fwrapv"],
]
DEVICE = [
    ["'-DB=1\\,2'", "-DB=1,C=2", "'-DB=\\\"x\\\"'", "-D B"],
    ["-Xcompiler -DC=4", "--compiler-options '-Wall -DC=3'", "-Xcompiler=-DC=5,-Wno-unused",
     "-Xcompiler '-DC=\\\"a\\,b\\\"'"],
    ["-use_fast_math", "--use_fast_math", "-fmad=false"],
    ["-Xcompiler -fopenmp", "-Xcompiler=-fopenmp,-fno-math-errno",
     "-Xcompiler -fvisibility=hidden"],
    ["-maxrregcount=24", "-maxrregcount 24", "-Xptxas -O1", "-Xptxas=-v"],
    ["-lineinfo", "--expt-relaxed-constexpr", "-diag-suppress 177", "-t 2", "-ccbin g++"],
    ["-DE=3.5f", "-Xcompiler -DE=2.5f", "-DE=1.25f -Xcompiler -DE=2.5f"],
    ["-fdevice-time-trace trace.json", "-forward-unknown-to-host-compiler -Wall -fno-math-errno"],
]  # fmt: skip
CXX = "g++ -fPIC"
NVCC = "nvcc -Xcompiler -fPIC -gencode arch=compute_80,code=sm_80"


def draw_words(draw: random.Random, rows: list[list[str]]) -> list[str]:
    chosen = draw.sample(rows, draw.randint(1, len(rows)))
    return [draw.choice(row) for row in chosen]


class Drawn:
    """A project of one or two libraries, as commands: (output, inputs, command)."""

    def __init__(self, seed: int, project: Project, has_cuda: bool) -> None:
        self.draw = random.Random(seed)
        self.has_cuda = has_cuda
        self.commands: list[tuple[str, list[str], str]] = []
        self.products: dict[str, list[str]] = {}
        project.write_all({f"inc/{n}/which.h": f"#define WHICH {n}\n" for n in "ab"})
        project.write_all({"csrc/which.h": "#define WHICH beside\n", ".git/HEAD": ""})
        self.project = project
        names: list[str] = []
        for number in range(self.draw.randint(1, 2)):
            units = [f"u{number}{letter}" for letter in "abc"[: self.draw.randint(1, 3)]]
            self.add_library(f"lib{number}.so", units, names)
            names.append(f"lib{number}.so")

    def add_unit(self, name: str, used: str) -> str:
        is_cuda = self.has_cuda and self.draw.random() < 0.4
        by_nvcc = is_cuda or (self.has_cuda and self.draw.random() < 0.3)
        lines = "\n".join(
            f'#ifdef {m.partition("(")[0]}\n    " {m}=" TEXT({m})\n#endif' for m in MACROS
        )
        text = SOURCE.format(name=name, lines=lines) + used + (KERNEL.format(name=name) * is_cuda)
        source = self.project.write(f"csrc/{name}.{'cu' if is_cuda else 'cpp'}", text)
        words = draw_words(self.draw, EITHER + (DEVICE if by_nvcc else HOST))
        self.draw.shuffle(words)
        tail = ["-c", f"csrc/{source.name}", "-o", f"{name}.o"]
        line = " ".join([NVCC if by_nvcc else CXX, *words, *tail]).format(name=name)
        self.commands.append((f"{name}.o", [f"csrc/{source.name}"], line))
        return f"{name}.o"

    def add_library(self, output: str, units: list[str], others: list[str]) -> None:
        # A library is NEEDED if something of it is used.
        used = "".join(
            f'extern "C" const char *seen_{self.products[other][0]}();\n'
            f"const char *use_{units[0]}() {{ return seen_{self.products[other][0]}(); }}\n"
            for other in others
        )
        objects = [self.add_unit(name, used if name == units[0] else "") for name in units]
        inputs = objects
        has_device_code = any(".cu" in line for o, _, line in self.commands if o in objects)
        if self.draw.random() < 0.4:
            archive = output.replace(".so", "_all.a")
            archiver = self.draw.choice(["ar rcs", "nvcc -lib -o", "ld -r -o"])
            self.commands.append((archive, objects, f"{archiver} {archive} {' '.join(objects)}"))
            inputs = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive"]
        rpath = self.draw.choice(
            ["", "-Wl,-rpath,'$ORIGIN'", "-Wl,-rpath,'$ORIGIN:/home/me/lib'",
             "-Wl,-rpath='$ORIGIN/lib' -Wl,-rpath -Wl,'$ORIGIN'",
             "-Xlinker -rpath -Xlinker '$ORIGIN'"]
        )  # fmt: skip
        libs = [f"-L. -l{other[3:-3]}" for other in others]
        libs += [f"-L{TOOLKIT} -lcudart"] * has_device_code
        options = [rpath, self.draw.choice(["", "-Wl,-O1,-z,now", f"-Wl,-soname,{output}"])]
        linker = self.draw.choice(["g++", "g++", "nvcc" if has_device_code else "ld"])
        if linker == "nvcc":
            # It gives all files to the linker before all options.
            inputs, options = objects, ["-cudart shared"]
        words = [linker, "-shared -Xlinker --as-needed", *inputs, *libs, *options, "-o", output]
        line = " ".join(word for word in words if word)
        if linker == "ld":
            line = re.sub("-Wl,([^ ]*)|-Xlinker ", lambda m: (m[1] or "").replace(",", " "), line)
        elif self.draw.random() < 0.2:
            line += " -Xcompiler -fopenmp" if linker == "nvcc" else " -fopenmp"
        parts = [word for word in inputs if not word.startswith("-")] + others
        self.commands.append((output, parts, line))
        self.products[output] = units


def write_makefile(drawn: Drawn) -> tuple[list[str], str]:
    text = f"all: {' '.join(drawn.products)}\n"
    for output, inputs, line in drawn.commands:
        text += f"{output}: {' '.join(inputs)}\n\t{line.replace('$', '$$')}\n"
    drawn.project.write("Makefile", text)
    return ["make"], "Makefile"


def write_ninja(drawn: Drawn) -> tuple[list[str], str]:
    text = ""
    for number, (output, inputs, line) in enumerate(drawn.commands):
        tool, _, words = line.replace("$", "$$").partition(" ")
        text += f"rule r{number}\n  command = {tool} "
        if tool != "nvcc" and drawn.draw.random() < 0.3:
            text += "@$out.rsp\n"
            text += f"  rspfile = $out.rsp\n  rspfile_content = {words}\n"
        else:
            text += f"{words}\n"
        text += f"build {output}: r{number} {' '.join(inputs)}\n"
    text += "rule bad\n  command = g++ -march=armv8-a+sve -c $in -o $out\n"
    text += f"build bad.o: bad {drawn.commands[0][1][0]}\ndefault {' '.join(drawn.products)}\n"
    drawn.project.write("build.ninja", text)
    return ["ninja"], "build.ninja"


def write_cmake(drawn: Drawn, generator: str) -> list[str]:
    """Write the same sources and words as targets of CMake, and configure them in `b`."""
    text = "cmake_minimum_required(VERSION 3.20)\nproject(p CXX)\n"
    directory = f"{drawn.project.directory}/inc"
    for _, inputs, line in drawn.commands:
        if inputs[0].startswith("csrc/"):
            words = [re.sub("^(-I)?inc", rf"\g<1>{directory}", word) for word in shlex.split(line)]
            # Without the tool and -fPIC, and without `-c`, the source, `-o` and the object.
            joined = " ".join(f"[==[{word}]==]" for word in words[2:-4])
            text += f"set_property(SOURCE {inputs[0]} PROPERTY COMPILE_OPTIONS {joined})\n"
    for number, (product, units) in enumerate(drawn.products.items()):
        sources = " ".join(f"csrc/{unit}.cpp" for unit in units)
        text += f"add_library({product[3:-3]} SHARED {sources})\n"
        text += f"target_link_libraries({number} PRIVATE {number - 1})\n" * (number > 0)
        text += f"set_property(TARGET {number} PROPERTY BUILD_RPATH [==[$ORIGIN;/home/me]==])\n"
    text += "add_library(bad EXCLUDE_FROM_ALL csrc/bad.cpp)\n"
    drawn.project.write_all({"CMakeLists.txt": text, "csrc/bad.cpp": ""})
    subprocess.run(
        ["cmake", "-S", ".", "-B", "b", "-G", generator, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"],
        cwd=drawn.project.directory, check=True, capture_output=True,
    )  # fmt: skip
    drawn.products = {f"b/{product}": units for product, units in drawn.products.items()}
    return ["cmake", "--build", "b"]


SEEN = """
import ctypes, sys
for product, name in zip(sys.argv[1::2], sys.argv[2::2]):
    function = ctypes.CDLL(product)["seen_" + name]
    function.restype = ctypes.c_char_p
    print(product, name, function().decode())
"""


def describe(project: Project, products: dict[str, list[str]]) -> dict[str, object]:
    """Return all that is compared of the products in a project."""
    pairs = [(f"./{p}", unit) for p, units in products.items() for unit in units]
    asked = [sys.executable, "-c", SEEN, *(word for pair in pairs for word in pair)]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{project.directory}:{project.directory}/b:{TOOLKIT}",
    }
    result = subprocess.run(
        asked, cwd=project.directory, env=environment, text=True, capture_output=True, check=True
    )
    description: dict[str, object] = {
        line.partition("  ")[0]: line for line in result.stdout.splitlines()
    }
    for product in products:
        data = (project.directory / product).read_bytes()
        needs = read_needs(data)
        dynamic = subprocess.check_output(
            ["readelf", "-dW", project.directory / product], text=True
        )
        rpath = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "PATH)" in line]
        entries = [entry for path in rpath for entry in path.split(":") if entry.startswith("$")]
        names = subprocess.check_output(
            ["nm", "-D", "--defined-only", project.directory / product], text=True
        )
        exports = {line.split()[-1] for line in names.splitlines()}
        kernels = {
            section.name: elf.read_section(section)
            for elf in (Elf(cubin.data) for cubin in extract_cubins(data))
            for section in elf.sections
            if section.name.startswith(".text.")
        }
        description[product] = (sorted(needs.libraries), entries, sorted(exports), kernels)
    return description


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_imported_build_makes_what_the_build_itself_makes(seed: int, tmp_path: Path) -> None:
    project = Project(tmp_path / "p", {"TILUSBUILD_CACHE_DIR": str(tmp_path / ".cache")})
    drawn = Drawn(seed, project, has_cuda=seed % 4 < 2)
    if seed % 4 < 2:
        tool, name = [write_makefile, write_ninja][seed % 4](drawn)
    else:
        tool = write_cmake(drawn, ["Unix Makefiles", "Ninja"][seed % 2])
        build_name = ["Makefile", "build.ninja"][seed % 2]
        name = drawn.draw.choice([f"b/{build_name}", "b/compile_commands.json"])
    subprocess.run(tool, cwd=project.directory, check=True, capture_output=True)
    expected = describe(project, drawn.products)
    for path in [*project.directory.glob("*.[soa]*"), *project.directory.glob("b/*.so")]:
        path.unlink()
    printed = project.run("import", name).out
    project.run("build")
    for key, value in describe(project, drawn.products).items():
        assert value == expected[key], f"{key}\n{printed}\n{drawn.commands}"
