"""The wheel holds what a user needs: the code, its types, the shipped templates."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.processes import run_python, run_to_end

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "site")
    return directory / "site"


def test_it_ships_every_template(unpacked: Path) -> None:
    names = {
        path.relative_to(ROOT / "templates")
        for path in (ROOT / "templates").rglob("*")
        if path.is_file()
    }
    shipped = unpacked / "tilusbuild" / "_templates"
    assert {path.relative_to(shipped) for path in shipped.rglob("*") if path.is_file()} == names


def test_it_ships_its_types_its_launcher_and_its_page(unpacked: Path) -> None:
    page = ("page.css", "page.js", "model.js", "charts.js", "vendor/echarts.LICENSE")
    for name in ("py.typed", *(f"page/{part}" for part in page)):
        assert (unpacked / "tilusbuild" / name).exists()
    parts = ROOT / "tilusbuild" / "compile" / "launcher_parts"
    for part in parts.iterdir():
        assert (unpacked / "tilusbuild" / "compile" / "launcher_parts" / part.name).exists()


def test_a_project_is_made_and_planned_from_it(unpacked: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(unpacked)}
    result = run_python("import tilusbuild; print(tilusbuild.__file__)", env=env, cwd=tmp_path)
    assert result.stdout.startswith(str(unpacked))
    for arguments in (["init", "new"], ["plan", "-t", "cpu", "-C", "new"]):
        command = [sys.executable, "-m", "tilusbuild", *arguments]
        ran = run_to_end(command, env=env, cwd=tmp_path)
    assert "2 programs, 2 to compile" in ran.stdout


# The one place with code of others: which file, of which release, with which licence.

VENDOR = ROOT / "tilusbuild" / "page" / "vendor"


def test_vendored_files_are_those_of_the_release_and_come_with_their_licence():
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(listed) == {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS"}
    assert set(listed) == {"echarts.min.js", "echarts.LICENSE", "echarts.NOTICE"}
    for name, digest in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    assert "Apache License" in (VENDOR / "echarts.LICENSE").read_text()


def test_the_page_about_dependencies_names_it():
    text = (ROOT / "docs" / "dependencies.md").read_text()
    (release,) = re.findall(r'release="([\d.]+)"', (ROOT / "scripts/vendor.sh").read_text())
    assert f"Apache ECharts {release}" in text
    assert "tilusbuild/page/vendor" in text


def test_nothing_else_in_the_repository_is_minified():
    result = run_to_end(["git", "ls-files", "*.js", "*.css"], status=None, cwd=ROOT)
    if result.returncode:
        pytest.skip("needs a git checkout")
    others = [ROOT / name for name in result.stdout.split() if "/vendor/" not in name]
    assert others
    for path in others:
        assert path.stat().st_size < 100_000, path
