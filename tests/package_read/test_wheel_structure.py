"""Wheels mutated by their structure: whatever differs from what tilusbuild writes is refused.

A wheel is taken apart into entries and put together again with one thing changed: a field of one of
the two headers, room where only some readers look, what pip believes or an import runs, with the
record made to fit or not. No such wheel may verify, and none may be installed.
"""

import hashlib
import os
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.packages import is_installed, problems, refusals
from tilusbuild.package.errors import PackageError
from tilusbuild.package.formats.wheels import last_line, record_line
from tilusbuild.package.read import opened

LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s6H3L5H2L")
FIELDS = ("flags", "method", "time", "date", "crc", "packed", "size")


@dataclass(frozen=True)
class Piece:
    """An entry: its bytes as they are packed, and the fields that its two headers say."""

    name: bytes
    packed: bytes
    fields: dict[str, int]
    local: dict[str, int] = field(default_factory=dict)
    central: dict[str, int] = field(default_factory=dict)
    local_name: bytes | None = None
    local_extra: bytes = b""
    central_extra: bytes = b""
    before: bytes = b""
    after: bytes = b""


@dataclass(frozen=True)
class Whole:
    pieces: tuple[Piece, ...]
    before_directory: bytes = b""
    comment: bytes = b""
    count: int = 0
    end: bytes = b""


def piece(name: str, data: bytes) -> Piece:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = packer.compress(data) + packer.flush()
    numbers = (0, 8, 0, 33, zlib.crc32(data), len(packed), len(data))
    return Piece(name.encode(), packed, dict(zip(FIELDS, numbers, strict=True)))


def built(whole: Whole) -> bytes:
    out, directory = bytearray(), bytearray()
    for each in whole.pieces:
        out += each.before
        at = len(out)
        here = {**each.fields, **each.local}
        name = each.name if each.local_name is None else each.local_name
        numbers = [here[n] for n in FIELDS]
        out += LOCAL.pack(b"PK\3\4", 20, *numbers, len(name), len(each.local_extra))
        out += name + each.local_extra + each.packed + each.after
        there = {**each.fields, **each.central}
        numbers = [there[n] for n in FIELDS]
        sizes = (len(each.name), len(each.central_extra), 0, 0, 0)
        directory += CENTRAL.pack(b"PK\1\2", 788, 20, *numbers, *sizes, 0o100644 << 16, at)
        directory += each.name + each.central_extra
    out += whole.before_directory
    at, count = len(out), len(whole.pieces) + whole.count
    end = (0, 0, count, count, len(directory), at, len(whole.comment))
    return (
        bytes(out + directory + struct.pack("<4s4H2LH", b"PK\5\6", *end))
        + whole.comment
        + whole.end
    )


