"""A pipeline as a list of commands. The compile, `compile.sh` and `options.txt` all come from it.

Commands run in a private folder that holds `source.cu`, the generated files, and `include`, a link
to the program's headers. Inputs are named through /proc/self/cwd, so that what compilers write of
their inputs' names is the same wherever that folder is. Tools are placeholders (`{nvcc}`), and no
other argument depends on where anything is installed.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass

from tilusbuild.arch import gencode
from tilusbuild.compile.model import Recipe
from tilusbuild.compile.nvrtc import CUDA_HEADERS, own_flags

HERE = "/proc/self/cwd"
SOURCE = f"{HERE}/source.cu"

TOOLS = ("nvcc", "nvrtc", "fatbinary", "cxx", "cc", "as", "ld", "sed")
"""The programs, as placeholders. `{link_flags}` leads nvcc to its own libraries, where it must."""

LAUNCHER = "launcher.c"
LAUNCHER_OBJECT = "launcher.o"

CC_FLAGS = (
    "-std=gnu11",
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-stack-protector",
    "-U_FORTIFY_SOURCE",
)
"""For the launcher: what a distribution's compiler adds by default changes no call of it."""

_LINE_INFO = frozenset(
    {"-lineinfo", "--generate-line-info", "-generate-line-info", "-G", "--device-debug"}
)

_TAKEN_APART = frozenset("'\"`,$\\\n")

_LIBRARY = ("--build-id=none", "-s", "-z", "noexecstack", "-z", "relro", "-z", "now")
_EXPORTS = ("--version-script=exports.map", "--as-needed", "-z", "defs")

_KERNEL_LINK = ("-shared", *_LIBRARY, "-z", "noseparate-code", "--hash-style=gnu", "--eh-frame-hdr")
"""No C library is named: its functions are found in the process, whatever its version is."""

_CUDART = ("-cudart", "static", "-cudadevrt", "none", "-nodlink")
_HOST_LINK = ("{nvcc}", "{link_flags}", "-shared", "-ccbin", "{cxx}", *_CUDART)

_CPU_COMPILE = (
    "{cxx}",
    "-c",
    "-x",
    "c++",
    "-O3",
    "-fPIC",
    "-frandom-seed=0",
    "-ffp-contract=off",
    f"-ffile-prefix-map={HERE}/=",
)
"""-ffp-contract=off: the same numbers whether or not the CPU can fuse a product with a sum."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command. `argv[0]` is a placeholder of `TOOLS`; `output` is what it must make."""

    name: str
    argv: tuple[str, ...]
    output: str
    prepares: bool = False
    """Whether the build keeps the output for the next program of the same script."""


def steps(recipe: Recipe) -> tuple[Step, ...]:
    """The commands that make `lib.so`, in order."""
    compiled = {"kernel": _kernel, "host": _host, "cpu": _cpu}[recipe.pipeline](recipe)
    launcher = Step(
        "launcher",
        ("{cc}", *CC_FLAGS, "-c", LAUNCHER, "-o", "launcher.o"),
        "launcher.o",
        prepares=True,
    )
    *before, link = compiled
    return (*before, launcher, link)


def default_march(machine: str | None = None) -> str:
    """What code for the host may assume of its CPU, when nobody says."""
    return {"x86_64": "x86-64-v2", "aarch64": "armv8-a"}[machine or platform.machine()]


def image_name(recipe: Recipe) -> str:
    """The file of device code that the kernel pipeline links."""
    return "program.fatbin" if len(recipe.archs) > 1 or recipe.ptx else "program.cubin"


def copies_headers(recipe: Recipe) -> bool:
    """Whether the headers must lie in the private folder with a time of ours, as ptxas writes it.

    The kernel pipeline gets round that by way of the PTX; nvcc's host compilation cannot.
    """
    return recipe.pipeline == "host" and not _LINE_INFO.isdisjoint(recipe.flags)


def _defines(recipe: Recipe) -> list[str]:
    return [f"-D{name}={value}" if value else f"-D{name}" for name, value in recipe.defines]


def include_links(recipe: Recipe) -> dict[str, str]:
    """Links that the private folder holds, to the header folders whose own names nvcc would take
    apart: it cuts `-I` at commas and hands it to a shell with quotes of its own around it."""
    if recipe.pipeline == "cpu" or recipe.through_nvrtc:
        return {}
    names = [name for name, _ in recipe.include_roots]
    return {
        f"include-{number}": f"include/{name}"
        for number, name in enumerate(names)
        if not _TAKEN_APART.isdisjoint(name)
    }


