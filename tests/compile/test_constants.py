"""Variables of device code, held against the arguments that are copied to them."""

import random

import numpy as np
import pytest

from support.recipes import make_recipe
from tilusbuild.compile.arguments import (
    count_copied_bytes,
    find_constants_problem,
    mangle_variable_name,
)
from tilusbuild.signature.model import Argument
from tilusbuild.signature.parsing import parse_argument
from tilusbuild.tune.inputs import get_numpy_type

KERNEL = 'extern "C" __global__ void saxpy(float *x) {\n  __constant__;\n}\n'


def recipe(source, **constants):
    arguments = {name: (type_, {"constant": c}) for name, (type_, c) in constants.items()}
    return make_recipe(arguments={"x": "f32*[4]", **arguments}, out=(), source=source)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("\n__constant__ float f[3];\n" + KERNEL, 2),
        ("// __constant__ float f[3];\n/* __constant__ f */ __device__\nint a[2],\nf[3];\n", 4),
        ("namespace n {\n__constant__ float f[3];\n}\n" + KERNEL, 2),
        ('#include "f.cuh"\n\n' + KERNEL, 3),
        ("__constant__ float g = f(3);\n\nint f;\n" + KERNEL, 4),
        ('#include "f.cuh"\n', None),
    ],
)
def test_a_mistake_is_shown_where_the_variable_is_declared_else_where_the_kernel_is(
    source: str, line: int | None
) -> None:
    problem = find_constants_problem(recipe(source, f=("f32*[4]", "f")), {"f": 12})
    message = '"f" has 12 bytes; the argument "f" is declared f32*[4], which has 16'
    assert problem == (message if line is None else f"source.cu:{line}: error: {message}")


def test_a_size_of_the_call_is_left_to_the_call() -> None:
    sized_recipe = make_recipe(arguments={"f": ("f32*[n]", {"constant": "f"}), "n": "i32"}, out=())
    assert find_constants_problem(sized_recipe, {"f": 12}) is None
    problem = find_constants_problem(sized_recipe, {"g": 12, "a": 1}) or ""
    assert problem.endswith('the code has no variable "f" for the argument "f" (it has: a, g)')


def test_bytes_are_those_of_an_array_of_the_shape() -> None:
    draw = random.Random(7)
    for _ in range(200):
        dtype = draw.choice(["bool", "i8", "u16", "f16", "bf16", "i32", "f32", "u64", "f64"])
        shape = [draw.randrange(5) for _ in range(draw.randrange(4))]
        argument = parse_argument(
            Argument("f", f"{dtype}*[{', '.join(map(str, shape))}]", constant="f")
        )
        assert count_copied_bytes(argument) == np.zeros(shape, get_numpy_type(dtype)).nbytes
    for dtype, size in (("struct P { u8 a; f64 b }", 16), ("i16", 2)):
        assert count_copied_bytes(parse_argument(Argument("p", dtype, constant="p"))) == size


def test_names_of_variables_are_those_of_the_compilers() -> None:
    assert mangle_variable_name("d_filter") == mangle_variable_name("::d_filter") == "d_filter"
    assert mangle_variable_name("conv::nn::filter") == "_ZN4conv2nn6filterE"
