"""Records: what is written is read back, and whatever is in one, its reader only refuses."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tilusbuild.remote.record import (
    MAX_FILES,
    Blob,
    Record,
    RecordError,
    blob_for,
    decode,
    decode_listing,
    encode,
)

NEEDED = ("meta.json", "program.txt", "options.txt", "module/compile.sh")
hashes = st.text("0123456789abcdef", min_size=64, max_size=64)
blobs = st.builds(Blob, hashes, st.integers(0, 1000))
names = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
WHOLE = Record(dict.fromkeys(NEEDED, Blob("0" * 64, 1)), {}, 1.5)


@given(
    st.dictionaries(names, blobs),
    st.dictionaries(hashes, blobs, max_size=8),
    st.floats(0, 1e5),
    st.dictionaries(st.sampled_from(NEEDED), st.text(max_size=9)),
)
def test_a_record_is_read_back(files, directories, seconds, texts) -> None:
    files.update({**WHOLE.files, **{name: blob_for(text.encode()) for name, text in texts.items()}})
    record = Record(files, directories, seconds, texts)
    assert decode(encode(record)) == record
    assert record.blobs == {blob for name, blob in files.items() if name not in texts}
    assert decode_listing(encode(files)) == files


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5) | hashes,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.binary(max_size=200)
    | st.fixed_dictionaries(
        dict.fromkeys(("files", "directories", "seconds", "texts"), json_values)
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_a_record_or_refused(data: bytes) -> None:
    for read in (decode, decode_listing):
        with suppress(RecordError):
            read(data)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a//b", "", "a/./b", "x\0y"])
def test_no_name_leads_out(name: str) -> None:
    files = {**WHOLE.files, name: Blob("0" * 64, 1)}
    with pytest.raises(RecordError, match="names"):
        decode(encode(replace(WHOLE, files=files)))
    with pytest.raises(RecordError, match="names"):
        decode_listing(encode(files))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda v: v["files"].update({n: ["0" * 64, 1 << 29] for n in NEEDED}), "MiB"),
        (
            lambda v: v["files"].update({str(n): ["0" * 64, 0] for n in range(MAX_FILES)}),
            "cannot be read",
        ),
        (lambda v: v["files"].update(a=["0" * 64, -1]), "cannot be read"),
        (lambda v: v["files"].update(a=["0" * 63, 1]), "cannot be read"),
        (lambda v: v["files"].update(a=["0" * 64 + "\n", 1]), "cannot be read"),
        (lambda v: v["files"].update(a=["0" * 64, "1"]), "cannot be read"),
        (lambda v: v["files"].pop("meta.json"), "names no meta.json"),
        (lambda v: v.update(directories={"..": ["0" * 64, 1]}), "cannot be read"),
        (lambda v: v.update(texts={"meta.json": "other"}), "does not match its digest"),
        (lambda v: v.update(texts={"meta.json": "\ud800"}), "cannot be read"),
        (lambda v: v.update(seconds="long"), "cannot be read"),
        (lambda v: v.update(more=1), "cannot be read"),
    ],
)
def test_what_cannot_be_ours_is_refused(change: Callable[[Any], Any], why: str) -> None:
    value = json.loads(encode(WHOLE))
    change(value)
    with pytest.raises(RecordError, match=why):
        decode(json.dumps(value).encode())


@pytest.mark.parametrize("data", [b"[" * 100_000, b"9" * 10_000, b"null", b"\xff"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        decode(data)


MEETING = """
import sys, threading
sys.setswitchinterval(1e-6)
from tilusbuild.remote import record
names = dict.fromkeys(record.NEEDED, record.Blob("0" * 64, 1))
data, met = record.encode(record.Record(names, {}, 1.5)), threading.Barrier(8)
def read():
    met.wait()
    record.decode(data)
threads = [threading.Thread(target=read) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def test_threads_that_read_the_first_record_together() -> None:
    """One in ten of these processes ended by a signal."""
    for _ in range(20):
        assert subprocess.run([sys.executable, "-c", MEETING], check=False).returncode == 0
