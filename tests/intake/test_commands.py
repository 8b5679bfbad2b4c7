"""Commands of other builds: what is said of a source arrives in the manifest, or in a note."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from support.project import Project
from tilusbuild.errors import InputError
from tilusbuild.intake import builds, commands, libraries
from tilusbuild.intake.draft import ManifestDraft, format_manifest
from tilusbuild.manifest.command_words import split_command
from tilusbuild.manifest.loading import load_manifest

NINJA = """\
ninja_required_version = 1.3
cxx = c++
nvcc = /usr/local/cuda/bin/nvcc

cflags = -DTORCH_EXTENSION_NAME=ext -I{root}/include -fPIC -std=c++17
cuda_cflags = -DTORCH_EXTENSION_NAME=ext -DWIDE=4 -I{root}/include -D__CUDA_NO_HALF_OPERATORS__ $
    --expt-relaxed-constexpr -gencode=arch=compute_80,code=compute_80 $
    -gencode=arch=compute_80,code=sm_80 --compiler-options '-fPIC' -O3 -std=c++17
ldflags = -shared -L/nowhere/torch/lib -ltorch -ltorch_python -lcudart -lfarm

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
build {root}/build/other.cuda.o: cuda_compile {root}/csrc/other.cu
build ext.so: link {root}/build/one.cuda.o {root}/build/two.cuda.o
default ext.so {root}/build/gone.cuda.o
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("csrc/one.cu", "csrc/two.cu", "include/wide.h")
    return Project(tmp_path).write_all(dict.fromkeys(names, "")).directory


def test_a_build_of_pytorch_becomes_a_library(folder: Path) -> None:
    draft = ManifestDraft("ext")
    text = NINJA.replace("{root}", str(folder))
    (folder / "build.ninja").write_text(text)
    libraries.add_libraries(
        draft, str(folder), builds.read_ninja_commands(draft, str(folder), "build.ninja")
    )
    (library,) = draft.libraries
    assert library.sources == ["csrc/one.cu", "csrc/two.cu"]
    assert library.include_dirs == ["include"]
    assert library.defines["WIDE"] == "4"
    assert library.flags == ["--expt-relaxed-constexpr", "-O3"]
    assert draft.targets == {"gpu": (("sm_80",), True)}
    assert draft.toolchain["std"] == "c++17"
    assert {name: value for name, value in library.keys.items() if value} == {
        "output": "ext.so", "link-libs": ["farm"], "needed": ["libtorch_python.so"],
        "cudart": "shared", "undefined": True,
    }  # fmt: skip
    (note,) = draft.notes
    assert "csrc/gone.cu" in note  # and no word of other.cu, which no default target needs
    (folder / "tilus.toml").write_text(format_manifest(draft))
    assert load_manifest(str(folder / "tilus.toml")).libraries["ext"].undefined


def test_paths_with_blanks_and_dollars_are_words(tmp_path: Path) -> None:
    """As ninja escapes them for itself, and quotes them for the shell."""
    text = "rule cc\n  command = nvcc $flags -c $in -o $out\n"
    text += "build k.o | k.d: cc my$ $$dir/k.cu it's.cu | k.h || made\n  flags = -DA='b c'\n"
    (tmp_path / "build.ninja").write_text(text)
    (command,) = builds.read_ninja_commands(ManifestDraft("p"), str(tmp_path), "build.ninja")
    words = ["nvcc", "-DA=b c", "-c", "my $dir/k.cu", "it's.cu", "-o", "k.o"]
    assert command == (str(tmp_path), words)


def test_a_missing_ninja_says_where_to_get_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(InputError, match="it needs ninja, which is not installed"):
        builds.read_ninja_commands(ManifestDraft("p"), str(tmp_path), "build.ninja")


