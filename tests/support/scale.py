"""The project that most tests of the command line build: `y = a * x`, for the host or a GPU."""

from support.project import Project

TEMPLATE = """\
{# y = a * x #}
constexpr int unroll = {{ unroll }};
{% if target.kind == "cpu" %}
extern "C" void scale(float a, const float *x, float *y, long long n) {
  for (long long i = 0; i < n; ++i) y[i] = a * x[i];
}
{% else %}
extern "C" __global__ void scale(float a, const float *x, float *y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}
{% endif %}
"""
"""Of the script `scale`, whose only parameter is `unroll`."""

REFERENCE = """\
import numpy as np


def scale(a, x, y):
    return np.float32(a) * x
"""

_SCRIPT = """\
[script.{name}]
template = "kernels/{name}.cu.j2"
kernel = "scale"
targets = ["{target}"]
args = {{ a = "f32", x = "f32*[n]", y = {{ type = "f32*[n]", out = true }}, n = "i64" }}
launch = {{ grid = ["cdiv(n, 256)"], block = [256] }}
{more}
[script.{name}.space]
unroll = {{ range = [1, {schedules}] }}
"""


def script(name: str = "scale", *, target: str = "cpu", schedules: int = 2, more: str = "") -> str:
    """The tables of a script; `more` are further lines of its first table."""
    return _SCRIPT.format(name=name, target=target, schedules=schedules, more=more)


def manifest(*scripts: str, build: str = "") -> str:
    """A whole manifest with a target for the host and one for a GPU; `build` goes in `[build]`."""
    return (
        'edition = 1\n\n[project]\nname = "p"\nversion = "0.1.0"\n\n'
        f'[build]\ncache-dir = ".cache"\n{build}\n\n'
        '[target.cpu]\narch = "cpu"\n\n[target.gpu]\narch = "sm_80"\n\n'
    ) + "\n".join(scripts or [script()])


def include_headers(project: Project) -> None:
    """Have the template include headers of the project, in directories of their own."""
    project.write("include/a/b.h", '#include "../c.h"\n')
    project.write("include/c.h", "constexpr int c = 1;\n")
    project.edit("tilus.toml", "[build]\n", '[build]\ninclude-dirs = ["include"]\n')
    project.edit("kernels/scale.cu.j2", "constexpr", '#include "a/b.h"\nconstexpr')