def _includes(recipe: Recipe, quoted: tuple[str, ...]) -> list[str]:
    """`quoted` is how the compiler takes a folder that only #include "…" searches."""
    found: list[str] = []
    links = {folder: link for link, folder in include_links(recipe).items()}
    for name, quoted_only in recipe.include_roots:
        folder = f"include/{name}"
        folder = f"{HERE}/{links.get(folder, folder)}"
        if quoted_only:
            found += (
                [*quoted, folder] if len(quoted) == 1 else [quoted[0], quoted[1], quoted[0], folder]
            )
        else:
            found += ["-I", folder]
    return found


def _nvcc(recipe: Recipe, mode: str, code: tuple[str, ...]) -> list[str]:
    """What both CUDA pipelines ask of nvcc.

    --orig_src_path_name: the names of entities with internal linkage hold a hash of the source's
    folder, and this is where cudafe++ and cicc take it from. The last one given wins.
    """
    return [
        "{nvcc}",
        mode,
        *code,
        "-ccbin",
        "{cxx}",
        f"-std={recipe.std}",
        *_defines(recipe),
        *_includes(recipe, ("-Xcompiler", "-iquote")),
        "-Xcompiler",
        f"-ffile-prefix-map={HERE}/=",
        "-Xcudafe",
        "--orig_src_path_name",
        "-Xcudafe",
        "/tilusbuild/source.cu",
        "-Xptxas",
        "-v",
        *recipe.flags,
    ]


def _kernel(recipe: Recipe) -> list[Step]:
    image = image_name(recipe)
    mode = "-cubin" if image.endswith(".cubin") else "-fatbin"
    if recipe.through_nvrtc:
        device = _through_nvrtc(recipe, image)
    elif _LINE_INFO.isdisjoint(recipe.flags):
        argv = (*_nvcc(recipe, mode, gencode(recipe.archs, ptx=recipe.ptx)), SOURCE, "-o", image)
        device = [Step("device", argv, image)]
    else:
        device = _through_ptx(recipe, image)
    return [
        *device,
        Step("image", ("{as}", "program.s", "-o", "program.o"), "program.o"),
        Step("link", ("{ld}", *_KERNEL_LINK, "program.o", "launcher.o", "-o", "lib.so"), "lib.so"),
    ]


_ANONYMOUS_FILES = (
    "-e",
    rf's#^([[:space:]]*\.file[[:space:]]+[0-9]+[[:space:]]+")({HERE}/)?#\1/tilusbuild/#',
    "-e",
    r's#^([[:space:]]*\.file[[:space:]]+[0-9]+[[:space:]]+")[^"]*/bin/\.\./[^"]*/?include/#\1/cuda/include/#',
    "-e",
    r's#^([[:space:]]*\.file[[:space:]]+[0-9]+[[:space:]]+")/tilusbuild//#\1/#',
)


def _through_ptx(recipe: Recipe, image: str) -> list[Step]:
    """With line information, ptxas writes the name, time and size of each source file it finds.

    So the PTX is made first, and its `.file` lines are given names under which nothing is found and
    which do not tell where the toolkit is.
    """
    made: list[Step] = []
    images: list[str] = []
    for code in gencode(recipe.archs, ptx=recipe.ptx)[1::2]:
        virtual, real = code.removeprefix("arch=").split(",code=")
        names = real.strip("[]").split(",")
        stem = "program" if image.endswith(".cubin") else names[0]
        ptx, cubin = f"{stem}.ptx", f"{stem}.cubin"
        single = ("-gencode", f"arch={virtual},code={names[0]}")
        made += [
            Step("ptx", (*_nvcc(recipe, "-ptx", ("-arch", virtual)), SOURCE, "-o", ptx), ptx),
            Step("names", ("{sed}", "-E", "-i", *_ANONYMOUS_FILES, ptx), ptx),
            Step("device", (*_nvcc(recipe, "-cubin", single), ptx, "-o", cubin), cubin),
        ]
        number = names[0].removeprefix("sm_")
        images.append(f"--image3=kind=elf,sm={number},file={cubin}")
        if len(names) > 1:
            images.append(f"--image3=kind=ptx,sm={number},file={ptx}")
    if not image.endswith(".cubin"):
        argv = ("{fatbinary}", f"--create={image}", "-64", *images)
        made.append(Step("fatbinary", argv, image))
    return made


