"""What `--dump-ir` adds to a module: the preprocessed source, PTX, SASS, and the kernel's usage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tilusbuild.arch import gencode
from tilusbuild.compile.model import Recipe
from tilusbuild.compile.steps import Step, image_name, ptx_steps, steps

if TYPE_CHECKING:
    from tilusbuild.compile.program import Compile


def dump(recipe: Recipe, compiling: Compile, folder: str) -> None:
    """Write what can be had into `folder`. A dump that fails is left out: it changes no result."""
    os.makedirs(folder, exist_ok=True)
    for step in _dumps(recipe):
        try:
            finished = compiling.execute(step)
        except OSError:
            continue
        made = os.path.join(compiling.work, step.output)
        if finished.status == 0 and os.path.isfile(made):
            with open(made, "rb") as file:
                _write(folder, step.output, compiling.scrub(file.read()))
        elif finished.status == 0 and step.output.endswith(".sass"):
            _write(folder, step.output, compiling.scrub(finished.output))
    if recipe.pipeline == "kernel":
        lines = [
            f"{arch.name} {usage.name}: {usage.registers} registers, {usage.stack} bytes of stack, "
            f"{usage.static_smem} bytes of static shared memory, {usage.code_bytes} bytes of code\n"
            for arch, usage in compiling.usages
        ]
        _write(folder, "usage.txt", "".join(lines))


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def _dumps(recipe: Recipe) -> list[Step]:
    """The first command of the pipeline, asked for its earlier results."""
    if recipe.through_nvrtc:
        return [*ptx_steps(recipe), Step("dump", _sass(recipe), "program.sass")]
    first = steps(recipe)[0].argv
    source = first[: first.index("-o")]
    if recipe.pipeline == "cpu":
        mode = source.index("-c")
        asked = (("-E", "source.ii"), ("-S", "source.s"))
        return [
            Step("dump", (*source[:mode], flag, *source[mode + 1 :], "-o", name), name)
            for flag, name in asked
        ]
    mode = next(i for i, word in enumerate(source) if word in ("-cubin", "-fatbin", "-ptx", "-c"))
    end = source.index("-ccbin")
    made = [Step("dump", (*source[:mode], "-E", *source[end:], "-o", "source.ii"), "source.ii")]
    for code in gencode(recipe.archs, ptx=False)[1::2]:
        virtual, real = code.removeprefix("arch=").split(",code=")
        argv = (*source[:mode], "-ptx", "-arch", virtual, *source[end:], "-o", f"{real}.ptx")
        made.append(Step("dump", argv, f"{real}.ptx"))
    if recipe.pipeline == "kernel":
        made.append(Step("dump", _sass(recipe), "program.sass"))
    return made


def _sass(recipe: Recipe) -> tuple[str, ...]:
    return ("{cuobjdump}", "-sass", image_name(recipe))
