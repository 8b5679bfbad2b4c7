"""Hostile and damaged packages: one typed error each, and nothing outside the target directory.

Each case makes a package that is wrong in one way. It must be refused by `verify` with that error,
and by `install` too, which then leaves the cache without a trace of it.
"""

import hashlib
import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
import rfc8785
import zstandard

from support import packages
from support.packages import LIMITS, Hand, problems
from support.paths import ROOT
from tilusbuild.cache.tree import Tree
from tilusbuild.package.errors import PackageError
from tilusbuild.package.extract import Limits
from tilusbuild.package.install import install_package
from tilusbuild.package.read import open_package
from tilusbuild.runtime.sealed import seal_json, unseal_json


def refusal(path: Path, limits: Limits = LIMITS) -> PackageError:
    """The first thing that is wrong with a package, after all that looks at it agreed on that."""
    target = path.parent / "target" / "cache"
    before = everything(path.parent)
    found = problems(path, limits)
    assert found
    with pytest.raises(PackageError) as caught, open_package(str(path)) as reader:
        install_package(reader, Tree(str(target)), limits)
    assert caught.value.kind in {error.kind for error in found}
    after = {name for name in everything(path.parent) if name.split("/")[0] != "target"}
    assert after == before
    assert_nothing_came(target)
    return found[0]


def everything(directory: Path) -> set[str]:
    return {os.fspath(path.relative_to(directory)) for path in directory.rglob("*")}


def assert_nothing_came(target: Path) -> None:
    """The cache is empty, but for its own files."""
    if target.exists():
        own = {"CACHEDIR.TAG", ".gitignore", "locks"}
        directories = {"programs", "scripts", "include", "staging", "state"}
        there = {name for name in everything(target) if not name.startswith("locks/")}
        assert there <= own | directories


# The container.


def test_a_layer_that_is_missing(hand: Hand, tmp_path: Path) -> None:
    path = packages.archive(tmp_path / "p", hand.listed(), [packages.tar(hand.layers()[0])])
    assert refusal(path).kind == "MissingFile"


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "evil"),)

    (tmp_path / "p.tar.zst").write_bytes(pickle.dumps(Evil()))
    error = refusal(tmp_path / "p.tar.zst")
    assert error.kind == "NoPackage"
    assert "pickle" in str(error)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"hello")
    assert refusal(tmp_path / "p").kind == "NoPackage"


def test_a_window_that_takes_a_gigabyte(hand: Hand, tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=30, compression_level=1)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    layer = writer.compress(packages.tar(hand.layers()[0])) + writer.flush()
    path = packages.frames(tmp_path / "p", packages.tar(hand.first()), layer, bytes(1024))
    assert "requires too much memory" in str(refusal(path))


# Names.


def test_a_name_that_leads_elsewhere(hand: Hand, tmp_path: Path) -> None:
    *layers, last = map(packages.tar, hand.layers())
    path = packages.archive(
        tmp_path / "p",
        hand.listed(),
        [*layers, last + packages.member("programs/../../evil", b"evil")],
    )
    assert refusal(path).kind == "UnsafeName"


# Entries that are no files.


