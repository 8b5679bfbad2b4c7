"""The copy of headers means what the originals mean: a compiler reads the same of both.
`HEADER_TREES=5000` tries so many trees."""

import importlib
import os
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.header_trees import SEARCHED, SYSTEM, HeaderTree, header_tree
from support.project import needs_cxx
from tilusbuild.cache.includes import publish_include
from tilusbuild.cache.tree import Tree
from tilusbuild.compile.pipelines.nvcc import KERNEL_NVCC
from tilusbuild.errors import InputError
from tilusbuild.manifest.loading import load_manifest
from tilusbuild.plan.roots import find_roots
from tilusbuild.render.closure import Outside, make_root, map_layout
from tilusbuild.render.headers import Headers
from tilusbuild.render.scans import ScanMemory
from tilusbuild.state.digests import DigestMemory

COUNT = int(os.environ.get("HEADER_TREES", "100"))
SEED = os.environ.get("HEADER_TREES_SEED", "1")
NOWHERE = Outside(())
_MARKER = re.compile(r'# (\d+) "(.*)"(.*)')


def preprocess(command: Sequence[str], options: Sequence[str], source: str) -> tuple[int, str]:
    done = subprocess.run([*command, *options, source], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def shown(text: str, real_paths: dict[str, str]) -> list[str]:
    """The lines of a preprocessed text, each with the real path of its file."""
    lines, path = [], ""
    for line in text.splitlines():
        if marker := _MARKER.fullmatch(line):
            path = os.path.normpath(marker[2])
            path = real_paths.get(path, os.path.realpath(marker[2]))
        elif line.strip():
            lines.append(f"{path}: {line}")
    return lines


def differ(
    directory: Path,
    tree: HeaderTree,
    command: Sequence[str],
    through: tuple[str, ...] = (),
    outside: Outside = NOWHERE,
    memory: tuple[DigestMemory, ScanMemory] | None = None,
) -> str | None:
    """Return how a compile of the copy differs; "" for not, None where a copy is refused."""
    tree.write(directory)
    manifest = load_manifest(directory / "project/tilus.toml")
    roots = find_roots(manifest, "k", "kernels/k.cu")
    system = str(directory / SYSTEM)
    digests, scans = memory or (DigestMemory(), ScanMemory())
    outside = replace(outside, directories=(system, *outside.directories))
    headers = Headers(roots, outside=outside, digests=digests, scans=scans)
    try:
        header_closure = headers.find_closure(tree.source)
    except InputError as error:
        # docs/headers.md: the copy has no links.
        if '".." after a symbolic link' not in str(error):
            raise
        return None
    copy = publish_include(
        Tree(str(directory / "cache")), header_closure.digest, map_layout(header_closure)
    )
    source = directory / "source.cu"
    source.write_text(tree.source)
    places = [(f"{directory}/project/kernels", True)]
    places += [(f"{directory}/{SEARCHED[written]}", False) for written in tree.searched]
    copies = [(f"{copy}/{root.name}", root.quoted_only) for root in header_closure.roots]

    def ask(places: list[tuple[str, bool]]) -> tuple[int, str]:
        quoted = [word for path, quoted in places if quoted for word in ("-iquote", path)]
        options = [word for quote in quoted for word in (*through, quote)]
        options += [word for path, quoted in places if not quoted for word in ("-I", path)]
        return preprocess(command, [*options, "-isystem", system], str(source))

    real_paths = {
        f"{copy}/{header.name}": os.path.realpath(header.path)
        for header in header_closure.headers
        if isinstance(header.path, str)
    }
    wanted, got = ask(places), ask(copies)
    if wanted[0] != got[0] or (
        wanted[0] == 0 and shown(wanted[1], {}) != shown(got[1], real_paths)
    ):
        return f"{wanted[0]} {got[0]}\n--- original\n{wanted[1]}\n--- copy\n{got[1]}"
    return ""


def try_trees(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    command: Sequence[str],
    through: tuple[str, ...] = (),
    outside: Outside = NOWHERE,
) -> None:
    failures = []
    refused_count = 0
    memory = DigestMemory(), ScanMemory()
    for number in range(count):
        case = directory / str(number)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(case / "site"))
            importlib.invalidate_caches()
            tree = header_tree(random.Random(f"{SEED}:{number}"))
            difference = differ(case, tree, command, through, outside, memory)
        refused_count += difference is None
        if difference:
            failures.append(f"{case}: {difference}")
        else:
            shutil.rmtree(case)
    assert not failures, f"{len(failures)} of {count} differ\n" + "\n\n".join(failures[:3])
    assert refused_count <= count // 10, refused_count


def test_the_host_compiler_sees_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_cxx()
    try_trees(tmp_path, monkeypatch, COUNT, ("g++", "-xc++", "-E", "-w"))


def test_nvcc_sees_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda_toolchain: Any
) -> None:
    command = (cuda_toolchain.cuda.nvcc, "-x", "cu", "-E", "-w", "-arch=sm_80")
    # Headers of the toolkit and the system include <time.h>, which the project may have.
    outside = KERNEL_NVCC.list_outside_directories(cuda_toolchain)
    try_trees(tmp_path, monkeypatch, COUNT // 15, command, ("-Xcompiler",), outside)


def test_headers_of_a_toolkit_put_nothing_into_the_copy(
    tmp_path: Path, cuda_toolchain: Any
) -> None:
    """Thrust's headers name others by macros, through `cuda`; <time.h> is the project's as well."""
    (tmp_path / "src/cuda").mkdir(parents=True)
    (tmp_path / "src/time.h").write_text("#include_next <time.h>\n")
    roots = [
        make_root("project", str(tmp_path), "src", quoted_only=quoted) for quoted in (True, False)
    ]
    outside = KERNEL_NVCC.list_outside_directories(cuda_toolchain)
    source = "#include <thrust/execution_policy.h>\n#include <time.h>\n"
    header_closure = Headers(roots, outside=outside, digests=DigestMemory()).find_closure(source)
    assert [header.name for header in header_closure.headers] == ["project/src/time.h"]
