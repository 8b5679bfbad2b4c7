"""What the examples keep of tunings, beside their spaces of today."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import command_line
from support.paths import ROOT
from tilusbuild.manifest.loading import load_manifest
from tilusbuild.plan.measured import read_committed_rows
from tilusbuild.plan.model import list_instances, make_targets
from tilusbuild.plan.spaces import make_space_spec
from tilusbuild.space.model import SpaceError
from tilusbuild.space.space import Space

TUNED = sorted({path.parents[1] for path in (ROOT / "examples").glob("*/tuned/*.jsonl")})


def strays(example: Path) -> Iterator[str]:
    """Yield each row that no program of the example can serve."""
    manifest = load_manifest(example / "tilus.toml")
    targets = make_targets(manifest)
    for script in manifest.scripts:
        spaces = [
            (target, params, Space(make_space_spec(manifest, script, targets[target], params)))
            for target in manifest.list_script_targets(script)
            for params in list_instances(manifest, script, target)
        ]
        for row in read_committed_rows(manifest, script):
            space = next(
                (s for target, params, s in spaces if row.is_of_instance(target, params)), None
            )
            own = space and {
                name for parameter in space.spec.parameters for name in parameter.names
            }
            if space is None or own != {*row.schedule}:
                yield f"{script}: {row} is for another instance"
                continue
            try:
                space.complete_point(row.schedule)
            except SpaceError as error:
                yield f"{script}: {row}: {error}"


@pytest.mark.parametrize("example", TUNED, ids=lambda path: path.name)
def test_every_row_has_a_schedule_of_the_space(example: Path) -> None:
    assert [*strays(example)] == []


def test_every_file_is_named_by_its_manifest() -> None:
    assert len(TUNED) >= 2
    for example in TUNED:
        manifest = load_manifest(example / "tilus.toml")
        named = {path for script in manifest.scripts for path in manifest.list_data_files(script)}
        assert {str(path) for path in example.glob("tuned/*")} <= named


@pytest.mark.slow
def test_the_serving_example_is_tuned_and_packed_as_its_page_says(tmp_path: Path) -> None:
    example = tmp_path / "examples" / "serving"
    shutil.copytree(ROOT / "examples" / "serving", example)
    environment = {"TILUSBUILD_CACHE_DIR": str(tmp_path / "cache")}
    for line in (example / "README.md").read_text().splitlines():
        if line.startswith("    tilusbuild "):
            words = line.split()[1:]
            words += ["--budget", "40"] if "tune" in words else []
            command_line.run(tmp_path, *words, environment=environment)
    assert {path.name for path in example.glob("tuned/*")} == {"linear.jsonl", "paged_decode.jsonl"}
    assert [path.suffix for path in tmp_path.glob("**/dist/*")] == [".whl"]
