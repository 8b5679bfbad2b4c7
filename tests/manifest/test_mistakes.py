"""What a person reads for each mistake: `mistakes.txt` holds the exact words.

An entry there is a name, what is appended to the preamble of `conftest.py`, and what is said: for
each mistake its line, its first and last column, the message, and the hint on lines of its own.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import pytest
from manifest.conftest import PREAMBLE

from support.paths import ROOT
from tilusbuild.errors import InputError
from tilusbuild.manifest.loading import load_manifest
from tilusbuild.manifest.model import Manifest
from tilusbuild.state import patterns

ENTRY = re.compile(
    r"^=== (?P<name>[^\n]*)\n(?P<text>.*?)^--- says\n(?P<says>.*?)\n*(?=^===|\Z)",
    re.MULTILINE | re.DOTALL,
)
MISTAKES = (Path(__file__).parent / "mistakes.txt").read_text(encoding="utf-8")
ENTRIES = list(ENTRY.finditer(MISTAKES))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_says(entry: re.Match[str], load_script: Callable[[str], Manifest], project: Path) -> None:
    with pytest.raises(InputError) as raised:
        load_script(entry["text"])
    lines = (PREAMBLE + entry["text"]).split("\n")
    message_lines = []
    for diagnostic in raised.value.diagnostics:
        message, location, hint = diagnostic[:3]
        assert location is not None
        assert location.line is not None
        assert location.column is not None
        assert (location.path, location.text) == ("tilus.toml", lines[location.line - 1])
        message_lines.append(
            f"{location.line}:{location.column}-{location.column + location.width - 1} {message}"
        )
        message_lines += [f"  {line}" for line in (hint or "").splitlines()]
    assert "\n".join(message_lines).replace(str(project), "PROJECT") == entry["says"]


def test_the_preamble_alone_is_right(load_script: Callable[[str], Manifest]) -> None:
    assert list(load_script("").scripts) == ["m"]
    assert len(ENTRIES) == MISTAKES.count("--- says")


# A manifest of any size is read in time that is linear in it, or refused with a reason.
HEAD = """\
edition = 1
project = { name = "p", version = "1" }
target.cpu = { arch = "cpu" }
"""
MANY = 30_000
LARGE = {
    "keys that nothing knows": ("".join(f"k{i} = 1\n" for i in range(MANY)), "more mistakes"),
    "tables": ("".join(f"[t{i}]\n" for i in range(MANY)), "more mistakes"),
    "wrong scripts": (
        "".join(f"[script.s{i}]\ntemplate = 1\n" for i in range(MANY // 2)),
        "more mis",
    ),
    "values": ("x = [" + "1," * 90_000 + "]\n", "unknown key"),
    "brackets": ("x = " + "[" * MANY + "]" * MANY + "\n", "nested too deeply"),
    "a word": ("a" * 2_000_000 + " = 1\n", "unknown key"),
    "dots": ("x = '" + "." * 2_000_000 + "'\n", "unknown key"),
    "quotes": ('x = "' + '\\"' * 1_000_000 + '"\n', "unknown key"),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_manifest_is_refused_soon(name: str, tmp_path: Path) -> None:
    text, message = LARGE[name]
    path = tmp_path / "tilus.toml"
    path.write_text(HEAD + text)
    with pytest.raises(InputError) as caught:
        load_manifest(str(path))
    assert any(message in diagnostic.message for diagnostic in caught.value.diagnostics)
    assert all(diagnostic.location for diagnostic in caught.value.diagnostics)
    assert len(caught.value.diagnostics) <= 101


def test_a_pattern_that_looks_at_everything_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(patterns, "MAX_NAMES", 3)
    for number in range(4):
        (tmp_path / f"{number}.cu").write_text("")
    path = tmp_path / "tilus.toml"
    path.write_text(HEAD + 'library.l = { kind = "static", sources = ["**/*.cu"] }\n')
    with pytest.raises(InputError, match="looks at more than 3 names in /") as caught:
        load_manifest(str(path))
    assert [str(diagnostic.location) for diagnostic in caught.value.diagnostics] == [f"{path}:4:43"]


WRONG = ("x\\u0000.py:f", "a\\u0000b", ".", "../..", "a\\nb", "m +")
EXAMPLE = (ROOT / "tilus.toml.example").read_text(encoding="utf-8")
TEXTS = list(re.finditer(r'"[^"\\\n]*"', EXAMPLE))


def test_each_text_of_the_example_can_be_wrong(load_example: Callable[[str], Manifest]) -> None:
    """Each text in turn is something else: it is taken, or refused, and the loader stands."""
    for text, wrong in zip(TEXTS, cycle(WRONG), strict=False):
        with suppress(InputError):
            load_example(f'{EXAMPLE[: text.start()]}"{wrong}"{EXAMPLE[text.end() :]}')
