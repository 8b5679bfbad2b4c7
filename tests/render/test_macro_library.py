"""The shipped macros: right on the cpu, where they run, and accepted by nvcc, where they do not."""

import ctypes
import re
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from support.processes import run_to_end

IMPORTS = "".join(
    f'{{% import "tilusbuild/{name}.cuh.j2" as {name} %}}\n'
    for name in ("portable", "reduce", "vector", "smem", "mma", "async")
)


@pytest.fixture
def library(project, cpu, tmp_path):
    """Compile a template for the cpu and load it."""

    def load(template, **values):
        source = tmp_path / "source.cpp"
        source.write_text(project.render(IMPORTS + template, cpu, **values))
        binary = tmp_path / "lib.so"
        command = ["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
        subprocess.run([*command, "-o", binary, source], check=True)
        return ctypes.CDLL(str(binary))

    return load


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


CONVERT = """
{{ portable.types([dtype]) }}
extern "C" void convert(int n, const float* x, tb::{{ dtype }}* y) {
  for (int i = 0; i < n; ++i) y[i] = tb::from_float<tb::{{ dtype }}>(x[i]);
}
extern "C" void widen(int n, const tb::{{ dtype }}* x, float* y) {
  for (int i = 0; i < n; ++i) y[i] = tb::to_float(x[i]);
}
"""


class Numbers:
    """The two conversions of one type, over arrays of bits."""

    def __init__(self, library, dtype, bits):
        self._lib = library(CONVERT, dtype=dtype)
        self._bits = np.dtype(f"u{bits // 8}")
        self.all = np.arange(1 << bits, dtype=self._bits)

    def widen(self, bits):
        out = np.empty(len(bits), np.float32)
        self._lib.widen(len(bits), pointer(np.ascontiguousarray(bits)), pointer(out))
        return out

    def convert(self, floats):
        out = np.empty(len(floats), self._bits)
        self._lib.convert(len(floats), pointer(np.ascontiguousarray(floats)), pointer(out))
        return out


# What each type means, from its definition: exponent bits, mantissa bits, largest finite, has inf.
FORMATS = {
    "f16": (5, 10, None, True),
    "bf16": (8, 7, None, True),
    "f8e4m3": (4, 3, 448.0, False),
    "f8e5m2": (5, 2, 57344.0, True),
}


def value(bits, exponent_bits, mantissa_bits):
    """The finite value of positive bits, exactly."""
    bias = (1 << (exponent_bits - 1)) - 1
    exponent, mantissa = bits >> mantissa_bits, bits & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return Fraction(mantissa, 1 << mantissa_bits) * Fraction(2) ** (1 - bias)
    return (1 + Fraction(mantissa, 1 << mantissa_bits)) * Fraction(2) ** (exponent - bias)


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_small_types_follow_their_definitions(library, dtype):
    exponent_bits, mantissa_bits, largest, has_infinity = FORMATS[dtype]
    width = 1 + exponent_bits + mantissa_bits
    numbers = Numbers(library, dtype, width)
    top = ((1 << exponent_bits) - 1) << mantissa_bits
    finite_end = top if has_infinity else (1 << (width - 1)) - 1
    finite = np.arange(finite_end)
    exact = np.array([float(value(int(b), exponent_bits, mantissa_bits)) for b in finite])
    np.testing.assert_array_equal(numbers.widen(numbers.all[:finite_end]), exact)
    np.testing.assert_array_equal(
        numbers.widen(numbers.all[:finite_end] + (1 << (width - 1))), -exact
    )
    assert np.isnan(numbers.widen(numbers.all[finite_end + has_infinity : 1 << (width - 1)])).all()
    # Nearest, ties to even: between neighbours, and exactly in the middle of them.
    low, high = exact[:-1].astype(np.float64), exact[1:].astype(np.float64)
    middle = ((low + high) / 2).astype(np.float32)
    even = np.where(finite[:-1] % 2 == 0, finite[:-1], finite[1:])
    np.testing.assert_array_equal(numbers.convert(middle), even)
    np.testing.assert_array_equal(numbers.convert(-middle), even + (1 << (width - 1)))
    above, below = np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(0))
    np.testing.assert_array_equal(numbers.convert(above), finite[1:])
    np.testing.assert_array_equal(numbers.convert(below)[1:], finite[:-1][1:])
    np.testing.assert_array_equal(numbers.convert(exact.astype(np.float32)), finite)
    extreme = numbers.convert(np.array([np.inf, -np.inf, np.nan, 3e38], np.float32))
    if largest is None:
        np.testing.assert_array_equal(numbers.widen(extreme[:2]), [np.inf, -np.inf])
    else:
        np.testing.assert_array_equal(numbers.widen(extreme[:2]), [largest, -largest])
        assert numbers.widen(extreme[3:])[0] == largest
    assert np.isnan(numbers.widen(extreme[2:3])[0])


