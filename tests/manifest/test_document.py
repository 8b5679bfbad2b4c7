"""Files that are no manifest: what is wrong, and where."""

import os
from pathlib import Path

import pytest

from tilusbuild.errors import InputError
from tilusbuild.manifest.document import Document
from tilusbuild.manifest.loading import load_manifest


def render_refusal(data: bytes) -> str:
    """What is said of a file with this content."""
    Path("tilus.toml").write_bytes(data)
    with pytest.raises(InputError) as raised:
        load_manifest("tilus.toml")
    return raised.value.render()


NOTHING = "tilus.toml: error: the manifest is empty"


@pytest.mark.parametrize(
    ("data", "first_line", "last_line"),
    [
        (b"", NOTHING, ""),
        (b" \r\n\t", NOTHING, ""),
        (b"# x\n", 'tilus.toml: error: the manifest is missing "edition"', ""),
        (b"a = 1\nb = '\xc3\xa9\xff'\n",
         "tilus.toml:2:7: error: not UTF-8: byte 0xff at offset 13", "save it as UTF-8"),
        (b"edition = 1\nedition = 2", 'tilus.toml:2:1: error: "edition" is set twice',
         "it is first set in line 1"),
        (b"[a]\n[a]", 'tilus.toml:2:2: error: "a" is set twice', "it is first set in line 1"),
        (b"a = { b = 1 }\n[a.c]", 'tilus.toml:2:2: error: "a" is set twice',
         "it is first set in line 1: write all of its keys inside of { \u2026 } there"),
        (b"a.b = 1\n[a]", 'tilus.toml:2:2: error: "a" is set twice', "it is first set in line 1"),
        (b"a = [1]\n[[a]]", 'tilus.toml:2:3: error: "a" is set twice',
         "it is first set in line 1"),
        (b"x = True", "tilus.toml:1:5: error: not TOML: invalid value", "TOML spells it true"),
        (b"x = None", "tilus.toml:1:5: error: not TOML: invalid value",
         "TOML has no null: leave the key out"),
        (b"arch = sm_90a", "tilus.toml:1:8: error: not TOML: invalid value",
         'a string needs quotes: "sm_90a"'),
        (b'x = "abc\ny = 1', "tilus.toml:1:9: error: not TOML: the line ends too early",
         "a string is not closed"),
        (b"x = [1,\n", "tilus.toml:1:8: error: not TOML: invalid value", ""),
        (b"x = { a = 1,\n", "tilus.toml:1:13: error: not TOML: the line ends inside of { \u2026 }",
         "with one key on each line below it"),
        (b"x = " + b"9" * 5000, "tilus.toml: error: an integer has thousands of digits", ""),
        (b"x = " + b"[" * 3000 + b"]" * 3000, "tilus.toml: error: nested too deeply", ""),
        (b".".join([b"a"] * 20_000) + b" = 1",
         "tilus.toml:1:129: error: a key has more than 64 names with dots between", ""),
        (b"[ " + b" . ".join([b'"a"'] * 65) + b" ]",
         "tilus.toml:1:387: error: a key has more than 64 names with dots between", ""),
        (b"x = '" + b"." * 999 + b"'", 'tilus.toml: error: the manifest is missing "edition"', ""),
    ],
)  # fmt: skip
def test_files_that_are_no_manifest(
    project: Path, data: bytes, first_line: str, last_line: str
) -> None:
    lines = render_refusal(data).splitlines()
    assert lines[0] == first_line
    assert lines[-1].strip() == last_line or not last_line


def test_a_missing_manifest_and_a_directory(project: Path) -> None:
    for path, words in (
        ("nowhere.toml", "there is no such manifest"),
        ("include", "is a directory"),
    ):
        with pytest.raises(InputError, match=words):
            load_manifest(path)


def test_line_ends_and_a_byte_order_mark_are_no_mistakes(project: Path) -> None:
    shown = render_refusal(
        b"\xef\xbb\xbfedition = 9\r\n[project]\r\nname = 'p'\r\nversion = '1'\r\n"
    )
    assert "tilus.toml:1:11: error: edition 9 is not supported\n    1 | edition = 9\n" in shown


def test_control_characters_of_a_line_do_not_reach_the_terminal(project: Path) -> None:
    assert "\x1b" not in render_refusal(b"x = '\x1b[31m'")


def test_a_path_is_shown_relative_only_below_the_working_directory(project: Path) -> None:
    assert Document(str(project / "tilus.toml"), "").shown == "tilus.toml"
    os.chdir(project / "include")
    assert Document(str(project / "tilus.toml"), "").shown == str(project / "tilus.toml")


@pytest.mark.parametrize(
    ("text", "column", "rest"),
    [
        ('x = "abc"', 1, "abc"),
        ('x = "abc"', 3, "c"),
        ('x = "a\\tb"', 3, '"a\\tb'),
        ("x = '''\nab'''", 2, "b"),
        ('x = "abc"', 4, ""),
    ],
)
def test_a_column_within_a_string_is_found_in_the_file(text: str, column: int, rest: str) -> None:
    location = Document("tilus.toml", text).locate_inside(("x",), column)
    assert location.text is not None
    assert location.column is not None
    assert location.text[location.column - 1 :].rstrip("\"'") == rest
