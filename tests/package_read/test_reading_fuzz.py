"""Packages mutated at random in every region: a typed error or a clean verify, and nothing else.

A mutation is of the carrier's bytes, of the tar inside it, of one file of a directory, or of a
value in the list. Whatever comes of it, `verify` and `install` end in `PackageError`s or find
nothing wrong; what is installed then verifies, and no file appears beside the target.
PACKAGE_FUZZ=3000 asks for more examples than the usual few."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support import packages
from support.packages import is_installed, problems
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache

FUZZ = settings(
    max_examples=int(os.environ.get("PACKAGE_FUZZ", "15")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def survives(path: Path) -> None:
    """Verify and install what is at `path`, alone in its directory."""
    with tempfile.TemporaryDirectory(
        prefix="tilusbuild-test-", dir=path.parent.parent
    ) as directory:
        target = Path(directory) / "cache"
        before = sorted(path.parent.rglob("*"))
        clean = not problems(path)
        installed = is_installed(path, target)
        assert installed or not clean
        assert not target.exists() or verify_cache(Tree(str(target))) == []
        assert sorted(path.parent.rglob("*")) == before
        assert set(os.listdir(directory)) <= {"cache"}


Mutation = tuple[str, float, bytes]
"""A kind, the share of the length at which it is, and bytes."""


def mutated(data: bytes, mutations: list[Mutation]) -> bytes:
    for kind, share, piece in mutations:
        offset, count = int(share * len(data)), len(piece)
        flipped = bytes(byte ^ (1 << count % 8) for byte in data[offset : offset + 1])
        data = {
            "flip": data[:offset] + flipped + data[offset + 1 :],
            "cut": data[:offset],
            "insert": data[:offset] + piece + data[offset:],
            "remove": data[:offset] + data[offset + count :],
            "repeat": data[: offset + count * 64] + data[offset:],
            "overwrite": data[:offset] + piece + data[offset + count :],
        }[kind]
    return data


KINDS = st.sampled_from(["flip", "cut", "insert", "remove", "repeat", "overwrite"])
MUTATIONS = st.lists(
    st.tuples(KINDS, st.floats(0, 1), st.binary(min_size=1, max_size=40)), min_size=1, max_size=3
)
SEEDS: list[list[Mutation]] = [
    *([("cut", share, b"x")] for share in (0.0, 0.001, 0.25, 0.5, 0.75, 0.99)),
    [("insert", 0.0, b"PK\3\4")],
    [("insert", 1.0, b"\x28\xb5\x2f\xfd")],
    [("insert", 1.0, bytes(512))],
    [("repeat", 0.5, bytes(40))],
    [("remove", 0.0, bytes(4))],
    [("overwrite", 0.0, b"\x28\xb5\x2f\xfd\xff\xff\xff\xff")],
    [("flip", 0.02, bytes(5)), ("flip", 0.98, bytes(6))],
]
"""Tried every time: what once had an answer of its own keeps it."""


def seeded(test: Any) -> Any:
    """With each of the seeds, besides what is drawn."""
    for mutations in SEEDS:
        test = example(mutations=mutations)(test)
    return test


@pytest.fixture(scope="module")
def small(_hand: Any) -> Any:
    return _hand.copy().only("twice")


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A directory with nothing beside the package."""
    (tmp_path / "alone").mkdir()
    return tmp_path / "alone"


@FUZZ
@seeded
@given(mutations=MUTATIONS)
def test_bytes_of_a_file(small: Any, alone: Path, mutations: list[Mutation]) -> None:
    path = small.write("archive", alone)
    path.write_bytes(mutated(path.read_bytes(), mutations))
    survives(path)


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("carrier", ["archive", "oci"])
@FUZZ
@seeded
@given(mutations=MUTATIONS)
def test_bytes_of_the_tar_inside(small, carrier, part, alone, mutations) -> None:
    parts = [packages.tar(small.first()), packages.tar(small.layers()[0]), bytes(1024)]
    parts[part] = mutated(parts[part], mutations)
    path = alone / "package"
    if carrier == "archive":
        path.write_bytes(b"".join(map(packages.frame, parts)))
    elif path.exists():
        shutil.rmtree(path)
    if carrier == "oci":
        packages.layout(path, small.listed(), [packages.frame(parts[1] + parts[2])], {})
    survives(path)


@pytest.mark.parametrize("carrier", ["directory", "oci"])
@FUZZ
@given(mutations=MUTATIONS, which=st.floats(0, 1, exclude_max=True))
def test_bytes_of_a_file_in_a_directory(small, carrier, alone, mutations, which) -> None:
    if (alone / "package").exists():
        shutil.rmtree(alone / "package")
    path = small.write(carrier, alone)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    chosen = files[int(which * len(files))]
    chosen.write_bytes(mutated(chosen.read_bytes(), mutations))
    survives(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def spots(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value in a JSON value."""
    pairs: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        pairs.append((value, key))
        if isinstance(inner, dict | list):
            pairs += spots(inner)
    return pairs


@FUZZ
@given(
    which=st.floats(0, 1, exclude_max=True), value=JSON, how=st.sampled_from(["set", "drop", "add"])
)
@example(which=0.0, value="..", how="add")
def test_a_value_of_the_list(small: Any, alone: Path, which: float, value: Any, how: str) -> None:
    listed = json.loads(small.listing.encode())
    places = spots(listed)
    container, key = places[int(which * len(places))]
    if how == "drop":
        del container[key]
    elif how == "set" or isinstance(container, list):
        container[key] = value
    else:
        container[str(value)] = container[key]
    changed = small.copy()
    try:
        changed.list_bytes = rfc8785.dumps(listed)
    except rfc8785.CanonicalizationError:
        changed.list_bytes = json.dumps(listed).encode()
    survives(changed.archive(alone / "package"))


@FUZZ
@given(which=st.floats(0, 1, exclude_max=True), mutations=MUTATIONS)
def test_a_file_that_the_list_agrees_with(small, alone, which, mutations) -> None:
    """Given a hostile packer, who lists what is there, when any file is anything, then the readers
    of that file are what stands between."""
    changed = small.copy()
    names = sorted(changed.files)
    name = names[int(which * len(names))]
    changed.files[name] = mutated(changed.files[name], mutations)
    survives(changed.relist().archive(alone / "package"))
