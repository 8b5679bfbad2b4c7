"""FlashAttention 2: its template instances and its operators for PyTorch, as one library.

Its own build is `setup.py`, which has PyTorch write a ninja file; it is written outside the clock.
Both are compiled as C++20, which the headers of newer versions of PyTorch ask for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, TypeAlias

from _bench import ninja

from _real import extension_ninja, world
from _real.project import Project
from _real.schedules import hold_sources, schedules

PACKAGE = "flash-attn==2.8.3.post2"

Instance: TypeAlias = dict[str, Any]

_SETUP_NEEDS = ("wheel", "psutil")
_ASKED_OF_TORCH = "c10/cuda/impl/cuda_cmake_macros.h"


def prepare(count: int | None) -> Project:
    """Lay FlashAttention out with so many of its 72 instances, or all of them."""
    tree = _tree()
    manifest = tree / "tilus.toml"
    world.port("flash_attention", tree)
    hold_sources(tree, "instances", tree.glob("csrc/flash_attn/src/*.cu"), PACKAGE)
    every = sorted(schedules(manifest, "instances", "ampere"), key=_turn)
    chosen = every[:count]
    if len(chosen) < len(every):
        _narrow(manifest, chosen)
    peer_directory = _ninja_file(tree).parent
    objects = [peer_directory / "csrc/flash_attn/flash_api.o"]
    objects += [peer_directory / f"csrc/flash_attn/src/{_name(item)}.o" for item in chosen]
    named = [str(item) for item in objects]
    library = peer_directory / "flash_attn_2_cuda.so"
    return Project(
        name=f"FlashAttention 2, {len(chosen)} of {len(every)} instances, its operators",
        tree=tree,
        theirs=[
            (peer_directory, [ninja(), "-j2", *named]),
            (peer_directory, ["c++", "-shared", *named, "-o", str(library)]),
        ],
        made=lambda: objects,
        theirs_again=(peer_directory, [ninja(), "-j2", *named]),
        theirs_code=lambda: objects,
        theirs_compiles=len(objects),
        products=(lambda: [tree / "build/flash_attn_2_cuda.so"], lambda: [library]),
        header=tree / "csrc/flash_attn/src/softmax.h",
    )


def _turn(instance: Instance) -> tuple[int, bool, bool]:
    """Return what instances are ordered by: the directions in turn, small ones first."""
    return instance["head_dim"], instance["causal"], instance["dtype"] != "fp16"


def _name(instance: Instance) -> str:
    """Return the name of the file that an instance is in its own build, without its suffix."""
    causal = "causal_" if instance["causal"] else ""
    return "flash_{direction}_hdim{head_dim}_{dtype}_".format(**instance) + f"{causal}sm80"


def _tree() -> Path:
    tree = world.WORK / "flash_attention/tree"
    if not tree.exists():
        package = world.source(PACKAGE)
        fresh = Path(f"{tree}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        for part in ("csrc/flash_attn", "csrc/cutlass/include", "flash_attn"):
            shutil.copytree(package / part, fresh / part)
        for part in ("setup.py", "README.md"):
            shutil.copyfile(package / part, fresh / part)
        if not (world.site("torch") / "include" / _ASKED_OF_TORCH).exists():
            # Of PyTorch's files for CUDA its CPU build lacks this one, of which nothing is used.
            header = fresh / "csrc/flash_attn" / _ASKED_OF_TORCH
            header.parent.mkdir(parents=True)
            header.write_text("#pragma once\n")
        fresh.rename(tree)
    return tree


def _ninja_file(tree: Path) -> Path:
    """Return the ninja file of its own build, which is written if it is missing."""
    for ninja_file in tree.glob("build/temp.*/build.ninja"):
        return ninja_file
    world.install(*_SETUP_NEEDS)
    environment = {
        **os.environ,
        **world.environment(),
        "CUDA_HOME": world.toolkit(),
        "FLASH_ATTN_CUDA_ARCHS": "80",
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
    }
    result = subprocess.run(
        [world.python(), extension_ninja.__file__],
        cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    written = Path(result.stdout.splitlines()[-1])
    written.write_text(written.read_text().replace("-std=c++17", "-std=c++20"))
    return written


def _narrow(manifest: Path, chosen: list[Instance]) -> None:
    """Restrict the port to a sample."""
    rule = "direction == '{direction}' and dtype == '{dtype}' and head_dim == {head_dim} and {mask}"
    rules = [
        "({})".format(
            rule.format(**instance, mask="causal" if instance["causal"] else "not causal")
        )
        for instance in chosen
    ]
    sample = f'\n[script.instances.restrict]\nsample = "{" or ".join(rules)}"\n'
    manifest.write_text(manifest.read_text() + sample)
