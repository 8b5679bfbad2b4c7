"""What a person reads for each mistake: `mistakes.txt` holds the exact words.

An entry there is a name, what is appended to the preamble of `conftest.py`, and what is said.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tilusbuild.errors import InputError
from tilusbuild.manifest.model import Manifest

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
    assert raised.value.exit_status == 2
    assert raised.value.render().replace(str(project), "PROJECT") == entry["says"]


def test_the_preamble_alone_is_right(load_script: Callable[[str], Manifest]) -> None:
    assert list(load_script("").scripts) == ["m"]
    assert len(ENTRIES) == MISTAKES.count("--- says")