def apart(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rerecorded(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same with a record that fits."""
    (record,) = (name for name in files if name.endswith("/RECORD"))
    rest = {name: data for name, data in files.items() if name != record}
    lines = [record_line(n, hashlib.sha256(d).hexdigest(), len(d)) for n, d in rest.items()]
    return {**rest, record: "".join([*lines, last_line(record)]).encode()}


def assert_refused(wheel: Whole, directory: Path) -> None:
    (directory / "p.whl").write_bytes(built(wheel))
    assert problems(directory / "p.whl")
    assert not is_installed(directory / "p.whl", directory / "cache")


@pytest.fixture(scope="module")
def files(_hand: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("wheel") / "p.whl"
    return apart(_hand.copy().only("twice").wheel(path))


def pieces_of(files: dict[str, bytes]) -> tuple[Piece, ...]:
    return tuple(piece(name, data) for name, data in files.items())


def test_a_wheel_put_together_again_is_the_package(files: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "p.whl"
    path.write_bytes(built(Whole(pieces_of(files))))
    assert problems(path) == ()
    assert is_installed(path, tmp_path / "cache")


ROOM = st.sampled_from(
    (
        *("before", "after", "local_extra", "central_extra", "local_name", "before_directory"),
        *("comment", "end", "trailing", "count", "field"),
    )
)


@settings(
    max_examples=int(os.environ.get("PACKAGE_FUZZ", "60")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    room=ROOM,
    which=st.floats(0, 1, exclude_max=True),
    data=st.binary(min_size=1, max_size=24),
    name=st.sampled_from(FIELDS),
    side=st.sampled_from(["local", "central", "both"]),
    change=st.integers(1, 200),
)
def test_what_only_some_readers_see(files, tmp_path, room, which, data, name, side, change) -> None:
    pieces = list(pieces_of(files))
    at = int(which * len(pieces))
    whole = Whole(tuple(pieces))
    if room == "count":
        whole = replace(whole, count=-(change % len(pieces)) - 1 if change % 2 else change)
    elif room in ("before_directory", "comment", "end"):
        whole = replace(whole, **{room: data})
    else:
        one = pieces[at]
        if room == "field":
            limit = 1 << (16 if name in FIELDS[:4] else 32)
            changed = {name: (one.fields[name] + change) % limit}
            if side == "both" and name in ("time", "date"):
                side = "local"  # a time that both headers say is a time
            ends = ("local", "central") if side == "both" else (side,)
            one = replace(one, **dict.fromkeys(ends, changed))  # type: ignore[arg-type]
        elif room == "trailing":
            grown = {"packed": one.fields["packed"] + len(data)}
            one = replace(one, packed=one.packed + data, fields={**one.fields, **grown})
        elif room == "local_name":
            one = replace(one, local_name=data)
        elif room.endswith("extra"):
            one = replace(one, **{room: struct.pack("<2H", 0x7075, len(data)) + data})
        else:
            one = replace(one, **{room: data})
        pieces[at] = one
        whole = replace(whole, pieces=tuple(pieces))
    assert_refused(whole, tmp_path)


def believed(files: dict[str, bytes], change: str) -> dict[str, bytes]:
    """The files with one thing that pip would believe, or an import would run."""
    (about,) = {n.split("/")[0] for n in files if ".dist-info/" in n}
    (record,) = (name for name in files if name.endswith("/RECORD"))
    changed = dict(files)
    match change:
        case "runtime":
            changed["marks/_runtime/kernel.py"] += b"\nimport evil\n"
        case "init":
            changed["marks/__init__.py"] += b"\nimport evil\n"
        case "py" | "pth" | "script" | "data" | "pyc" | "package":
            name = {
                "py": "marks/_runtime/more.py",
                "pth": "evil.pth",
                "script": f"{about.removesuffix('.dist-info')}.data/scripts/evil",
                "data": f"{about.removesuffix('.dist-info')}.data/purelib/evil.py",
                "pyc": "marks/__pycache__/__init__.cpython-311.pyc",
                "package": "evil/__init__.py",
            }[change]
            last = changed.pop(record)
            changed |= {name: b"import evil\n", record: last}
        case "console":
            changed[f"{about}/entry_points.txt"] += b"[console_scripts]\nls = evil:main\n"
        case "requires":
            changed[f"{about}/METADATA"] += b"Requires-Dist: evil\n"
        case "tag":
            changed[f"{about}/WHEEL"] += b"Tag: py3-none-any\n"
        case "gone":
            del changed["marks/_runtime/regular.py"]
    return changed


CHANGES = (
    *("runtime", "init", "py", "pth", "script", "data", "pyc", "package", "console"),
    *("requires", "tag", "gone"),
)


@pytest.mark.parametrize("fits", [True, False], ids=["recorded", "unrecorded"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_pip_would_run_or_believe(files, tmp_path, change, fits) -> None:
    changed = believed(files, change)
    assert_refused(Whole(pieces_of(rerecorded(changed) if fits else changed)), tmp_path)


@pytest.mark.parametrize("lie", ["digest", "size", "line", "none"])
def test_a_record_that_lies(files: dict[str, bytes], tmp_path: Path, lie: str) -> None:
    (record,) = (name for name in files if name.endswith("/RECORD"))
    lines = files[record].splitlines(keepends=True)
    head, _, tail = lines[0].partition(b"sha256=")
    changed = {
        "digest": [head + b"sha256=A" + tail[1:], *lines[1:]],
        "size": [lines[0].rstrip() + b"0\n", *lines[1:]],
        "line": [*lines, b"evil.py,,\n"],
        "none": [],
    }[lie]
    assert_refused(Whole(pieces_of({**files, record: b"".join(changed)})), tmp_path)


@pytest.mark.parametrize("bomb", ["record", "code", "entries", "many", "size"])
def test_what_is_beside_the_package_takes_no_memory(files, tmp_path, bomb) -> None:
    (record,) = (name for name in files if name.endswith("/RECORD"))
    changed = dict(files)
    if bomb == "record":
        changed[record] = b"a,,\n" * (15 << 20)
    elif bomb == "code":
        changed["marks/__init__.py"] = bytes(60 << 20)
    elif bomb == "entries":
        changed |= {f"marks/_runtime/a{number}.py": b"" for number in range(50_000)}
    elif bomb == "many":
        changed |= {f"marks/_runtime/a{number}.py": bytes(1 << 20) for number in range(180)}
    pieces = pieces_of(changed)
    if bomb == "size":  # a library whose data unpacks to more than its headers say
        claims = [(each, len(files[each.name.decode()])) for each in pieces]
        pieces = tuple(
            replace(piece(each.name.decode(), bytes(256 << 20)), central={"size": size})
            if each.name.endswith(b"lib.so")
            else each
            for each, size in claims
        )
    path = tmp_path / "p.whl"
    path.write_bytes(built(Whole(pieces)))
    assert "accepted" not in refusals(path)


@pytest.mark.parametrize("bit", [stat.S_ISUID, stat.S_ISGID, stat.S_ISVTX])
def test_a_file_with_rights_of_its_owner(files: dict[str, bytes], tmp_path: Path, bit: int) -> None:
    """`unzip -K` keeps the bits."""
    path = tmp_path / "p-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFREG | 0o755 | bit) << 16
            wheel.writestr(info, data)
    with pytest.raises(PackageError, match="setuid"), opened(str(path)):
        pass
