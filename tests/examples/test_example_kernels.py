"""The examples' kernels compute what ref.py says on every way through them: emulated, since a GPU
is rare, and the cpu's for real."""

import ctypes

import numpy as np
import pytest

from support.cuda_on_cpu.emulator import Kernel, KernelError, TensorMap
from support.cuda_on_cpu.halves import narrow, widen
from support.paths import ROOT

ALPHA = np.float32(0.5)
SCHEDULES = {
    "default": {
        "dtype": "f16",
        "block_m": 128,
        "block_n": 128,
        "block_k": 32,
        "warps_m": 2,
        "stages": 4,
        "stage_output": True,
    },
    "one warp high": {"dtype": "bf16", "block_m": 32, "stages": 5, "stage_output": False},
    "one warp wide": {"dtype": "bf16", "block_n": 32, "block_k": 64, "stage_output": True},
    "large": {"dtype": "f16", "block_m": 256, "block_k": 64, "stage_output": False},
}


def matrices(m, n, k, dtype):
    rng = np.random.default_rng(m + n + k)
    a = narrow(rng.standard_normal((m, k)), dtype)
    b = narrow(rng.standard_normal((k, n)), dtype)
    return a, b, np.zeros((m, n), a.dtype)


def check(gemm, c, a, b, dtype):
    expected = gemm.reference.gemm(widen(a), widen(b), None, ALPHA)
    # Half a unit in the last place of the result's type, and the sums' own rounding.
    tolerance = {"f16": 2**-11, "bf16": 2**-8}[dtype]
    np.testing.assert_allclose(widen(c), expected, rtol=tolerance, atol=1e-4)


def check_launch(gemm, launch, program, kernel, m, n, k, **options):
    dtype = program.values["dtype"]
    a, b, c = matrices(m, n, k, dtype)
    arguments = [a, b, c, np.int32(m), np.int32(n), np.int32(k), ALPHA]
    done = launch(program, kernel, arguments, m=m, n=n, k=k, **options)
    check(gemm, done.tensors[2], a, b, dtype)
    assert done.ldmatrix_conflicts == 0
    assert done.copy_conflicts == 0


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_every_way_through_the_kernel(gemm, emulate, launch, schedule):
    program = gemm.programs("gemm", "hopper", **schedule)[0]
    kernel = emulate(program)
    block_m, block_n, block_k = (program.values[f"block_{d}"] for d in "mnk")

    def check_sizes(m, n, k, **options):
        check_launch(gemm, launch, program, kernel, m, n, k, **options)

    # Several tiles, with an edge each way; more steps along k than stages.
    check_sizes(block_m + 16, block_n + 8, block_k * 6 + 8)
    # Copies land at once, warps run in another order: the barriers hold.
    check_sizes(block_m, block_n, block_k * 6, late_copies=False, order="backward")
    check_sizes(block_m, block_n, block_k * 6, order="random", seed=7)
    # Fewer steps than stages; no step at all.
    check_sizes(24, 40, 8)
    check_sizes(24, 40, 0)
    # Rows that are not whole 16-byte chunks, an odd n, and tensors that are slices.
    check_sizes(37, 45, 51)
    check_sizes(40, 46, 40)
    check_sizes(40, 40, 40, shift=2)


def test_tiles_cover_the_matrix_in_groups(gemm, emulate, launch):
    """More rows of tiles than one group has, and a last group that is not full."""
    program = gemm.programs("gemm", "ampere", dtype="f16", block_m=32, stage_output=False)[0]
    assert program.values["group_m"] == 8
    check_launch(
        gemm, launch, program, emulate(program), 32 * 10, program.values["block_n"] * 3, 16
    )