PARSED: dict[str, dict[str, object]] = {
    # Flags that nvcc does not know are the host compiler's.
    "-Wall -fwrapv -O2 -B/x": {
        "flags": ["-Xcompiler", "-Wall", "-Xcompiler", "-fwrapv", "-O2", "-B/x"]
    },
    # As extensions of PyTorch do with its `__CUDA_NO_HALF_OPERATORS__`.
    "-DA -DB=2 -UA -U B -UC -DB=3": {"defines": {"B": "3"}, "flags": ["-UC"]},
    # A table of macros has no place for one with parameters.
    "-DSQ(x)=((x)*(x)) -DA=1": {"flags": ["-DSQ(x)=((x)*(x))"], "defines": {"A": "1"}},
    # As nvcc takes lists apart: a macro among the words of the host compiler is a macro.
    "-Xcompiler -fPIC,-Wall,-O2,-DA=3,-fopenmp -DB=1,C -DD=1\\,2": {
        "flags": ["-Xcompiler", "-Wall", "-Xcompiler", "-O2", "-Xcompiler", "-fopenmp"],
        "defines": {"A": "3", "B": "1", "C": True, "D": "1,2"},
    },
    "-Wp,-D_FORTIFY_SOURCE=2,-DA -DA=2 -Xcompiler=-DA=3": {
        "defines": {"A": "2", "_FORTIFY_SOURCE": "2"}
    },
    "-arch=sm_80": {"archs": ["sm_80"], "ptx": True},
    "-arch=compute_80 -code=sm_80": {"archs": ["sm_80"], "ptx": False},
    "-gencode arch=compute_80,code=sm_86": {"archs": ["sm_86"], "ptx": False},
    "-gencode=arch=compute_80,code=[sm_80,compute_80]": {"archs": ["sm_80"], "ptx": True},
    "--generate-code=arch=compute_90,code=compute_90": {"archs": ["sm_90"], "ptx": True},
    "--cuda-gpu-arch=sm_80 --offload-arch=sm_90": {"archs": ["sm_80", "sm_90"], "ptx": True},
}


@pytest.mark.parametrize("command", PARSED)
def test_what_the_words_of_a_command_say(command: str) -> None:
    arguments = commands.parse_arguments([*command.split(), "-c", "k.cu"], "/p")
    assert {name: getattr(arguments, name) for name in PARSED[command]} == PARSED[command]


def test_directories_of_packages_and_of_the_toolkit(folder, monkeypatch) -> None:
    site, toolkit = folder / "site-packages", folder / "toolkit/include"
    (site / "torch/include").mkdir(parents=True)
    (site / "cutlass/include").mkdir(parents=True)
    (toolkit / "crt").mkdir(parents=True)
    (toolkit / "crt/host_config.h").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    words = ["nvcc", "-DTORCH_EXTENSION_NAME=ops_2", f"-I{toolkit}", f"-I{site}/torch/include"]
    draft = ManifestDraft("p")
    words += [f"-I{site}/cutlass/include", "-c", "csrc/one.cu"]
    libraries.add_libraries(draft, str(folder), [(str(folder), words)])
    (library,) = draft.libraries
    assert library.name == "ops_2"
    assert library.include_dirs == [{"package": "cutlass", "path": "include"}]
    assert library.keys == {"torch": True}
    assert '[build]\ntimeout = "2h"' in format_manifest(draft)


def test_a_directory_that_others_may_not_have_is_noted(folder: Path) -> None:
    draft = drafted(folder / "csrc", f"nvcc -arch=sm_80 -I{folder}/include -I. -c one.cu")
    assert draft.libraries[0].include_dirs == [f"{folder}/include", "."]
    assert list(draft.notes) == [
        f"a directory of this machine, which others may have elsewhere: {folder}/include"
    ]


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


@pytest.mark.parametrize("seed", range(40))
def test_every_word_of_a_command_is_understood_kept_or_noted(seed: int, tmp_path: Path) -> None:
    """Drawn: what is said, and how it is spelled; what is said must come out again."""
    draw = random.Random(seed)
    includes = draw.sample(["a", "b/c", "d e"], draw.randint(0, 3))
    # nvcc takes a list apart at each comma without a backslash.
    written = {"1": "1", "a,b": r"a\,b", '"x"': r"\"x\""}
    defines = {f"M{n}": draw.choice([*written]) for n in range(draw.randint(0, 3))}
    arch, std = draw.choice(["80", "90a", "100"]), draw.choice(["c++14", "c++17", "c++20"])
    flags = draw.sample(KEPT, draw.randint(0, len(KEPT)))
    options = [
        *(("include", item) for item in includes),
        *(("define", f"{name}={written[value]}") for name, value in defines.items()),
        *(("flag", item) for item in flags),
        *(("ours", item) for item in draw.sample(OURS, 3)),
        *(("arch", arch), ("std", std)),
    ]
    draw.shuffle(options)
    words = ["nvcc"]
    for kind, value in options:
        words += [word.replace("@", value) for word in draw.choice(SPELLINGS[kind])]
    words += draw.choice([["-c", "k.cu", "-o", "k.o"], ["-o", "k.o", "k.cu"]])
    arguments = commands.parse_arguments(words[1:], "/p")
    searched = [*arguments.include_dirs, *arguments.system_dirs]
    assert sorted(searched) == sorted(f"/p/{item}" for item in includes)
    assert arguments.defines == defines
    assert sorted(arguments.flags) == sorted(flags)
    assert (arguments.archs, arguments.std, arguments.sources) == ([f"sm_{arch}"], std, ["/p/k.cu"])


