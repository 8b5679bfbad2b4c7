"""What writers write is what readers read; and when they fail, nothing has changed."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.builder.project import Project
from tilusbuild.package import pack
from tilusbuild.package.collect import PackageOrder
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import PackageError
from tilusbuild.package.formats import load_format
from tilusbuild.package.formats.archive import open_frames, read_entries, write_frame
from tilusbuild.package.names import BESIDE
from tilusbuild.package.read import open_package
from tilusbuild.rooms import find_contributions
from tilusbuild.state.files import sha256_file

part = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/\\"), min_size=1)
paths = st.lists(part, min_size=1, max_size=6).map("/".join).filter(lambda p: len(p.encode()) < 900)


@given(st.dictionaries(paths, st.binary(max_size=1500), max_size=8), st.integers(0, 2**33 - 1))
def test_a_tar_comes_back(files: Mapping[str, bytes], time: int) -> None:
    listed = [(name, len(data), lambda data=data: data) for name, data in files.items()]
    with tempfile.TemporaryFile() as out:
        write_frame(out, listed, time=time, end=True)
        out.seek(0)
        actual = [
            (item.path, item.read_content(item.size)) for item in read_entries(open_frames(out))
        ]
    assert actual == list(files.items())


def gathered(project: Any) -> tuple[PackageOrder, Contents]:
    with Project.open(str(project.directory), {}, os.environ) as opened_project:
        (order,) = pack.list_orders(opened_project.manifest, None)
        return order, pack.gather_contents(opened_project, order, level=2, unchecked=True)


def attest(contents: Contents) -> dict[str, bytes]:
    return {name: f"{name} of {contents.digest}".encode() for name in BESIDE}


def test_attestations_are_beside_the_list_in_every_format(project: Any, tmp_path: Path) -> None:
    order, contents = gathered(project)
    names = find_contributions("package format")
    forms = [name for name in names if load_format(name).is_readable]
    results = pack.write_formats(order, contents, forms, str(tmp_path / "out"), attest=attest)
    assert [form for form, _, _ in results] == forms
    for _, path, _ in results:
        with open_package(path) as reader:
            assert reader.attestations() == attest(contents)


def test_what_fails_in_the_middle_leaves_the_old_package(project: Any, tmp_path: Path) -> None:
    order, contents = gathered(project)
    directory = tmp_path / "out"
    pack.write_formats(order, contents, ["dir"], str(directory))
    before = {path: sha256_file(path) for path in directory.rglob("*") if path.is_file()}
    library = next(project.cache.glob("programs/*/module/lib.so"))
    library.write_bytes(b"another build of it")
    with pytest.raises(PackageError, match="changed while it was packed"):
        pack.write_formats(order, contents, ["tar.zst", "dir", "oci", "wheel"], str(directory))
    assert {path: sha256_file(path) for path in directory.rglob("*") if path.is_file()} == before
    assert [path.name for path in directory.iterdir()] == ["Marks-1.2"]
