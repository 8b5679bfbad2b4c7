"""Any wrong call names the argument, and any other computes what NumPy does.

200 calls at random; more with `TILUSBUILD_TEST_CALLS=30000`.
"""

import os
import random
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch 2.6 or later")

import tilusbuild  # noqa: E402
from support.project import Project  # noqa: E402

CALLS = int(os.environ.get("TILUSBUILD_TEST_CALLS", "200"))
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, about nested and quantized tensors
NUMBERS = (0, 1, -1, 2, 3.0, -2.5, float("nan"), float("inf"), 1e300, 2**31, 2**63, 2**80, True)
OTHERS = (
    None,
    "x",
    b"12345678",
    [1.0, 2.0],
    (),
    {"x": 1},
    object(),
    len,
    int,
    1j,
    memoryview(b"1"),
)
DTYPES = ("f8", "f2", "i4", "u1", "?", "c8", ">f4", "O", "U3", "M8[s]", "g", "f4,i4", "f4")


def add(a: float, x: Any, y: Any) -> list[Any]:
    return [y + np.float32(a) * x]


def sums(x: Any, step: int, negate: bool, y: Any, count: Any) -> list[Any]:
    parts = [x[i : i + step].sum() for i in range(0, len(x), step)]
    return [np.array(parts, "f4") * (-1 if negate else 1), np.array([len(x)])]


REFERENCES: dict[str, tuple[Callable[..., list[Any]], tuple[str, ...], tuple[str, ...]]] = {
    "scale": (lambda x, w, y: [x * w], ("x", "w", "y"), ("y",)),
    "add": (add, ("a", "x", "y"), ("y",)),
    "Sums": (sums, ("x", "step", "negate", "y", "count"), ("y", "count")),
}
"""By script: its outputs by NumPy, the names of its arguments and of those that it writes."""


