"""The file list: one text for one list, and nothing else is taken for one."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tilusbuild.package.errors import PackageError
from tilusbuild.package.listing import FileEntry, FileList, ProgramEntry, parse_list


def test_it_comes_back_as_it_was(listed: FileList) -> None:
    assert parse_list(listed.encode()) == listed


def test_the_text_does_not_depend_on_the_order_in_which_it_was_collected(listed: FileList) -> None:
    other = replace(
        listed,
        files=dict(reversed(list(listed.files.items()))),
        programs=dict(reversed(list(listed.programs.items()))),
        targets=dict(reversed(list(listed.targets.items()))),
    )
    assert other.encode() == listed.encode()


def test_any_other_spelling_of_the_same_list_is_refused(listed: FileList) -> None:
    with pytest.raises(PackageError, match="canonical"):
        parse_list(json.dumps(json.loads(listed.encode()), indent=1).encode())
    twice = listed.encode().replace(b'{"files"', b'{"schema":1,"files"', 1)
    for text in (listed.encode() + b"\n", twice):
        with pytest.raises(PackageError, match="canonical"):
            parse_list(text)


def changed(data: bytes, change: Callable[[Any], object]) -> bytes:
    value = json.loads(data)
    change(value)
    return rfc8785.dumps(value)


P = "programs"
BAD: dict[str, tuple[Callable[[Any], object], str]] = {
    "an unknown key": (lambda v: v.update(host="me"), "unknown field `host`"),
    "a key too few": (lambda v: v.pop("needs"), "missing required field `needs`"),
    "another schema": (lambda v: v.update(schema=2), "schema 2"),
    "no version": (lambda v: v.update(tool="a b"), r"at `\$.tool`"),
    "no sha256": (lambda v: first(v["files"]).update(sha256="A" * 64), r"regex .* - at `\$.files"),
    "a size below 0": (lambda v: first(v["files"]).update(size=-1), "`int` >= 0"),
    "true as a size": (lambda v: first(v["files"]).update(size=True), "got `bool`"),
    "a file of no program": (
        lambda v: v["files"].update({f"programs/{'a' * 64}/x": {"size": 0, "sha256": "b" * 64}}),
        "belongs to no listed program",
    ),
    "a program without files": (
        lambda v: [v["files"].pop(k) for k in list(v["files"]) if k.endswith("lib.so")],
        "lib.so is not listed",
    ),
    "a script without its text": (
        lambda v: [v["files"].pop(k) for k in list(v["files"]) if k.endswith("script.txt")],
        "script.txt is not listed",
    ),
    "an unknown program": (
        lambda v: v["scripts"][0]["programs"].append("c" * 64),
        "a program c+ that is not listed",
    ),
    "an unknown target": (lambda v: v["scripts"][0].update(target="h101"), "a target h101"),
    "a program of nobody": (
        lambda v: v["scripts"][0]["programs"].clear(),
        "first script",
    ),
    "scripts in disorder": (lambda v: v["scripts"].reverse(), "not sorted"),
    "a script twice": (lambda v: v["scripts"].append(v["scripts"][-1]), "appears twice"),
    "libraries in disorder": (lambda v: v["needs"]["libraries"].reverse(), "not sorted"),
    "an unknown machine": (lambda v: v["needs"].update(machine="vax"), "needs.machine is 'vax'"),
    "a glibc of words": (lambda v: v["needs"].update(glibc="new"), "needs.glibc`"),
}  # fmt: skip


def first(table: dict[str, Any]) -> Any:
    return table[min(table)]


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_named(listed: FileList, what: str) -> None:
    change, pattern = BAD[what]
    with pytest.raises(PackageError, match=pattern):
        parse_list(changed(listed.encode(), change))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"a":NaN}',
        b"\xff",
        b"\x80\x04N.",
        b"[" * 100_000,
        b'{"schema":' + b"9" * 5000 + b"}",
    ],
)
def test_an_invalid_list_is_refused(data: bytes) -> None:
    with pytest.raises(PackageError):
        parse_list(data)


def test_a_list_that_would_not_be_read_is_not_written(listed: FileList) -> None:
    strange = replace(listed, files={**listed.files, "scripts/../x": FileEntry(0, "a" * 64)})
    with pytest.raises(PackageError):
        strange.encode()
    lonely = ProgramEntry("AddOne", "h100", ())
    with pytest.raises(PackageError):
        replace(listed, programs={**listed.programs, "e" * 64: lonely}).encode()


@given(data=st.data())
def test_any_change_of_a_byte_is_refused_or_is_another_list(listed, data) -> None:
    text = bytearray(listed.encode())
    offset = data.draw(st.integers(0, len(text) - 1))
    text[offset] ^= 1 << data.draw(st.integers(0, 7))
    try:
        file_list = parse_list(bytes(text))
    except PackageError:
        return
    assert file_list != listed
    assert file_list.encode() == bytes(text)