def test_compile_commands_are_imported_by_the_command(folder: Path) -> None:
    entries: list[dict[str, object]] = [
        {"directory": str(folder), "file": name, "command": f"nvcc -DN=3 -arch=sm_90 -c {name}"}
        for name in ("csrc/one.cu", "csrc/two.cu")
    ]
    words = ["nvcc", "-arch=sm_90", "-Xcompiler", "-B/evil", "-c", "csrc/one.cu"]
    entries.append({"directory": str(folder), "arguments": words})
    (folder / "build").mkdir()
    (folder / "build/compile_commands.json").write_text(json.dumps(entries))
    project = Project(folder)
    printed = project.run("import", "build/compile_commands.json").out
    assert "-B/evil" in printed
    manifest = load_manifest(str(folder / "tilus.toml"))
    assert manifest.project.name == folder.name.replace("_", "-")  # and not "build"
    assert dict(manifest.targets)["gpu"].arch == ("sm_90",)
    assert [library.sources for library in manifest.libraries.values()] == [
        ("csrc/one.cu", "csrc/two.cu"),
        ("csrc/one.cu",),
    ]
    again = project.run("import", "build/compile_commands.json", status=2)
    assert "already exists" in again.err


def drafted(folder: Path, *lines: str) -> ManifestDraft:
    """Return the draft of commands that run in a folder."""
    draft = ManifestDraft("p")
    libraries.add_libraries(
        draft, str(folder), [(str(folder), split_command(line)) for line in lines]
    )
    return draft


def test_files_of_options_are_read_in_their_place(folder: Path) -> None:
    """As CMake's Makefiles have the include directories of CUDA sources."""
    (folder / "own dir").mkdir()
    (folder / "includes.rsp").write_text('-Iinclude -I"own dir"')
    (folder / "macros.rsp").write_text("-DA=1\n--options-file includes.rsp @macros.rsp")
    line = "nvcc -DA=0 -optf=macros.rsp @gone.rsp -DB -arch=sm_90 -c csrc/one.cu"
    draft = drafted(folder, line)
    (library,) = draft.libraries
    assert library.include_dirs == ["include", "own dir"]
    assert library.defines == {"A": "1", "B": True}
    assert list(draft.notes) == [
        "left out, because its file cannot be read: @macros.rsp",  # which it names itself
        "left out, because its file cannot be read: @gone.rsp",
    ]


def test_files_of_options_that_multiply_have_an_end(folder: Path) -> None:
    for number in range(9):
        (folder / f"{number}.rsp").write_text(f"@{number + 1}.rsp " * 99)
    (folder / "9.rsp").write_text("-DA")
    with pytest.raises(ValueError, match="a command has more than 100,000 words"):
        drafted(folder, "nvcc @0.rsp -c csrc/one.cu")


def test_long_names_say_what_short_ones_say(folder: Path) -> None:
    draft = drafted(
        folder,
        "nvcc --include-path=include --define-macro A=1 --define-macro=B --undefine-macro B "
        '--gpu-architecture compute_80 --gpu-code=sm_86 --compiler-options "-fPIC -Wall" '
        "-rdc true -maxrregcount 64 -default-stream per-thread -Werror -c csrc/one.cu",
    )
    (library,) = draft.libraries
    assert (library.include_dirs, library.defines) == (["include"], {"A": "1"})
    assert library.keys["rdc"]
    valued = ["-maxrregcount", "64", "-default-stream", "per-thread"]
    assert library.flags == ["-Xcompiler", "-Wall", *valued, "-Xcompiler", "-Werror"]
    assert draft.targets == {"gpu": (("sm_86",), False)}
    assert list(draft.notes) == []


@pytest.mark.parametrize("words", ["-arch=sm_90a", "-gencode=arch=compute_90a,code=compute_90a"])
def test_ptx_of_one_architecture_alone_is_not_asked_for(folder: Path, words: str) -> None:
    draft = drafted(folder, f"nvcc {words} -c csrc/one.cu")
    (folder / "tilus.toml").write_text(format_manifest(draft))
    assert load_manifest(str(folder / "tilus.toml")).targets["gpu"].arch == ("sm_90a",)


def test_an_architecture_that_is_assumed_is_noted(folder: Path) -> None:
    assert list(drafted(folder, "nvcc -arch=native -c csrc/one.cu").notes) == [
        "left out, because it names no architecture: -arch=native",
        "assumed, because nothing says what to compile for: sm_80",
    ]


