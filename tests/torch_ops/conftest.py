"""A project of small scripts for the cpu, built once."""

import pytest

from support.project import Project, head

TEMPLATES = {
    # y = x * w, row by row, and its gradient.
    "scale.j2": """\
extern "C" void scale(const float *x, const float *w, float *y, int m, int n) {
  for (int i = 0; i < m * n; i++) y[i] = x[i] * w[i % n];
}
""",
    "scale_back.j2": """\
extern "C" void scale_back(const float *grad_y, const float *x, const float *w, float *grad_x,
                           float *grad_w, int m, int n) {
  for (int j = 0; j < n; j++) grad_w[j] = 0;
  for (int i = 0; i < m * n; i++) {
    grad_x[i] = grad_y[i] * w[i % n];
    grad_w[i % n] += grad_y[i] * x[i];
  }
}
""",
    # y += a * x
    "add.j2": """\
extern "C" void add(float a, const float *x, float *y, long long n) {
  for (long long i = 0; i < n; i++) y[i] += a * x[i];
}
""",
    # Sums of `step` elements each, and how many elements there were.
    "sums.j2": """\
typedef {{ "float" if real == "f32" else "double" }} real;
extern "C" void sums(const real *x, int step, bool negate, real *y, int *count, int n) {
  for (int j = 0; j < (n + step - 1) / step; j++) {
    y[j] = 0;
    for (int i = j * step; i < n && i < (j + 1) * step; i++) y[j] += negate ? -x[i] : x[i];
  }
  count[0] = n;
}
""",
    # The first elements, as many as a power of two; and of any tensor the first.
    "mixed.j2": """\
extern "C" void mixed(const float *x, const float *bias, float *first, float *y, int n) {
  int m = 1;
  while (2 * m <= n) m *= 2;
  for (int i = 0; i < m; i++) y[i] = x[i] + (bias ? bias[i] : 0);
  first[0] = n;
}
""",
    "odd.j2": 'extern "C" void odd(void *state, const float *x, int n) {}\n',
}
MANIFEST = (
    head()
    + """\
[script.scale]
template = "scale.j2"
kernel = "scale"
[script.scale.args]
x = "f32*[m, n]"
w = "f32*[n]"
y = { type = "f32*[m, n]", out = true }
m = "i32"
n = "i32"

[script.scale_back]
template = "scale_back.j2"
kernel = "scale_back"
[script.scale_back.args]
grad_y = "f32*[m, n]"
x = "f32*[m, n]"
w = "f32*[n]"
grad_x = { type = "f32*[m, n]", out = true }
grad_w = { type = "f32*[n]", out = true }
m = "i32"
n = "i32"

[script.add]
template = "add.j2"
kernel = "add"
[script.add.args]
a = "f32"
x = "f32*[n]"
y = { type = "f32*[n]", inout = true }
n = "i64"

[script.Sums]
template = "sums.j2"
kernel = "sums"
[script.Sums.args]
x = "real*[n]"
step = "i32"
negate = "bool"
y = { type = "real*[cdiv(n, step)]", out = true }
count = { type = "i32*[1]", out = true }
n = "i32"
[script.Sums.params]
real = ["f32", "f64"]

[script.mixed]
template = "mixed.j2"
kernel = "mixed"
[script.mixed.args]
x = "f32*[n]"
bias = { type = "f32*[n]", optional = true }
first = { type = "f32*[...]", out = true }
y = { type = "f32*[pow2(log2(n))]", out = true }
n = "i32"

[script.odd]
template = "odd.j2"
kernel = "odd"
[script.odd.args]
state = "void*"
x = "f32*[n]"
n = "i32"
"""
)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project, not to be changed."""
    files = {**TEMPLATES, "tilus.toml": MANIFEST}
    return Project.built(tmp_path_factory.mktemp("small"), files)
