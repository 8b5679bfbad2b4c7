"""The command that compiles a program's source, for editors and code browsers.

It is the pipeline's own first command with the project's directories in place of their copies, so
that an editor that follows an include opens the user's file. `clang_command` is its equivalent for
clangd, which knows few of nvcc's options and none of NVRTC's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilusbuild.compile.model import Recipe
from tilusbuild.compile.steps import HERE, SOURCE, defines, tools_of

if TYPE_CHECKING:
    from tilusbuild.toolchain import Toolchain

_ONE_WORD_OR_TWO = ("-D", "-U", "-I")
_TWO_WORDS = ("-isystem", "-include")


def compile_command(
    recipe: Recipe, toolchain: Toolchain, source: str, directories: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the command that reads the source, with paths of this machine, without its output.

    `source` is the path of the source, `directories` those of the recipe's include roots by name.
    Raises `ValueError` for a recipe that no command compiles.
    """
    argv = recipe.pipeline.source_command(recipe)
    places = {
        SOURCE: source,
        **{f"{HERE}/include/{name}": directories[name] for name in directories},
    }
    for link, directory in recipe.pipeline.include_links(recipe).items():
        places[f"{HERE}/{link}"] = directories[directory.removeprefix("include/")]
    output = argv.index("-o")
    words = (*argv[:output], *argv[output + 2 :])
    return tuple(places.get(word, word) for word in tools_of(toolchain).fill(words))


def clang_command(
    recipe: Recipe, toolchain: Toolchain, source: str, directories: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the equivalent of `compile_command` for clang. Of the user's flags it has those that
    every compiler knows: definitions, and directories and files to include."""
    if not recipe.pipeline.launcher.cuda:
        return compile_command(recipe, toolchain, source, directories)
    root = _toolkit(toolchain)
    roots = (
        word
        for name, quoted_only in recipe.include_roots
        for word in ("-iquote" if quoted_only else "-I", directories[name])
    )
    return (
        "clang++",
        "-x",
        "cuda",
        *([f"--cuda-path={root}"] if root else []),
        f"--cuda-gpu-arch={recipe.archs[0].name}",
        "-nocudalib",
        "-Wno-unknown-cuda-version",
        f"-std={recipe.std}",
        *defines(recipe),
        *roots,
        *_common(recipe.flags),
        "-fsyntax-only",
        source,
    )


def _toolkit(toolchain: Toolchain) -> str | None:
    """Return the directory of the toolkit, or of NVRTC's headers."""
    if toolchain.cuda is not None:
        return toolchain.cuda.root
    headers = toolchain.nvrtc.include_dir if toolchain.nvrtc is not None else None
    return os.path.dirname(headers) if headers else None


def _common(flags: tuple[str, ...]) -> list[str]:
    """Return the flags that mean the same to nvcc and to clang."""
    kept: list[str] = []
    words = iter(flags)
    for word in words:
        if word in (*_ONE_WORD_OR_TWO, *_TWO_WORDS):
            kept += [word, next(words, "")]
        elif word.startswith(_ONE_WORD_OR_TWO):
            kept.append(word)
    return kept
