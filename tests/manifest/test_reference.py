"""The example, the schema and the reference page: all keys are in each, and they agree."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.json_schema import valid
from support.processes import run_to_end
from tilusbuild.manifest.document import read_document
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.scanner import import_toml
from tilusbuild.manifest.shape import list_tables, make_schema
from tilusbuild.manifest.table import list_keys, read_docstrings

tomllib = import_toml()
ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "tilus.toml.example").read_text(encoding="utf-8")


@pytest.fixture
def example(load_example: Callable[[str], Manifest]) -> Manifest:
    return load_example(EXAMPLE)


def test_the_example_loads(example: Manifest) -> None:
    names = ["matmul", "transpose", "scale", "norm.forward", "axpy", "copy"]
    names += ["backend.sources", "backend_c.sources", "backend"]
    assert list(example.scripts) == names


def keys_in(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every path of keys in a document, without the numbers of array items."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            yield from keys_in(item, (*path, key))
    elif isinstance(value, list):
        for item in value:
            yield from keys_in(item, path)


def test_the_example_has_every_key(example: Manifest) -> None:
    document = read_document(example.path)  # the manifest's own has scripts in place of kernels
    written = {".".join(path) for path in keys_in(document.data)}
    # `limits` are of an architecture that the pinned nvcc does not know.
    # `triton = …` is short for `language`.
    absent = {"kind", "edges", "limits", "language"}
    for path, table in list_tables().items():
        if {"override", "kernels"} & {*path[:-2]} or path[1:3] == ("NAME", "include-dirs"):
            continue
        for key in set(list_keys(table)) - absent:
            names = [str(part) for part in (*path, key) if not isinstance(part, int)]
            pattern = r"\.".join(r".+" if name == "NAME" else re.escape(name) for name in names)
            assert any(re.fullmatch(pattern, path) for path in written), ".".join(names)


def test_every_key_is_described() -> None:
    for path, table in list_tables().items():
        assert table.__doc__, path
        for key, field in list_keys(table).items():
            assert read_docstrings(table)[field.name], (path, key)


def test_the_reference_pages_are_up_to_date(tmp_path: Path) -> None:
    """Given a page of a table that is gone, when the pages are made: they are those of the docs."""
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest" / "former.md").touch()
    run_to_end([sys.executable, str(ROOT / "scripts" / "manifest_reference.py"), str(tmp_path)])
    pages, committed = (
        {page.name: page.read_text(encoding="utf-8") for page in top.glob("manifest/*.md")}
        | {"index": (top / "manifest.md").read_text(encoding="utf-8")}
        for top in (tmp_path, ROOT / "docs")
    )
    assert pages == committed, "run: make docs"


@pytest.mark.parametrize("key", ["template", "generator", "triton"])
def test_the_example_fits_the_schema(key: str) -> None:
    """Whatever the source of a script is; but each script has one."""
    written, schema = tomllib.loads(EXAMPLE), make_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    script = written["script"]["copy"]
    script[key] = script.pop("generator")
    assert valid(written, schema, schema)
    script.pop(key)
    assert not valid(written, schema, schema)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("editon",), 1),
        (("edition",), 2),
        (("build", "jobs"), "8"),
        (("build", "flags"), "-O3"),
        (("build", "timeout"), "soon"),
        (("target", "h100", "arch"), "h100"),
        (("target", "a/b"), {"arch": "sm_80"}),
        (("script", "matmul", "temlpate"), "x"),
        (("script", "matmul", "space", "block_k"), 16),
        (("script", "matmul", "space", "block_k"), {"rang": [1, 2]}),
        (("script", "matmul", "launch", "grid"), []),
        (("script", "matmul", "dispatch", "bucket", "m"), "tilu"),
        (("package", "runtime", "formats"), ["zip"]),
    ],
)
def test_the_schema_refuses_what_an_editor_should_mark(path, value) -> None:
    data = tomllib.loads(EXAMPLE)
    node = data
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    assert not valid(data, make_schema(), make_schema())


def test_the_schema_has_no_null(example: Manifest) -> None:
    assert "null" not in re.findall(r"'type': '(\w+)'", str(make_schema()))
