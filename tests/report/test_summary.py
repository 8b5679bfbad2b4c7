"""The last words: what a person reads when something did not build, and when all is well."""

import io
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any, TextIO, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.build_story import Clock, Story, summary
from support.command_line import run
from support.project import needs_cxx
from tilusbuild.engine import events
from tilusbuild.engine.events import FailureGroup, RemoteSummary, Verdict
from tilusbuild.report.plain import PlainReporter
from tilusbuild.report.summary import format_summary
from tilusbuild.report.terminal import TerminalStream
from tilusbuild.report.text import OutputStream, spell_out_controls

GROUP = FailureGroup(
    error='error: static assertion failed with "tile too wide"',
    count=3,
    labels=("matmul/3 sm_90a", "matmul/9 sm_90a"),
    status="failed",
    message="kernels/matmul.cu.j2(12): error: static assertion failed\n  static_assert(x);\n\n",
    compile_sh="/home/me/my cache/programs/ab/module/compile.sh",
)


def test_equal_failures_show_one_sample_and_what_reproduces_it() -> None:
    text = format_summary(summary(programs=10, compiled=7, failed=3, failures=(GROUP,)))
    assert text == (
        '3 schedules: error: static assertion failed with "tile too wide"\n'
        "  matmul/3 sm_90a, matmul/9 sm_90a … 1 more\n"
        "  | kernels/matmul.cu.j2(12): error: static assertion failed\n"
        "  |   static_assert(x);\n"
        "  reproduce: bash '/home/me/my cache/programs/ab/module/compile.sh'\n"
        "\n"
        "10 programs: 7 compiled, 3 failed (1.50 s)\n"
    )


def test_a_script_that_failed_says_why_and_so_does_a_build_that_stopped() -> None:
    name, why = "matmul[dtype=f16] h100", "its default is broken"
    bad = Verdict("matmul", ("matmul", "dtype=f16", "h100"), 4, 3, 1, 0, False, why, name)
    good = Verdict("norm", ("norm", "h100"), 4, 4, 0, 0, True, "", "norm h100")
    text = format_summary(summary(programs=8, compiled=8, scripts=(bad, good), exit_status=1))
    assert (
        text.splitlines()[0]
        == "error: matmul[dtype=f16] h100: its default is broken (3 of 4 built)"
    )
    assert "norm" not in text
    text = format_summary(summary(programs=2, skipped=2, error="No space left on device: /c"))
    assert text.splitlines()[0] == "error: No space left on device: /c"


def test_a_sample_has_no_line_twice_and_is_cut() -> None:
    error = "error: nothing that is linked defines f"
    log = f"ld: source.o: undefined reference to `f'\n{error}\n" + "line\n" * 1000
    group = FailureGroup(error, 1, ("k/0 gpu",), "failed", log, None)
    lines = format_summary(summary(programs=1, failed=1, failures=(group,))).splitlines()
    assert lines[:3] == [
        f"1 schedule: {error}",
        "  k/0 gpu",
        "  | ld: source.o: undefined reference to `f'",
    ]
    assert lines[26] == "  | … 977 more lines"
    assert len(lines) < 40


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({"programs": 5, "cached": 5}, "5 programs, nothing to do (1.50 s)"),
        ({}, "nothing to build"),
        (
            {"programs": 9, "compiled": 4, "skipped": 5, "signal": 2},
            "interrupted: 4 compiled and kept, 5 not done (1.50 s)",
        ),
        (
            {"programs": 3, "crashed": 1, "pruned": 2, "seconds": 75.0},
            "3 programs: 2 pruned, 1 without an answer (1:15)",
        ),
    ],
)
def test_the_sums_are_the_last_line(changes: dict[str, Any], last: str) -> None:
    assert format_summary(summary(**changes)).splitlines()[-1] == last


def test_what_other_machines_compiled_has_a_line_of_its_own() -> None:
    remote = RemoteSummary(
        *("grpc://x", 0, 0, 0, 0, 0, 0, 0, 0.0),
        executed=3,
        executor="grpc://x",
        remembered=1,
        executed_seconds=75.0,
        inputs_bytes=2_000_000,
        outputs_bytes=3_000,
    )
    text = format_summary(summary(programs=3, compiled=3, remote=remote))
    assert text == (
        "remote executor: 3 compiles of 1:15, 1 known there before, 2.0 MB sent, 3.0 kB fetched\n"
        "3 programs: 3 compiled (1.50 s)\n"
    )
    both = replace(remote, hits=2, fetched_bytes=1000)
    first, second, _ = format_summary(summary(programs=3, remote=both)).splitlines()
    assert first.startswith("remote cache: 2 fetched (")
    assert second.startswith("remote executor: 3 compiles")


