"""Calls by position, by name, and with outputs left out mean what the slow functions say."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilusbuild
from support.marks import Marks
from tilusbuild.runtime import arrays
from tilusbuild.runtime.arrays import CallForm, complete_arguments
from tilusbuild.runtime.script import Script, read_script


def forms(script: Script) -> st.SearchStrategy[tuple[list[str], list[str]]]:
    """Arguments that are given by position and by name, in any order, some twice or missing."""
    names = st.sampled_from([a.name for a in arrays.list_call_arguments(script)])
    return st.tuples(st.lists(names, max_size=4), st.lists(names, max_size=4, unique=True))


def value(name: str, m: int, n: int) -> Any:
    """An argument of `modelled`."""
    return 7 if name == "k" else np.zeros((m, n if name == "x" else 2 * n), "float32")


def slowly(script: Script, args: list[Any], named: dict[str, Any]) -> list[Any]:
    """The arguments in order, worked out for this call alone."""
    bound = arrays.bind_arguments(script, args, named)
    like, known = arrays.find_first_tensor(script, bound), arrays.read_sizes(script, bound)
    return [
        bound[a.name] if a.name in bound else arrays.allocate_output(script, a, known, like)
        for a in arrays.list_call_arguments(script)
    ]


def outcome(call: Any) -> Any:
    """What a call of these helpers comes to, comparable."""
    try:
        return [(a.shape, str(a.dtype)) if hasattr(a, "shape") else a for a in call()]
    except (TypeError, ValueError) as error:
        return type(error), str(error)


@pytest.fixture(scope="module")
def modelled(built: Marks) -> Script:
    (path,) = [p for p in built.paths("modelled") if read_script(str(p)).params["real"] == "f32"]
    return read_script(str(path))


def test_every_form_means_what_the_slow_way_says(modelled: Script) -> None:
    calls: dict[object, CallForm] = {}  # kept across examples: a form is met with other sizes

    @given(forms(modelled), st.integers(0, 5), st.integers(0, 5))
    def holds(form: tuple[list[str], list[str]], m: int, n: int) -> None:
        args = [value(name, m, n) for name in form[0]]
        named = {name: value(name, m, n) for name in form[1]}
        for _ in range(2):
            actual = outcome(lambda: complete_arguments(modelled, calls, args, named)[0])
            expected = outcome(lambda: slowly(modelled, args, named))
            # An argument of the wrong kind that no size is read from is the library's to refuse.
            assert actual == expected or (isinstance(actual, list) and expected[0] is TypeError)

    holds()


def test_a_known_form_is_not_worked_out_again(modelled, monkeypatch) -> None:
    calls: dict[object, CallForm] = {}
    complete_arguments(modelled, calls, (value("x", 2, 3), 7), {})
    for name in ("bind_arguments", "read_sizes", "allocate_output", "find_first_tensor"):
        monkeypatch.setattr(arrays, name, None)
    full, output = complete_arguments(modelled, calls, (value("x", 4, 5), 7), {})
    assert output.shape == (4, 10)
    assert full[1] is output


@pytest.mark.parametrize("wrong", [np.zeros(3, "float32"), None, "x", 3, [1.0]])
def test_wrong_arguments_are_refused_in_the_same_words_after_right_ones(modelled, wrong) -> None:
    calls: dict[object, CallForm] = {}
    complete_arguments(modelled, calls, (value("x", 2, 3), 7), {})
    assert outcome(lambda: complete_arguments(modelled, calls, (wrong, 7), {})[0]) == outcome(
        lambda: slowly(modelled, [wrong, 7], {})
    )


def test_an_output_is_like_the_first_tensor_and_errors_are_those_of_numpy(modelled: Script) -> None:
    """An optional tensor may be the first; torch has an error of its own for a negative size."""
    torch = pytest.importorskip("torch")
    x, y, k = arrays.list_call_arguments(modelled)
    optional = x._replace(name="bias", dims=("b",), optional=True)
    script = modelled._replace(arguments=(optional, x, y._replace(dims=("k",)), k))
    calls: dict[object, CallForm] = {}
    for bias in (torch.zeros(3), None, np.zeros(3, "float32")):
        _, output = complete_arguments(script, calls, (bias, value("x", 2, 3), 4), {})
        assert isinstance(output, torch.Tensor if isinstance(bias, torch.Tensor) else np.ndarray)
        assert output.shape == (4,)
    for forms_so_far in ({}, calls):
        with pytest.raises(ValueError, match=r'output "y" .* -1'):
            complete_arguments(script, forms_so_far, (torch.zeros(3), value("x", 2, 3), -1), {})


def test_what_a_library_does_not_hand_over_is_named(modelled: Script) -> None:
    """NumPy hands over no types of others, and a kernel writes no read-only array."""
    import ml_dtypes

    right = {a.name: value(a.name, 2, 3) for a in arrays.list_call_arguments(modelled)}
    assert arrays.convert_arguments(modelled, tuple(right.values())) is None
    fixed = value("y", 2, 3)
    fixed.flags.writeable = False
    wrong = np.zeros((2, 3), ml_dtypes.bfloat16)
    for name, array, words in (
        ("y", fixed, "the kernel writes it, and the array is read-only"),
        ("x", wrong, "bfloat16 cannot be handed over"),
    ):
        with pytest.raises(TypeError, match=f'modelled: argument "{name}": .*{words}'):
            arrays.convert_arguments(modelled, tuple({**right, name: array}.values()))


def test_a_read_only_array_is_an_input(built: Marks) -> None:
    kernel = tilusbuild.load("modelled", where=built.cache, real="f32")
    x = np.frombuffer(np.arange(6, dtype="float32").tobytes(), "float32").reshape(2, 3)
    for y in (kernel(x, k=np.int32(1)), kernel(x.copy(), k=1)):  # the size is a scalar of NumPy
        assert y[1].tolist() == [4, 4, 5, 5, 6, 6]
    with pytest.raises(TypeError, match='"y": the kernel writes it, and the array is read-only'):
        kernel(x, np.broadcast_to(np.float32(0), (2, 6)), 1)


def test_a_mask_is_not_lost(built: Marks) -> None:
    kernel = tilusbuild.load("modelled", where=built.cache, real="f32")
    x = np.ma.masked_equal(np.arange(6, dtype="float32").reshape(2, 3), 4)
    for call in (lambda: kernel(x, k=1), lambda: kernel(x, np.empty((2, 6), "float32"), 1)):
        with pytest.raises(ValueError, match=r'"x": kernels see no mask: pass its filled\(value\)'):
            call()
    assert kernel(x.filled(0), k=1)[1].tolist() == [4, 4, 1, 1, 6, 6]


def test_what_may_be_written_is_not_read_only(modelled: Script) -> None:
    """A script that declares no output may write each of its tensors."""
    silent = modelled._replace(arguments=tuple(a._replace(out=False) for a in modelled.arguments))
    x = value("x", 2, 3)
    x.flags.writeable = False
    with pytest.raises(TypeError, match=r'"x": the kernel may write it, .* with out or inout, or'):
        arrays.convert_arguments(silent, (x, value("y", 2, 3), 7))


def test_arrays_of_jax_are_never_written(built: Marks) -> None:
    array = type("ArrayImpl", (np.ndarray,), {"__module__": "jaxlib._jax"})
    kernel = tilusbuild.load("modelled", where=built.cache, real="f32")
    x, y = (value(name, 2, 3).view(array) for name in "xy")
    for call in (lambda: kernel(x, y, 1), lambda: kernel(x=x, y=y, k=1)):
        with pytest.raises(ValueError, match='"y": the kernel writes it, and arrays of JAX are'):
            call()


class NotHandedOver:
    """An array whose library raises what it likes, as torch does for its meta and sparse ones."""

    shape = (2, 3)
    dtype = "float32"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **how: Any) -> None:
        raise self.error


def test_what_numpy_cannot_hold_is_not_advised_to_be_an_array_of_its(modelled: Script) -> None:
    (output,) = (a for a in arrays.list_call_arguments(modelled) if a.out)
    for dtype in ("bf16", "f8e4m3", "f8e5m2"):
        with pytest.raises(
            TypeError, match=r'numpy has no .*: give "y" as a tensor of torch or JAX'
        ):
            arrays.find_allocator(modelled, output._replace(dtype=dtype), np.zeros(3))


def test_whatever_a_library_raises_names_the_argument(built: Marks) -> None:
    kernel = tilusbuild.load("modelled", where=built.cache, real="f32")
    for _ in range(2):  # before and after the kernel is bound to its dispatcher
        for kind in (RuntimeError, BufferError, TypeError, ValueError, NotImplementedError):
            wrong = NotHandedOver(kind("Cannot pack tensors on meta\nframe #0: c10::Error"))
            words = 'argument "x": .* cannot be handed over: Cannot pack tensors on meta$'
            with pytest.raises(TypeError, match=words):
                kernel(wrong, value("y", 2, 3), 7)
        kernel(value("x", 2, 3), value("y", 2, 3), 7)


def test_an_error_of_the_device_blames_no_argument(built: Marks) -> None:
    """A sick device refuses to hand over arrays that are all right."""
    kernel = tilusbuild.load("modelled", where=built.cache, real="f32")
    error = RuntimeError("modelled: the launch failed: CUDA_ERROR_ILLEGAL_ADDRESS")
    error.__tvm_ffi_error__ = object()  # type: ignore[attr-defined]
    kernel._shared_launcher = Mock(side_effect=error)
    with pytest.raises(RuntimeError, match="the launch failed"):
        kernel(NotHandedOver(RuntimeError("no")), value("y", 2, 3), 7)


def test_an_integer_that_tvm_ffi_cannot_pass_is_named(built: Marks) -> None:
    """Its versions before integers of any size raise an `OverflowError` of Python's."""
    kernel = tilusbuild.load("modelled", where=built.cache, real="f32")
    error = OverflowError("Python int too large to convert to C long")
    kernel._shared_launcher = Mock(side_effect=error)
    for number in (2**63, np.uint64(2**63)):
        with pytest.raises(ValueError, match=f'modelled: argument "k": .* got {2**63}, which the'):
            kernel(value("x", 2, 3), value("y", 2, 3), number)


def test_a_scalar_of_numpy_is_its_value(modelled: Script) -> None:
    right = {a.name: value(a.name, 2, 3) for a in arrays.list_call_arguments(modelled)}
    again = arrays.convert_arguments(modelled, tuple({**right, "k": np.True_}.values())) or ()
    assert again[list(right).index("k")] is True
