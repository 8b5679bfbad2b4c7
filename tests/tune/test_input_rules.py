"""What a manifest says of the content of arguments: `init`, `reset` and `inputs`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.project import Project, head, needs_cxx
from tilusbuild.errors import InputError, Location
from tilusbuild.manifest.arguments import InitSection
from tilusbuild.signature.model import Argument
from tilusbuild.signature.parsing import join_arguments, parse_argument
from tilusbuild.tune.input_rules import InitRule, InputRules, make_declared_inputs
from tilusbuild.tune.inputs import Input

PLACE = Location("tilus.toml", 3, 5, "init = …")
GATHER = """\
[script.gather]
template = "gather.cu.j2"
kernel = "gather"
targets = ["cpu"]

[script.gather.args]
x = "f32*[m]"
idx = { type = "i32*[n]", init = { integers = [0, "m"] } }
y = { type = "f32*[n]", out = true }
m = "i32"
n = "i32"

[script.gather.tune]
ref = "ref.py:gather"
sizes = [{ m = 7, n = 1000 }]
"""
GATHER_SOURCE = """\
extern "C" void gather(const float *x, const int *idx, float *y, int m, int n) {
  for (int i = 0; i < n; i++) y[i] = x[idx[i]];
}
"""
GATHER_REFERENCE = """\
import numpy as np

def gather(x, idx):
    return x[idx]

def make(sizes, constants, random):
    return {"idx": random.integers(0, sizes["m"], sizes["n"]), "x": np.ones(sizes["m"], np.float32)}
"""


def fill(argument: str, init: InitSection, seed: int = 0, **sizes: int) -> Input:
    """The content of an argument with this `init`."""
    declared = [parse_argument(Argument("x", argument)), *(Argument(n, "i32") for n in sizes)]
    rules = InputRules({"x": InitRule(init, PLACE)})
    return make_declared_inputs(rules, join_arguments(declared), sizes, seed)["x"]


@pytest.fixture
def gather(tmp_path: Path) -> Project:
    """A project whose kernel reads through an index tensor, on the cpu target."""
    needs_cxx()
    files = {"tilus.toml": head() + GATHER, "gather.cu.j2": GATHER_SOURCE}
    return Project(tmp_path / "gather").write_all({**files, "ref.py": GATHER_REFERENCE})


@pytest.mark.parametrize(
    ("init", "is_right"),
    [
        (InitSection(kind="zeros"), lambda x: not x.any()),
        (InitSection(kind="ones"), lambda x: (x == 1).all()),
        (InitSection(kind="arange"), lambda x: x.tolist() == list(range(100))),
        (InitSection(kind="permutation"), lambda x: sorted(x.tolist()) == list(range(100))),
        (InitSection(integers=(0, "m")), lambda x: set(x.tolist()) == {0, 1, 2}),
    ],
)
@pytest.mark.parametrize("dtype", ["i32", "u8", "i64", "f32", "f16"])
def test_an_init_fills_a_tensor_with_what_it_names(
    init: InitSection, is_right: Callable[[Input], bool], dtype: str
) -> None:
    content = fill(f"{dtype}*[n]", init, n=100, m=3)
    assert is_right(content)
    np.testing.assert_array_equal(content, fill(f"{dtype}*[n]", init, n=100, m=3))


def test_floats_have_the_declared_distribution_and_scalars_one_number_of_it() -> None:
    uniform = np.asarray(fill("f32*[n]", InitSection(uniform=(2, "m")), n=10_000, m=4))
    assert (uniform.min() >= 2, uniform.max() <= 4, round(float(uniform.mean()), 1)) == (1, 1, 3.0)
    normal = np.asarray(fill("f64*[n]", InitSection(normal=(5, 2)), n=10_000, m=0))
    assert (round(normal.mean()), round(normal.std())) == (5, 2)
    assert fill("i32", InitSection(kind="zeros")) == 0
    assert fill("bf16*[n]", InitSection(kind="ones"), n=3).tolist() == [1, 1, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("argument", "init", "message"),
    [
        ("i32*[n]", InitSection(uniform=(0, 1)), "x is i32*[n]: its numbers are whole"),
        ("i32*[n]", InitSection(integers=(3, "m")), "integers = [3, 3] has no whole number"),
        ("i8*[n]", InitSection(kind="arange"), "x: 199 does not fit i8"),
        ("f32*[n]", InitSection(uniform=(0, "1 // (n - 200)")), "init: 1 // (n - 200): division"),
    ],
)
def test_an_init_that_has_no_values_is_an_error_at_its_place(
    argument: str, init: InitSection, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        fill(argument, init, n=200, m=3)
    assert caught.value.message.startswith(message)
    assert (caught.value.path, caught.value.line) == ("tilus.toml", 3)


def test_a_kernel_reads_through_an_index_tensor(gather: Project) -> None:
    assert "1 size agrees with ref.py:gather" in gather.run("run", "gather").out
    # The words of the sizes are known, and others are a mistake at their place.
    gather.edit("tilus.toml", '[0, "m"]', '[0, "rows"]')
    assert (
        'tilus.toml:16:52: error: unknown name "rows"' in gather.run("run", "gather", status=2).err
    )


def test_a_function_of_the_project_makes_the_inputs_that_it_names(gather: Project) -> None:
    gather.edit("tilus.toml", ', init = { integers = [0, "m"] }', "")
    gather.edit("tilus.toml", "sizes =", 'inputs = "ref.py:make"\nsizes =')
    gather.edit("gather.cu.j2", "x[idx[i]];", "x[idx[i]] == 1.f ? 1.f : 2.f;")
    assert "1 size agrees with ref.py:gather" in gather.run("run", "gather").out


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ('{"index": [1]}', "returned 'index', which no call passes"),
        ('{"idx": [1, 2]}', "returned shape (2,) for idx, which has (1000,)"),
        ('{"idx": np.ones(1000)}', "returned elements of float64 for idx, which is i32*[n]"),
        ('{"idx": np.full(1000, 1 << 40)}', "returned idx: 1099511627776 does not fit i32"),
        ('{"m": 3}', "returned 'm', which no call passes"),
        ("[1]", "returned a list"),
        ("sizes.rows", "failed: AttributeError: "),
    ],
)
def test_what_the_function_returns_is_checked(gather: Project, returned: str, message: str) -> None:
    gather.edit("tilus.toml", "sizes =", 'inputs = "ref.py:broken"\nsizes =')
    text = f"\ndef broken(sizes, constants, random):\n    return {returned}\n"
    gather.write("ref.py", GATHER_REFERENCE + text)
    errors = gather.run("run", "gather", status=2).err
    line = 10 if message.startswith("failed") else 9  # where it is defined
    assert f"ref.py:{line}: error: the function broken of `inputs` {message}" in errors


def test_a_counter_is_restored_before_every_launch(tmp_path: Path) -> None:
    # The last block of a split reduction sees by a counter that it is the last; it must enter as 0.
    needs_cxx()
    manifest = """\
