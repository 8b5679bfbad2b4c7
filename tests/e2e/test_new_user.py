"""The mistakes of a new user's first week, with the whole message of each: `new_user.txt`.

Each is a change of the README's example: a file, the text that is there (none of a new file) and
the text in its place.
The message is what the command prints, or what the call raises. There is one error, the true one,
in its place.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import tilusbuild
from support.paths import ROOT
from support.project import Project, needs_cxx
from tilusbuild.runtime.kernel import Kernel

ENTRY = re.compile(
    r"^=== (?P<name>[^\n]*)\n(?P<edits>.*?)^--- (?P<command>[^\n]*)\n(?P<says>.*?)\n*(?=^===|\Z)",
    re.MULTILINE | re.DOTALL,
)
EDIT = re.compile(r"^(\S+): (.*) -> (.*)$", re.MULTILINE)
TEXT = (Path(__file__).parent / "new_user.txt").read_text(encoding="utf-8")
CALLS = [entry for entry in ENTRY.finditer(TEXT) if entry["command"].startswith("call ")]
ENTRIES = [entry for entry in ENTRY.finditer(TEXT) if not entry["command"].startswith("call ")]
BLOCKS = re.findall(r"```(?:toml|cpp)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
FILES = {"tilus.toml": BLOCKS[0], "kernels/saxpy.cu.j2": BLOCKS[1]}


def unescape(text: str) -> str:
    return text.replace(r"\n", "\n")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_a_mistake_is_one_error(entry: re.Match[str], tmp_path: Path) -> None:
    assert read_message(make_project(tmp_path), entry["edits"], entry["command"]) == entry["says"]


def test_a_call_that_is_wrong(tmp_path: Path) -> None:
    needs_cxx()
    project = make_project(tmp_path)
    project.run("build", "--target", "cpu", "--level", "0")
    for entry in CALLS:
        assert say_call(project, entry["command"]) == entry["says"]


def test_there_are_forty() -> None:
    assert len(ENTRIES) + len(CALLS) == TEXT.count("\n--- ") >= 40


def make_project(directory: Path) -> Project:
    cache = {"TILUSBUILD_CACHE_DIR": str(directory / "p/.cache")}
    return Project(directory / "p", cache).write_all(FILES)


def read_message(project: Project, edits: str, command: str) -> str:
    """Return the message of a command."""
    for name, old, new in EDIT.findall(edits):
        if name == "environment":
            project.environment[old] = new
        elif old == "":
            project.write(name, new)
        else:
            project.edit(name, unescape(old), unescape(new))
    if command.startswith("build"):
        needs_cxx()
    ran = project.run(*command.split(), status=None)
    assert ran.status in (1, 2)
    message = ran.err.replace(str(project.directory), "PROJECT")
    message = re.sub(r"\b[0-9a-f]{64}\b", "HASH", message)
    message = re.sub(r"\+0x[0-9a-f]+", "+0x0", message)
    return "\n".join(line.rstrip() for line in message.splitlines()).strip("\n")


def say_call(project: Project, command: str) -> str:
    """Return the exception of a call, which begins with "call "."""

    def load(name: str) -> Kernel:
        return tilusbuild.load(name, where=str(project.cache))

    names = {"np": np, "load": load, "saxpy": load("saxpy")}
    arrays = {name: np.ones(8, np.float32) for name in "xy"}
    with pytest.raises(Exception) as caught:  # noqa: PT011 — the message is compared
        eval(command.removeprefix("call "), {**names, **arrays})
    message = f"{caught.type.__name__}: {caught.value}"
    return message.replace(str(project.directory), "PROJECT")
