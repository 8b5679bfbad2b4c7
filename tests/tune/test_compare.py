"""`compare`: a function of the project that decides whether outputs are right."""

import os
from pathlib import Path

import pytest

from support.project import Project, head, needs_cxx

# The indices of the positive numbers, in any order.
MANIFEST = (
    head()
    + """
[script.positive]
template = "positive.cu.j2"
kernel = "positive"
args = { x = "f32*[n]", where = { type = "i32*[n]", out = true }, n = "i32" }
space = { order = ["up", "down", "twice"] }

[script.positive.tune]
ref = "ref.py:positive"
compare = "ref.py:same"
sizes = [{ n = 1000 }]
"""
)
KERNEL = """\
extern "C" void positive(const float *x, int *where, int n) {
  int found = 0;
  for (int k = 0; k < n; k++) {
    int i = {{ "n - 1 - k" if order == "down" else "k" }};
    if (x[i] > 0) where[found++] = {{ "where[0]" if order == "twice" else "i" }};
  }
  while (found < n) where[found++] = -1;
}
"""
REFERENCE = """\
import numpy as np

def positive(x):
    where = np.flatnonzero(x > 0)
    return np.concatenate([where, np.full(x.size - where.size, -1)])

def same(outputs, expected):
"""
RIGHT = '    return np.array_equal(np.sort(outputs["where"]), np.sort(expected["where"]))\n'


@pytest.fixture
def project(tmp_path: Path) -> Project:
    needs_cxx()
    files = {"tilus.toml": MANIFEST, "positive.cu.j2": KERNEL, "ref.py": REFERENCE + RIGHT}
    return Project(tmp_path / "project", {"TMPDIR": str(tmp_path)}).write_all(files)


def test_run_and_tune_ask_the_function(project: Project) -> None:
    assert (
        "ok\n1 size agrees with ref.py:positive and ref.py:same\n"
        in project.run("run", "positive[order=down]", "positive[order=up]").out
    )
    ran = project.run("run", "positive[order=twice]", status=1)
    assert "wrong at n=1000: same returned false\n" in ran.out
    ran = project.run("tune", "positive", "--cache", "warm")
    assert "program 2 (order=twice): incorrect: same returned false\n" in ran.out
    assert "not chosen for any size until rebuilt: 2\n" in ran.out
    assert project.run("tune", "positive", "--cache", "warm", "--json").summary["without"] == 0


def test_an_edit_of_the_function_decides_again(project: Project) -> None:
    project.run("tune", "positive", "--cache", "warm")
    project.edit("ref.py", "def same", "def positives(x):\n    return positive(x)\n\ndef same")
    project.edit("ref.py", RIGHT, "    return 'the order is wrong'\n")
    ran = project.run("tune", "positive", "--cache", "warm", status=1)
    assert "program 0 (order=up): incorrect: the order is wrong\n" in ran.out


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("return True", 0, "1 size agrees"),
        ("return 'row 3 has 2 twice'", 1, "wrong at n=1000: row 3 has 2 twice\n"),
        ("np.testing.assert_array_equal(outputs['where'], 7); return True", 1, "are not equal"),
        ("return (outputs['where'] == expected['where']).all()", 1, "same returned false"),
        # A mistake of the function is an error at its line, and no verdict on the program.
        ("return None", 2, "ref.py:7: error: the function same of `compare` returned nothing"),
        ("return outputs['where'] == 7", 2, "ref.py:7: error: the function same of `compare`"),
        ("return outputs['were']", 2, "ref.py:8: error: the function same of `compare` failed"),
        ("expected['where'].sort()", 2, "read-only"),
    ],
)
def test_what_it_returns_is_checked(project: Project, body: str, status: int, message: str) -> None:
    project.write("ref.py", REFERENCE + f"    {body}\n")
    ran = project.run("run", "positive[order=down]", status=status)
    assert message in ran.out + ran.err
    assert "Traceback" not in ran.err


def test_without_a_reference_the_inputs_say_what_is_right(project: Project) -> None:
    project.edit("tilus.toml", 'ref = "ref.py:positive"\n', "")
    positive = "np.flatnonzero(inputs['x'] > 0)"
    body = f"    return set(outputs['where']) - {{-1}} == set({positive})\n"
    text = REFERENCE.replace("expected", "expected, inputs")
    project.write("ref.py", text + body)
    assert "agrees with ref.py:same" in project.run("run", "positive[order=down]").out
    project.run("run", "positive[order=twice]", status=1)


def test_a_package_says_that_its_outputs_are_not_compared(project: Project) -> None:
    project.run("build")
    ran = project.run("package", "--with-tests", "--format", "dir")
    assert "positive cpu: outputs are not compared: ref.py:same stays here" in ran.err
    events = project.run("check", ran.out.strip(), "--json").events
    checked = [event for event in events if event["event"] == "checked"]
    assert [(e["status"], e["compared"]) for e in checked] == [("ok", False)] * 3


def test_a_missing_function_is_an_error_of_the_manifest(project: Project) -> None:
    project.edit("tilus.toml", "ref.py:same", "ref.py:sam")
    ran = project.run("run", "positive", status=2)
    assert "tilus.toml:18:" in ran.err
    assert 'did you mean "same"?' in ran.err
    os.unlink(project.directory / "ref.py")
    assert "tilus.toml:18:" in project.run("plan", status=2).err