def right(name: str, chance: random.Random) -> dict[str, Any]:
    """The arguments of a call that is right."""
    m, n, step = chance.randrange(3), chance.randrange(4), chance.randrange(1, 4)

    def array(*shape: int) -> Any:
        return np.array(
            [chance.randrange(-9, 9) for _ in range(int(np.prod(shape)))], "f4"
        ).reshape(shape)

    if name == "scale":
        return {"x": array(m, n), "w": array(n), "y": array(m, n)}
    if name == "add":
        return {"a": chance.choice([1, 0.5, np.float32(2), True]), "x": array(n), "y": array(n)}
    lengths = {"y": array(-(-n // step)), "count": np.zeros(1, "i4")}
    return {"x": array(n), "step": step, "negate": chance.random() < 0.5, **lengths}


def wrong_array(value: Any, chance: random.Random) -> Any:
    """An array of NumPy that is somehow not this one."""
    shape = value.shape
    read_only = value.copy()
    read_only.flags.writeable = False
    bytes_ = np.zeros(value.nbytes + 1, "u1")
    makers: list[Callable[[], Any]] = [
        lambda: np.zeros(shape, chance.choice(DTYPES)),
        lambda: np.zeros(shape, ml_dtypes.bfloat16),
        lambda: value.astype("f4")[None],
        lambda: np.zeros([size + 1 for size in shape], "f4"),
        lambda: np.zeros((1,) * chance.choice([0, 3, 33, 64]), "f4"),
        lambda: np.repeat(value, 2, -1)[..., ::2],
        lambda: value[..., ::-1],
        lambda: value.T,
        lambda: np.broadcast_to(np.float32(2), shape),
        lambda: np.frombuffer(value.tobytes() or b"1234", value.dtype),
        lambda: read_only,
        lambda: bytes_[1:].view(value.dtype).reshape(shape),
        lambda: np.ma.masked_array(value),
        lambda: np.asmatrix(value),
        lambda: value.tolist(),
        lambda: value.dtype,
        lambda: np.float32(1),
    ]
    return chance.choice(makers)()


def wrong_tensor(value: Any, chance: random.Random) -> Any:
    """A tensor of torch with this value or with another, of any kind."""
    tensor = torch.from_numpy(np.ascontiguousarray(value))
    real = tensor.float()
    kinds: list[Callable[[], Any]] = [
        lambda: tensor,
        lambda: tensor.to(chance.choice([torch.float64, torch.bool, torch.complex64, torch.int64])),
        lambda: tensor.to(chance.choice([torch.bfloat16, torch.float8_e4m3fn, torch.uint16])),
        lambda: real.clone().requires_grad_(),
        lambda: torch.nn.Parameter(real) * 1,
        lambda: tensor._neg_view(),
        lambda: torch.complex(real, real).conj(),
        lambda: torch.complex(real, real).conj().imag,
        lambda: tensor.to("meta"),
        lambda: tensor.to_sparse(),
        lambda: torch.eye(2).to_sparse_csr(),
        lambda: real.to_mkldnn(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.quantize_per_tensor(real, 1.0, 0, torch.qint8),
        lambda: torch._efficientzerotensor(tensor.shape),
        lambda: tensor.expand(2, *tensor.shape),
        lambda: tensor[..., None].transpose(0, -1),
        lambda: torch._subclasses.FakeTensorMode().from_tensor(tensor),
        lambda: torch._subclasses.FakeTensorMode().from_tensor(torch.ones(9, *tensor.shape))[8],
        lambda: torch.float32,
    ]
    return chance.choice(kinds)()


def changed(call: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The call with one argument or two changed, and perhaps all arrays of torch."""
    if chance.random() < 0.5:
        call = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in call.items()}
    for name in chance.sample(sorted(call), chance.choice([1, 1, 2])):
        value, roll = call[name], chance.random()
        if roll < 0.2:
            call[name] = chance.choice([*NUMBERS, *OTHERS, *map(np.float64, NUMBERS), np.int8(1)])
        elif hasattr(value, "shape") and value.shape:
            array = np.asarray(value)
            call[name] = wrong_tensor(array, chance) if roll < 0.6 else wrong_array(array, chance)
        else:
            call[name] = chance.choice(NUMBERS)
    # No range is declared, and the kernel itself writes out of bounds for it.
    return {**call, "step": 2} if call.get("step") == -1 else call


def to_numpy(value: Any) -> Any:
    """The value of an array as NumPy has it, a copy; of a scalar the scalar."""
    try:
        if isinstance(value, torch.Tensor):
            value = value.detach().resolve_neg().resolve_conj().numpy()
    except Exception:  # of a kind that NumPy does not know
        return value if value.numel() else np.empty(value.shape, "f4")
    return np.array(value) if isinstance(value, np.ndarray) else value


def outcome(kernel: Any, name: str, call: Mapping[str, Any], chance: random.Random) -> str:
    """Call the kernel by position or by name, with outputs or without. "" if all is as it must be,
    else what is wrong."""
    reference, names, written = REFERENCES[name]
    left_out = {n for n in written if name != "add" and chance.random() < 0.5}
    arguments = {n: v for n, v in call.items() if n not in left_out}
    before = {**dict.fromkeys(names), **{n: to_numpy(v) for n, v in arguments.items()}}
    try:
        by_position = not left_out and chance.random() < 0.6
        if by_position:
            # Without names, and at known sizes, torch's pending negations are not looked for.
            kernel._launchers.clear()
            kernel._shared_launcher = None
        with torch.no_grad() if chance.random() < 0.3 else nullcontext():
            returned = kernel(*arguments.values()) if by_position else kernel(**arguments)
    except (TypeError, ValueError) as error:
        text = str(error)
        return "" if any(f'"{n}"' in text or f" {n}" in text for n in names) else f"unnamed: {text}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    try:
        expected = reference(**before)
        outputs = dict(
            zip(
                sorted(left_out, key=names.index),
                (returned,) if len(left_out) == 1 else returned or (),
                strict=True,
            )
        )
        for n, value in zip(written, expected, strict=True):
            np.testing.assert_allclose(to_numpy(outputs.get(n, call[n])), value, rtol=1e-5)
    except Exception as error:
        return f"accepted, and then {type(error).__name__}: {error}"
    return ""


def test_a_wrong_call_names_its_argument(small: Project) -> None:
    kernels = {
        "scale": tilusbuild.load("scale", where=small.directory),
        "add": tilusbuild.load("add", where=small.directory),
        "Sums": tilusbuild.load("Sums", where=small.directory, real="f32"),
    }
    for number in range(CALLS):
        chance = random.Random(number)
        name = chance.choice(sorted(kernels))
        call = changed(right(name, chance), chance)
        shown = {n: f"{type(v).__name__} {getattr(v, 'dtype', v)!s:.40}" for n, v in call.items()}
        problem = outcome(kernels[name], name, call, chance)
        assert not problem, (number, name, shown, problem)
