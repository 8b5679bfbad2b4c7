"""Records: what is written is read back, and whatever is in one, its reader only refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="needs tilusbuild[remote]")

from tilusbuild.remote import reapi_pb2 as reapi
from tilusbuild.remote.record import (
    Blob,
    Record,
    RecordError,
    blob_for,
    decode,
    encode,
    files_of_tree,
    key,
    tree_of,
)

NEEDED = ("meta.json", "program.txt", "options.txt", "module/compile.sh")
PROTOC = shutil.which(os.environ.get("TILUSBUILD_TEST_PROTOC", "")) or sys.executable
hashes = st.text("0123456789abcdef", min_size=64, max_size=64)
blobs = st.builds(Blob, hashes, st.integers(0, 1000))
names = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


def message(record: Record) -> bytes:
    data: bytes = encode(record).SerializeToString(deterministic=True)
    return data


@given(st.dictionaries(names, blobs), st.dictionaries(hashes, blobs), st.integers(0, 10**6))
def test_a_record_is_read_back(
    files: dict[str, Blob], directories: dict[str, Blob], milliseconds: int
) -> None:
    files |= dict.fromkeys(NEEDED, Blob("0" * 64, 1))
    record = Record(files, directories, milliseconds / 1000)
    found = decode(message(record))
    assert (found.files, found.directories) == (files, directories)
    assert found.seconds == pytest.approx(record.seconds, abs=1e-6)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_refused(data: bytes) -> None:
    for read in (decode, files_of_tree):
        with suppress(RecordError):
            read(data)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a//b", "", "a/./b", "x\0y"])
def test_no_name_leads_out(name: str) -> None:
    files = dict.fromkeys((*NEEDED, name), Blob("0" * 64, 1))
    with pytest.raises(RecordError):
        decode(message(Record(files, {}, 0)))
    tree = reapi.Tree(root=reapi.Directory(files=[reapi.FileNode(name=name)]))
    with pytest.raises(RecordError):
        files_of_tree(tree.SerializeToString())


def test_a_size_is_bounded() -> None:
    files = dict.fromkeys(NEEDED, Blob("0" * 64, 1 << 29))
    with pytest.raises(RecordError, match="MiB"):
        decode(message(Record(files, {}, 0)))


def test_a_tree_of_directories_is_read_back(tmp_path: Path) -> None:
    for name in ("MANIFEST", "1/a.h", "1/b/c.h", "1/b/d/e.h", "2/a.h"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    data, sources = tree_of(str(tmp_path))
    found = files_of_tree(data)
    assert {name: blob.size for name, blob in found.items()} == {n: len(n) for n in found}
    assert len(found) == 5
    tree = reapi.Tree.FromString(data)
    below = {blob_for(each.SerializeToString(deterministic=True)) for each in tree.children}
    assert len(below) == 4
    assert set(sources) == {*found.values(), *below}


def test_few_directories_do_not_make_many_files() -> None:
    below = reapi.Directory(files=[reapi.FileNode(name="f", digest=reapi.Digest(hash="0" * 64))])
    children = [below]
    for _ in range(40):
        blob = blob_for(below.SerializeToString(deterministic=True))
        node = reapi.Digest(hash=blob.digest, size_bytes=blob.size)
        below = reapi.Directory(
            directories=[reapi.DirectoryNode(name=name, digest=node) for name in "ab"]
        )
        children.append(below)
    with pytest.raises(RecordError, match="more than"):
        files_of_tree(reapi.Tree(root=below, children=children).SerializeToString())


def test_the_key_is_the_digest_of_an_action() -> None:
    program = "5e" * 32
    command = reapi.Command(arguments=["tilusbuild", "program", "1", program]).SerializeToString()
    digests = [blob_for(command), blob_for(b"")]
    parts = [reapi.Digest(hash=blob.digest, size_bytes=blob.size) for blob in digests]
    action = reapi.Action(command_digest=parts[0], input_root_digest=parts[1])
    assert key(program) == blob_for(action.SerializeToString(deterministic=True))


def test_the_generated_code_is_of_the_proto(tmp_path: Path) -> None:
    python = PROTOC
    has = subprocess.run([python, "-c", "import grpc_tools"], capture_output=True, check=False)
    if has.returncode:
        pytest.skip("needs grpcio-tools 1.71, here or in TILUSBUILD_TEST_PROTOC's environment")
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHON": python, "OUT": str(tmp_path)}
    subprocess.run([root / "scripts" / "reapi.sh"], env=environment, check=True)
    for name in ("reapi_pb2.py", "reapi_pb2.pyi"):
        assert (tmp_path / name).read_text() == (root / "tilusbuild/remote" / name).read_text()
