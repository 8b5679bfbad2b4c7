"""Generated inputs, types that NumPy does not have, and the comparison with a reference."""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.errors import InputError
from tilusbuild.runtime.dtypes import DTYPES, WHOLE
from tilusbuild.signature.model import Argument, Signature
from tilusbuild.signature.parsing import join_arguments, parse_argument
from tilusbuild.tune import functions, inputs, prepare
from tilusbuild.tune.bench import elements
from tilusbuild.tune.bench.work import CaseArgument
from tilusbuild.tune.prepare import OutputCheck


def declared(**arguments: Any) -> Signature:
    """A signature from texts; a tuple's second part says that the tensor is written."""
    parsed = []
    for name, text in arguments.items():
        is_out = not isinstance(text, str)
        parsed.append(parse_argument(Argument(name, text[0] if is_out else text, out=is_out)))
    return join_arguments(parsed)


GEMM = declared(
    a="f16*[m, k]", b="f16*[k, n]", c=("f16*[m, n]", "out"), m="i32", n="i32", k="i32", alpha="f32"
)


def test_inputs_have_the_declared_shapes_and_types() -> None:
    input_values = inputs.generate_inputs(GEMM, {"m": 3, "n": 5, "k": 7})
    assert list(input_values) == ["a", "b", "c", "alpha"]
    assert (input_values["a"].shape, input_values["a"].dtype) == ((3, 7), np.float16)  # type: ignore[union-attr]
    assert input_values["c"].shape == (3, 5)  # type: ignore[union-attr]
    assert isinstance(input_values["alpha"], float)


def test_a_missing_size_and_one_outside_its_range_are_named() -> None:
    with pytest.raises(InputError, match='no size for dimension "k"'):
        inputs.generate_inputs(GEMM, {"m": 3, "n": 5})
    x, n = Argument("x", "f32*[n]"), Argument("n", "i32", low=1, high=8)
    with pytest.raises(InputError, match=r"n=9 is outside its range 1\.\.8"):
        inputs.generate_inputs(join_arguments(map(parse_argument, (x, n))), {"n": 9})


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nan_stays_nan(dtype: str, sign: float) -> None:
    quiet = np.array([np.copysign(np.nan, sign)], np.float32)
    all_ones = np.array([0x7FFFFFFF], np.uint32).view(np.float32)  # rounding up would carry
    for nan in (quiet, all_ones):
        assert np.isnan(inputs.widen_floats(inputs.narrow_floats(nan, dtype))).all()


@pytest.mark.parametrize(
    ("dtype", "values", "largest"),
    [
        ("f8e4m3", [448.0, 1e9, math.inf], 448.0),
        ("f8e5m2", [57344.0, 1e9, math.inf], 57344.0),
        ("bf16", [3.4028235e38, math.inf], math.inf),
        ("f16", [1e9], math.inf),
    ],
)
def test_what_is_too_large(dtype: str, values: list[float], largest: float) -> None:
    for sign in (1, -1):
        typed = inputs.narrow_floats(np.array(values, np.float32) * sign, dtype)
        assert set(inputs.widen_floats(typed).tolist()) == {sign * largest}


