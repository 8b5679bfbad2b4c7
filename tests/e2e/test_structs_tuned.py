"""`run` and `tune` of kernels that take structs, addresses and strides: what is passed for them."""

import json

import pytest

from support.project import NewProject, head, needs_cxx

pytest.importorskip("tvm_ffi")

MANIFEST = (
    head("host")
    + """\
[script.axpby]
template = "axpby.cpp.j2"
kernel = "axpby"
[script.axpby.args]
p = "struct Params { f16 alpha; i32 n; i64 strides[2]; bool add; f64 beta; void* log }"
x = { type = "f32*[m, n]", strides = ["row", 1] }
y = { type = "f32*[m, n]", out = true }
beta = "f32"
state = "void*"
row = "i64"
m = "i32"
n = "i32"
[script.axpby.space]
step = [1, 2]
[script.axpby.tune]
ref = "ref.py:axpby"
sizes = [{ m = 8, n = 100, state = 0, p.log = 0, p.strides = [100, 1], p.add = true }]
"""
)
SOURCE = """\
struct Params {
  unsigned short alpha; int n; long long strides[2]; bool add; double beta; void *log;
};
extern "C" void axpby(Params p, const float *x, float *y, float beta, void *state,
                      long long row, int m, int n) {
  _Float16 alpha;
  __builtin_memcpy(&alpha, &p.alpha, 2);
  for (int i = 0; i < m; i += {{ step }})
    for (int r = i; r < i + {{ step }} && r < m; r++)
      for (int j = 0; j < p.n; j++)
        y[r * p.strides[0] + j] =
            (float)alpha * x[r * row + j] + (p.add && !p.log && !state ? (float)p.beta : beta + 1);
}
"""
REFERENCE = """\
def axpby(p, x, beta, state):
    assert p["strides"] == [100, 1] and p["log"] == 0 and state is None, p
    assert p["n"] == x.shape[1] and p["beta"] == beta
    return p["alpha"] * x + (p["beta"] if p["add"] else beta + 1)
"""
FILES = {"axpby.cpp.j2": SOURCE, "ref.py": REFERENCE}


@pytest.fixture(autouse=True)
def compiler() -> None:
    needs_cxx()


def test_run_and_tune_pass_structs(new_project: NewProject) -> None:
    """`n` and `beta` are the call's own, which have the members' names; `alpha` is drawn."""
    project = new_project(MANIFEST, FILES)
    result = project.run("run", "axpby")
    assert "1 size agrees with ref.py:axpby" in result.out
    sizes = "m=4,n=100,state=0,p.log=0,p.strides[0]=100,p.strides[1]=1,p.alpha=0.25,p.n=100"
    (call, _) = map(
        json.loads, project.run("run", "axpby", "--size", sizes, "--json").out.splitlines()
    )
    assert call["mismatch"] is None
    assert call["sizes"]["p.strides[0]"] == 100
    tuned = project.run("tune", "axpby", "--cache", "warm", "--json").out.splitlines()
    decided = json.loads(tuned[0])
    assert decided["event"] == "tuned"
    assert decided["refused"] == {}
    assert decided["sizes"]["p.strides[0]"] == 100


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("m=1,n=1,state=0", '"p.log" is an address that no file can hold'),
        ("m=1,n=1,p.log=0", '"state" is an address that no file can hold'),
        (
            "m=1,n=1,state=0,p.log=8",
            "p.log=8 is not a value of void*: run and tune can pass null alone, 0",
        ),
        ("m=1,n=1,state=0,p.log=0,p.add=2", "p.add=2 is not a value of bool: run and tune can"),
        ("m=1,n=1,state=0,p.log=0,p.strides=1", 'argument "p.strides"'),
        ("m=1,n=1,state=0,p.log=0,row=1", 'there is no dimension or scalar argument "row"'),
    ],
)
def test_what_cannot_be_passed_is_said(new_project: NewProject, size: str, message: str) -> None:
    project = new_project(MANIFEST, FILES)
    for command in ("run", "tune"):
        assert message in project.run(command, "axpby", "--size", size, status=2).err
    assert not list(project.cache.glob("programs/*"))


def test_a_dense_array_is_all_that_is_passed(new_project: NewProject) -> None:
    project = new_project(MANIFEST, FILES)
    project.edit("tilus.toml", '["row", 1]', '[1, "row"]')
    error = project.run("run", "axpby", status=2).err
    assert 'axis 0 of "x" has stride 1, that of a dense array 100' in error