@pytest.mark.parametrize(("dtype", "block_m", "block_n"), [("f16", 128, 256), ("bf16", 256, 64)])
def test_hoppers_way_through_the_kernel(gemm, emulate, dtype, block_m, block_n):
    """Given tiles that land at once, or as late as is allowed; edges; and blocks that take several
    tiles, with fewer steps along k than stages, and more."""
    values = {"dtype": dtype, "block_m": block_m, "block_n": block_n}
    program = gemm.programs("gemm_tma", "hopper", **values)[0]
    kernel = emulate(program)
    stages = program.values["stages"]
    for m, n, k, blocks, options in (
        (block_m + 16, block_n + 8, 64 * stages + 72, 4, {}),
        (block_m, block_n * 2, 128, 1, {"order": "backward"}),
        (block_m * 2, block_n, 64 * stages + 8, 1, {"late_copies": False, "order": "random"}),
    ):
        a, b, c = matrices(m, n, k, dtype)
        _, block, smem = program.geometry(m=m, n=n, k=k)
        boxes = [(64, block_m), (64, 64), (64, 64)]
        maps = [TensorMap(i, tensor, boxes[i]) for i, tensor in enumerate((a, b, c))]
        arguments = [*maps, np.int32(m), np.int32(n), np.int32(k), ALPHA]
        done = kernel.launch([blocks], block, smem, arguments, mapped=(a, b, c), **options)
        check(gemm, done.tensors[2], a, b, dtype)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("sizes", [(16, 64, 128), (37, 45, 51), (65, 33, 130)])
def test_on_the_cpu(gemm, native, dtype, sizes):
    m, n, k = sizes
    a, b, c = matrices(m, n, k, dtype)
    program = gemm.default("gemm", "host", dtype=dtype)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (a, b, c)]
    native(program)(*pointers, *sizes, ctypes.c_float(float(ALPHA)))
    check(gemm, c, a, b, dtype)


# examples/attention: the kernel emulated, against NumPy.
def arguments(heads, kv_heads, length, d):
    rng = np.random.default_rng(length)
    q = rng.standard_normal((heads, d), dtype=np.float32)
    k, v = rng.standard_normal((2, length, kv_heads, d), dtype=np.float32)
    sizes = [np.int32(heads), np.int32(kv_heads), np.int32(length), np.float32(d**-0.5)]
    return [q, k, v, np.zeros_like(q), *sizes]


@pytest.mark.parametrize(("head_dim", "warps", "rows"), [(64, 2, 4), (128, 8, 1)])
def test_decode(attention, emulate, launch, head_dim, warps, rows):
    values = {"head_dim": head_dim, "warps": warps, "rows": rows}
    (program,) = attention.programs("decode", "ampere", **values)
    kernel = emulate(program)
    # Positions that are no whole rounds of the warps, and fewer than there are warps.
    for heads, kv_heads, length in [(4, 2, 37), (2, 2, 1)]:
        call_arguments = arguments(heads, kv_heads, length, head_dim)
        result = launch(program, kernel, call_arguments, heads=heads).tensors[3]
        expected = attention.reference.decode(*call_arguments[:4], call_arguments[7])
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


# examples/indices: rows by their numbers, and counts that are added to.
@pytest.mark.parametrize("target", ["ampere", "host"])
def test_gather(indices, emulate, launch, native, target):
    program = indices.programs("gather", target)[0]
    rng = np.random.default_rng(1)
    table, rows = rng.standard_normal((7, 70), dtype=np.float32), rng.integers(0, 7, 9, np.int32)
    call_arguments = [
        table,
        rows,
        np.zeros((9, 70), np.float32),
        np.int32(7),
        np.int32(9),
        np.int32(70),
    ]
    result = call_program(program, emulate, launch, native, call_arguments, n=9)[2]
    np.testing.assert_array_equal(result, indices.reference.gather(table, rows))


