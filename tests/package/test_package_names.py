"""Which names a package's files may have."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.package.errors import PackageError
from tilusbuild.package.names import check_path, check_paths, fold_path

H = "a" * 64


@pytest.mark.parametrize(
    "path",
    [
        f"programs/{H}/module/lib.so",
        f"scripts/rms_norm/{H}/script.txt",
        f"include/{H}/größe.cuh",
        f"include/{H}/a b/c.h",
    ],
)
def test_what_a_cache_has_is_a_name(path: str) -> None:
    check_path(path)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "part ''"),
        ("/etc/passwd", "absolute"),
        (f"programs/{H}/../{H}/x", "part '..'"),
        (f"programs/{H}/./x", "part '.'"),
        (f"programs/{H}//x", "part ''"),
        (f"programs/{H}/x/", "part ''"),
        (f"programs/{H}", "64 hex digits"),
        (f"programs/{H.upper()}/x", "64 hex digits"),
        (f"programs/{H}x/x", "64 hex digits"),
        (f"scripts/{H}/script.txt", "its hash"),
        (f"scripts/../{H}/script.txt", "part '..'"),
        (f"scripts/-rf/{H}/script.txt", "its hash"),
        ("tilus-package.json", "not below"),
        (f"state/{H}/x", "not below"),
        (f"programs/{H}/a\\b", "backslash"),
        (f"programs/{H}/a\nb", "printed"),
        (f"programs/{H}/a\0b", "printed"),
        (f"programs/{H}/\x1b[2J", "printed"),
        (f"programs/{H}/gnp.\u202eso", "printed"),
        (f"programs/{H}/\ud800", "printed"),
        (f"programs/{H}/" + "x" * 256, "255 bytes"),
        (f"programs/{H}/" + "x/" * 3000 + "x", "4096 bytes"),
        ("C:/x", "not below"),
    ],
)
def test_an_ambiguous_name_is_refused(path: str, why: str) -> None:
    with pytest.raises(PackageError, match=why):
        check_path(path)


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("lib.so", "LIB.so", "one name on some disks"),
        ("é.h", "e\u0301.h", "one name on some disks"),
        ("straße", "STRASSE", "one name on some disks"),
        ("lib.so", "lib.so/x", "a directory that is a file"),
        ("a", "A/b/c", "a directory that is a file"),
    ],
)
def test_two_names_for_one_place_are_refused(one: str, other: str, why: str) -> None:
    for paths in ((one, other), (other, one)):
        with pytest.raises(PackageError, match=why):
            check_paths(f"programs/{H}/{path}" for path in paths)


@given(st.lists(st.text(max_size=12), max_size=6))
def test_an_accepted_name_stays_below_its_directory(parts: list[str]) -> None:
    path = "/".join([f"programs/{H}", *parts])
    try:
        check_path(path)
    except PackageError:
        return
    assert os.path.normpath(path) == path
    assert not os.path.isabs(path)
    assert os.path.join("/base", path).startswith(f"/base/programs/{H}/")
    assert path.encode().decode() == path
    assert fold_path(path) == fold_path(fold_path(path))
