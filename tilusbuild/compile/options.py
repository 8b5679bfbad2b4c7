"""`options.txt`: the half of a program's identity that says how it is compiled, and by what.

Commands are the pipeline's own, tools and folders left as placeholders. Nothing here tells where
anything is installed, so the same options have the same text on every machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from tilusbuild.compile.launcher import launcher_source, program_source
from tilusbuild.compile.model import Recipe
from tilusbuild.compile.steps import image_name, steps
from tilusbuild.compile.tools import tools_of
from tilusbuild.state.hashing import sha256_text

if TYPE_CHECKING:
    from tilusbuild.toolchain import Toolchain

OPTIONS_FORMAT = "tilusbuild options 1"


def options_text(recipe: Recipe, toolchain: Toolchain, beyond: Sequence[str] = ()) -> str:
    """The text, whose digest with `program.txt`'s names the program. Raises `ValueError`.

    `beyond` are lines of the fingerprint that this program has and others of the toolchain do not.
    """
    archs = [arch.name for arch in recipe.archs] + (["ptx"] if recipe.ptx else [])
    generated = [("launcher.c", launcher_source(recipe))]
    if recipe.pipeline == "kernel":
        generated.append(("program.s", program_source(recipe, image_name(recipe))))
    lines = [
        OPTIONS_FORMAT,
        f"pipeline = {recipe.pipeline}",
        f"target = {' '.join(archs)}",
        *_prune_lines(recipe),
        "",
        "[commands]",
        *(" ".join(_word(word) for word in step.argv) for step in steps(recipe)),
        "",
        "[generated]",
        *(f"{_digest(text)}  {name}" for name, text in generated),
        "",
        "[toolchain]",
        *tools_of(toolchain).fingerprint(recipe),
        *beyond,
    ]
    return "\n".join(lines) + "\n"


_digest = lru_cache(maxsize=64)(sha256_text)


@lru_cache(maxsize=1024)
def _word(word: str) -> str:
    """An argument as a shell would take it, on one line; placeholders stay bare."""
    if word.startswith("{") and word.endswith("}"):
        return word
    return shlex.quote(word).replace("\n", "'$'\\n''")


def _prune_lines(recipe: Recipe) -> list[str]:
    if recipe.prune is None or recipe.pipeline != "kernel":
        return []
    limits = {
        "max-registers": recipe.prune.max_registers,
        "max-spill-bytes": recipe.prune.max_spill_bytes,
        "min-blocks-per-sm": recipe.prune.min_blocks_per_sm,
    }
    return [f"prune.{name} = {value}" for name, value in limits.items() if value is not None]
