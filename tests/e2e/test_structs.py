"""Structs that kernels take by value: what may be passed for one, and that its layout is the one
that the source has."""

import ctypes

import numpy as np
import pytest

import tilusbuild
from support.project import NewProject, Project, head

tvm_ffi = pytest.importorskip("tvm_ffi")

PARAMS = "struct Params { f32 alpha; i64 n; u8 flags[3]; void* log; f16 half; f64 beta }"
MANIFEST = (
    head("host")
    + f"""\
[script.take]
template = "take.cpp.j2"
kernel = "take"
[script.take.args]
p = "{PARAMS}"
small = "struct Small {{ i32 x; f32 y; }}"
x = {{ type = "f64*[n]", out = true }}
n = "i32"
[script.take.space]
variant = [0, 1]
[script.take.dispatch]
keys = ["n"]
table = [{{ when = "n > 8", use = {{ variant = 1 }} }}]
"""
)
SOURCE = """\
struct Params {
  float alpha; long long n; unsigned char flags[3]; int *log; unsigned short half; double beta;
};
struct Small { int x; float y; };
extern "C" void take(Params p, Small small, double *x, int n) {
  const double all[] = {p.alpha, (double)p.n, (double)p.flags[2], (double)p.half,
                        p.beta, (double)small.x, small.y, {{ variant }}};
  for (int i = 0; i < 8 && i < n; i++) x[i] = all[i];
  if (p.log) ++*p.log;
}
"""


class Params(ctypes.Structure):
    _fields_ = (
        ("alpha", ctypes.c_float),
        ("n", ctypes.c_int64),
        ("flags", ctypes.c_uint8 * 3),
        ("log", ctypes.c_void_p),
        ("half", ctypes.c_uint16),
        ("beta", ctypes.c_double),
    )


RECORD = np.dtype(
    [
        ("alpha", "f4"),
        ("n", "i8"),
        ("flags", "u1", 3),
        ("log", "u8"),
        ("half", "f2"),
        ("beta", "f8"),
    ],
    align=True,
)
NUMBERS = {
    "alpha": 1.5,
    "n": -(1 << 40),
    "flags": [1, 2, 200],
    "log": None,
    "half": 1.0,
    "beta": 0.1,
}
SMALL = {"x": -7, "y": 0.25}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    files = {"tilus.toml": MANIFEST, "take.cpp.j2": SOURCE}
    return Project.built(tmp_path_factory.mktemp("structs"), files)


def expected(variant: int) -> list[float]:
    return [1.5, -float(1 << 40), 200.0, 0x3C00, 0.1, -7.0, 0.25, variant]


def test_every_kind_of_value_arrives(built: Project) -> None:
    take = tilusbuild.load("take", where=str(built.cache))
    calls = ctypes.c_int(0)
    record = np.zeros((), RECORD)
    for name, value in NUMBERS.items():
        record[name] = 0 if value is None else value
    structure = Params(1.5, -(1 << 40), (ctypes.c_uint8 * 3)(1, 2, 200), None, 0x3C00, 0.1)
    logged = {**NUMBERS, "log": ctypes.addressof(calls), "beta": np.float64(0.1)}
    unlogged = {**NUMBERS, "log": ctypes.c_void_p()}
    values = (NUMBERS, record, record[()], structure, bytes(structure), bytearray(record), logged)
    for value in (*values, unlogged):
        for size, variant in ((8, 0), (9, 1)):
            x = np.zeros(size)
            take(value, SMALL, x)
            assert x[:8].tolist() == expected(variant)
            take(x=x, small=bytes(8), p=value)  # as small as tvm-ffi keeps in the value itself
            assert x[5:7].tolist() == [0, 0]
    assert calls.value == 4


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (bytes(47), ValueError, "got 47 bytes; it has 48"),
        (3, TypeError, "got int: give a mapping"),
        ({**NUMBERS, "beta": "x"}, ValueError, "got 'x' for f64 beta"),
        ({**NUMBERS, "flags": [1, 2]}, ValueError, "got 2 elements for u8 flags[3]"),
        ({**NUMBERS, "flags": [1, 2, 300]}, ValueError, "for u8 flags[3]"),
        ({**NUMBERS, "gamma": 1}, ValueError, "got a mapping with gamma; its members are alpha"),
        ({"alpha": 1}, ValueError, "got a mapping without n, flags, log, half, beta"),
        (
            np.zeros((), np.dtype([(n, RECORD.fields[n][0]) for n in RECORD.names])),  # type: ignore[index,union-attr]
            ValueError,
            'got "n" of 8 bytes at 4, where "n" is 8 bytes at 8 (NumPy: align=True)',
        ),
        (np.zeros(2, RECORD), TypeError, "got ndarray: give a mapping"),
        (np.zeros((), RECORD[["alpha", "n"]]), ValueError, "got 2 members; it has 6"),
    ],
)
def test_what_is_of_another_layout_is_refused(built, value, error, message) -> None:
    take = tilusbuild.load("take", where=str(built.cache))
    with pytest.raises(error) as caught:
        take(value, SMALL, np.zeros(8))
    assert str(caught.value).startswith(f'take: argument "p": expected {PARAMS}, ')
    assert message in str(caught.value)


def test_the_library_itself_takes_bytes(built: Project) -> None:
    (path, *_) = built.cache.glob("programs/*/module/lib.so")
    launch = tvm_ffi.load_module(str(path))["launch"]
    x = np.zeros(8)
    launch(bytes(48), bytes(8), x)
    with pytest.raises(TypeError, match=r'argument "p" \(1st\): .*got int 3: pass its bytes'):
        launch(3, bytes(8), x)
    with pytest.raises(ValueError, match=r"got bytes of 49, where it has 48"):
        launch(bytes(49), bytes(8), x)
    plain = ctypes.CDLL(str(path)).launch
    structure, address = Params(beta=0.5), ctypes.c_void_p(x.ctypes.data)
    assert plain(ctypes.byref(structure), bytes(8), address, 8, None) == 0
    assert x[4] == 0.5
    assert plain(None, bytes(8), address, 8, None) == -1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("float alpha; long long n", "long long n; float alpha", "Params is declared with f32"),
        ("double beta", "double beta, gamma", "Params is declared with 48 bytes"),
        ("double beta", "float beta, gamma", "Params is declared with f64 beta at byte 40"),
        ("Small small, ", 'Small {{ "*" }}small, ', 'parameter 2 of "take"'),
    ],
)
def test_another_struct_does_not_compile(new_project, old, new, message) -> None:
    project = new_project(MANIFEST, {"take.cpp.j2": SOURCE})
    project.edit("take.cpp.j2", old, new)
    if "*" in new:
        project.edit("take.cpp.j2", "small.x", "small->x")
        project.edit("take.cpp.j2", "small.y", "small->y")
    assert message in project.run("build", status=1).err


@pytest.mark.nvcc
def test_a_kernel_takes_structs(new_project: NewProject) -> None:
    manifest = MANIFEST.replace('arch = "cpu"', 'arch = "sm_90a"').replace("take.cpp", "take.cu")
    manifest += "[script.take.launch]\ngrid = [1]\nblock = [32]\n"
    source = SOURCE.replace('extern "C" void', 'extern "C" __global__ void')
    project = new_project(manifest, {"take.cu.j2": source})
    assert project.compiled() == 2
    assert project.compiled("--device-compiler", "nvrtc") == 2
    project.edit("take.cu.j2", "double beta", "float beta, gamma")
    error = project.run("build", status=1).err
    assert "Params is declared with f64 beta at byte 40" in error
    assert project.build("--device-compiler", "nvrtc", status=1)["failed"] == 2
