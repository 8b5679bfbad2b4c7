"""A manifest of any size is read in time that is linear in it, or refused with a reason."""

from pathlib import Path

import pytest

from tilusbuild.errors import InputError
from tilusbuild.manifest.loading import load
from tilusbuild.state import patterns

HEAD = """\
edition = 1
project = { name = "p", version = "1" }
target.cpu = { arch = "cpu" }
"""
MANY = 100_000
LARGE = {
    "keys that nothing knows": ("".join(f"k{i} = 1\n" for i in range(MANY)), "more mistakes"),
    "tables": ("".join(f"[t{i}]\n" for i in range(MANY)), "more mistakes"),
    "wrong scripts": (
        "".join(f"[script.s{i}]\ntemplate = 1\n" for i in range(MANY // 2)),
        "more mis",
    ),
    "values": ("x = [" + "1," * 300_000 + "]\n", "unknown key"),
    "brackets": ("x = " + "[" * MANY + "]" * MANY + "\n", "nested too deeply"),
    "a word": ("a" * 8_000_000 + " = 1\n", "unknown key"),
    "dots": ("x = '" + "." * 8_000_000 + "'\n", "unknown key"),
    "quotes": ('x = "' + '\\"' * 4_000_000 + '"\n', "unknown key"),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_manifest_is_refused_soon(name: str, tmp_path: Path) -> None:
    text, message = LARGE[name]
    path = tmp_path / "tilus.toml"
    path.write_text(HEAD + text)
    with pytest.raises(InputError) as caught:
        load(str(path))
    assert any(message in each.message for each in caught.value.diagnostics)
    assert all(each.place for each in caught.value.diagnostics)
    assert len(caught.value.diagnostics) <= 101


def test_a_pattern_that_looks_at_everything_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(patterns, "MAX_NAMES", 3)
    for number in range(4):
        (tmp_path / f"{number}.cu").write_text("")
    path = tmp_path / "tilus.toml"
    path.write_text(HEAD + 'library.l = { kind = "static", sources = ["**/*.cu"] }\n')
    with pytest.raises(InputError, match="looks at more than 3 names in /") as caught:
        load(str(path))
    assert [str(each.place) for each in caught.value.diagnostics] == [f"{path}:4:43"]