@pytest.mark.parametrize(
    ("target", "items"), [("ampere", 1), ("ampere", 4), ("host", 1), ("host", 4)]
)
def test_histogram(indices, emulate, launch, native, target, items):
    program = indices.programs("histogram", target, items=items)[0]
    x = np.random.default_rng(2).integers(0, 50, 1001, np.int32)
    counts = np.arange(50, dtype=np.int32)
    call_arguments = [x, counts.copy(), np.int32(1001), np.int32(50)]
    result = call_program(program, emulate, launch, native, call_arguments, n=1001, bins=50)[1]
    np.testing.assert_array_equal(result, indices.reference.histogram(x, counts))


# examples/serving: keys and values in pages, and blocks that take turns by a lock.
@pytest.mark.parametrize(("target", "warps"), [("ampere", 1), ("ampere", 4), ("host", 1)])
def test_paged_decode(serving, emulate, launch, native, target, warps):
    (program,) = serving.programs("paged_decode", target, warps=warps)
    rng = np.random.default_rng(4)
    q = rng.standard_normal((2, 4, 128), dtype=np.float32)
    k, v = rng.standard_normal((2, 5, 16, 2, 128), dtype=np.float32)
    pages, lengths = rng.integers(0, 5, (2, 3), np.int32), np.array([37, 1], np.int32)
    sizes = [*map(np.int32, (2, 4, 2, 5, 3)), np.float32(0.1)]
    call_arguments = [q, k, v, pages, lengths, np.full_like(q, np.nan), *sizes]
    result = call_program(program, emulate, launch, native, call_arguments, heads=4, batch=2)[5]
    expected = serving.reference.paged_decode(q, k, v, pages, lengths, 0.1)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("target", "split_k"), [("ampere", 1), ("ampere", 8), ("host", 1), ("host", 16)]
)
def test_linear(serving, emulate, launch, native, target, split_k):
    program = serving.programs("linear", target, split_k=split_k)[0]
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((3, 37), dtype=np.float32), rng.random((37, 130), np.float32)
    locks, y = np.zeros(9, np.int32), np.full((3, 130), np.nan, np.float32)
    call_arguments = [x, w, y, locks, *map(np.int32, (3, 130, 37, 9))]
    results = call_program(program, emulate, launch, native, call_arguments, m=3, n=130)
    expected = serving.reference.linear(x, w, np.zeros(9, np.int32))
    for result, want in zip(results[2:4], expected, strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)


def call_program(program, emulate, launch, native, call_arguments, **dimensions):
    """The arguments after a call of a program, emulated or of the host."""
    if program.target.kind == "cuda":
        return launch(program, emulate(program), call_arguments, **dimensions).tensors
    pointers = [
        a.ctypes.data_as(ctypes.c_void_p)
        if a.ndim
        else ctypes.c_float(float(a))
        if a.dtype.kind == "f"
        else int(a)
        for a in map(np.asarray, call_arguments)
    ]
    native(program)(*pointers)
    return call_arguments


# examples/hopper: its host function against NumPy; tests/gpu calls the kernel.
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 1000)])
def test_the_host_function(hopper, native, rows, columns):
    function = native(hopper.default("rms_norm", "host"))
    x = np.random.default_rng(1).standard_normal((rows, columns), dtype=np.float32)
    y = np.zeros_like(x)
    function(
        x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), rows, columns,
        ctypes.c_float(1e-5),
    )  # fmt: skip
    np.testing.assert_allclose(y, hopper.reference.rms_norm(x, y, 1e-5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 1000, 16_384])
