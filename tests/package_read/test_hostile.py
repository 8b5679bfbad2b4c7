"""Hostile and damaged packages: one typed error each, and nothing outside the target directory.

Each case makes a package that is wrong in one way. It must be refused by `verify` with that error,
and by `install` too, which then leaves the cache without a trace of it.
"""

import hashlib
import json
import os
import pickle
import re
import tarfile
from collections.abc import Callable
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
    errors = problems(path, limits)
    assert errors
    with pytest.raises(PackageError) as caught, open_package(str(path)) as reader:
        install_package(reader, Tree(str(target)), limits)
    assert caught.value.kind in {error.kind for error in errors}
    after = {name for name in everything(path.parent) if name.split("/")[0] != "target"}
    assert after == before
    assert_nothing_came(target)
    return errors[0]


def everything(directory: Path) -> set[str]:
    return {os.fspath(path.relative_to(directory)) for path in directory.rglob("*")}


def assert_nothing_came(target: Path) -> None:
    """The cache is empty, but for its own files."""
    if target.exists():
        own = {"CACHEDIR.TAG", ".gitignore", "locks"}
        directories = {"programs", "scripts", "include", "staging", "state"}
        names = {name for name in everything(target) if not name.startswith("locks/")}
        assert names <= own | directories


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


# Containers that are wrong.


def window(hand: Hand, path: Path) -> Path:
    parameters = zstandard.ZstdCompressionParameters(window_log=30, compression_level=1)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    layer = writer.compress(packages.tar(hand.layers()[0])) + writer.flush()
    return packages.frames(path, packages.tar(hand.first()), layer, bytes(1024))


def lead_out(hand: Hand, path: Path) -> Path:
    *layers, last = map(packages.tar, hand.layers())
    evil = packages.member("programs/../../evil", b"evil")
    return packages.archive(path, hand.listed(), [*layers, last + evil])


def file_of(data: bytes) -> Callable[[Hand, Path], Path]:
    def write(hand: Hand, path: Path) -> Path:
        path.write_bytes(data)
        return path

    return write


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/evil",)


def link(end: str) -> Callable[[Hand, Path], Path]:
    def write(hand: Hand, path: Path) -> Path:
        linked = hand.directory(path) / (hand.path(end) if "lib" in end else end)
        linked.rename(path.parent / "outside")
        linked.symlink_to(path.parent / "outside")
        return path

    return write


def pipe(hand: Hand, path: Path) -> Path:
    library = hand.directory(path) / hand.path("module/lib.so")
    library.unlink()
    os.mkfifo(library)
    return path


def in_layout(name: str, data: bytes | None, beside: bytes = b"{}") -> Callable[[Hand, Path], Path]:
    """An image layout with another file, or without one; `beside` is an attestation's config."""

    def write(hand: Hand, path: Path) -> Path:
        hand.beside = {"attestations/sbom.json": b"{}"}
        hand.oci(path, beside)
        if data is None:
            (path / name).unlink()
        elif name:
            (path / name).write_bytes(data)
        return path

    return write


EMPTY = hashlib.sha256(b"{}").hexdigest()
DEEP = b'{"schemaVersion":2,"manifests":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
CONTAINERS: dict[str, tuple[Callable[[Hand, Path], Path], str]] = {
    "a layer is missing": (
        lambda hand, path: packages.archive(path, hand.listed(), [packages.tar(hand.layers()[0])]),
        "MissingFile: ",
    ),
    "a pickle": (file_of(pickle.dumps(Evil())), "NoPackage: .*pickle"),
    "a text": (file_of(b"hello"), "NoPackage: "),
    "a window that takes a gigabyte": (window, "Truncated: .*requires too much memory"),
    "a name that leads elsewhere": (lead_out, "UnsafeName: "),
    "a link to a file": (link("module/lib.so"), "UnsafeEntry: "),
    "a link to a directory": (link("programs"), "UnsafeEntry: "),
    "a link to the list": (link("tilus-package.json"), "UnsafeEntry: "),
    "a pipe": (pipe, "UnsafeEntry: "),
    "a blob that nothing names": (in_layout(f"blobs/sha256/{'0' * 64}", b""), "UnlistedFile: "),
    "a deep index": (in_layout("index.json", DEEP), "MalformedList: "),
    "a config of an attestation": (in_layout("", b"", b"[]"), ""),
    "no config of an attestation": (in_layout(f"blobs/sha256/{EMPTY}", None), ""),
}


@pytest.mark.parametrize("case", CONTAINERS)
def test_a_container_that_is_wrong(hand: Hand, case: str, tmp_path: Path) -> None:
    write, message = CONTAINERS[case]
    error = refusal(write(hand, tmp_path / "p"))
    assert re.match(message, f"{error.kind}: {error}")
    assert not os.path.exists("/tmp/evil")


# Files against the list.