KINDS = {
    "link": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
    "hard link": {"type": tarfile.LNKTYPE, "linkname": "tilus-package.json"},
    "character device": {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
    "block device": {"type": tarfile.BLKTYPE},
    "pipe": {"type": tarfile.FIFOTYPE},
    "folder": {"type": tarfile.DIRTYPE},
    "sparse file": {"type": tarfile.GNUTYPE_SPARSE},
    "long name": {"type": tarfile.GNUTYPE_LONGNAME},
    "global header": {"type": tarfile.XGLTYPE},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("carrier", ["archive", "oci"])
def test_a_member_that_is_not_a_plain_file(hand, kind, carrier, tmp_path) -> None:
    name = hand.path("module/lib.so")
    layers = [
        b"".join(
            packages.member(n, b"" if n == name else d, **(kind if n == name else {}))
            for n, d in part
        )
        for part in hand.layers()
    ]
    write = getattr(packages, carrier)
    assert refusal(write(tmp_path / "p", hand.listed(), layers)).kind == "UnsafeEntry"


@pytest.mark.parametrize("end", ["module/lib.so", "programs", "tilus-package.json"])
def test_a_link_in_a_directory(hand: Hand, end: str, tmp_path: Path) -> None:
    path = hand.write("directory", tmp_path)
    linked = path / (hand.path(end) if "lib" in end else end)
    linked.rename(tmp_path / "outside")
    linked.symlink_to(tmp_path / "outside")
    assert refusal(path).kind == "UnsafeEntry"


def test_a_pipe_in_a_directory_is_not_waited_for(hand: Hand, tmp_path: Path) -> None:
    path = hand.write("directory", tmp_path)
    library = path / hand.path("module/lib.so")
    library.unlink()
    os.mkfifo(library)
    assert refusal(path).kind == "UnsafeEntry"


# What is there against what is listed.


def test_a_listed_file_that_is_not_there(hand: Hand, carrier: str, tmp_path: Path) -> None:
    del hand.files[hand.path("module/lib.so")]
    assert refusal(hand.write(carrier, tmp_path)).kind == "MissingFile"


def test_a_file_that_is_not_listed(hand: Hand, carrier: str, tmp_path: Path) -> None:
    name = hand.path("module/lib.so").replace("lib.so", "other.so")
    hand.files[name] = b"evil"
    assert refusal(hand.write(carrier, tmp_path)).kind == "UnlistedFile"


@pytest.mark.parametrize("carrier", ["archive", "oci"])
def test_a_file_that_is_there_twice(hand: Hand, carrier: str, tmp_path: Path) -> None:
    parts = hand.layers()
    layers = [packages.tar([*part, part[-1]]) for part in parts]
    write = getattr(packages, carrier)
    assert refusal(write(tmp_path / "p", hand.listed(), layers)).kind == "UnlistedFile"


def test_a_blob_that_nothing_names(hand: Hand, tmp_path: Path) -> None:
    path = hand.write("oci", tmp_path)
    (path / "blobs" / "sha256" / ("0" * 64)).write_bytes(b"evil")
    assert refusal(path).kind == "UnlistedFile"


@pytest.mark.parametrize("change", [-1, 1, 1 << 30])
def test_a_size_that_lies_in_the_list(hand, carrier, change, tmp_path) -> None:
    value = json.loads(hand.listing.encode())
    value["files"][hand.path("module/lib.so")]["size"] += change
    hand.list_bytes = canonical(value)
    limits = Limits(free=1 << 40)
    assert refusal(hand.write(carrier, tmp_path), limits).kind == "ChangedFile"


# The list itself.


def canonical(value: Any) -> bytes:
    data: bytes = rfc8785.dumps(value)
    return data


def test_an_image_layout_whose_json_is_deep(hand: Hand, tmp_path: Path) -> None:
    path = hand.write("oci", tmp_path)
    deep = b'{"schemaVersion":2,"manifests":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (path / "index.json").write_bytes(deep)
    assert refusal(path).kind == "MalformedList"


# Files that are as listed, and wrong.


def test_texts_of_another_program(hand: Hand, carrier: str, tmp_path: Path) -> None:
    hand.files[hand.path("program.txt")] += b"\n"
    hand.relist()
    assert refusal(hand.write(carrier, tmp_path)).kind == "Inconsistent"


def swap_scripts(hand: Hand) -> None:
    one, other = (p for p in sorted(hand.files) if p.endswith("script.json"))
    hand.files[one] = hand.files[other]


def nest(hand: Hand) -> None:
    name = hand.path("script.json")
    deep = b"[" * 100_000 + b"]" * 100_000
    text, _, _ = hand.files[name].rpartition(b',\n "digest"')
    text = text.replace(b'"params": {}', b'"params": ' + deep) + b"\n}\n"
    seal = hashlib.sha256(text).hexdigest().encode()
    hand.files[name] = text.removesuffix(b"\n}\n") + b',\n "digest": "' + seal + b'"\n}\n'


def add_pickle(hand: Hand) -> None:
    hand.files[f"{hand.listing.scripts[0].root}/table.pkl"] = pickle.dumps([])


def rename_in_meta(hand: Hand) -> None:
    name = hand.path("meta.json")
    hand.files[name] = seal_json({**unseal_json(hand.files[name]), "program": "0" * 64})


@pytest.mark.parametrize("change", [swap_scripts, nest, add_pickle, rename_in_meta])
def test_files_that_do_not_belong_together(hand: Hand, change: Any, tmp_path: Path) -> None:
    change(hand)
    assert refusal(hand.relist().archive(tmp_path / "p")).kind == "Inconsistent"


OUT_OF_RANGE = (
    b'{"schema":1,"keys":["n"],"tables":'
    b'[{"fingerprint":{"script":"*","device":"*","arch":"*"},"entries":[[[8],99]]}]}'
)


@pytest.mark.parametrize(
    "table",
    [b"[" * 100_000, b"{}", pickle.dumps({}), OUT_OF_RANGE],
    ids=["deep", "empty", "pickle", "a program that there is not"],
)
def test_an_invalid_dispatch_table(hand: Hand, table: bytes, tmp_path: Path) -> None:
    (script,) = [s for s in hand.listing.scripts if s.script == "mark"]
    hand.files[f"{script.root}/dispatch_table.json"] = table
    path = hand.relist().archive(tmp_path / "p")
    assert refusal(path).kind == "Inconsistent"


def test_a_library_with_code_for_another_architecture(hand: Hand, tmp_path: Path) -> None:
    """Given a program for the cpu, when its library holds code for sm_90a, then it is refused."""
    with_file(hand, hand.path("lib.so"), (ROOT / "tests/binary/data/library.so").read_bytes())
    error = refusal(hand.archive(tmp_path / "p"))
    assert error.kind == "CodeMismatch"
    assert "sm_90a" in str(error)


def test_a_library_that_is_none(hand: Hand, tmp_path: Path) -> None:
    with_file(hand, hand.path("lib.so"), b"\x7fELF" + bytes(100))
    assert refusal(hand.archive(tmp_path / "p")).kind == "CodeMismatch"


def with_file(hand: Hand, path: str, data: bytes) -> None:
    """A file of a program, with all that is said of it made to agree."""
    program, name = path[:73], path[74:]
    value = unseal_json(hand.files[f"{program}/meta.json"])
    value["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    hand.files |= {path: data, f"{program}/meta.json": seal_json(value)}
    hand.relist()


@pytest.mark.parametrize("empty", [b"[]", None])
def test_a_config_of_an_attestation_that_is_not_empty(hand, empty, tmp_path) -> None:
    hand.beside = {"attestations/sbom.json": b"{}"}
    path = hand.oci(tmp_path / "p", empty or b"{}")
    if empty is None:
        (path / "blobs/sha256" / hashlib.sha256(b"{}").hexdigest()).unlink()
    refusal(path)


def test_constants_that_the_list_invents(hand: Hand, tmp_path: Path) -> None:
    value = json.loads(hand.listing.encode())
    value["scripts"][0]["params"] = {"dtype": '"f64"'}
    hand.list_bytes = canonical(value)
    found = problems(hand.write("directory", tmp_path))
    assert any("constants" in str(error) for error in found)


@pytest.mark.parametrize("name", ["module/evil.sh", ".git/config", "-rf", "module/lib.a"])
def test_a_file_that_no_program_has(name: str, hand: Hand, tmp_path: Path) -> None:
    """Though the list, and what is beside it, say that it is there."""
    with_file(hand, hand.path("module/lib.so").replace("module/lib.so", name), b"#!/bin/sh\n")
    error = refusal(hand.archive(tmp_path / "p.tar.zst"))
    assert "is not a file that its pipeline makes" in str(error)
