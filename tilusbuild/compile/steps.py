"""A compile as a list of commands, and the words that several pipelines' commands share.

The compile, `compile.sh` and `options.txt` all come from the same list. Commands run in a private
directory that holds `source.cu`, the generated files, and `include`, a link to the program's
headers. Inputs are named through /proc/self/cwd, so that what compilers write of their inputs'
names is the same wherever that directory is. Tools are placeholders (`{nvcc}`), and no other
argument depends on where anything is installed.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from tilusbuild.compile.model import Recipe

HERE = "/proc/self/cwd"
SOURCE = f"{HERE}/source.cu"

LAUNCHER = "launcher.c"
LAUNCHER_OBJECT = "launcher.o"

NVRTC_COMMAND = "nvrtc_command.py"
"""The driver of NVRTC, as its copy in the tree is called."""

EXPORTS_MAP = "exports.map"
EXPORTS_MAP_TEXT = "{ global: __tvm_ffi_launch; launch; launch_error; local: *; };\n"

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

LIBRARY_FLAGS = ("--build-id=none", "-s", "-z", "noexecstack", "-z", "relro", "-z", "now")
"""For the linker, of every library."""
EXPORT_FLAGS = (f"--version-script={EXPORTS_MAP}", "--as-needed", "-z", "defs")
"""Where objects that a compiler made are linked, which hold more names than the library offers."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command. `argv[0]` is a tool's placeholder; `output` is the file that it must make."""

    name: str
    argv: tuple[str, ...]
    output: str

    @property
    def tool(self) -> str:
        """The tool's name, for messages."""
        return self.argv[0].strip("{}")


LAUNCHER_STEP = Step(
    "launcher", ("{cc}", *CC_FLAGS, "-c", LAUNCHER, "-o", LAUNCHER_OBJECT), LAUNCHER_OBJECT
)
"""Compiles the launcher, once for all programs of a script."""


def steps(recipe: Recipe) -> tuple[Step, ...]:
    """Return the commands that make `lib.so`, in order."""
    *before, link = recipe.pipeline.commands(recipe)
    return (*before, LAUNCHER_STEP, link)


def default_march(machine: str | None = None) -> str:
    """Return what code for the host may assume of its CPU, when nobody says."""
    return {"x86_64": "x86-64-v2", "aarch64": "armv8-a"}[machine or platform.machine()]


def host_march(recipe: Recipe) -> str:
    """Return the CPU that host code is compiled for."""
    return recipe.host_march or default_march()


def defines(recipe: Recipe) -> list[str]:
    """Return the `-D` words."""
    return [f"-D{name}={value}" if value else f"-D{name}" for name, value in recipe.defines]


def includes(recipe: Recipe, quoted: tuple[str, ...]) -> list[str]:
    """Return the words for the program's header directories.

    `quoted` is how the compiler takes one that only #include "…" searches: in the word after it,
    or, given two words (nvcc's -Xcompiler), in a word that the first of them passes on.
    """
    found: list[str] = []
    links = {directory: link for link, directory in recipe.pipeline.include_links(recipe).items()}
    for name, quoted_only in recipe.include_roots:
        directory = f"include/{name}"
        directory = f"{HERE}/{links.get(directory, directory)}"
        if not quoted_only:
            found += ["-I", directory]
        elif len(quoted) == 1:
            found += [*quoted, directory]
        else:
            found += [quoted[0], quoted[1], quoted[0], directory]
    return found