def test_shared_memory_holds_the_slices_of_all_columns(hopper, columns):
    for program in hopper.programs("rms_norm", "hopper"):
        values = program.values
        grid, block, smem = program.geometry(rows=33, columns=columns)
        row_bytes, rest = divmod(smem, values["tile_rows"] * 4)
        assert rest == 0
        assert row_bytes % values["chunk"] == 0
        assert row_bytes * values["cluster"] >= columns
        assert grid == [values["cluster"], -(-33 // values["tile_rows"])]
        assert block == [32 * values["tile_rows"]]


# examples/marlin: the kernels of vLLM's generator, by their C++ names, and their numbers.
EXAMPLE = ROOT / "examples/marlin"


def generated() -> set[tuple[int, int, int, int, int]]:
    """The loops of vLLM's generate_kernels.py, for 4-bit weights."""
    blocks = [(128, 128, 256), (64, 256, 256), (64, 128, 128), (128, 64, 128)]
    return {
        (group, int(16 * size), k, n, threads)
        for group in (-1, 2, 4, 8)
        for size in (0.5, 1, 2, 3, 4)
        for k, n, threads in blocks
        if threads != 256 or (k, n) == ((128, 128) if size <= 1 else (64, 256))
    }


def test_the_space_is_that_of_the_generator(marlin):
    names = ("group_blocks", "thread_m", "thread_k", "thread_n", "threads")
    actual = {tuple(p.values[name] for name in names) for p in marlin.programs("gemm", "ampere")}
    assert actual == generated()
    assert len(actual) == 60


def test_the_numbers(tmp_path):
    lines = (EXAMPLE / "src/w4a16.cuh").read_text().splitlines()
    header = "\n".join(line for line in lines if not line.startswith("#"))
    wrapper = """
extern "C" __global__ void __launch_bounds__(128)
gemm(const float *a, const int *b, const float *scales, float *c, int m, int n, int k, int groups) {
  w4a16::tile<float, 128, 8, 64, 32, 2>(a, b, scales, c, m, n, k, groups);
}
"""
    kernel = Kernel(header + wrapper, "gemm", str(tmp_path))
    m, n, k = 5, 72, 64
    rng = np.random.default_rng(1)
    a = rng.standard_normal((m, k), dtype=np.float32)
    q = rng.integers(0, 16, (k, n), dtype=np.int64)
    scales = rng.standard_normal((2, n), dtype=np.float32)
    shifts = 4 * np.arange(8)[None, :, None]
    words = (q.reshape(k // 8, 8, n) << shifts).sum(axis=1)
    b = words.astype(np.uint32).view(np.int32)
    sizes = [np.int32(m), np.int32(n), np.int32(k), np.int32(2)]
    c = np.zeros((m, n), np.float32)
    done = kernel.launch([2, 1, 1], [128, 1, 1], 0, [a, b, scales, c, *sizes])
    expected = a @ ((q - 8) * np.repeat(scales, 32, axis=0)).astype(np.float32)
    np.testing.assert_allclose(done.tensors[3], expected, rtol=1e-4, atol=1e-4)


# The quickstart's kernels compute what ref.py says: CUDA emulated, cpu for real.
def saxpy_arguments(n):
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, n), dtype=np.float32)
    return [np.float32(1.5), x, y, np.int64(n)]


def rms_norm_arguments(m, n):
    rng = np.random.default_rng(n)
    x = rng.standard_normal((m, n), dtype=np.float32)
    weight = rng.standard_normal(n, dtype=np.float32)
    return [x, weight, np.zeros_like(x), np.int32(m), np.int32(n), np.float32(1e-5)]


@pytest.mark.parametrize("schedule", [{"vector": 1, "unroll": 4}, {"vector": 4, "unroll": 2}])
def test_saxpy(quickstart, emulate, launch, schedule):
    program = quickstart.programs("saxpy", "sm_80", threads=256, **schedule)[0]
    kernel = emulate(program)
    # Whole tiles, an edge, one element, and arrays that begin between two vectors.
    for n, shift in [(4096, 0), (5000, 0), (1, 0), (3001, 4)]:
        arguments = saxpy_arguments(n)
        result = launch(program, kernel, arguments, n=n, shift=shift).tensors[1]
        expected = quickstart.reference.saxpy(*arguments[:3])
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "schedule",
    [
        {"threads": 256, "rows": 8, "vector": 2, "keep": 0},
        {"threads": 256, "rows": 2, "vector": 4, "keep": 4},
        {"threads": 128, "rows": 1, "vector": 4, "keep": 4},
    ],
)
def test_rms_norm(quickstart, emulate, launch, schedule):
    (program,) = quickstart.programs("rms_norm", "sm_90a", **schedule)
    kernel = emulate(program)
    # Rows shorter and longer than what is kept, rows that are no whole vectors, and a slice.
    for m, n, shift in [(9, 64, 0), (3, 4096, 0), (9, 333, 0), (2, 64, 4)]:
        arguments = rms_norm_arguments(m, n)
        x, weight, y, _, _, eps = arguments
        expected = quickstart.reference.rms_norm(x, weight, y, eps)
        for order in ("forward", "backward"):
            sizes = {"m": m, "n": n, "shift": shift}
            result = launch(program, kernel, arguments, order=order, **sizes).tensors[2]
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


@pytest.mark.parametrize("n", [0, 1, 1003])
def test_saxpy_on_the_cpu(quickstart, native, n):
    for program in quickstart.programs("saxpy", "cpu"):
        a, x, y, _ = saxpy_arguments(n)
        expected = quickstart.reference.saxpy(a, x, y)
        native(program)(ctypes.c_float(a), pointer(x), pointer(y), ctypes.c_int64(n))
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_rms_norm_on_the_cpu(quickstart, native):
    for program in quickstart.programs("rms_norm", "cpu"):
        x, weight, y, m, n, eps = rms_norm_arguments(7, 1003)
        native(program)(
            pointer(x), pointer(weight), pointer(y), int(m), int(n), ctypes.c_float(eps)
        )
        expected = quickstart.reference.rms_norm(x, weight, y, eps)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6)


