"""The workflow of examples/ci: the words that it runs do on this machine what it says."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from support.processes import run_to_end

WORKFLOW = Path(__file__).parents[2] / "examples/ci/kernels.yml"
ELSEWHERE = {"install", "publish"}
"""Steps that need a package index, or GitHub."""

MANIFEST = """\
edition = 1
[project]
name = "p"
version = "0.1.0"
[build]
cache-dir = "elsewhere"
[target.cpu]
arch = "cpu"
[script.fill]
template = "fill.cu.j2"
kernel = "fill"
args = { x = { type = "f32*[n]", out = true }, n = "i32" }
space = { value = { range = [1, 6] } }
"""
TEMPLATE = """\
extern "C" void fill(float *x, int n) { for (int i = 0; i < n; ++i) x[i] = {{ value }}; }
"""


def workflow() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())
    return found


def written(text: str, values: Mapping[str, str]) -> str:
    """A text with its `${{ … }}` put in."""
    return re.sub(r"\$\{\{ ([a-z_.A-Z]+) \}\}", lambda match: values[match[1]], text)


class Runner:
    """Runs the `run:` steps of jobs, with `tilusbuild` as a command."""

    def __init__(self, directory: Path, bin_directory: Path, values: Mapping[str, str]) -> None:
        self.directory = directory
        self.values = dict(values)
        self.path = f"{bin_directory}:{os.environ['PATH']}"
        self.ran: list[str] = []

    def job(self, name: str, **values: str) -> None:
        values = {**self.values, **values}
        for step in workflow()["jobs"][name]["steps"]:
            if "run" not in step or step["name"] in ELSEWHERE:
                continue
            own = {**workflow()["env"], **step.get("env", {})}
            env = {key: written(text, values) for key, text in own.items()}
            done = run_to_end(
                ["bash", "-e", "-o", "pipefail", "-c", written(step["run"], values)],
                cwd=self.directory,
                environment={"PATH": self.path, "RUNNER_TEMP": str(self.directory), **env},
            )
            self.ran.append(done.stdout + done.stderr)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A checkout of a small project, with a key to sign with."""
    directory, commands = tmp_path / "checkout", tmp_path / "bin"
    for made in (directory, commands):
        made.mkdir()
    command = commands / "tilusbuild"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tilusbuild "$@"\n')
    command.chmod(0o755)
    (directory / "tilus.toml").write_text(MANIFEST)
    (directory / "fill.cu.j2").write_text(TEMPLATE)
    key = Ed25519PrivateKey.generate()
    pem, spki = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (directory / "signing.pub").write_bytes(key.public_key().public_bytes(pem, spki))
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return Runner(
        directory, commands, {"secrets.SIGNING_KEY": key.private_bytes(pem, pkcs8, plain).decode()}
    )


def test_the_workflow_packages_what_one_build_would(runner: Runner, tmp_path: Path) -> None:
    """Given four shards built in caches of their own, when they are merged and packaged as the
    workflow does it, then its package is that of one build."""
    for shard in workflow()["jobs"]["build"]["strategy"]["matrix"]["shard"]:
        runner.job("build", **{"matrix.shard": str(shard)})
        (runner.directory / ".cache").rename(tmp_path / f"cache of {shard}")
    runner.job("package")
    assert any("6 programs, nothing to do" in said for said in runner.ran)
    assert any("signed by signing.pub" in said for said in runner.ran)
    assert len(list(runner.directory.glob("junit-*.xml"))) == 4
    assert not (runner.directory / "key.pem").exists()
    packed = (runner.directory / "dist/p-0.1.0/tilus-package.json").read_bytes()

    words = [str(Path(runner.path.split(":")[0]) / "tilusbuild")]
    for more in (["build", "-q"], ["package", "-q", "--format", "dir", "-o", "whole"]):
        cache = ["--cache-dir", str(tmp_path / "one")]
        subprocess.run([*words, *more, *cache], cwd=runner.directory, check=True)
    assert (runner.directory / "whole/p-0.1.0/tilus-package.json").read_bytes() == packed


def test_no_step_puts_a_value_of_githubs_into_a_script() -> None:
    """Values reach a script through its environment: what a branch is called is no code."""
    for job in workflow()["jobs"].values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", "")
