"""An integer argument takes the values of its type and no other, whoever calls: one rule.

A choice of a program, and nothing else, is made in int64: a u64 that a dispatch key or a rule reads
is refused above it, and not taken for another size.
"""

import ctypes
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilusbuild
from support.processes import run_to_end
from support.project import Project, head
from tilusbuild.errors import InputError
from tilusbuild.runtime.dtypes import DTYPES, DataType
from tilusbuild.tune.bench.devices import find_c_type
from tilusbuild.tune.inputs import get_numpy_type

INTEGERS = [dtype for dtype in DTYPES.values() if dtype.kind in ("int", "uint")]
INT64_MAX = 2**63 - 1
EDGES = sorted({e + d for t in INTEGERS for e in (t.limits or ()) for d in (-1, 0, 1)})

ARGS = ", ".join(f'{t.name} = "{t.name}"' for t in INTEGERS)
DISPATCH = {
    "plain": "",
    "keyed": '[script.keyed.dispatch]\nkeys = ["u64"]\n',
    "ruled": """\
[script.ruled.dispatch]
keys = ["i64"]
table = [{ when = "u64 % 2 == 1 and i8 == 1", use = { variant = 1 } }]
""",
}
MANIFEST = head() + "".join(
    f"""\
[script.{name}]
template = "taken.cpp.j2"
kernel = "taken"
args = {{ y = {{ type = "u64*[{len(INTEGERS)}]", out = true }}, {ARGS} }}
space = {{ variant = [0, 1] }}
{dispatch}"""
    for name, dispatch in DISPATCH.items()
)
PARAMETERS = ", ".join(f"{t.c} a_{t.name}" for t in INTEGERS)
TEMPLATE = f"""\
#include <cstdint>
extern "C" void taken(uint64_t *y, {PARAMETERS}) {{
  const uint64_t bits[] = {{{", ".join(f"(uint64_t)a_{t.name}" for t in INTEGERS)}}};
  for (int i = 0; i < {len(INTEGERS)}; i++) y[i] = bits[i];
}}
"""

Call = Callable[[dict[str, Any]], list[int]]


def call_kernel(kernel: Any, values: dict[str, Any]) -> list[int]:
    """What a kernel of Python gets, as bits."""
    y = np.zeros(len(INTEGERS), "u8")
    kernel(y, *values.values())
    return [int(number) for number in y]


def plainly(path: str) -> Call:
    """The plain C call of a library. C's own conversions come before it."""
    library = ctypes.CDLL(path)
    library.launch_error.restype = ctypes.c_char_p
    types = [np.ctypeslib.as_ctypes_type(np.dtype(t.numpy)) for t in INTEGERS]

    def call(values: dict[str, Any]) -> list[int]:
        y = (ctypes.c_uint64 * len(INTEGERS))()
        arguments = [kind(int(value)) for kind, value in zip(types, values.values(), strict=True)]
        if library.launch(y, *arguments, None):
            raise ValueError(library.launch_error().decode())
        return list(y)

    return call


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Call]]:
    """For each script the ways to call it, by their names."""
    files = {"tilus.toml": MANIFEST, "taken.cpp.j2": TEMPLATE, ".git": ""}
    project = Project.built(tmp_path_factory.mktemp("integers"), files)
    calls_by_script: dict[str, dict[str, Call]] = {}
    for script in DISPATCH:
        kernel = tilusbuild.load(script, where=project.cache)
        program = project.cache / "programs" / kernel.programs[0].hash / "module" / "lib.so"
        ways: dict[str, Call] = {
            "Python": partial(call_kernel, kernel),
            "C, one program": plainly(str(program)),
        }
        for path in project.cache.glob(f"scripts/{script}/*/dispatch/lib*.so"):
            ways["C, dispatcher"] = plainly(str(path))
        calls_by_script[script] = ways
    return calls_by_script


values = st.one_of(st.sampled_from(EDGES), st.integers(-(2**65), 2**65))


@given(st.sampled_from(INTEGERS), values, st.sampled_from([*DISPATCH]))
def test_every_value_of_the_type_arrives_and_no_other(callers, dtype, value, script) -> None:
    low, high = dtype.limits
    is_held = low <= value <= high
    beyond_choice = dtype.name == "u64" and script != "plain" and value > INT64_MAX
    values = {t.name: value if t is dtype else 1 for t in INTEGERS}
    for name, call in callers[script].items():
        if is_held and (not beyond_choice or name == "C, one program"):
            assert call(values) == [v % 2**64 for v in values.values()], name
        elif is_held or name == "Python":  # C converts all others before the call
            with pytest.raises(ValueError, match=f'argument "{dtype.name}"'):
                call(values)


# The table of element types against NumPy, ml_dtypes, struct and ctypes.
KINDS = {"bool": ("b", 6), "int": ("i", 0), "uint": ("u", 1)}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_each_type_is_that_of_numpy_struct_and_c(dtype: DataType) -> None:
    if dtype.c != "void":
        assert ctypes.sizeof(find_c_type(dtype.name, is_tensor=False)) == dtype.bytes
    if dtype.lanes != 1:
        with pytest.raises(InputError, match=f"no NumPy arrays of {dtype.name}"):
            get_numpy_type(dtype.name)
        return
    known = get_numpy_type(dtype.name)
    assert (known.name, known.itemsize) == (dtype.numpy, dtype.bytes)
    if dtype.kind in KINDS:
        assert (known.kind, dtype.code) == KINDS[dtype.kind]
    if dtype.struct:
        assert struct.calcsize(f"<{dtype.struct}") == dtype.bytes
        assert np.dtype(dtype.struct) == known
    info = np.iinfo(known) if dtype.kind in ("int", "uint") else None
    assert dtype.limits == (info and (info.min, info.max))


@pytest.mark.nvcc
def test_cuda_has_each_type_in_its_size(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc was found")
    headers = "".join(f"#include <cuda_{name}.h>\n" for name in ("fp16", "bf16", "fp8", "fp4"))
    sizes = (f"static_assert(sizeof({d.cuda}) == {d.bytes});\n" for d in DTYPES.values())
    (tmp_path / "sizes.cu").write_text(headers + "".join(sizes))
    command = [nvcc, "-cubin", "-arch=sm_90a", "sizes.cu"]
    run_to_end(command, cwd=tmp_path)
