"""What writers write is what readers read; and when they fail, nothing has changed."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.builder.project import Project
from tilusbuild.errors import InputError
from tilusbuild.package import pack
from tilusbuild.package.collect import PackageOrder
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import PackageError
from tilusbuild.package.formats.archive import Unpacked, entries, write_frame
from tilusbuild.package.names import BESIDE
from tilusbuild.package.read import opened
from tilusbuild.state.files import sha256_file

part = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/\\"), min_size=1)
paths = st.lists(part, min_size=1, max_size=6).map("/".join).filter(lambda p: len(p.encode()) < 900)


@given(st.dictionaries(paths, st.binary(max_size=1500), max_size=8), st.integers(0, 2**33 - 1))
def test_a_tar_comes_back(files: Mapping[str, bytes], time: int) -> None:
    out = io.BytesIO()
    listed = [(name, len(data), lambda data=data: data) for name, data in files.items()]
    write_frame(out, listed, time=time, end=True)
    out.seek(0)
    stream: Any = Unpacked(out)  # type: ignore[arg-type]
    found = [(item.path, item.read(item.size)) for item in entries(stream, ends=True)]
    assert found == list(files.items())


def gathered(project: Any) -> tuple[PackageOrder, Contents]:
    with Project.open(str(project.directory), {}, os.environ) as opened_project:
        (order,) = pack.orders(opened_project.manifest, None)
        return order, pack.gather(opened_project, order, level=2, unchecked=True)


def said(contents: Contents) -> dict[str, bytes]:
    return {name: f"{name} of {contents.digest}".encode() for name in BESIDE}


def test_attestations_are_beside_the_list_in_every_format(project: Any, tmp_path: Path) -> None:
    order, contents = gathered(project)
    made = pack.write(order, contents, pack.FORMATS, str(tmp_path / "out"), attest=said)
    found = {}
    for each in made:
        if each.digest is not None:
            with opened(each.path) as reader:
                found[os.path.basename(each.path).split("-py3")[0]] = each.digest
                assert reader.attestations() == {
                    name: f"{name} of {each.digest}".encode() for name in BESIDE
                }
    assert len(found) == 5
    assert set(found.values()) > {contents.digest}, "a target by itself has a list by itself"


def test_what_fails_in_the_middle_leaves_the_old_package(project: Any, tmp_path: Path) -> None:
    order, contents = gathered(project)
    directory = tmp_path / "out"
    pack.write(order, contents, ["dir"], str(directory))
    before = {path: sha256_file(path) for path in directory.rglob("*") if path.is_file()}
    library = next(project.cache.glob("programs/*/module/lib.so"))
    library.write_bytes(b"another build of it")
    with pytest.raises(PackageError, match="changed while it was packed"):
        pack.write(order, contents, ["tar.zst", "dir", "oci", "wheel"], str(directory))
    assert {path: sha256_file(path) for path in directory.rglob("*") if path.is_file()} == before
    assert [path.name for path in directory.iterdir()] == ["Marks-1.2"]


def test_several_may_pack_into_one_directory_at_once(project: Any, tmp_path: Path) -> None:
    order, contents = gathered(project)
    directory = tmp_path / "out"

    def again(_: int) -> None:
        pack.write(order, contents, ["dir", "tar.zst"], str(directory))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(again, range(12)))
    assert sorted(path.name for path in directory.iterdir()) == ["Marks-1.2", "Marks-1.2.tar.zst"]
    for path in directory.iterdir():
        with opened(str(path)) as reader:
            assert reader.list_bytes() == contents.encoded
    assert len([p for p in directory.rglob("*") if p.is_file()]) == len(contents.listed.files) + 2


def test_an_unwritable_output_is_reported(project: Any, tmp_path: Path) -> None:
    order, contents = gathered(project)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--output"):
        pack.write(order, contents, ["dir"], str(tmp_path / "file" / "below"))
