"""The one place with code of others: which file, of which release, with which licence."""

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
    found = subprocess.run(
        ["git", "ls-files", "*.js", "*.css"], cwd=ROOT, capture_output=True, text=True
    )
    if found.returncode:
        pytest.skip("needs a git checkout")
    others = [ROOT / name for name in found.stdout.split() if "/vendor/" not in name]
    assert others
    for path in others:
        assert path.stat().st_size < 100_000, path