def test_a_reference_is_called_by_name_or_in_order(tmp_path: Path) -> None:
    (tmp_path / "ref.py").write_text(
        "def by_name(alpha, a, b):\n    return alpha * (a @ b)\n"
        "def in_order(*arguments):\n    return arguments[3] * (arguments[0] @ arguments[1])\n"
    )
    input_values = inputs.generate_inputs(GEMM, {"m": 2, "n": 2, "k": 2})
    results = [
        functions.call_reference(
            functions.load_function(str(tmp_path), f"ref.py:{name}"), GEMM, input_values
        )["c"]
        for name in ("by_name", "in_order")
    ]
    assert np.array_equal(*results)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ref.py:gemn", "ref.py has no function gemn"),
        ("none.py:gemm", "no file none.py"),
        ("broken.py:f", "could not be loaded: SyntaxError"),
    ],
)
def test_a_reference_that_is_not_there(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "ref.py").write_text("def gemm(a):\n    return a\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(InputError, match=message):
        functions.load_function(str(tmp_path), text)


@pytest.mark.parametrize(
    ("definition", "message", "hint"),
    [
        ("gemm(a, b, c):\n    c[:] = a @ b", "returned nothing for c", "ends with `return c`"),
        ("gemm(a, b):\n    return a @ b, a", "returned 2 arrays", "one array"),
        ("gemm(a, b):\n    return {'c': a @ b}", "returned a dict for c", "ends with"),
        ("gemm(x, y):\n    return x @ y", "takes (x, y)", "name its parameters like arguments"),
        ("gemm(alphas, a, b):\n    return a @ b", "takes (alphas, a, b)", 'did you mean "alpha"?'),
        ("gemm(a): return a @ None", "the reference gemm failed: ", "None"),
    ],
)
def test_a_reference_that_fails_or_has_another_form_is_shown_at_its_line(
    tmp_path: Path, definition: str, message: str, hint: str
) -> None:
    (tmp_path / "ref.py").write_text(f"import math\n\n\ndef {definition}\n")
    function = functions.load_function(str(tmp_path), "ref.py:gemm")
    input_values = inputs.generate_inputs(GEMM, {"m": 2, "n": 2, "k": 2})
    with pytest.raises(InputError) as caught:
        functions.call_reference(function, GEMM, input_values)
    error = caught.value
    assert message in error.message
    assert hint in str(error.hint)
    assert (error.line, error.text) == (4, f"def {definition}".partition("\n")[0])


# Outputs compared element by element, with NumPy and without: the same answers.
FLOATS = ("f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2", "f8e8m0")
INTEGERS = tuple(name for name in DTYPES if name in WHOLE and name != "bool")


@given(
    dtype=st.sampled_from((*FLOATS, *INTEGERS)),
    data=st.data(),
    rtol=st.sampled_from((0.0, 1e-3, 0.5)),
)
def test_numpy_and_plain_python_agree(dtype: str, data: st.DataObject, rtol: float) -> None:
    size = data.draw(st.integers(1, 8)) * DTYPES[dtype].bytes
    got = data.draw(st.binary(min_size=size, max_size=size))
    want = data.draw(st.one_of(st.just(got), st.binary(min_size=size, max_size=size)))
    if dtype not in FLOATS:
        rtol = 0.0
    arguments = (got, dtype, want, dtype, rtol, 0.0)
    one, other = (
        elements._compare_without_numpy(*arguments),
        elements._compare_with_numpy(np, *arguments),
    )
    assert repr(one) == repr(other)


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_are_those_of_the_inputs(dtype: str) -> None:
    size = DTYPES[dtype].bytes
    bits = np.arange(256 if size == 1 else 4096).astype(f"u{size}")
    typed = bits.view(inputs.get_numpy_type(dtype))
    expected = np.asarray(inputs.widen_floats(typed), np.float64)
    actual = np.array(list(elements.decode_elements(bits.tobytes(), dtype)), np.float64)
    np.testing.assert_array_equal(actual, expected)


def test_the_worst_element_is_named() -> None:
    got, want = struct.pack("<6f", *range(6)), struct.pack("<6f", 0, 1, 2, 3, 9, 6)
    error, mismatch = elements.compare_outputs(
        CaseArgument("y", "f32", (2, 3), rtol=1e-6), got, want
    )
    assert error == 5.0
    assert str(mismatch) == "y[1, 1] is 4, expected 9; 2 of 6 elements are wrong"


@pytest.mark.parametrize(
    ("got", "want", "right"),
    [
        (math.nan, math.nan, True),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (-math.inf, 1.0, False),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (1.0, math.inf, False),
    ],
)
def test_what_is_not_finite_must_be_the_same(got: float, want: float, right: bool) -> None:
    one, other = struct.pack("<f", got), struct.pack("<f", want)
    error, mismatch = elements.compare_outputs(
        CaseArgument("y", "f32", (1,), rtol=0.5, atol=0.5), one, other
    )
    assert (mismatch is None) == right
    assert error == (0.0 if right else math.inf)


def test_integers_are_compared_as_whole_numbers() -> None:
    got, want = struct.pack("<q", 2**62 + 1), struct.pack("<q", 2**62)
    _, mismatch = elements.compare_outputs(
        CaseArgument("y", "i64", (1,), rtol=0.5, atol=0.5), got, want
    )
    assert mismatch is not None


@pytest.mark.parametrize("want", [np.float32(1), np.ones(1), np.ones((1, 4)), np.ones((3, 1))])
def test_a_reference_has_the_shape_of_its_output(want: Any) -> None:
    """One number, or one row, is not taken for all elements."""
    output = declared(y=("f32*[n]", "out"), n="i64").arguments[0]
    check = OutputCheck(declared, None, None)
    with pytest.raises(InputError, match="for y, which has") as caught:
        prepare.to_expected_output(output, (3, 4), want, check)
    assert caught.value.path is not None
    assert caught.value.path.endswith("test_trial.py")
    assert prepare.to_expected_output(output, (1,), np.float32(2), check).tolist() == [2]


def test_the_numbers_of_a_mismatch_differ() -> None:
    """Given two numbers that are equal in six digits, then more digits are shown."""
    got, want = (struct.pack("<f", value) for value in (-1.699731, -1.699732))
    _, mismatch = elements.compare_outputs(CaseArgument("y", "f32", (1,), rtol=1e-9), got, want)
    assert mismatch == "y[0] is -1.69973099, expected -1.69973195; 1 of 1 elements are wrong"
