"""What is not ours reaches no terminal as an instruction, and no CI as a command."""

import io
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import TextIO, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.command_line import run
from support.project import needs_cxx
from tilusbuild.report.terminal import TerminalStream
from tilusbuild.report.text import Stream, visible

ODD = "".join(map(chr, (*range(32), *range(127, 160), 0x202E, 0x2066, 0x200F, 0xFEFF, 0xE0041)))
texts = st.lists(
    st.one_of(st.text(), st.text(ODD), st.sampled_from(["::", ":", "##[", "#", "\n", " ", "x"]))
).map("".join)


@given(texts)
def test_no_character_that_acts_on_a_terminal_is_left(text: str) -> None:
    shown = visible(text)
    shown.encode()
    assert not [c for c in shown if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    assert not [c for c in shown if unicodedata.bidirectional(c) in EMBEDDINGS]
    assert visible(shown) == shown


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


def test_our_own_escapes_and_commands_pass() -> None:
    below = io.StringIO()
    stream = cast("TextIO", TerminalStream(below, github=True))
    Stream(stream, "styled").write("\x1b[2K")
    Stream(stream, "command").write("::error::x\n")
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
    ours = [line for line in as_runner(err) if github]
    assert [line.split("::")[1].split(" ")[0] for line in ours] == (["error"] if github else [])
    if github:
        assert "%0A::error::x" in ours[0]
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
        "import os, sys\nfrom tilusbuild.report.terminal import shown\n"
        "with shown({}):\n"
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
