"""The readers on real binaries that are kept beside the tests: no toolkit is needed."""

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilusbuild.binary.cubin import KernelUsage, PtxasUsage, parse_ptxas, read_cubin, read_toolkit
from tilusbuild.binary.elf import BinaryError, read_needs
from tilusbuild.binary.fatbin import CodeImage, extract_cubins, read_archs

Sample = Callable[[str], bytes]


def test_a_cubin_has_the_usage_of_its_kernels_and_names_its_architecture(sample: Sample) -> None:
    old = KernelUsage("k", 8, 0, static_smem=512, max_threads=None, parameters=(8,))
    for name in ("cuda12_sm_80", "cuda12_sm_90a", "cuda13_sm_100f"):
        data = sample(f"{name}.cubin")
        assert read_archs(data) == (CodeImage("sass", name[7:], len(data)),)
        (kernel,) = read_cubin(data)
        assert kernel == old or "13" in name
    assert (kernel.name, kernel.static_smem, kernel.max_threads) == ("sample", 512, 128)


@pytest.mark.parametrize("note", [b"-arch unknown", b"-arch sm_900f"])
def test_without_a_note_that_agrees_with_the_header_there_is_no_suffix(
    sample: Sample, note: bytes
) -> None:
    data = sample("cuda13_sm_100f.cubin").replace(b"-arch sm_100f", note)
    assert read_archs(data)[0].arch == "sm_100"


def test_a_cubin_names_its_toolkit_or_the_first_of_its_abi(sample: Sample) -> None:
    newer = sample("cuda13_sm_100f.cubin")
    assert read_toolkit(newer) == "13.0.88"
    assert read_toolkit(newer.replace(b".note.nv.tk", b".note.nv.no")) == "13.0"
    assert read_toolkit(sample("cuda12_sm_80.cubin")) == "12.0"


@pytest.mark.parametrize(
    ("name", "archs"),
    [
        ("packed.fatbin", ["sass sm_80", "ptx sm_80", "sass sm_90a"]),
        ("plain.fatbin", ["sass sm_80", "ptx sm_80", "sass sm_120f"]),
        ("library.so", ["sass sm_90a"]),
    ],
)
def test_images_in_containers(sample: Sample, name: str, archs: list[str]) -> None:
    data = sample(name)
    images = read_archs(data)
    assert [f"{image.kind} {image.arch}" for image in images] == archs
    for cubin in extract_cubins(data):
        (kernel,) = read_cubin(cubin.data)
        assert kernel.static_smem == 512
        assert read_archs(cubin.data)[0].arch == cubin.image.arch


def test_fatbins_and_nothing_else_may_follow_one_another(sample: Sample) -> None:
    both = sample("packed.fatbin") + b"\0" * 8 + sample("plain.fatbin")
    assert len(read_archs(both)) == 6
    with pytest.raises(BinaryError, match="do not belong to it"):
        read_archs(sample("packed.fatbin") + b"junk")


def test_a_library_says_what_it_needs(sample: Sample) -> None:
    needs = read_needs(sample("library.so"))
    assert needs.machine == "x86_64"
    assert needs.libraries == ("libc.so.6",)
    assert needs.glibc == (2, 2)
    assert needs.exports == {"launch"}
    assert needs.find_missing_exports("launch", "__tvm_ffi_launch") == ("__tvm_ffi_launch",)


def test_what_only_looks_like_a_fatbin_is_passed_over(sample: Sample) -> None:
    """The CUDA runtime holds the magic number as a constant of its code."""
    magic = struct.pack("<I", 0xBA55ED50)
    assert [image.arch for image in read_archs(sample("library.so") + magic * 3)] == ["sm_90a"]
    # A flood of them is an error, and not a long search.
    with pytest.raises(BinaryError, match="more parts look like"):
        read_archs(sample("library.so") + magic * 10_000)