@pytest.mark.parametrize(
    ("written", "std", "noted"),
    [("gnu++2a", "c++20", []), ("c++11", None, ["-std=c++11"]), ("gnu11", None, ["-std=gnu11"])],
)
def test_the_standard_is_one_that_a_manifest_knows(folder, written, std, noted) -> None:
    draft = drafted(folder, f"nvcc -arch=sm_90 -std={written} -c csrc/one.cu")
    assert draft.toolchain["std"] == std
    assert [note.split()[2] for note in draft.notes] == noted
    (folder / "tilus.toml").write_text(format_manifest(draft))
    load_manifest(str(folder / "tilus.toml"))


def test_sources_that_are_not_taken_are_noted(folder: Path) -> None:
    for name in ("cuda.cpp", "fast.s"):
        (folder / name).write_text("")
    draft = drafted(folder, "nvcc -x cu -c cuda.cpp", "ccache gcc -c fast.s -o fast.o")
    assert draft.libraries == []
    other, suffix = draft.notes
    assert "compiles it as .cu (-x cu), and here the suffix decides: cuda.cpp" in suffix
    assert other == "left out, because it is not a .cu, .c, .cc, .cpp, .cxx: fast.s"


def test_a_program_that_compiles_nothing_makes_no_library(folder: Path) -> None:
    names = ["bash -c 'echo -c csrc/one.cu'", "sha256sum -c csrc/one.cu", "wc -c csrc/one.cu"]
    names += ["echo nvcc -c csrc/one.cu -o one.o"]
    draft = drafted(folder, *names, "nvcc -M csrc/two.cu", "./wrapped -c csrc/two.cu -o two.o")
    assert [library.sources for library in draft.libraries] == [["csrc/two.cu"]]
    assert list(draft.notes) == ["assumed, because nothing says what to compile for: sm_80"]


@pytest.mark.parametrize("launcher", ["nice -n 5 env A=1 ccache", "timeout 60", "./own -ccbin g++"])
def test_a_launcher_may_have_options(folder: Path, launcher: str) -> None:
    (library,) = drafted(folder, f"{launcher} nvcc '-DL=1\\,2' -c csrc/one.cu -o o.o").libraries
    assert library.defines == {"L": "1,2"}


def test_an_rpath_is_taken_entry_by_entry(folder: Path) -> None:
    (folder / "k.cpp").write_text("")
    line = "g++ -shared k.cpp -o k.so -Wl,-rpath,'$ORIGIN:/home/me/build/lib:$ORIGIN/../lib:::'"
    draft = drafted(folder, line)
    assert draft.libraries[0].keys["rpath"] == ["$ORIGIN", "$ORIGIN/../lib"]
    assert list(draft.notes) == ["a path of this machine is left out of rpath: /home/me/build/lib"]


def test_libraries_of_the_compiler_are_linked_by_name(folder: Path) -> None:
    """CMake names OpenMP's by its path."""
    (folder / "k.cpp").write_text("")
    path = subprocess.check_output(["g++", "-print-file-name=libgomp.so"], text=True).strip()
    (library,) = drafted(folder, f"g++ -shared k.cpp -o k.so {path}").libraries
    assert (library.keys["link-libs"], library.keys["link-dirs"]) == (["gomp"], [])


@pytest.mark.parametrize(("libs", "torch"), [("-lc10 -ltorch", True), ("", None)])
def test_a_library_is_torchs_if_it_links_torch(folder, monkeypatch, libs, torch) -> None:
    site = folder / "site-packages"
    (site / "torch/include").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    (folder / "k.cpp").write_text("")
    words = f"-I{site}/torch/include k.cpp -L{site}/torch/lib {libs}"
    (library,) = drafted(folder, f"g++ -shared {words} -o k.so").libraries
    assert library.keys.get("torch") == torch
    assert library.include_dirs == ([] if torch else [{"package": "torch", "path": "include"}])


def test_the_headers_in_a_toolkit_are_the_toolkits(folder: Path) -> None:
    toolkit = folder / "cuda/include"
    for name in ("crt", "cccl"):
        (toolkit / name).mkdir(parents=True)
    (toolkit / "crt/host_config.h").write_text("")
    draft = drafted(folder, f"nvcc -arch=sm_80 -isystem {toolkit}/cccl -c csrc/one.cu")
    assert draft.libraries[0].include_dirs == []