@pytest.mark.parametrize("kind", ["MissingFile", "UnlistedFile"])
def test_a_file_that_is_missing_or_not_listed(hand, carrier, kind, tmp_path) -> None:
    name = hand.path("module/lib.so")
    if kind == "MissingFile":
        del hand.files[name]
    else:
        hand.files[name.replace("lib.so", "other.so")] = b"evil"
    assert refusal(hand.write(carrier, tmp_path)).kind == kind


@pytest.mark.parametrize("carrier", ["archive", "oci"])
def test_a_file_that_is_there_twice(hand: Hand, carrier: str, tmp_path: Path) -> None:
    layers = [packages.tar([*part, part[-1]]) for part in hand.layers()]
    write = getattr(packages, carrier)
    assert refusal(write(tmp_path / "p", hand.listed(), layers)).kind == "UnlistedFile"


@pytest.mark.parametrize("change", [-1, 1, 1 << 30])
def test_a_size_that_lies_in_the_list(hand, carrier, change, tmp_path) -> None:
    value = json.loads(hand.listing.encode())
    value["files"][hand.path("module/lib.so")]["size"] += change
    hand.list_bytes = rfc8785.dumps(value)
    limits = Limits(free=1 << 40)
    assert refusal(hand.write(carrier, tmp_path), limits).kind == "ChangedFile"


@pytest.mark.parametrize(("key", "other"), [("ptx", True), ("toolkit", "12.0")])
def test_a_target_that_the_list_invents(hand: Hand, key: str, other: object, tmp_path) -> None:
    value = json.loads(hand.listing.encode())
    for target in value["targets"].values():
        target[key] = other
    hand.list_bytes = rfc8785.dumps(value)
    errors = problems(hand.write("directory", tmp_path))
    assert any("disagree on the target" in str(error) for error in errors)


def test_constants_that_the_list_invents(hand: Hand, tmp_path: Path) -> None:
    value = json.loads(hand.listing.encode())
    value["scripts"][0]["params"] = {"dtype": '"f64"'}
    hand.list_bytes = rfc8785.dumps(value)
    errors = problems(hand.write("directory", tmp_path))
    assert any("constants" in str(error) for error in errors)


# Files that are as listed, and wrong.


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


def rename_in_meta(hand: Hand) -> None:
    name = hand.path("meta.json")
    hand.files[name] = seal_json({**unseal_json(hand.files[name]), "program": "0" * 64})


def of_script(name: str, data: bytes) -> Callable[[Hand], None]:
    def change(hand: Hand) -> None:
        (script,) = [s for s in hand.listing.scripts if s.script == "mark"]
        hand.files[f"{script.root}/{name}"] = data

    return change


def of_program(name: str, data: bytes) -> Callable[[Hand], None]:
    """A file of a program, with all that is said of it made to agree."""

    def change(hand: Hand) -> None:
        program = hand.path("module/lib.so").removesuffix("/module/lib.so")
        value = unseal_json(hand.files[f"{program}/meta.json"])
        value["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        hand.files |= {f"{program}/{name}": data, f"{program}/meta.json": seal_json(value)}

    return change


OUT_OF_RANGE = (
    b'{"schema":2,"keys":["n"],"tables":[{"fingerprint":{"script":"s","device":"d","arch":"a"},'
    b'"entries":[[[8],99,1,[8],null,false,[]]]}]}'
)
TABLES = {"deep": b"[" * 100_000, "empty": b"{}", "pickle": pickle.dumps({}), "99": OUT_OF_RANGE}
LIBRARY = (ROOT / "tests/binary/data/library.so").read_bytes()
FILES: dict[str, tuple[Callable[[Hand], None], str]] = {
    "swapped scripts": (swap_scripts, "Inconsistent: "),
    "a deep script": (nest, "Inconsistent: "),
    "a pickle of a script": (of_script("table.pkl", pickle.dumps([])), "Inconsistent: "),
    "another program's meta.json": (rename_in_meta, "Inconsistent: "),
    "another program's text": (of_program("program.txt", b"\n"), "Inconsistent: "),
    **{
        f"a table: {name}": (of_script("dispatch_table.json", table), "Inconsistent: ")
        for name, table in TABLES.items()
    },
    "code for sm_90a for the cpu": (of_program("module/lib.so", LIBRARY), "CodeMismatch: .*sm_90a"),
    "no library": (of_program("module/lib.so", b"\x7fELF" + bytes(100)), "CodeMismatch: "),
    **{
        f"a file {name}": (
            of_program(name, b"#!/bin/sh\n"),
            ".* not a file that its pipeline makes",
        )
        for name in ("module/evil.sh", ".git/config", "-rf", "module/lib.a")
    },
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_are_as_listed_and_wrong(hand: Hand, case: str, tmp_path: Path) -> None:
    change, message = FILES[case]
    change(hand)
    error = refusal(hand.relist().archive(tmp_path / "p"))
    assert re.match(message, f"{error.kind}: {error}")