def test_one_kernel_template_runs_on_the_cpu(library):
    lib = library(
        """
        {{ portable.types(["f16"]) }}
        {{ reduce.functions(["sum", "max"]) }}
        {{ vector.functions() }}
        {{ portable.kernel("scale", "int rows, int n, const tb::f16* x, float* y", threads=256) }} {
          {{ portable.each_block("row", "rows") }} {
            float part = 0, largest = 0;
            {{ portable.block_stride("i", "n / 4") }} {
              const tb::Vec<tb::f16, 4> v = tb::load<4>(x + row * n + i * 4);
              for (int j = 0; j < 4; ++j) {
                part += tb::to_float(v[j]);
                largest = tb::to_float(v[j]) > largest ? tb::to_float(v[j]) : largest;
              }
            }
            part = tb::block_sum<256>(part);
            largest = tb::block_max<256>(largest);
            {{ portable.sync() }}
            if ({{ portable.one_thread() }}) { y[row * 2] = part; y[row * 2 + 1] = largest; }
          }
        }
        """
    )
    x = np.random.default_rng(0).integers(-8, 9, (5, 64)).astype(np.float16)
    y = np.empty((5, 2), np.float32)
    lib.scale(5, 64, pointer(x), pointer(y))
    np.testing.assert_array_equal(y[:, 0], x.astype(np.float32).sum(1))
    np.testing.assert_array_equal(y[:, 1], np.maximum(x.max(1), 0))


