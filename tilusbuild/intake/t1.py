"""A T1 file: its space is named by the manifest, and its kernel read from the source beside it."""

from __future__ import annotations

import json
import os

from tilusbuild.expr import Value
from tilusbuild.intake.draft import Draft, KernelDraft, name_of
from tilusbuild.intake.kernels import declared, take_arguments, without_comments
from tilusbuild.runtime.regular import read_text
from tilusbuild.space.t1 import read_t1


def read(draft: Draft, root: str, name: str) -> None:
    """Add the kernel of a T1 file to a draft. Raises `SpaceError`."""
    text = read_text(os.path.join(root, name), "replace")
    space = read_t1(text)
    said = json.loads(text).get("KernelSpecification") or {}
    file = said.get("KernelFile")
    template = os.path.normpath(os.path.join(os.path.dirname(name), str(file)))
    if not space.kernel or not os.path.isfile(os.path.join(root, template)):
        draft.note(f"left out: {name} names no kernel in a file that is there")
        return
    source = without_comments(read_text(os.path.join(root, template), "replace"))
    found = declared(source, space.kernel)
    if found is None:
        draft.note(f"left out: {template} declares no kernel {space.kernel} (is it OpenCL?)")
        return
    kernel = KernelDraft(name_of(space.kernel), template, found.name, space_file=name)
    names = [each for parameter in space.parameters for each in parameter.names]
    kernel.flags = [f"-D{each}={{{{ {each} }}}}" for each in names]
    take_arguments(draft, kernel, found, source)
    axes = ("block_size_x", "block_size_y", "block_size_z")
    block: list[Value] = [each for each in axes if each in names]
    kernel.block += block or [256]
    kernel.grid = [1]
    draft.note(f"{kernel.name}: its grid is not known; 1 is written")
    draft.kernels.append(kernel)