# The emulator finds what it is there to find: each test breaks a kernel in one way.
@pytest.fixture
def run(gemm, launch, tmp_path):
    """Launches the default GEMM with one piece replaced: (result, expected, counts)."""
    program = gemm.default("gemm", "hopper", dtype="f16")

    def broken(old, new, **options):
        source = program.source
        assert old in source
        kernel = Kernel(source.replace(old, new), program.script, str(tmp_path))
        rng = np.random.default_rng(0)
        m, n, k = 128, 128, 320
        a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
        c = np.zeros((m, n), np.float16)
        arguments = [a, b, c, np.int32(m), np.int32(n), np.int32(k), np.float32(1)]
        done = launch(program, kernel, arguments, m=m, n=n, k=k, **options)
        return done.tensors[2], a.astype(np.float32) @ b.astype(np.float32), done

    return broken


BARRIER = "    __syncthreads();  // this stage"


def test_a_barrier_that_is_missing(run):
    result, expected, _ = run(BARRIER, "    // this stage", late_copies=False)
    assert not np.allclose(result, expected, rtol=1e-2, atol=1e-2)


def test_bank_conflicts(run):
    result, expected, done = run("(chunk ^ ", "(chunk + 0 * ")
    np.testing.assert_allclose(result, expected, rtol=1e-2, atol=1e-2)
    assert done.ldmatrix_conflicts > 0


def test_a_copy_from_outside(run):
    with pytest.raises(KernelError, match="reads outside of every buffer"):
        run("column + j * chunk;", "column + j * chunk + 8;")


def test_a_barrier_that_half_the_block_reaches(tmp_path):
    source = """
    extern "C" __global__ void k(float *x) {
      if (threadIdx.x < 32) { __syncthreads(); }
      x[threadIdx.x] = __shfl_xor_sync(0xffffffff, x[threadIdx.x], 1);
      if (threadIdx.x >= 32) __shfl_xor_sync(0xffffffff, 0, threadIdx.x < 48 ? 1 : 2);
    }
    """
    x = np.arange(64, dtype=np.float32)
    swapped = Kernel(source, "k", str(tmp_path)).launch([1], [64], 0, [x]).tensors[0]
    np.testing.assert_array_equal(swapped, x.reshape(-1, 2)[:, ::-1].reshape(-1))