def test_sections_that_overlap_without_end_are_an_error(sample: Sample) -> None:
    """Every section of the table becomes the whole file, a thousand times over."""
    data = bytearray(sample("cuda12_sm_80.cubin"))
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    rows = [bytes(data[table + size * i : table + size * (i + 1)]) for i in range(count)]
    long_name = len(data)
    data += b"n" * 30_000 + b"\0"
    strings = bytearray(rows[names])
    struct.pack_into("<QQ", strings, 24, 0, len(data))
    row = bytearray(rows[1])
    struct.pack_into("<I", row, 0, long_name)
    struct.pack_into("<Q", data, 40, len(data))
    struct.pack_into("<HH", data, 60, 30_000, 0)
    data += strings + row * 29_999
    with pytest.raises(BinaryError, match="overlap"):
        read_cubin(bytes(data))


@pytest.mark.parametrize("junk", [b"", b"\x7fELF", b"!<arch>\n", b"\x7fELF\x02\x01" + b"\0" * 58])
def test_other_files_are_errors(junk: bytes, sample: Sample) -> None:
    for read in READERS:
        with pytest.raises(BinaryError):
            read(junk)
    with pytest.raises(BinaryError, match="not a cubin"):
        read_cubin(sample("library.so"))
    with pytest.raises(BinaryError, match="x86-64"):
        read_needs(sample("cuda12_sm_80.cubin"))


# Damaged, truncated and invented input: a reader answers or raises `BinaryError`, nothing else.
SEEDS = {
    path.name: path.read_bytes() for path in sorted(Path(__file__).with_name("data").iterdir())
}
READERS = (read_archs, read_cubin, read_needs, extract_cubins)


def read_all(data: bytes) -> None:
    for read in READERS:
        with contextlib.suppress(BinaryError):
            read(data)


@settings(max_examples=400)
@given(data=st.data(), name=st.sampled_from(sorted(SEEDS)))
def test_flipped_bytes(data: st.DataObject, name: str) -> None:
    damaged = bytearray(SEEDS[name])
    places = st.integers(0, len(damaged) - 1)
    for offset in data.draw(st.lists(places, min_size=1, max_size=8)):
        damaged[offset] = data.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)) | st.integers(0, 255))
    read_all(bytes(damaged))


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_every_byte_of_the_tables_flipped(name: str) -> None:
    """The header and the last 512 bytes (the section table, or the entries), byte by byte."""
    content = SEEDS[name]
    for offset in {*range(128), *range(max(0, len(content) - 512), len(content))}:
        for value in (0, 0xFF, content[offset] ^ 0x80):
            read_all(content[:offset] + bytes([value]) + content[offset + 1 :])


@given(log=st.text(max_size=300))
def test_any_log_can_be_parsed(log: str) -> None:
    assert all(usage.registers >= 0 for usage in parse_ptxas(log))


# The log of `-Xptxas -v`, from several releases.
CUDA_13 = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'recur' for 'sm_80'
ptxas info    : Function properties for recur
    16 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 1120 bytes cumulative stack size
ptxas info    : Compile time = 3.550 ms
ptxas info    : Function properties for _Z3fibi
    24 bytes stack frame, 20 bytes spill stores, 20 bytes spill loads
ptxas info    : Compiling entry function 'plain' for 'sm_90a'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 1024 bytes smem
"""

CUDA_11 = """\
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_70'
ptxas info    : Function properties for _Z1kPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 2048+0 bytes smem, 360 bytes cmem[0]
"""


def test_each_kernel_has_what_was_said_of_it_and_of_what_it_calls() -> None:
    recursive, plain = parse_ptxas(CUDA_13)
    assert recursive == PtxasUsage(
        arch="sm_80", kernel="recur", registers=24, stack=1120, spill_stores=20, spill_loads=24
    )
    assert recursive.spill_bytes == 44
    assert plain == PtxasUsage("sm_90a", "plain", registers=10, static_smem=1024, barriers=1)

    # An older release says less.
    assert parse_ptxas(CUDA_11) == (PtxasUsage("sm_70", "_Z1kPf", registers=8, static_smem=2048),)


def test_other_output_in_between_is_passed_over() -> None:
    noisy = "\n".join(f"source.cu(3): warning #177-D: x\n{line}" for line in CUDA_13.splitlines())
    assert parse_ptxas(noisy) == parse_ptxas(CUDA_13)
    assert parse_ptxas("") == ()
    assert parse_ptxas("12 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads") == ()
