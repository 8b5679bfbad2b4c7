"""What tools are asked, they answer with a TMPDIR of their own."""

import os
from pathlib import Path

import pytest

from tilusbuild.process.local import LocalRunner
from tilusbuild.state.digests import DigestMemory
from tilusbuild.toolchain.probe import Probe, ProbeError


@pytest.mark.parametrize("ending", ["echo well", "exit 1", "kill -9 $$", "kill -XFSZ $$"])
def test_what_a_tool_leaves_is_removed(tmp_path, monkeypatch, ending) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    tool = tmp_path / "tool"
    tool.write_text(
        f'#!/bin/sh\nmkdir "$TMPDIR/d" && echo "$TMPDIR" > "{tmp_path}/said"\n{ending}\n'
    )
    tool.chmod(0o755)
    with LocalRunner() as runner:
        probe = Probe(runner, dict(os.environ, TMPDIR="/nowhere"), DigestMemory())
        try:
            answer = probe.ask(str(tool), remember=False)
        except (ProbeError, OSError):
            answer = ""
    assert answer == ("well\n" if "well" in ending else "")
    assert Path((tmp_path / "said").read_text().strip()).parent == tmp_path / "tmp"
    assert os.listdir(tmp_path / "tmp") == []


def test_a_tool_can_be_asked_where_no_directory_can_be_made(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho well\n")
    tool.chmod(0o755)
    with LocalRunner() as runner:
        assert Probe(runner, dict(os.environ), DigestMemory()).ask(str(tool)) == "well\n"