# Plain lines: what is printed, what is left out, and that nothing of it can hurt the build.
def test_a_build_reads_as_lines(clock: Clock) -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out, now=clock), Story(3)
    reporter.emit(tale.start)
    reporter.emit(tale.plan)
    reporter.emit(tale.finished(0, seconds=0.42))
    reporter.emit(tale.finished(1, "failed", reason="source.cu(3): error: no"))
    reporter.emit(tale.finished(2, cached=True))
    reporter.emit(summary(programs=3, compiled=1, cached=1, failed=1))
    assert out.getvalue().splitlines() == [
        "3 programs: 3 to compile 2 at a time",
        "[1/3] matmul/0 sm_90a 0.42 s",
        "[2/3] matmul/1 sm_90a does not compile: source.cu(3): error: no",
        "[3/3] matmul/2 sm_90a by another build",
        "3 programs: 1 compiled, 1 up to date, 1 failed (1.50 s)",
    ]


def test_equal_failures_are_one_message(clock: Clock) -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out, now=clock), Story(3000)
    for index in range(3000):
        clock.time = index / 100
        where = "source.cu(9)" if index == 7 else "source.cu(3)"
        reason = f"{where}: error: tile {index} is too wide"
        reporter.emit(tale.finished(index, "failed", reason=reason))
    lines = out.getvalue().splitlines()
    assert [line for line in lines if "too wide" in line] == [lines[0], lines[7]]
    assert lines[1] == "[   2/3000] matmul/1 sm_90a: as matmul/0 sm_90a"
    assert len(lines) < 50


def test_after_the_first_few_one_line_a_second_and_the_last(clock: Clock) -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out, now=clock), Story(1000)
    reporter.emit(tale.plan)
    for index in range(1000):
        clock.time = index / 100
        reporter.emit(tale.finished(index))
    counters = [line.split("]")[0].strip("[ ") for line in out.getvalue().splitlines()[1:]]
    assert counters[:11] == [*(f"{n}/1000" for n in range(1, 11)), "110/1000"]
    assert counters[-1] == "1000/1000"
    assert len(counters) < 25


def test_verbose_prints_every_program(clock: Clock) -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out, verbose=True, now=clock), Story(100)
    for index in range(100):
        reporter.emit(tale.finished(index))
    assert len(out.getvalue().splitlines()) == 100


def test_quiet_prints_only_what_failed() -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out, quiet=True), Story(1)
    for event in (tale.start, tale.plan, tale.started(0), tale.finished(0), summary(programs=1)):
        reporter.emit(event)
    assert out.getvalue() == ""
    tale = Story(1)
    reporter.emit(tale.finished(0, "crashed", reason="signal 11"))
    verdict = events.Verdict(
        "matmul", ("matmul", "h100"), 1, 0, 0, 0, False, "none of it builds", "matmul h100"
    )
    reporter.emit(summary(programs=1, crashed=1, exit_status=1, scripts=(verdict,)))
    assert out.getvalue().splitlines() == [
        "[1/1] matmul/0 sm_90a was not compiled: signal 11",
        "error: matmul h100: none of it builds (0 of 1 built)",
    ]


def test_names_and_reasons_cannot_write_to_the_terminal() -> None:
    out = io.StringIO()
    reporter, tale = PlainReporter(out), Story(1)
    reporter.emit(tale.finished(0, "failed", label="a\nb\x1b[2J", reason="\x1b]0;title\x07x\x9b"))
    assert out.getvalue() == "[1/1] a\\nb does not compile: x\\x9b\n"


def test_a_closed_pipe_does_not_stop_the_build() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        reporter, tale = PlainReporter(stream), Story(2)
        reporter.emit(tale.finished(0))
        reporter.emit(tale.finished(1))


def test_a_stream_that_knows_no_unicode_gets_escapes() -> None:
    raw = io.BytesIO()
    below = io.TextIOWrapper(raw, encoding="ascii")
    PlainReporter(cast("TextIO", TerminalStream(below))).emit(Story(1).finished(0, label="größe"))
    assert raw.getvalue() == b"[1/1] gr\\xf6\\xdfe 1.00 s\n"


