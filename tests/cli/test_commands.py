"""A command that is printed works when it is typed: one function quotes every word."""

import re
import shlex
from pathlib import Path

import pytest

from support.command_line import run
from support.paths import ROOT
from support.processes import run_to_end
from tilusbuild.render import find_templates_directory
from tilusbuild.runtime.naming import format_command

NAMES = ("plain", "my kernels", "it's", "$HOME", "-x", "a;b", "*", "größe", 'quo"te', "new\tline")


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_gives_every_word_back(name: str) -> None:
    words = run_to_end(
        ["sh", "-c", f"set -- {format_command('build', name)}; printf '%s\\n' \"$@\""]
    ).stdout
    assert words == f"tilusbuild\nbuild\n{name}\n"


@pytest.mark.parametrize("name", [name for name in NAMES if "\t" not in name])
def test_what_init_prints_works_as_it_is(tmp_path: Path, name: str) -> None:
    directory = ("./" if name.startswith("-") else "") + name
    printed = run(tmp_path, "init", directory).out
    lines = [line.strip() for line in printed.splitlines() if line.startswith("  tilusbuild ")]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)[1:]
        assert words[words.index("-C") + 1] in (name, f"./{name}")
    plan = ["plan", *shlex.split(lines[0])[2:]]
    assert "programs" in run(tmp_path, *plan).out


def test_init_copies_only_what_is_ours(tmp_path: Path) -> None:
    cache = Path(find_templates_directory(), "starter", "__pycache__")
    was_there = cache.exists()
    cache.mkdir(exist_ok=True)
    (cache / "ref.pyc").write_bytes(b"")
    try:
        run(tmp_path, "init", "made")
    finally:
        (cache / "ref.pyc").unlink()
        if not was_there:
            cache.rmdir()
    assert not list((tmp_path / "made").rglob("__pycache__"))
    ignored = (tmp_path / "made/.gitignore").read_text().split()
    assert {".cache/", "__pycache__/", "*.pyc", "dist/"} <= set(ignored)


def test_no_message_writes_a_command_with_a_value_by_itself() -> None:
    by_itself = re.compile(r"f\"[^\"]*`?tilusbuild (?!program)[a-z]+ [^\"`]*\{(?!command)[^\"]*`")
    locations = [
        f"{path.name}:{number}"
        for path in sorted((ROOT / "tilusbuild").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if by_itself.search(line)
    ]
    assert locations == []
