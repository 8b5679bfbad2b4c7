"""Archives: an entry is read back as it was packed, and of any bytes the reader returns an entry
within its limits, or refuses."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zstandard import ZstdCompressor

from tilusbuild.cache import layout
from tilusbuild.cache.tree import Tree
from tilusbuild.remote import archive, fetch
from tilusbuild.remote.archive import ArchiveError, Unpacker, pack_entry
from tilusbuild.remote.backend import Guard
from tilusbuild.state.files import sha256_bytes

FILES = {"meta.json": b"{}", "module/lib.so": bytes(9000), "program.txt": b"", "\x1b[31m": b"\n"}
names = st.text(max_size=9)


def read(data: bytes, directory: str = "/nonexistent") -> dict[str, bytes]:
    """The files of an archive."""
    content_by_name = Unpacker(directory).unpack_entry([data]).files
    return {
        n: content if isinstance(content, bytes) else Path(content).read_bytes()
        for n, content in content_by_name.items()
    }


@given(st.dictionaries(names, st.binary(max_size=99)), st.floats(0, 1e5), st.integers(1, 50))
def test_an_entry_is_read_back(files, seconds, size) -> None:
    data = pack_entry(files, seconds)
    entry = Unpacker("/nonexistent").unpack_entry(
        data[offset : offset + size] for offset in range(0, len(data), size)
    )
    assert (entry.files, entry.seconds) == (files, seconds)
    assert pack_entry(dict(reversed(files.items())), seconds) == data


def test_large_files_are_on_the_disk_and_no_name_leads_there(tmp_path: Path) -> None:
    files = {"../x": bytes(2 << 20), "/etc/passwd": bytes(3 << 20), "a": b"a"}
    assert read(pack_entry(files), str(tmp_path)) == files
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0", "1", "2"]


def test_headers_are_hashed_and_not_mapped(tmp_path: Path, monkeypatch) -> None:
    """Given an include directory with files after the first MiB: each map holds a descriptor."""
    files = {"include/a.hpp": bytes(2 << 20), "include/empty.hpp": b""}
    manifest = "".join(f"{sha256_bytes(d)}  {name}\n" for name, d in files.items()).encode()
    data = pack_entry({**files, layout.MANIFEST: manifest})
    unpacked = Unpacker(str(tmp_path)).unpack_entry([data])
    monkeypatch.setattr(fetch, "_map_file", pytest.fail)
    include = fetch._check_include(sha256_bytes(manifest), unpacked)
    assert isinstance(include, fetch._Include)
    assert unpacked.files["include/empty.hpp"] == b"", "which could not be mapped"


def test_an_archive_that_comes_twice_is_taken_once(tmp_path: Path) -> None:
    data = pack_entry(FILES)
    server = Mock(fetch_files=lambda keys, take: [take(key, [data]) for key in [*keys, *keys]])
    fetcher = fetch.Fetcher(server, Guard(pytest.fail), Mock(), Tree(str(tmp_path)))
    assert fetcher._receive_archives(str, ["a"]) == {"a": archive.Archive(FILES, 0.0)}


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(1, 255))
def test_any_bytes_are_an_entry_or_refused(data: bytes, position: int, flipped: int) -> None:
    content = bytearray(pack_entry(FILES))
    content[position % len(content)] ^= flipped
    for packed in (
        data,
        ZstdCompressor().compress(data),
        bytes(content[: position % len(content)]),
    ):
        with suppress(ArchiveError):
            read(packed)
    with suppress(ArchiveError):
        assert read(bytes(content)) == FILES, "the frame has a checksum"


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"", "cannot be read"),
        (b"null\n", "cannot be read"),
        (b"[" * 100_000 + b"\n", "cannot be read"),
        (b'{"files":{"a":-1}}\n', "cannot be read"),
        (b'{"files":{"a":1.5}}\n', "cannot be read"),
        (b'{"files":{"a":%d}}\n' % (1 << 31), "cannot be read"),
        (b'{"files":{"a":%d,"b":%d}}\n' % (1 << 30, 1), "more than 1024 MiB"),
        (b'{"files":{},"more":1}\n', "cannot be read"),
        (b'{"files":{},"seconds":1e99}\n', "cannot be read"),
        (json.dumps({"files": dict.fromkeys(map(str, range(10_001)), 0)}).encode() + b"\n", "read"),
        (b'{"files":{"a":5}}\n1234', "truncated"),
        (b'{"files":{"a":3}}\n1234', "more bytes"),
    ],
)
def test_what_is_not_ours_is_refused(head: bytes, why: str) -> None:
    with pytest.raises(ArchiveError, match=why):
        read(ZstdCompressor().compress(head))


def test_a_window_that_takes_the_memory_is_refused() -> None:
    large = ZstdCompressor(level=19).compressobj()
    data = large.compress(b'{"files":{"a":%d}}\n' % (40 << 20) + bytes(40 << 20)) + large.flush()
    with pytest.raises(ArchiveError, match="cannot be unpacked"):
        read(data)


def test_what_no_reader_takes_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 100)
    with pytest.raises(ArchiveError, match="more than"):
        pack_entry(FILES)


MEETING = """
import sys, threading
sys.setswitchinterval(1e-6)
from tilusbuild.remote.archive import Unpacker, pack_entry
data, met = pack_entry({"meta.json": b"{}"}), threading.Barrier(8)
def read():
    met.wait()
    Unpacker("/nonexistent").unpack_entry([data])
threads = [threading.Thread(target=read) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def test_threads_that_read_the_first_archive_together() -> None:
    """One in ten of these processes ended by a signal."""
    for _ in range(20):
        assert subprocess.run([sys.executable, "-c", MEETING], check=False).returncode == 0
