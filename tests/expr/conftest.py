"""A C compiler for many expressions at once."""

import ctypes
import itertools
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tilusbuild.expr import Expr, Value, write_c_prelude

INTEGERS = ("a", "b", "arch.c")
C_TYPES = {"x": "float", "p": "bool"}
Outcome = tuple[int, Value]  # the error code, 0 for none; the value
Compiled = Callable[[int, Mapping[str, Value]], Outcome]


@pytest.fixture
def compile_c(tmp_path: Path) -> Callable[[list[Expr]], Compiled]:
    """Compiles expressions to one library: (number of the expression, point) → outcome."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    batches = itertools.count()

    def build(expressions: list[Expr]) -> Compiled:
        lines = [write_c_prelude()]
        names = {"a": "a", "b": "b", "arch.c": "c", "x": "x", "p": "p"}
        kinds = [expression.find_c_type(C_TYPES) for expression in expressions]
        for number, expression in enumerate(expressions):
            result = "double" if kinds[number] == "float" else "int64_t"
            lines.append(
                f"{result} f{number}(int64_t a, int64_t b, int64_t c, double x, int p, int *e)"
                "{ tb_expr_error = 0;"
                f" {result} r = {expression.to_c(names, C_TYPES)}; *e = tb_expr_error; return r; }}"
            )
        batch = next(batches)
        source, library = tmp_path / f"forms{batch}.c", tmp_path / f"forms{batch}.so"
        source.write_text("\n".join(lines))
        flags = ["-std=c11", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
        quiet = ["-Wno-unused-parameter", "-Wno-tautological-compare", "-Wno-type-limits"]
        quiet += ["-Wno-bool-compare", "-Wno-int-in-bool-context", "-Wno-parentheses"]
        quiet += ["-Wno-bool-operation"]
        command = [compiler, *flags, *quiet, str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        loaded = ctypes.CDLL(str(library))

        def run(number: int, point: Mapping[str, Value]) -> Outcome:
            function = loaded[f"f{number}"]
            function.restype = ctypes.c_double if kinds[number] == "float" else ctypes.c_int64
            error = ctypes.c_int(0)
            integers_ = [ctypes.c_int64(int(point[name])) for name in INTEGERS]
            x, p = ctypes.c_double(float(point["x"])), ctypes.c_int(int(point["p"]))
            value = function(*integers_, x, p, ctypes.byref(error))
            return error.value, value

        return run

    return build