def _through_nvrtc(recipe: Recipe, image: str) -> list[Step]:
    """NVRTC compiles for one architecture at a time, to a cubin and the PTX that it is made of."""
    made: list[Step] = []
    images: list[str] = []
    for names in _codes(recipe):
        number = names[0].removeprefix("sm_")
        stem = "program" if image.endswith(".cubin") else names[0]
        outputs = [f"{stem}.cubin"]
        images.append(f"elf:{number}:{stem}.cubin")
        if len(names) > 1:
            outputs.append(f"{stem}.ptx")
            images.append(f"ptx:{number}:{stem}.ptx")
        made.append(Step("device", _nvrtc(recipe, names[0], outputs), outputs[0]))
    if not image.endswith(".cubin"):
        made.append(Step("fatbin", ("{nvrtc}", "fatbin", image, *images), image))
    return made


def ptx_steps(recipe: Recipe) -> list[Step]:
    """The commands that make the PTX of each architecture, for people to read."""
    return [
        Step("dump", _nvrtc(recipe, name, [f"{name}.cubin", f"{name}.ptx"]), f"{name}.ptx")
        for name, *_ in _codes(recipe)
    ]


def _codes(recipe: Recipe) -> Iterator[list[str]]:
    """The names of what each compile makes: the code's, and that of PTX that goes with it."""
    for code in gencode(recipe.archs, ptx=recipe.ptx)[1::2]:
        yield code.split("code=")[1].strip("[]").split(",")


def _nvrtc(recipe: Recipe, name: str, outputs: list[str]) -> tuple[str, ...]:
    """One compile: to a cubin or, with two outputs, to a cubin and PTX."""
    verb = "cubin" if len(outputs) == 1 else "both"
    argv = ("{nvrtc}", verb, "source.cu", _place_of_source(recipe), *outputs)
    return (*argv, f"--gpu-architecture={name}", *_nvrtc_options(recipe))


def _place_of_source(recipe: Recipe) -> str:
    """The name under which NVRTC gets the source: #include "…" looks in the folder of it."""
    for name, quoted_only in recipe.include_roots:
        if quoted_only:
            return f"{HERE}/include/{name}/source.cu"
    return SOURCE


def _nvrtc_options(recipe: Recipe) -> tuple[str, ...]:
    folders = [f"{HERE}/include/{name}" for name, quoted in recipe.include_roots if not quoted]
    folders += [f"{HERE}/{CUDA_HEADERS}", f"{HERE}/{CUDA_HEADERS}/cccl"]
    return (
        f"--std={recipe.std}",
        *_defines(recipe),
        *(f"-I{folder}" for folder in folders),
        "--ptxas-options=-v",
        *own_flags(recipe.flags),
    )


def _host(recipe: Recipe) -> list[Step]:
    march = recipe.host_march or default_march()
    options = ("-Xcompiler", f"-fPIC,-march={march},-frandom-seed=0")
    compiler = _nvcc(recipe, "-c", gencode(recipe.archs, ptx=recipe.ptx))
    linker = [word for flag in (*_LIBRARY, *_EXPORTS) for word in ("-Xlinker", flag)]
    objects = ("source.o", "launcher.o", *_link_flags(recipe), "-ldl")
    return [
        Step("source", (*compiler, *options, SOURCE, "-o", "source.o"), "source.o"),
        Step("link", (*_HOST_LINK, *linker, *objects, "-o", "lib.so"), "lib.so"),
    ]


def _link_flags(recipe: Recipe) -> list[str]:
    """Those of the user's flags that mean something to a link."""
    kept: list[str] = []
    words = iter(recipe.flags)
    for word in words:
        if word in ("-l", "-L", "-Xlinker"):
            kept += [word, next(words, "")]
        elif word.startswith(("-l", "-L")) and not word.startswith("-lineinfo"):
            kept.append(word)
    return kept


def _cpu(recipe: Recipe) -> list[Step]:
    march = recipe.host_march or default_march()
    compiler = (*_CPU_COMPILE, f"-std={recipe.std}", f"-march={march}", *_defines(recipe))
    options = (*_includes(recipe, ("-iquote",)), *recipe.flags)
    linker = [f"-Wl,{flag}" for flag in (*_LIBRARY, *_EXPORTS)]
    objects = ("source.o", "launcher.o", *recipe.flags, "-ldl")
    return [
        Step("source", (*compiler, *options, SOURCE, "-o", "source.o"), "source.o"),
        Step("link", ("{cxx}", "-shared", *linker, *objects, "-o", "lib.so"), "lib.so"),
    ]
