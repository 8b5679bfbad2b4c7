"""A project built once for the cpu target, and copies of its tree for tests that change it.

`mark` writes `10 * x + variant`, so a result says which program ran. Its variants 0 to 3 are
programs 0 to 3; rules and default are in the manifest below.

A conftest imports the fixtures that its tests use.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from support.project import Project
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch.measurements import append_rows, list_table_rows, read_rows
from tilusbuild.dispatch.tables import format_json
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.tables import DeviceTable, TableEntry, read_dispatch_table

MARK_SCRIPT = """\
[script.mark]
template = "mark.cu.j2"
kernel = "mark"
default = { variant = 1 }

[script.mark.args]
x = "f32*[n]"
y = { type = "f32*[n]", out = true }
n = "i64"

[script.mark.space]
variant = { range = [0, 3] }

[script.mark.dispatch]
keys = ["n"]
table = [{ when = "n <= 4", use = { variant = 2 } }]
"""
MANIFEST = """\
edition = 1

[project]
name = "marks"
version = "0.1.0"

[target.cpu]
arch = "cpu"
facts = { dram_gbs = 10, tflops = 0.5 }

MARK_SCRIPT
[script.modelled]
template = "modelled.cu.j2"
kernel = "modelled"

[script.modelled.args]
x = "real*[m, n]"
y = { type = "real*[m, n * 2]", out = true }
m = "i32"
n = "i32"
k = "i32"

[script.modelled.params]
real = ["f32", "f64"]

[script.modelled.space]
tile = { pow2 = [8, 64] }

[script.modelled.dispatch]
keys = ["m", "n", "k"]
bucket = { m = "pow2", n = [16, 256], k = { every = 100 } }
model = "abs(tile - m) + cdiv(n, tile) * 0.5"
""".replace("MARK_SCRIPT", MARK_SCRIPT)

MARK = """\
extern "C" void mark(const float *x, float *y, long long n) {
  for (long long i = 0; i < n; i++) y[i] = 10 * x[i] + {{ variant }};
}
"""

MODELLED = """\
{% set type = "float" if real == "f32" else "double" %}
extern "C" void modelled(const {{ type }} *x, {{ type }} *y, int m, int n, int k) {
  for (int i = 0; i < m; i++)
    for (int j = 0; j < 2 * n; j++) y[i * 2 * n + j] = x[i * n + j / 2] + k;
}
"""


class Marks(Project):
    """The project with its cache."""

    def paths(self, name: str) -> list[Path]:
        return sorted((self.cache / "scripts" / name).iterdir())

    def script(self, name: str = "mark", **params: object) -> Script:
        scripts = [read_script(str(path)) for path in self.paths(name)]
        (only,) = [s for s in scripts if all(s.params[k] == v for k, v in params.items())]
        return only


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Marks:
    """Not to be changed."""
    files = {"tilus.toml": MANIFEST, "mark.cu.j2": MARK, "modelled.cu.j2": MODELLED, ".git": ""}
    return Marks.built(tmp_path_factory.mktemp("marks"), files)


@pytest.fixture
def copied(built: Marks, tmp_path: Path) -> Marks:
    """The same, one's own."""
    return built.copy(tmp_path / "copy")


def record(script: Script, fingerprint: Mapping[str, str], entries: Iterable[TableEntry]) -> None:
    """Make these the only rows of a device's table, and measurements of the cache."""
    ordered = tuple(sorted(entries, key=lambda entry: entry.key))
    table = DeviceTable(dict(fingerprint), ordered)
    cache, directory = Tree(script.root), os.path.basename(os.path.dirname(script.path))
    time = f"{len(read_rows(cache, directory)):09}"  # later than all before
    rows = [replace(row, time=time) for row in list_table_rows(script, [table])]
    append_rows(cache, directory, rows)
    before = read_dispatch_table(script)
    others = [t for t in before.tables if dict(t.fingerprint) != dict(fingerprint)]
    table_file = before._replace(tables=(*others, table))
    Path(script.path, "dispatch_table.json").write_bytes(format_json(script, table_file))