[script.count]
template = "count.cu.j2"
kernel = "count"
targets = ["cpu"]

[script.count.args]
counter = { type = "i32*[1]", inout = true, init = "zeros", reset = true }
y = { type = "f32*[n]", out = true }
n = "i32"

[script.count.tune]
ref = "ref.py:count"
sizes = [{ n = 1000 }]
"""
    source = """\
#include <stdlib.h>
extern "C" void count(int *counter, float *y, int n) {
  if (counter[0] != 0) abort();
  counter[0] = 1;
  for (int i = 0; i < n; i++) y[i] = 1;
}
"""
    reference = "import numpy as np\ndef count(counter, y):\n    return counter + 1, y * 0 + 1\n"
    files = {"tilus.toml": head() + manifest, "count.cu.j2": source, "ref.py": reference}
    project = Project(tmp_path / "count").write_all(files)
    for caches in ("cold", "warm"):
        assert "1 size agrees" in project.run("run", "count", "--cache", caches).out
        project.run("tune", "count", "--cache", caches)
    # Without it the second call enters with the 1 of the first.
    project.edit("tilus.toml", ", reset = true", "")
    assert "SIGABRT" in project.run("run", "count", status=None).err


def test_a_package_carries_the_inputs_that_were_made(gather: Project, tmp_path: Path) -> None:
    gather.run("build")
    gather.run("package", "--with-tests", "-o", tmp_path / "out", "--format", "dir")
    (carried,) = tmp_path.rglob("idx.input")
    assert max(np.frombuffer(carried.read_bytes(), np.int32)) == 6
    package = next(tmp_path.rglob("tilus-package.json")).parent
    assert "1 ok" in gather.run("check", package).out
    # A package is not trusted: a file of another length is no input.
    carried.write_bytes(b"\0" * 8)
    assert gather.run("check", package, status=None).status == 1
