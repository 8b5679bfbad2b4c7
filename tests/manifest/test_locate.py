"""The locator against `tomllib`: what it points at is what the parser read from there."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilusbuild.manifest.scanner import Locations, import_toml, locate_keys

tomllib = import_toml()
NAMES = st.one_of(
    st.sampled_from(["a", "b", "block_m", "x-y", "1", "true"]),
    st.text("ab.\"'# =[]{},é\\\t", min_size=0, max_size=4),
)
TEXTS = st.text("ab \"'\\\n\t#[]{}=,é𝒳", max_size=8)
SCALARS = st.one_of(
    TEXTS, st.integers(-(2**40), 2**40), st.booleans(), st.floats(-9, 9), st.dates()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


class Writer:
    """Writes data as TOML, in a spelling that is drawn anew at each choice."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def table(self, data: dict[str, Any], header: tuple[str, ...] = ()) -> str:
        below, lines = "", ""
        for name, value in data.items():
            path = (*header, name)
            if isinstance(value, dict) and value and self.chance():
                below += f"[{self.dotted(path)}]{self.end()}" + self.table(value, path)
            elif is_tables(value) and self.chance():
                for item in value:
                    below += f"[[{self.dotted(path)}]]{self.end()}" + self.table(item, path)
            else:
                lines += self.pair(name, value)
        return lines + below

    def pair(self, name: str, value: Any) -> str:
        if isinstance(value, dict) and value and self.chance():
            return "".join(
                f"{self.dotted((name, inner))} = {self.value(item)}{self.end()}"
                for inner, item in value.items()
            )
        return f"{self.key(name)} = {self.value(value)}{self.end()}"

    def end(self) -> str:
        return str(self.draw(st.sampled_from(["\n", " # x = [1]\n", "\n\n  # y\n"])))

    def dotted(self, path: tuple[str, ...]) -> str:
        point = self.draw(st.sampled_from([".", " . "]))
        return str(point.join(self.key(name) for name in path))

    def key(self, name: str) -> str:
        bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
        if bare and self.chance():
            return name
        if "'" not in name and self.chance():
            return f"'{name}'"
        return json.dumps(name, ensure_ascii=self.chance() and name.isascii())

    def value(self, value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, list):
            gap = "\n  # ], }\n " if self.chance() else ""
            items = ",".join(gap + self.value(item) for item in value)
            return f"[{items}{',' if items and self.chance() else ''}{gap}]"
        if isinstance(value, dict):
            items = ", ".join(f"{self.key(k)} = {self.value(v)}" for k, v in value.items())
            return f"{{ {items} }}"
        return str(value)

    def string(self, text: str) -> str:
        escaped = json.dumps(text, ensure_ascii=False)
        spellings = [escaped]
        if not any(c in text for c in "'\n"):
            spellings.append(f"'{text}'")
        if "'''" not in text and not text.endswith("'"):
            spellings.append(f"'''\n{text}'''")
        lines = escaped[1:-1].replace("\\n", "\n") if "\\\\" not in escaped else escaped[1:-1]
        spellings += [f'"""\n{lines}"""', f'"""\\\n   {escaped[1:-1].lstrip()}"""']
        chosen = str(self.draw(st.sampled_from(spellings)))
        return chosen if tomllib.loads(f"v = {chosen}")["v"] == text else escaped


def is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def assert_points_at(
    text: str, locations: Locations, data: Any, path: tuple[str | int, ...]
) -> None:
    """Every key and every scalar below `path` is spelt where the locator says."""
    if path:
        start, end = locations.keys[path]
        if isinstance(path[-1], str):
            assert next(iter(tomllib.loads(f"{text[start:end]} = 1"))) == path[-1]
    if isinstance(data, (dict, list)):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        for name, value in items:
            assert_points_at(text, locations, value, (*path, name))
        return
    start, end = locations.values[path]
    assert tomllib.loads(f"v = {text[start:end]}")["v"] == data


@settings(max_examples=150)
@given(st.data())
def test_points_at_what_tomllib_reads(data: st.DataObject) -> None:
    value = data.draw(st.dictionaries(NAMES, VALUES, max_size=4))
    text = Writer(data.draw).table(value)
    assert tomllib.loads(text) == value

    assert_points_at(text, locate_keys(text), value, ())
    assert locate_keys(text).repeated is None


@given(st.text("a.=[]{}\"'\\,# \n1", max_size=40))
def test_any_text_is_survived_and_valid_ones_are_found(text: str) -> None:
    locations = locate_keys(text)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert_points_at(text, locations, data, ())


@pytest.mark.parametrize(
    ("text", "path", "key", "value"),
    [
        ("a.b.c = 1", ("a", "b", "c"), "c", "1"),
        ("'a b' . \"c\" = 'x'", ("a b", "c"), '"c"', "'x'"),
        ("[t]\nx = [1, [2, 3]]", ("t", "x", 1, 0), "2", "2"),
        ("[[t]]\nx = 1\n[[t]]\nx = 2\n[t.u]\ny = 3", ("t", 1, "u", "y"), "y", "3"),
        ("x = { a = 1, b.c = '}' }", ("x", "b", "c"), "c", "'}'"),
        ('x = """a""""" # """', ("x",), "x", '"""a"""""'),
        ("d = 1979-05-27 07:32:00 # when", ("d",), "d", "1979-05-27 07:32:00"),
        ("[a.b]\n[a]\nx = 1", ("a",), "a", "a"),
    ],
)
def test_examples(text: str, path: tuple[str | int, ...], key: str, value: str) -> None:
    locations = locate_keys(text)
    assert text[slice(*locations.keys[path])] == key
    assert text[slice(*locations.values[path])] == value


def test_a_table_stands_at_its_own_header() -> None:
    text = "[script.m.args]\n[script.m]\n"
    assert text[: locate_keys(text).keys["script", "m"][0]].count("\n") == 1


def test_a_repeated_key_is_found_before_the_text_ends() -> None:
    repeated = locate_keys("[t]\na = 1\nb = 2\na = 3\n= nonsense").repeated
    assert repeated is not None
    assert repeated[0] == ("t", "a")