# What is not ours reaches no terminal as an instruction, and no CI as a command.
ODD = "".join(map(chr, (*range(32), *range(127, 160), 0x202E, 0x2066, 0x200F, 0xFEFF, 0xE0041)))
texts = st.lists(
    st.one_of(st.text(), st.text(ODD), st.sampled_from(["::", ":", "##[", "#", "\n", " ", "x"]))
).map("".join)


@given(texts)
def test_no_character_that_acts_on_a_terminal_is_left(text: str) -> None:
    shown = spell_out_controls(text)
    shown.encode()
    assert not [c for c in shown if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    assert not [c for c in shown if unicodedata.bidirectional(c) in EMBEDDINGS]
    assert spell_out_controls(shown) == shown


EMBEDDINGS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def as_runner(text: str) -> list[str]:
    """The lines that GitHub's runner takes for a command."""
    return [line for line in text.split("\n") if re.match(r"\s*::", line) or "##[" in line]


@given(st.lists(texts))
@example([" ", ":", ":error::x"])
@example(["#", "#", "[error]"])
@example(["x\n", "\u2003::stop-commands::t"])
def test_no_line_is_a_command_however_it_is_cut(pieces: list[str]) -> None:
    below = io.StringIO()
    stream = TerminalStream(below, github=True)
    for piece in pieces:
        stream.write(piece)
        assert as_runner(below.getvalue()) == []
    stream.close()
    assert as_runner(below.getvalue()) == []


def test_our_own_escapes_and_commands_pass() -> None:
    below = io.StringIO()
    stream = cast("TextIO", TerminalStream(below, github=True))
    OutputStream(stream, "styled").write("\x1b[2K")
    OutputStream(stream, "command").write("::error::x\n")
    assert below.getvalue() == "\x1b[2K::error::x\n"


TEMPLATE = '{{ raise("a\\n::error::x \x1b]0;title\x07 \u202eb") }}'
MANIFEST = """\
edition = 1
project = { name = "p", version = "1" }
target.cpu = { arch = "cpu" }
script.s = { template = "s.cu", entry = "f", args = { n = "i64" } }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tmp_path.joinpath("tilus.toml").write_text(MANIFEST)
    tmp_path.joinpath("s.cu").write_text(TEMPLATE)
    return tmp_path


@pytest.mark.parametrize("github", ["", "true"])
def test_a_templates_message_is_shown_and_not_obeyed(project: Path, github: str) -> None:
    err = run(project, "build", status=2, environment={"GITHUB_ACTIONS": github}).err
    assert "\\x1b]0;title\\x07 \\u202eb" in err
    assert "\x1b" not in err
    assert "\u202e" not in err
    commands = [line for line in as_runner(err) if github]
    assert [line.split("::")[1].split(" ")[0] for line in commands] == (["error"] if github else [])
    if github:
        assert "%0A::error::x" in commands[0]
        assert ":\\:error::x" in err


def test_names_that_are_not_utf8_are_shown_by_their_bytes(tmp_path: Path) -> None:
    directory = tmp_path / "k\udcff\x1b[31m"
    directory.mkdir()
    ran = run(tmp_path, "-C", directory, "plan", status=2)
    assert "k\\xff\\x1b[31m" in ran.err


def test_a_log_that_cache_show_prints_is_shown_and_not_obeyed(project: Path) -> None:
    needs_cxx()
    project.joinpath("s.cu").write_text('#error "\x1b]0;title\x07 \u202eb"\n')
    run(project, "build", "--cache-dir", "cache", status=1)
    (log,) = project.glob("cache/programs/*/module/nvcc_output.txt")
    assert "\x1b]0;title\x07" in log.read_text()
    shown = run(project, "cache", "show", log.parents[1].name, "--cache-dir", "cache").out
    assert "\\x1b]0;title\\x07 \\u202eb" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(("unbuffered", "seen"), [("1", "out\nerr\nagain\n"), ("", "err\n")])
def test_lines_are_seen_when_they_would_be(unbuffered: str, seen: str) -> None:
    """Of a process that dies: PYTHONUNBUFFERED holds nothing back, and stderr never does."""
    script = (
        "import os, sys\nfrom tilusbuild.report.terminal import use_terminal_streams\n"
        "with use_terminal_streams({}):\n"
        "    print('out'); sys.stderr.write('err\\n'); print('again'); os._exit(0)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    assert ran.stdout == seen