def test_swizzles_are_bijections_without_bank_conflicts(library):
    lengths = [16, 32, 64, *range(128, 1025, 128)]
    lib = library(
        "{% for length in lengths %}\n"
        '{{ smem.swizzle("at" ~ length, length) }}\n'
        'extern "C" unsigned where{{ length }}(unsigned row, unsigned chunk) '
        "{ return tb::at{{ length }}(row, chunk); }\n"
        "{% endfor %}",
        lengths=lengths,
    )
    rows = 32
    for length in lengths:
        where = getattr(lib, f"where{length}")
        offsets = np.array([[where(r, c) for c in range(length // 16)] for r in range(rows)])
        assert sorted(offsets.ravel()) == list(range(0, rows * length, 16))
        banks = offsets // 16 % 8
        # One phase of ldmatrix: the same chunk of eight neighbouring rows.
        for row in range(0, rows, 8):
            assert all(len(set(column)) == 8 for column in banks[row : row + 8].T)
        # A run of 128 bytes, as cp.async and 128-bit accesses of neighbouring threads make.
        assert all(len(set(run)) == 8 for run in banks.reshape(-1, 8))


@pytest.mark.parametrize("row_bytes", [16, 48, 64, 128, 256, 144])
def test_padded_rows_have_no_bank_conflicts(project, row_bytes):
    template = IMPORTS + "{{ smem.padded(row_bytes) }}"
    padded = int(project.render(template, row_bytes=row_bytes))
    assert padded >= row_bytes
    assert padded % 16 == 0
    assert len({row * padded // 16 % 8 for row in range(8)}) == 8


@pytest.mark.parametrize("bad", [0, 8, 24, 48, 96, 160])
def test_a_row_that_cannot_be_swizzled_is_refused(project, bad):
    assert str(bad) in project.refusal(IMPORTS + '{{ smem.swizzle("at", bad) }}', bad=bad).message


def test_fragments_hold_every_element_once(library):
    names = ["mma_a_row", "mma_a_column", "mma_b_row", "mma_b_column", "mma_c_row", "mma_c_column"]
    lib = library(
        "{{ mma.layout() }}\n"
        + "".join(
            f'extern "C" int {n}(int lane, int i) {{ return tb::{n}(lane, i); }}\n' for n in names
        )
    )
    for operand, elements, rows, columns in (("a", 8, 16, 16), ("b", 4, 16, 8), ("c", 4, 16, 8)):
        row, column = getattr(lib, f"mma_{operand}_row"), getattr(lib, f"mma_{operand}_column")
        held = {(row(lane, i), column(lane, i)) for lane in range(32) for i in range(elements)}
        assert held == {(r, c) for r in range(rows) for c in range(columns)}
    # Table of the PTX manual, m16n8k16 with 16-bit elements: lane 5 is group 1, thread 1 of it.
    assert [(lib.mma_a_row(5, i), lib.mma_a_column(5, i)) for i in range(8)] == [
        (1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11),
    ]  # fmt: skip
    assert [(lib.mma_b_row(5, i), lib.mma_b_column(5, i)) for i in range(4)] == [
        (2, 1), (3, 1), (10, 1), (11, 1),
    ]  # fmt: skip
    assert [(lib.mma_c_row(5, i), lib.mma_c_column(5, i)) for i in range(4)] == [
        (1, 2), (1, 3), (9, 2), (9, 3),
    ]  # fmt: skip


def test_vector_width_is_what_one_access_moves(project):
    template = (
        IMPORTS + "{{ vector.width(2, 64) }} {{ vector.width(2, 12) }} {{ vector.width(4, 7) }}"
    )
    assert project.render(template) == "8 4 1"


@pytest.mark.parametrize("call", ["mma.ldmatrix()", 'mma.m16n8k16("f16")', "async.cp_async()"])
def test_a_missing_cpu_feature_is_refused_with_a_hint(project, cpu, call):
    diagnostic = project.refusal(IMPORTS + "{{ " + call + " }}", cpu)
    assert "{% if target.kind != 'cpu' %}" in diagnostic.message


def test_a_missing_architecture_feature_is_refused(project):
    assert "needs sm_90" in project.refusal(IMPORTS + "{{ async.bulk() }}").message


def test_parts_may_be_asked_for_twice(library):
    library("{{ portable.types(['f16']) }}{{ portable.types(['f16', 'bf16']) }}" * 2)


KERNEL = """
{{ portable.types(["f16", "bf16", "f8e4m3", "f8e5m2"]) }}
{{ reduce.functions() }}
{{ vector.functions() }}
{{ smem.swizzle("at", 64) }}
{{ mma.layout() }}
{{ mma.ldmatrix() }}
{% for dtype in ["f16", "bf16"] %}
{{ mma.m16n8k16(dtype) }}
{{ mma.pack(dtype) }}
{% endfor %}
{{ async.cp_async() }}
{% if arch.number >= 90 %}
{{ async.tensor([1, 2, 3, 4, 5]) }}
{% endif %}
{{ portable.kernel("everything", "const tb::f16* x, float* y, int n, const void* map", 128, 2) }} {
  {{ smem.dynamic() }}
  const unsigned base = tb::smem_address(smem);
  tb::cp_async<16>(base + tb::at(threadIdx.x, 0), x);
  tb::cp_async_zero_fill<8>(base + 16, x, n > 3);
  tb::cp_async_commit();
  tb::cp_async_wait<1>();
  tb::cp_async_wait<0>();
  {{ portable.sync() }}
  unsigned a[4], b[2], b4[4];
  float c[4] = {};
  tb::ldmatrix_x4(a, base + tb::at(tb::ldmatrix_row(threadIdx.x % 32), 0));
  tb::ldmatrix_x2_trans(b, base);
  tb::ldmatrix_x4_trans(b4, base);
  tb::mma_m16n8k16_f16(c, a, b);
  tb::mma_m16n8k16_bf16(c, a, b4[0], b4[1]);
  c[0] += tb::warp_sum(c[1]) + tb::block_max<128>(c[2]) + tb::block_min<32>(c[3]);
  tb::Vec<tb::f16, 8> v = tb::load_once<8>(x + threadIdx.x * 8);
  tb::store_once(reinterpret_cast<tb::f16*>(y), v);
  y[0] = tb::to_float(v[0]) + tb::to_float(tb::from_float<tb::bf16>(c[0]))
       + tb::to_float(tb::from_float<tb::f8e4m3>(c[0])) + tb::to_float(tb::f8e5m2{3})
       + tb::to_float(tb::from_float<tb::f16>(c[1]));
  y[1] = tb::pack_f16(c[0], c[1]) + tb::pack_bf16(c[0], c[1]);
{% if arch.number >= 90 %}
  __shared__ unsigned long long bar;
  const unsigned barrier = tb::smem_address(&bar);
  tb::mbarrier_init(barrier, 1);
  tb::mbarrier_fence_init();
  tb::mbarrier_expect(barrier, 1024);
  tb::bulk_load(base, x, 512, barrier);
  tb::tensor_prefetch(map);
  tb::tensor_load_2d(base, map, barrier, 0, 0);
  tb::tensor_load_5d(base, map, barrier, 0, 1, 2, 3, 4);
  tb::mbarrier_wait(barrier, 0);
  tb::bulk_fence();
  tb::tensor_store_3d(map, base, 0, 0, 0);
  tb::bulk_store(y, base, 128);
  tb::bulk_commit();
  tb::bulk_wait_read<0>();
{% endif %}
}
"""


@pytest.mark.nvcc
@pytest.mark.parametrize(("number", "arch"), [(80, "80"), (90, "90a")])
def test_nvcc_takes_all_of_it_without_a_warning(project, tmp_path, number, arch):
    around = {
        "target": {"kind": "cuda", "name": "gpu", "arch": f"sm_{arch}"},
        "arch": {"number": number},
    }
    (tmp_path / "source.cu").write_text(project.render(IMPORTS + KERNEL, around))
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    code = f"arch=compute_{arch},code=sm_{arch}"
    command = [nvcc, "-std=c++17", "-gencode", code, "-cubin", "-o", "x.cubin", "source.cu"]
    done = run_to_end(command, status=None, cwd=tmp_path)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_kernel_of_the_documentation(library):
    page = Path(__file__).parents[2] / "docs" / "templates.md"
    (template,) = re.findall(r"```jinja\n(.*?)```", page.read_text(), re.DOTALL)
    x = np.arange(10, dtype=np.float16)
    library(template, threads=256).scale(10, ctypes.c_float(0.5), pointer(x))
    np.testing.assert_array_equal(x, np.arange(10) / 2)
