"""What a compiler's report says of headers."""

from __future__ import annotations

from typing import Any

import pytest

from tilusbuild.compile.header_times import HeaderTime, found, shown


def reading(header: str, start: int, seconds: int, pid: int = 1) -> dict[str, Any]:
    """One event of a report: a header that is read for so many seconds."""
    name, microseconds = "Processing Header File", 1_000_000
    times = {"ts": start * microseconds, "dur": seconds * microseconds}
    return {"ph": "X", "name": name, "pid": pid, "tid": 0, "args": {"detail": header}, **times}


def test_a_header_costs_what_is_in_it_and_what_it_includes() -> None:
    times = found([reading("include/a/a.h", 0, 10), reading("/usr/include/b.h", 2, 3)])
    assert times.headers == (HeaderTime("a/a.h", 7, 10), HeaderTime("<b.h>", 3, 3))
    assert times.phases["headers"] == 10


def test_the_order_of_a_report_means_nothing() -> None:
    events = [reading("/include/b", 2, 3), reading("/include/c", 2, 1), reading("/include/a", 0, 9)]
    rows = {each.header: (each.own, each.whole) for each in found(events).headers}
    assert rows == {"<a>": (6, 9), "<b>": (2, 3), "<c>": (1, 1)}


def test_a_header_that_is_read_again_adds_up_and_in_itself_counts_once() -> None:
    events = [reading("/include/a", 0, 4), reading("/include/a", 1, 2), reading("/include/a", 6, 1)]
    assert found(events).headers == (HeaderTime("<a>", 5, 5),)


def test_two_processes_do_not_nest() -> None:
    events = [reading("/include/a", 0, 9, pid=1), reading("/include/b", 1, 2, pid=2)]
    assert {each.header: each.own for each in found(events).headers} == {"<a>": 9, "<b>": 2}


def test_the_phases_add_up_to_the_front_end_and_the_rest() -> None:
    whole = [("CUDA C++ Front-End", 10), ("LibNVVM", 4), ("Total PTXAS Time", 2)]
    whole += [("Wrapping up translation unit", 3), ("g++ (preprocessing 1)", 1)]
    events = [{"ph": "X", "name": name, "dur": s * 1_000_000} for name, s in whole]
    assert found([*events, reading("/include/a", 0, 5)]).phases == {
        "preprocessor": 1, "headers": 5, "templates": 3, "other front end": 2, "optimiser": 4,
        "ptxas": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("include/project/own.h", "project/own.h"),
        ("/proc/self/cwd/include/project/a/../own.h", "project/own.h"),
        ("/opt/cuda/bin/../include/cuda_fp16.h", "<cuda_fp16.h>"),
        ("/opt/cuda/include/cccl/cub/cub.cuh", "<cccl/cub/cub.cuh>"),
        ("__nv_nvrtc_builtin_header.h", "__nv_nvrtc_builtin_header.h"),
    ],
)
def test_the_names_of_headers(path: str, name: str) -> None:
    assert shown(path) == name
