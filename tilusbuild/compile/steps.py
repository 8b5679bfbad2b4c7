"""A compile as a list of commands, the arguments that pipelines share, and the tools' paths.

The compile, `compile.sh` and `options.txt` all use the same list. Commands run in a private
directory that holds `source.cu`, the generated files, and `include`, a link to the program's
headers. Tools are placeholders (`{nvcc}`), which `Tools` replaces with paths; no other argument
depends on where anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence

from tilusbuild.compile.model import (
    EXPORTS_MAP,
    HERE,
    LINK_INPUTS,
    LINK_OPTIONS,
    STAND_IN,
    TOOLKIT,
    Link,
    Recipe,
    Step,
    Tools,
    UserWord,
    is_placeholder,
)
from tilusbuild.toolchain import Toolchain
from tilusbuild.toolchain.host import BASELINES

TOOLS = "tools"
"""The directory of links that is a compile's whole PATH. Compilers look their helpers up by name
(nvcc its ptxas, gcc its as and ld): one that is missing must not be replaced by another one that
the machine happens to have."""

NVCC_HERE = "nvcc-bin"
"""The link to nvcc's directory in the private one: nvlink writes where it looked for libraries into
the code that it makes, and nvcc has it look beside the nvcc that was started."""

DEVICE_LINKER = f"{{{NVCC_HERE}/nvcc}}"

ENVIRONMENT = {
    "SOURCE_DATE_EPOCH": "0",  # __DATE__ is constant
    "PWD": HERE,  # gcc writes it into debug information as the compile's directory
    # nvcc passes the names of its temporary files to a shell without quoting them: a user's TMPDIR
    # with a blank in it would break the compile.
    "TMPDIR": f"{HERE}/tmp",  # noqa: S108
}
"""The variables of every command, besides those of the toolchain's environment."""

LAUNCHER = "launcher.c"
LAUNCHER_OBJECT = "launcher.o"

CUDA_HEADERS = "cuda"
"""The name of the link to the toolkit's headers in the private directory, for NVRTC."""

NVRTC_COMMAND = "nvrtc_command.py"
"""The name of the copy of NVRTC's driver in the cache tree."""

CC_FLAGS = (
    "-std=gnu11",
    # For size: the launcher is in every library, and most of its code is for wrong calls.
    "-Os",
    "-g0",
    "-fPIC",
    # All symbols are bound when the library is loaded.
    "-fno-plt",
    # No section that ld may merge: ld reports no error for one that it cannot read.
    "-fno-merge-constants",
    "-fno-ident",
    "-fvisibility=hidden",
    # Compilers of distributions add calls of glibc's checking functions by default.
    "-fno-stack-protector",
    "-U_FORTIFY_SOURCE",
)
"""The C compiler's flags for the launcher. The unwind tables stay: debuggers and a template's
exceptions need them."""

LIBRARY_FLAGS = ("--build-id=none", "-s", "-z", "noexecstack", "-z", "relro", "-z", "now")
"""The linker's flags for every library."""
ONE_SEGMENT_FLAGS = ("-z", "noseparate-code")
"""The linker's flags for libraries with a launcher: code and constants are one segment. Three
segments would each begin at a page: up to 8 kB of the file, and two mappings more in a process."""
EXPORT_FLAGS = (*ONE_SEGMENT_FLAGS, f"--version-script={EXPORTS_MAP}")
"""The linker's flags for a launcher and a compiler's object: only the launcher is exported."""


def find_launcher(directories: Iterable[str]) -> str | None:
    """Return the path of the generated launcher in one of a program's header directories; None for
    a template with its own host code."""
    paths = (os.path.join(directory, LAUNCHER) for directory in directories)
    return next((path for path in paths if os.path.isfile(path)), None)


LAUNCHER_STEP = Step(
    "launcher",
    ("{cc}", *CC_FLAGS, "-c", LAUNCHER, "-o", LAUNCHER_OBJECT),
    LAUNCHER_OBJECT,
    of_program=False,
)
"""Compiles the launcher, once for all programs of a script."""


def list_steps(recipe: Recipe) -> tuple[Step, ...]:
    """Return the commands that make `lib.so`, in order."""
    *compile_steps, link_step = recipe.pipeline.list_commands(recipe)
    if not recipe.pipeline.launcher.is_there:
        return (*compile_steps, link_step)
    return (*compile_steps, LAUNCHER_STEP, link_step)


