"""examples/library: one object a pair of types, one library, and the numbers of every pair."""

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.project import Project, needs_cxx

EXAMPLE = Path(__file__).parents[2] / "examples/library"
ROWS = {
    "f32": np.dtype([("v", "f4", 32)]),
    "i8": np.dtype([("v", "i1", 32)]),
    "q8": np.dtype([("scale", "f4"), ("v", "i1", 32)]),
    "q4": np.dtype([("scale", "f4"), ("v", "u1", 16)]),
}


def values(kind: str, blocks: np.ndarray) -> np.ndarray:
    """What blocks of a format stand for."""
    v = blocks["v"].astype("f4")
    if kind == "q4":
        v = np.concatenate([blocks["v"] & 15, blocks["v"] >> 4], -1).astype("f4") - 8
    return v * blocks["scale"][..., None] if "scale" in (blocks.dtype.names or ()) else v


def filled(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    array = np.zeros(shape, ROWS[kind])
    numbers = rng.integers(0, 100, array["v"].shape)
    array["v"] = numbers % 7 - 3 if kind == "f32" else numbers
    if "scale" in (array.dtype.names or ()):
        array["scale"] = rng.integers(1, 4, shape) / 2
    return array


@pytest.fixture
def project(tmp_path: Path) -> Project:
    copied = tmp_path / "library"
    shutil.copytree(EXAMPLE, copied, ignore=shutil.ignore_patterns(".cache", "build"))
    return Project(copied, {"TILUSBUILD_CACHE_DIR": str(copied / ".cache")})


def test_every_pair_computes_what_numpy_does(project: Project):
    needs_cxx()
    project.run("build", "rowdot", "--target", "host")
    run = ctypes.CDLL(str(project.directory / "build/host/librowdot.so")).rowdot_run
    rng = np.random.default_rng(3)
    for row in ROWS:
        for vec in ("f32", "i8"):
            rows, vector = filled(row, (5, 3), rng), filled(vec, (3,), rng)
            out = np.zeros(5, "f4")
            data = (array.ctypes.data_as(ctypes.c_void_p) for array in (rows, vector, out))
            assert run(row.encode(), vec.encode(), *data, 5, 3, None) == 0
            expected = (values(row, rows) * values(vec, vector)).sum((-1, -2))
            np.testing.assert_allclose(out, expected, rtol=1e-5)
    assert run(b"f16", b"f32", None, None, None, 0, 0, None) == -1


@pytest.mark.nvcc
@pytest.mark.slow
def test_the_device_code_of_every_pair_is_in_the_library(project: Project):
    project.run("build", "rowdot", "--target", "ampere")
    library = (project.directory / "build/ampere/librowdot.so").read_bytes()
    for row in ROWS:
        for vec in ("f32", "i8"):
            name = f"row_{row}"
            kernel = f"_Z14row_dot_kernelI{len(name)}{name}{len('vec_' + vec)}vec_{vec}E"
            assert kernel.encode() in library
