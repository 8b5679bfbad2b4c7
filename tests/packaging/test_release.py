"""The release: one version, packages that hold what they need, workflows that do what they say.

`scripts/release.sh` installs the packages with each Python; here is what needs no package index.
"""

import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.paths import ROOT
from support.processes import run_to_end

PYPROJECT = (ROOT / "pyproject.toml").read_text()
PYTHONS = re.findall(r"Python :: (3\.\d+)\"", PYPROJECT)
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED = [*WORKFLOWS, ROOT / "action.yml"]


def read_jobs(name: str) -> dict[str, Any]:
    jobs: dict[str, Any] = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
    return jobs["jobs"]


def find_step(job: dict[str, Any], action: str) -> dict[str, Any]:
    return next(step for step in job["steps"] if step.get("uses", "").startswith(action))


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.name)
def test_actions_are_pinned_and_values_of_githubs_are_no_script(path: Path) -> None:
    text = path.read_text()
    used = re.findall(r"^ *(?:- )?uses: (.*)", text, re.MULTILINE)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", action), action
    document = yaml.safe_load(text)
    for job in document.get("jobs", {"action": document.get("runs")}).values():
        for step in job["steps"]:
            assert {"name", "uses"} & step.keys()
            assert "${{" not in step.get("run", "")
        if "jobs" in document:
            assert job["timeout-minutes"] <= 120


def test_every_supported_python_is_tried() -> None:
    assert f'requires-python = ">={PYTHONS[0]}"' in PYPROJECT
    assert read_jobs("ci")["test"]["strategy"]["matrix"]["python"] == PYTHONS
    for job in (read_jobs("ci")["packages"], read_jobs("release")["build"]):
        versions = find_step(job, "actions/setup-python")["with"]["python-version"]
        assert versions.split() == PYTHONS
    minors = re.search(r"for minor in ([\d ]+);", (ROOT / "scripts/release.sh").read_text())
    assert minors is not None
    assert [f"3.{minor}" for minor in minors[1].split()] == PYTHONS


def test_only_the_last_job_of_a_tag_may_publish() -> None:
    document = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert document[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    assert document["permissions"] == {"contents": "read"}
    build, publish = document["jobs"]["build"], document["jobs"]["publish"]
    assert "permissions" not in build
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    assert "secrets" not in (ROOT / ".github/workflows/release.yml").read_text()
    built = find_step(build, "actions/upload-artifact")["with"]
    assert built.items() >= find_step(publish, "actions/download-artifact")["with"].items()


def test_the_version_is_in_one_place() -> None:
    assert 'dynamic = ["version"]' in PYPROJECT
    code = (ROOT / "tilusbuild/_version.py").read_text()
    (version,) = re.findall(r'"(\d+\.\d+\.\d+)"', code)
    tracked = run_to_end(
        ["git", "grep", "-lF", f'__version__ = "{version}"'], status=None, cwd=ROOT
    )
    if tracked.returncode == 0:
        assert tracked.stdout.split() == ["tilusbuild/_version.py"]


def test_a_tag_of_another_version_is_refused(tmp_path: Path) -> None:
    """Given a Python that makes environments without an index, when the tag has another version,
    then nothing is built."""
    fake = tmp_path / "python"
    script = f"""\
case "$*" in
  *venv*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip" ;;
  *"hatchling version"*) exec {shlex.join([sys.executable, "-m", "hatchling", "version"])} ;;
esac
"""
    fake.write_text(f"#!/bin/sh\n{script}")
    fake.chmod(0o755)
    dist = tmp_path / "dist"
    environment = {**os.environ, "PYTHONS": str(fake), "TAG": "v99.0.0"}
    ran = run_to_end(["sh", ROOT / "scripts/release.sh"], status=1, environment=environment)
    assert "the tag is v99.0.0, and tilusbuild/_version.py has " in ran.stderr
    assert not dist.exists()


def test_the_sdist_makes_the_same_wheel_and_sets_itself_up(tmp_path: Path) -> None:
    """Given an sdist, when a wheel is made from it and one from the checkout, then both are equal;
    and what `make` needs is in the sdist."""

    def build(kind: str, source: Path) -> Path:
        (output := tmp_path / f"{kind} of {source.name}").mkdir()
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(output)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1600000000"}
        subprocess.run(command, cwd=source, check=True, capture_output=True, env=environment)
        return next(output.iterdir())

    with tarfile.open(build("sdist", ROOT)) as archive:
        archive.extractall(tmp_path)
    unpacked = next(tmp_path.glob("tilusbuild-*"))
    assert build("wheel", unpacked).read_bytes() == build("wheel", ROOT).read_bytes()
    makefile = (unpacked / "Makefile").read_text()
    needed = set(re.findall(r"scripts/[\w./]+\.(?:py|sh)", makefile))
    assert {name for name in needed if not (unpacked / name).exists()} == set()
