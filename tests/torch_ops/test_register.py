"""Scripts as ops of torch: schemas, values, torch.compile, opcheck, gradients, refusals."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch 2.6 or later")

import tilusbuild  # noqa: E402
from support.nvcc_journal import UNHELD, make_toolkit  # noqa: E402
from support.project import Project, head, needs_cxx  # noqa: E402
from tilusbuild import LoadError  # noqa: E402
from tilusbuild.torch import register  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own
NUMBERS = count()
CALLED = ("scale", "scale_back", "add", "Sums", "mixed")


@pytest.fixture
def namespace() -> str:
    """A name that no other test registers ops under."""
    return f"small{next(NUMBERS)}"


@pytest.fixture
def ops(small: Project, namespace: str) -> Any:
    return register(namespace, small.directory, CALLED, backward={"scale": "scale_back"})


@pytest.fixture
def recompiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Until it is called torch may compile for other sizes; then it is an error."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch._dynamo.reset()

    def forbid() -> None:
        torch._dynamo.config.error_on_recompile = True

    yield forbid
    torch._dynamo.config.error_on_recompile = False


def test_schemas_follow_from_the_arguments(ops: Any, namespace: str) -> None:
    schemas = [str(getattr(ops, name).default._schema).partition("::")[2] for name in OPS]
    assert schemas == [
        "scale(Tensor x, Tensor w) -> Tensor",
        "add(float a, Tensor x, Tensor(a!) y) -> ()",
        "Sums_f32(Tensor x, SymInt step, bool negate) -> (Tensor, Tensor)",
        "Sums_f64(Tensor x, SymInt step, bool negate) -> (Tensor, Tensor)",
        "mixed(Tensor x, Tensor? bias, Tensor(a!) first) -> Tensor",
    ]
    assert getattr(torch.ops, namespace).scale is ops.scale


OPS = ("scale", "add", "Sums_f32", "Sums_f64", "mixed")


def test_calls_return_outputs_and_mutate_the_others(ops: Any) -> None:
    x, y = torch.arange(5.0), torch.ones(5)
    version = y._version
    assert ops.add(2.0, x, y) is None
    assert y.tolist() == [1, 3, 5, 7, 9]
    assert y._version > version
    sums, number = ops.Sums_f64(torch.arange(5.0, dtype=torch.float64), 2, True)
    assert sums.tolist() == [-1, -5, -4]
    assert number.tolist() == [5]


def test_opcheck_is_content(ops: Any) -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    torch.library.opcheck(ops.scale.default, (x, w))
    torch.library.opcheck(ops.add.default, (2.0, torch.randn(5), torch.randn(5)))
    torch.library.opcheck(ops.Sums_f32.default, (torch.randn(5), 2, False))
    torch.library.opcheck(ops.mixed.default, (torch.randn(5), None, torch.ones(2, 2)))


@pytest.mark.slow
def test_one_compiled_graph_serves_all_sizes(ops: Any, recompiles: Callable[[], None]) -> None:
    def model(x: Any, w: Any, step: int) -> Any:
        y = torch.ones_like(w)
        ops.add(0.5, w, y)
        sums, number = ops.Sums_f32(ops.scale(x, w).flatten(), step, False)
        return sums.relu() + y.sum() + number

    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for m, n, step in ((4, 100, 3), (3, 50, 2), (7, 33, 5), (128, 1000, 64)):
        x, w = torch.randn(m, n), torch.randn(n)
        torch.testing.assert_close(compiled(x, w, step), model(x, w, step))
        recompiles()


def test_a_shape_that_symbols_cannot_compute_is_right_all_the_same(ops: Any) -> None:
    compiled = torch.compile(ops.mixed, fullgraph=True, dynamic=True, backend="aot_eager")
    for n, length in ((5, 4), (8, 8), (17, 16)):
        x, first = torch.randn(n), torch.zeros(3)
        assert torch.equal(compiled(x, x, first), 2 * x[:length])
        assert first.tolist() == [n, 0, 0]


def test_an_exported_model_keeps_the_op(ops: Any, namespace: str) -> None:
    forward = {"forward": lambda self, x, w: ops.scale(x, w).relu()}
    model = type("Model", (torch.nn.Module,), forward)()
    n = torch.export.Dim("n", min=2)
    exported = torch.export.export(
        model, (torch.ones(2, 3), torch.ones(3)), dynamic_shapes=({1: n}, {0: n})
    )
    assert f"torch.ops.{namespace}.scale.default" in exported.graph_module.code
    assert exported.module()(torch.ones(2, 5), torch.ones(5)).tolist() == [[1] * 5] * 2


def test_the_other_script_is_the_gradient(ops: Any) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.randn(4, requires_grad=True)
    (x * w).square().sum().backward()
    expected = [x.grad, w.grad]
    for scale in (ops.scale, torch.compile(ops.scale, fullgraph=True, backend="aot_eager")):
        x.grad = w.grad = None
        scale(x, w).square().sum().backward()
        torch.testing.assert_close([x.grad, w.grad], expected)
        x.grad = w.grad = None
        scale(x, w).sum().backward()  # its gradient has strides of 0
        torch.testing.assert_close(w.grad, x.detach().sum(0))


def test_a_hook_of_torch_is_the_gradient(small: Project, namespace: str) -> None:
    ops = register(namespace, small.directory, {"times": "scale"})

    def backward(ctx: Any, grad: Any) -> Any:
        (w,) = ctx.saved_tensors
        return grad * w, None

    torch.library.register_autograd(
        f"{namespace}::times",
        backward,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
    )
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4)
    ops.times(x, w).sum().backward()
    torch.testing.assert_close(x.grad, w.expand(3, 4))


def test_what_has_no_formula_raises_when_it_is_differentiated(ops: Any, small: Project) -> None:
    """The gradient of a gradient, an op, a kernel."""
    x, w = torch.ones(3, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    (first,) = torch.autograd.grad(ops.scale(x, w).square().sum(), x, create_graph=True)
    scale = tilusbuild.load("scale", where=small.directory)
    sums, count = ops.Sums_f32(w, 2, False)
    assert not count.requires_grad
    for result in (first, sums, scale(x * 2, w), scale(x=x, w=w.detach())):
        with pytest.raises(NotImplementedError, match="has no formula for its gradient"):
            result.sum().backward()
    with torch.no_grad():
        assert not scale(x, w).requires_grad


def test_no_gradient_is_lost_in_what_a_call_gives(ops: Any, small: Project) -> None:
    w = torch.ones(4, requires_grad=True)
    y = torch.zeros(4)
    add = tilusbuild.load("add", where=small.directory)
    for call in (ops.add, add, lambda a, x, y: add(y=y, x=x, a=a)):
        with pytest.raises(ValueError, match=r'argument "x": it requires a gradient, .* in "y"'):
            call(2.0, w * 2, y)
        with torch.no_grad():
            call(2.0, w, y)
    assert y.tolist() == [6] * 4


def test_what_is_not_in_the_memory_is_refused(small: Project) -> None:
    """A pending negation, and memory that was freed, in a view with an offset."""
    add = tilusbuild.load("add", where=small.directory)
    freed = torch.ones(8)[4:]
    freed.untyped_storage().resize_(0)
    with torch.inference_mode():
        inference = torch.ones(4)
    minus = torch.complex(torch.ones(1), torch.ones(1)).conj().imag
    for x, y, words in (
        (torch.ones(4), inference, '"y": outside of inference mode'),
        (minus, torch.ones(1), '"x": its negation is pending'),
        (np.ones(1, "f4"), minus, '"y": its negation is pending'),
        (freed, torch.ones(4), '"x".* no memory'),
    ):
        with pytest.raises(ValueError, match=words):
            add(x=x, y=y, a=1)
    with torch.inference_mode():
        add(1, torch.ones(4), inference)


@pytest.mark.parametrize(
    ("wanted", "more", "message"),
    [
        (None, {}, 'odd: argument "state": an op of torch takes no void*'),
        (["scales"], {}, "there is no script 'scales'"),
        (["Sums[real=i8]"], {}, "no instance of Sums"),
        ({"sums": "Sums"}, {}, "'Sums' is several instances: Sums[real=f32], Sums[real=f64]"),
        ({"a-b": "add"}, {}, "'a-b' cannot be an op"),
        (["scale"], {"backward": {"scale": "scael"}}, "no op 'scael': did you mean \"scale\"?"),
        (CALLED, {"backward": {"add": "scale"}}, 'add mutates "y"'),
        (CALLED, {"backward": {"scale": "Sums_f32"}}, 'Sums_f32 has an argument "step"'),
        (CALLED, {"backward": {"scale": "scale"}}, 'scale has no output "grad_x"'),
    ],
)
def test_what_cannot_be_meant_is_refused(
    small: Project, namespace: str, wanted: Any, more: Any, message: str
) -> None:
    with pytest.raises((LoadError, TypeError)) as raised:
        register(namespace, small.directory, wanted, **more)
    assert message in str(raised.value)
    assert not hasattr(getattr(torch.ops, namespace), "scale")


def test_names_are_registered_once(ops: Any, small: Project, namespace: str) -> None:
    with pytest.raises(LoadError, match=f"op torch.ops.{namespace}.add already"):
        register(namespace, small.directory, ["add"])
    with pytest.raises(LoadError, match="not a name"):
        register("my ops", small.directory)


def test_a_wrong_rank_is_found_when_a_model_is_traced(ops: Any) -> None:
    with pytest.raises(ValueError, match=r'scale: argument "x": expected f32\*\[m, n\], got a ten'):
        ops.scale(torch.ones(4, device="meta"), torch.ones(4, device="meta"))


TWICE = """\
{% if target.kind == "cpu" %}
extern "C" void twice(const float *x, float *y, int n) {
  for (int i = 0; i < n; i++) y[i] = 2 * x[i];
}
{% else %}
extern "C" __global__ void twice(const float *x, float *y, int n) { y[0] = 2 * x[0]; }
{% endif %}
"""


def test_devices_are_those_of_the_targets(tmp_path: Path, namespace: str) -> None:
    """The compiler is a double, so that nothing is called on a GPU."""
    needs_cxx()
    nvcc = make_toolkit(str(tmp_path / "toolkit"))
    surroundings = {"NVCC": nvcc, "CUDA_HOME": str(tmp_path / "toolkit"), **UNHELD}
    project = Project(tmp_path / "project", surroundings)
    args = '{ x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i32" }'
    script = f'[script.twice]\ntemplate = "t.j2"\nkernel = "twice"\nargs = {args}\n'
    gpu = '[target.a]\narch = "sm_80"\n[target.b]\narch = "sm_90"\n'
    launch = 'launch = { grid = "1", block = "1" }\n'
    project.write_all({"t.j2": TWICE, "tilus.toml": head() + gpu + script + launch}).run("build")
    ops = register(namespace, project.directory)
    for key in ("CPU", "CUDA"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"{namespace}::twice", key)
    assert ops.twice(torch.ones(2)).tolist() == [2, 2]
    with torch._subclasses.FakeTensorMode():
        assert ops.twice(torch.empty(5, device="cuda:1")).device == torch.device("cuda:1")
