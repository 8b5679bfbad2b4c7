"""What exists of a program before it is compiled: `options.txt`, and the files of its module.

Commands are the pipeline's own, tools and directories left as placeholders. Nothing here says where
anything is installed, so the same options have the same text on every machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from tilusbuild.compile.launcher import launcher_source
from tilusbuild.compile.model import Recipe
from tilusbuild.compile.script import compile_script
from tilusbuild.compile.steps import LAUNCHER, LAUNCHER_OBJECT, NVRTC_COMMAND, steps
from tilusbuild.compile.tools import tools_of
from tilusbuild.state.files import sha256_bytes, sha256_text
from tilusbuild.toolchain import nvrtc_command

if TYPE_CHECKING:
    from tilusbuild.toolchain import Toolchain

OPTIONS_FORMAT = "tilusbuild options 1"


def options_text(recipe: Recipe, toolchain: Toolchain, beyond: Sequence[str] = ()) -> str:
    """Return `options.txt`: the half of a program's identity that says how it is compiled.

    Its digest with `program.txt`'s names the program. `beyond` are lines of the fingerprint that
    this program has and others of the toolchain do not. Raises `ValueError`.
    """
    pipeline = recipe.pipeline
    archs = [arch.name for arch in recipe.archs] + (["ptx"] if recipe.ptx else [])
    generated = {LAUNCHER: launcher_source(recipe), **pipeline.generated(recipe)}
    lines = [
        OPTIONS_FORMAT,
        f"pipeline = {pipeline.name}",
        f"target = {' '.join(archs)}",
        *pipeline.options(recipe),
        "",
        "[commands]",
        *(" ".join(_word(word) for word in step.argv) for step in steps(recipe)),
        "",
        "[generated]",
        *(f"{_digest(text)}  {name}" for name, text in generated.items()),
        "",
        "[toolchain]",
        *pipeline.fingerprint(recipe, tools_of(toolchain)),
        *beyond,
    ]
    return "\n".join(lines) + "\n"


_digest = lru_cache(maxsize=64)(sha256_text)


@lru_cache(maxsize=1024)
def _word(word: str) -> str:
    """Return an argument as a shell would take it, on one line; placeholders stay bare."""
    if word.startswith("{") and word.endswith("}"):
        return word
    return shlex.quote(word).replace("\n", "'$'\\n''")


def module_files(
    recipe: Recipe, toolchain: Toolchain, launcher: str | None = None
) -> Mapping[str, bytes]:
    """Return what `module/` holds before the compile: the source and everything generated.

    `launcher` is the digest of the launcher's directory; None works it out, which takes no object.
    Raises `ValueError` for a recipe that no launcher can serve.
    """
    pipeline = recipe.pipeline
    texts = {"source.cu": recipe.source, **pipeline.fixed_files, **pipeline.generated(recipe)}
    fingerprint = pipeline.fingerprint(recipe, tools_of(toolchain))
    digest = launcher or launcher_directory(recipe)[0]
    texts["compile.sh"] = compile_script(recipe, tuple(texts), digest, fingerprint)
    return {name: text.encode("utf-8", "surrogateescape") for name, text in texts.items()}


def launcher_directory(
    recipe: Recipe, made: bytes | None = None
) -> tuple[str, Mapping[str, bytes]]:
    """Return the launcher as a directory that programs share: its digest, and its files by name.

    It is laid out like a directory of headers, so that one rule finds, checks and collects both.
    `made` is the launcher's object, for programs whose `compile.sh` must do without a compiler for
    it (`launcher_object`). Raises `ValueError` for a recipe that no launcher can serve.
    """
    return _launcher_directory(launcher_source(recipe), made)


@lru_cache(maxsize=64)
def _launcher_directory(source: str, made: bytes | None) -> tuple[str, Mapping[str, bytes]]:
    files = {LAUNCHER: source.encode()}
    if made is not None:
        with open(nvrtc_command.__file__, "rb") as script:
            files |= {LAUNCHER_OBJECT: made, NVRTC_COMMAND: script.read()}
    manifest = "".join(f"{sha256_bytes(data)}  {name}\n" for name, data in files.items())
    return sha256_text(manifest), {**files, "MANIFEST": manifest.encode()}
