"""On GitHub Actions: annotations at the lines that are wrong."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support import build_story
from tilusbuild.engine.events import FailureGroup, Summary, Verdict
from tilusbuild.errors import Location, input_error
from tilusbuild.report.ci import (
    GithubReporter,
    annotate_error,
    find_path_below,
    format_workflow_command,
)
from tilusbuild.report.summary import ErrorLocation, find_first_error

LOG = "kernels/matmul.cu.j2(12): error: tile too wide\n    static_assert(false);\n"


def group(message: str = LOG, error: str = "error: tile too wide", count: int = 1) -> FailureGroup:
    labels = tuple(f"matmul/{i} h100" for i in range(count))
    return FailureGroup(error, count, labels, "failed", message, None)


def summary(*, ok: bool = True, **more: Any) -> Summary:
    why = "" if ok else "it is | bad"
    verdict = Verdict("matmul", ("matmul", "h100"), 9, 8, 1, 0, ok, why, "matmul h100")
    fields = {"programs": 9, "compiled": 9, "seconds": 3.25, "exit_status": int(not ok)}
    return build_story.summary(**fields, scripts=(verdict,), **more)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A checkout whose project is in a directory of its own."""
    template = tmp_path / "project/kernels/matmul.cu.j2"
    template.parent.mkdir(parents=True)
    template.write_text("")
    return tmp_path


def annotations_of(workspace: Path, event: Summary) -> str:
    """What goes to stderr."""
    stderr = io.StringIO()
    env = {"GITHUB_WORKSPACE": str(workspace)}
    GithubReporter(stderr, env, str(workspace / "project")).emit(event)
    return stderr.getvalue()


def test_a_failure_is_annotated_where_the_template_is_wrong(workspace: Path) -> None:
    annotations = annotations_of(workspace, summary(ok=False, failures=(group(),)))
    first, second = annotations.splitlines()
    assert first == (
        "::error file=project/kernels/matmul.cu.j2,line=12,title=1 schedule%3A matmul/0 h100"
        "::kernels/matmul.cu.j2(12): error: tile too wide%0A    static_assert(false);"
    )
    assert second == "::error title=matmul h100::matmul h100: it is | bad"


def test_failures_that_do_not_fail_the_build_are_warnings(workspace: Path) -> None:
    annotations = annotations_of(workspace, summary(failures=(group(),)))
    assert [line.split(" ")[0] for line in annotations.splitlines()] == ["::warning"]


@given(st.text())
def test_whatever_a_compiler_prints_is_one_command(text: str) -> None:
    line = format_workflow_command("error", text, text, {"file": text})
    assert line.count("\n") == 1
    assert line.startswith("::error file=")
    assert line.endswith("\n")
    _, _, rest = line.partition(" ")
    properties, _, _ = rest.partition("::")
    assert len(properties.split(",")) in (1, 2)


@pytest.mark.parametrize(
    ("log", "spot"),
    [
        (LOG, ErrorLocation("kernels/matmul.cu.j2", 12, None)),
        ("a.cc:3:14: error: expected ;\n", ErrorLocation("a.cc", 3, 14)),
        ("a.cc:3:14: fatal error: x.h: No such file\n", ErrorLocation("a.cc", 3, 14)),
        ("a.cc:3: error: no\n", ErrorLocation("a.cc", 3, None)),
        (
            "In file included from a.cc:1:\nb.h:9:1: error: x\na.cc:3:1: error: y",
            ErrorLocation("b.h", 9, 1),
        ),
        ("a file.cu(7): error: x\n", ErrorLocation("a file.cu", 7, None)),
        ("a.cc:3:14: warning: no error here\n", None),
        ("ptxas fatal: Unresolved extern\n", None),
        ("", None),
    ],
)
def test_the_first_place_of_an_error_is_found(log: str, spot: ErrorLocation | None) -> None:
    first_error = find_first_error(log)
    assert spot == (first_error and replace(first_error, message=""))


def test_a_file_is_named_from_the_top_of_the_checkout(workspace: Path) -> None:
    root, top = str(workspace / "project"), str(workspace)
    assert find_path_below("kernels/matmul.cu.j2", root, top) == "project/kernels/matmul.cu.j2"
    assert find_path_below("kernels/none.cu.j2", root, top) is None
    assert find_path_below("../../etc/passwd", root, top) is None


def test_what_is_wrong_with_the_manifest_is_annotated_there(workspace: Path) -> None:
    manifest = workspace / "tilus.toml"
    manifest.write_text("x = 1\n")
    stderr = io.StringIO()
    error = input_error(
        "unknown key", location=Location(str(manifest), 1, 1, "x = 1"), hint="leave out"
    )
    annotate_error(error, stderr, {"GITHUB_WORKSPACE": str(workspace)})
    assert stderr.getvalue() == "::error file=tilus.toml,line=1,col=1::unknown key%0Aleave out\n"