def test_the_words_in_response_files_of_ninja_are_read(folder: Path) -> None:
    text = (
        "rule cc\n  command = g++ @$out.rsp -c $in -o $out\n"
        "  rspfile = $out.rsp\n  rspfile_content = -DA=3\nbuild one.o: cc csrc/one.cpp\n"
        "rule ar\n  command = ar rcs $out @$out.rsp\n  rspfile = $out.rsp\n"
        "  rspfile_content = $in\nbuild libk.a: ar one.o\n"
    )
    Project(folder).write_all({"csrc/one.cpp": "", "build.ninja": text})
    draft = ManifestDraft("p")
    ninja_commands = builds.read_ninja_commands(draft, str(folder), "build.ninja")
    libraries.add_libraries(draft, str(folder), ninja_commands)
    (library,) = draft.libraries
    assert (library.name, library.sources, library.defines) == ("k", ["csrc/one.cpp"], {"A": "3"})


def test_entries_without_a_command_are_noted(folder: Path) -> None:
    entries = ["x", {"file": "csrc/one.cu"}, {"command": "nvcc -arch=sm_90 -c csrc/one.cu"}]
    (folder / "compile_commands.json").write_text(json.dumps(entries))
    printed = Project(folder).run("import", "compile_commands.json", "--stdout").out
    assert printed.startswith(
        "# left out: entry 1 has no command\n# left out: entry 2 has no command\n\n"
    )


def test_ld_links_and_no_option_of_it_disappears(folder: Path) -> None:
    Project(folder).write_all({"a.cpp": "", "b.cpp": ""})
    draft = drafted(
        folder, "g++ -c a.cpp -o a.o", "g++ -c b.cpp -o b.o", "ar qc liba.a a.o", "ar q liba.a b.o",
        "ld -r -o ab.o liba.a",
        "ld -shared -rpath $ORIGIN -soname libk.so -z defs -Bsymbolic ab.o -lm -o libk.so",
    )  # fmt: skip
    (library,) = draft.libraries
    assert library.sources == ["a.cpp", "b.cpp"]
    assert (library.keys["rpath"], library.keys["link-libs"]) == (["$ORIGIN"], ["m"])
    assert library.keys["undefined"] is None
    assert list(draft.notes) == ["option of the linker left out: -Bsymbolic"]


def test_a_part_does_not_inherit_the_cpu_of_its_library(folder: Path) -> None:
    Project(folder).write_all({"a.cpp": "", "b.cpp": ""})
    first = "g++ -march=x86-64-v3 -c a.cpp -o a.o"
    draft = drafted(folder, first, "g++ -c b.cpp -o b.o", "g++ -shared a.o b.o -o k.so")
    _, part = draft.libraries
    assert draft.toolchains[str(part.keys["toolchain"])] == {"std": "c++17", "host-march": None}
    (folder / "tilus.toml").write_text(format_manifest(draft))
    load_manifest(str(folder / "tilus.toml"))


@pytest.mark.parametrize(
    ("words", "flags"), [("-O1 -Os", ["-Xcompiler", "-Os"]), ("-Os -O2 -O2", ["-O2"])]
)
def test_the_last_level_of_optimization_holds(folder: Path, words: str, flags: list[str]) -> None:
    (folder / "k.cpp").write_text("")
    assert drafted(folder, f"g++ {words} -c k.cpp").libraries[0].flags == flags


def test_host_code_keeps_its_threads(folder: Path) -> None:
    (folder / "k.cpp").write_text("")
    draft = drafted(folder, "g++ -fopenmp -O2 -c k.cpp")
    assert draft.libraries[0].flags == ["-Xcompiler", "-fopenmp", "-O2"]
    assert 'link-libs = ["gomp"] links it' in next(iter(draft.notes))


@pytest.mark.parametrize(
    ("compile_flags", "link"),
    [
        ("-dc", "nvcc -gencode=arch=compute_80,code=sm_80 libapp.a libtwo.a -L/opt/l -lm"),
        (
            "-c",
            (
                "g++ -Wl,--whole-archive libapp.a -Wl,--no-whole-archive libtwo.a -L/opt/l -lm"
                ' -L"$(dirname "$(command -v nvcc)")/../lib64" -lcudart_static -ldl -lrt -lpthread'
            ),
        ),
    ],
)
def test_the_link_of_a_program_has_the_libraries_that_nvcc_adds(
    folder: Path, compile_flags: str, link: str
) -> None:
    draft = drafted(
        folder, f"nvcc -arch=sm_80 {compile_flags} csrc/one.cu -o one.o",
        f"nvcc {compile_flags} csrc/two.cu -o two.o", "ar rcs libtwo.a two.o",
        "nvcc -arch=sm_80 one.o libtwo.a -L/opt/l -lm -o app",
    )  # fmt: skip
    (note,) = (note for note in draft.notes if "app is a program" in note)
    assert note.endswith(f"its link is left to you: {link}")