def make_stand_in_steps(link: Link, *, has_input: bool = True) -> Iterator[Step]:
    """Yield the steps that make an empty library for each needed soname: a linker records a soname
    only of a file that it is given. Without `has_input` the empty object is made in any case."""
    if link.needed or not has_input:
        argv: tuple[str, ...] = ("{as}", STAND_IN, "-o", "needed.o")
        yield Step("nothing", argv, "needed.o", of_program=False)
    for soname, file in _list_needed_files(link):
        argv = ("{ld}", "-shared", "--build-id=none", "-soname", soname, "needed.o", "-o", file)
        yield Step("stand-in", argv, file, of_program=False)


def _list_needed_files(link: Link) -> list[tuple[str, str]]:
    return [(soname, f"needed-{number}.so") for number, soname in enumerate(link.needed)]


def list_linker_options(link: Link, exports: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the linker's options; `exports` are the options that limit the exports. Exported C++
    names stay. Other symbols are dropped: they hold the names of nvcc's temporary files."""
    options = [*LIBRARY_FLAGS, *exports]
    if link.soname:
        options += ["-soname", link.soname]
    for path in link.rpath:
        options += ["-rpath", path]
    if link.needed:
        # Without this option ld would not record an empty library, of which nothing is used.
        options += ["--no-as-needed", *(file for _, file in _list_needed_files(link))]
    options.append("--as-needed")
    # What needed libraries define is unknown: their symbols stay undefined.
    if not link.undefined and not link.needed:
        options += ["-z", "defs"]
    return tuple(options)


def make_link_step(
    recipe: Recipe,
    driver: Sequence[str],
    options: tuple[str, ...],
    rest: Sequence[str],
    inputs: tuple[str, ...] = (),
) -> Step:
    """Return the step in which a compiler links: `driver` are its first words, `rest` the last.
    These name the file of `inputs`, if there are any.

    A `Link` has words of the user, and any number of objects: g++ reads them from files, since a
    command has a greatest length, and nvcc's shell would split words."""
    passed_on = tuple(word for option in options for word in ("-Xlinker", option))
    listed = {LINK_INPUTS: inputs} if inputs else {}
    if recipe.link is not None:
        # g++ reads the file in place of its name: the first word stays before it, for nvcc.
        flag, *words = passed_on
        listed[LINK_OPTIONS] = tuple(words)
        passed_on = (flag, f"@{LINK_OPTIONS}")
    product = recipe.pipeline.product
    return Step("link", (*driver, *passed_on, *rest, "-o", product), product, listed=listed)


def find_commands_names(recipe: Recipe) -> dict[str, str]:
    """Return the links in the private directory that commands name in place of files and
    directories below it."""
    links = recipe.pipeline.list_include_links(recipe)
    return {directory: link for link, directory in links.items()}


def list_library_arguments(recipe: Recipe) -> tuple[str, ...]:
    """Return the `-L` and `-l` arguments of a link."""
    link, names = recipe.link or Link(), find_commands_names(recipe)
    directories = (f"include/{name}" for name in link.dirs)
    # Not by path: for a library without a soname, a linker would write the path into the output.
    return (*(f"-L{HERE}/{names.get(d, d)}" for d in directories), *(f"-l{n}" for n in link.libs))


def format_object_name(number: int) -> str:
    """Return the file name of the object with this number in the private directory."""
    return f"{number}.o"


def choose_host_march(recipe: Recipe) -> str:
    """Return the `-march` of a recipe's host code."""
    return recipe.options.host_march or BASELINES[os.uname().machine]


DEFINE_FLAGS = ("-D", "--define-macro", "-define-macro")
"""Flags that define a macro; it is the next argument, or joined: `-DM`, `--define-macro=M`."""


def protect_user_flags(recipe: Recipe) -> tuple[str, ...]:
    """Return the user's flags as `UserWord`s where they look like placeholders. Of an imported
    build, `TOOLKIT` stays a placeholder."""
    replaceable = TOOLKIT if recipe.part.written else None
    return tuple(
        UserWord(flag) if is_placeholder(flag) and flag != replaceable else flag
        for flag in recipe.options.flags
    )


def format_defines(recipe: Recipe) -> list[str]:
    """Return the recipe's macros as `-D` arguments."""
    # Always with "=": without it a compiler defines the macro as 1.
    return [f"-D{name}={value}" for name, value in recipe.options.defines]


def format_include_options(recipe: Recipe, through: tuple[str, ...] = ()) -> list[str]:
    """Return the options for the program's header directories. `-iquote` is an option of the host
    compiler: `through` (`-Xcompiler`) precedes each of its words."""
    directories: list[tuple[str, bool]] = []
    # The source finds rendered headers beside it, a header of the closure finds them here.
    if recipe.headers:
        directories.append((HERE, True))
    names = find_commands_names(recipe)
    for name, quoted_only in recipe.includes.roots:
        directory = f"include/{name}"
        directories.append((f"{HERE}/{names.get(directory, directory)}", quoted_only))
    options: list[str] = []
    for directory, quoted_only in directories:
        if quoted_only:
            options += [*through, "-iquote", *through, directory]
        else:
            options += ["-I", directory]
    return options


def _find_beside_ld(ld: str, name: str) -> str:
    """Return the path of the program `name` beside `ld`, with the same prefix; else the first
    on PATH, else `name`."""
    # Beside "/usr/bin/x86_64-linux-gnu-ld.bfd" there is "/usr/bin/x86_64-linux-gnu-ar".
    directory, base = os.path.split(ld)
    path = os.path.join(directory, re.sub(r"ld(\.\w+)?$", name, base))
    return path if os.path.exists(path) else shutil.which(name) or name


def collect_tools(toolchain: Toolchain) -> Tools:
    """Return the tools of a toolchain. The placeholder of a missing tool is not replaced."""
    names = ("g++", "gcc", "as", "ld")  # `HostCompiler.tools`, in this order
    host_paths = {name: tool.path for name, tool in zip(names, toolchain.host.tools, strict=True)}
    paths: dict[str, tuple[str, ...]] = {
        "{cxx}": (host_paths["g++"],),
        "{cc}": (host_paths["gcc"],),
        "{as}": (host_paths["as"],),
        "{ld}": (host_paths["ld"],),
        "{ar}": (_find_beside_ld(host_paths["ld"], "ar"),),
        "{sed}": (shutil.which("sed", path=os.defpath) or "sed",),
    }
    name_of_path = {path: name for name, path in host_paths.items()}
    linked_tools = {name: host_paths[name] for name in ("as", "ld")}
    name_of_path |= {f"{HERE}/{TOOLS}/{name}": name for name in linked_tools}
    cuda = toolchain.cuda
    if cuda is not None:
        paths["{nvcc}"] = (cuda.nvcc,)
        paths[TOOLKIT] = cuda.include_dirs[:1]
        paths["{link_flags}"] = tuple(cuda.link_flags)
        nvcc_link = f"{HERE}/{NVCC_HERE}"
        library_flags = (f"-L{nvcc_link}/../lib",) if cuda.link_flags else ()
        paths[DEVICE_LINKER] = (f"{nvcc_link}/{os.path.basename(cuda.nvcc)}", *library_flags)
        if cuda.cudart is not None:
            directory, name = os.path.split(cuda.cudart)
            paths["{cudart}"] = (f"-L{directory}", f"-l:{name}")
        paths["{fatbinary}"] = (os.path.join(os.path.dirname(cuda.nvcc), "fatbinary"),)
        name_of_path[cuda.root] = "{cuda}"
    nvrtc = toolchain.nvrtc
    if nvrtc is not None:
        paths["{nvrtc}"] = nvrtc.command
    return Tools(
        paths=paths,
        environment={**toolchain.build_environment(), **_TOOL_SEARCH_PATHS},
        directories=name_of_path,
        cc_fingerprint=toolchain.fingerprint_host,
        nvrtc=nvrtc,
        links=linked_tools,
        reach=toolchain.find_reach(),
        ld_lists=_has_dependency_file(toolchain.host.ld.version),
    )


def _has_dependency_file(version: str) -> bool:
    """Return whether the ld of a version has `--dependency-file`: GNU's since 2.35, LLVM's since
    12."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return numbers[:2] >= [2, 35]


# gcc searches COMPILER_PATH first, also below nvcc, which puts its own directories into PATH.
_TOOL_SEARCH_PATHS = {"PATH": f"{HERE}/{TOOLS}", "COMPILER_PATH": f"{HERE}/{TOOLS}"}
