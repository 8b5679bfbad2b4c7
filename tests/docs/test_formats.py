"""docs/formats.md names every format on disk with the version that the code has."""

import re

import pytest

from support.paths import ROOT
from tilusbuild import noop
from tilusbuild.cache import entries, index
from tilusbuild.compile.module import OPTIONS_FORMAT
from tilusbuild.plan.identity import PROGRAM_FORMAT, SCRIPT_FORMAT
from tilusbuild.runtime import script, tables
from tilusbuild.state.envelope import VERSIONS

PAGE = (ROOT / "docs" / "formats.md").read_text()
CONTRACTS, STATE = PAGE.partition("## State\n")[::2]


def rows(text: str) -> list[tuple[str, str]]:
    """The file and the version of each row of a table."""
    cells = (line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `"))
    return [(file.strip(), version.strip()) for file, version in cells]


def test_the_state_files_are_those_of_the_registry() -> None:
    versions = {
        name: int(number)
        for _, version in rows(STATE)
        for name, number in re.findall(r"`(\w+) (\d+)`", version)
    }
    record = int(noop.MAGIC.split()[-1])
    assert versions == {**VERSIONS, "record": record}
    assert all("`" in version or version.startswith("none") for _, version in rows(STATE))


@pytest.mark.parametrize(
    ("file", "version"),
    [
        ("programs/<hash>/program.txt", PROGRAM_FORMAT),
        ("programs/<hash>/options.txt", OPTIONS_FORMAT),
        ("programs/<hash>/meta.json", f'"schema": {entries.SCHEMA}'),
        ("scripts/<name>/<hash>/script.txt", SCRIPT_FORMAT),
        ("scripts/<name>/<hash>/script.json", f'"schema": {script.SCHEMA}'),
        ("scripts/<name>/<hash>/dispatch_table.json", f'"schema": {tables.SCHEMA}'),
        ("index.json", f'"schema": {index.SCHEMA}'),
    ],
)
def test_a_contract_has_its_version(file: str, version: str) -> None:
    assert f"`{version}`" in dict(rows(CONTRACTS))[f"`{file}`"]


def test_the_example_of_an_envelope_is_of_this_version() -> None:
    assert f"\ntilusbuild history {VERSIONS['history']}\n" in STATE
