"""action.yml and the workflows that use it: what they run does on this machine what they say."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from support.paths import ROOT
from support.processes import run_to_end
from support.project import Project
from support.python_package import PythonProject, python_project

__all__ = ["python_project"]

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "examples/ci").glob("*.yml")
}
USING = [name for name in WORKFLOWS if name != "kernels"]
OURS = "tilusbuild/tilusbuild@main"
ELSEWHERE = ("install", "install torch", "publish")
"""Steps that need a package index, or GitHub."""


def steps_of(name: str) -> list[dict[str, Any]]:
    return [step for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"]]


class Machine:
    """Runs steps as GitHub does, with `tilusbuild` as a command."""

    def __init__(self, directory: Path, around: Path) -> None:
        self.directory, self.around = directory, around
        for name in ("bin", "temp", "home"):
            (around / name).mkdir(exist_ok=True)
        for name, words in (("tilusbuild", ("-m", "tilusbuild")), ("python", ())):
            command = around / "bin" / name
            command.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
            command.chmod(0o755)
        self.environment = {
            "PATH": f"{around}/bin:{os.environ['PATH']}",
            "HOME": str(around / "home"),
            "RUNNER_TEMP": str(around / "temp"),
            "GITHUB_ACTIONS": "true",
            **{f"GITHUB_{name}": str(around / name) for name in ("ENV", "OUTPUT", "STEP_SUMMARY")},
        }

    def run(self, step: Mapping[str, Any], values: Mapping[str, str], status: int = 0) -> str:
        own = {name: written(text, values) for name, text in step.get("env", {}).items()}
        done = run_to_end(
            ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=self.directory,
            environment={**self.environment, **own},
            status=status,
        )
        if (path := self.around / "ENV").exists():
            self.environment |= dict(line.split("=", 1) for line in path.read_text().splitlines())
        return done.stdout + done.stderr

    def job(self, name: str, values: Mapping[str, str]) -> str:
        """Run the steps of a job of the workflow that uses no action; what they say."""
        kernels = WORKFLOWS["kernels"]
        output = ""
        for step in kernels["jobs"][name]["steps"]:
            if "run" in step and step["name"] not in ELSEWHERE:
                step = {**step, "env": {**kernels["env"], **step.get("env", {})}}
                output += self.run(step, values)
        return output

    def use(self, settings: Mapping[str, str], status: int = 0) -> str:
        """Run the action with inputs; what its build says."""
        inputs = {
            name: declaration["default"] for name, declaration in ACTION["inputs"].items()
        } | {**settings}
        values = {f"inputs.{name}": value for name, value in inputs.items()}
        output = ""
        for step in ACTION["runs"]["steps"]:
            asked = inputs["command"] or "inputs.command" not in step.get("if", "")
            if "run" in step and step["name"] not in ELSEWHERE and asked:
                fails = status if step["name"] == "build" else 0
                output += self.run(step, values, status=fails)
        return output


def written(text: str, values: Mapping[str, str]) -> str:
    """A text with its `${{ … }}` put in."""
    return re.sub(r"\$\{\{ ([a-z_.A-Z-]+) \}\}", lambda match: values[match[1]], text)


def test_the_action_builds_reports_and_leaves_its_cache_to_later_steps(tmp_path: Path) -> None:
    machine = Machine(shutil.copytree(ROOT / "examples/cmake", tmp_path / "project"), tmp_path)
    assert "4 compiled" in machine.use({"command": "build -t cpu"})
    assert (tmp_path / "temp/tilusbuild/index.json").exists()
    assert "saxpy" in (tmp_path / "STEP_SUMMARY").read_text()
    assert "4 programs, nothing to do" in machine.use({"directory": "."})
    assert machine.environment["TILUSBUILD_CACHE_DIR"] == f"{tmp_path}/temp/tilusbuild"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_in_a_container_builds_the_checkout_of_another_user(tmp_path: Path) -> None:
    machine = Machine(shutil.copytree(ROOT / "examples/cmake", tmp_path / "project"), tmp_path)
    machine.environment |= {"GITHUB_WORKSPACE": str(tmp_path), "TILUSBUILD_SAFE_DIRECTORIES": "/a"}
    for path in (machine.directory, *machine.directory.rglob("*")):
        os.chown(path, 54321, 54321)
    assert "4 compiled" in machine.use({"command": "build -t cpu"})
    safe = machine.environment["TILUSBUILD_SAFE_DIRECTORIES"]
    assert safe == f"{tmp_path}/*:/a"


def test_the_action_installs_itself_unless_a_version_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, tmp_path)
    (tmp_path / "bin/python").write_text('#!/bin/sh\necho "$@"\n')
    machine.environment["GITHUB_ACTION_PATH"] = "/action"
    (install,) = [step for step in ACTION["runs"]["steps"] if step["name"] == "install"]
    for extras, version, package in (
        ("cuda", "", "/action[cuda]"),
        ("", "==0.1.0", "tilusbuild==0.1.0"),
        ("cuda", "==0.1.0", "tilusbuild[cuda]==0.1.0"),
    ):
        output = machine.run(install, {"inputs.extras": extras, "inputs.version": version})
        assert output == f"-m pip install {package}\n"


def test_the_action_shares_programs_by_a_remote_cache(tmp_path: Path) -> None:
    machine = Machine(shutil.copytree(ROOT / "examples/cmake", tmp_path / "project"), tmp_path)
    address = f"file://{tmp_path}/remote"
    machine.use({"remote": address, "remote-write": "true"})
    shutil.rmtree(tmp_path / "temp")
    (tmp_path / "temp").mkdir()
    assert "4 fetched" in machine.use({"remote": address})


def test_a_build_that_fails_is_annotated(tmp_path: Path) -> None:
    machine = Machine(shutil.copytree(ROOT / "examples/cmake", tmp_path / "project"), tmp_path)
    (machine.directory / "kernels/unit.h").write_text("#define UNIT (\n")
    assert "::error file=kernels/" in machine.use({}, status=1)


@pytest.mark.parametrize("name", USING)
def test_workflows_give_the_action_inputs_that_it_has(name: str) -> None:
    (used,) = [step for step in steps_of(name) if step.get("uses") == OURS]
    assert used["with"].keys() <= ACTION["inputs"].keys()


def test_no_step_puts_a_value_of_githubs_into_a_script() -> None:
    """Values reach a script through its environment: what a branch is called is no code."""
    for step in [*ACTION["runs"]["steps"], *(s for name in WORKFLOWS for s in steps_of(name))]:
        assert "${{" not in step.get("run", "")
        assert "name" in step or "run" not in step


def test_the_wheels_workflow_makes_a_wheel(
    python_project: Callable[[str], PythonProject], tmp_path: Path
) -> None:
    """Given the package of the page, when its workflow's first job runs, with the backend that is
    installed in place of one from PyPI."""
    project = python_project("hatchling.build")
    machine = Machine(project.directory, tmp_path)
    machine.environment["PIP_NO_BUILD_ISOLATION"] = "0"
    machine.use({"command": ""})
    build, imported = (
        next(step for step in steps_of("wheel") if step.get("name") == name)
        for name in ("build", "import")
    )
    machine.run(build, {})
    (wheel,) = (project.directory / "dist").glob("mypackage-0.1.0-py3-none-manylinux_*.whl")
    assert (tmp_path / "temp/tilusbuild/index.json").exists()
    machine.environment["PYTHONPATH"] = str(project.unpacked(wheel))
    machine.run(imported, {"github.event.repository.name": "mypackage"})


@pytest.mark.slow
@pytest.mark.usefixtures("with_torch")
def test_the_workflow_of_a_setup_py_compiles_no_source_twice(tmp_path: Path) -> None:
    """Given the extension of the page, when a second run has the first one's cache."""
    pytest.importorskip("torch", reason="needs torch")
    page = (ROOT / "docs/torch-extensions.md").read_text()
    machine = Machine(tmp_path / "project", tmp_path)
    machine.environment["PIP_VERBOSE"] = "1"
    outputs = []
    for _ in range(2):
        shutil.rmtree(machine.directory, ignore_errors=True)
        (machine.directory / "csrc").mkdir(parents=True)
        for name, language in (("setup.py", "python"), ("csrc/answer.cpp", "cpp")):
            text = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)[0]
            (machine.directory / name).write_text(text)
        machine.use({"command": ""})
        build = next(step for step in steps_of("setup-py") if step.get("name") == "build")
        outputs.append(machine.run(build, {}))
    assert "1 sources: 1 compiled" in outputs[0]
    assert "1 sources: 0 compiled, 1 from the cache" in outputs[1]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_the_workflow_of_cmake_builds_and_tests_the_example(tmp_path: Path) -> None:
    machine = Machine(shutil.copytree(ROOT / "examples/cmake", tmp_path / "project"), tmp_path)
    machine.environment["tilusbuild_DIR"] = str(ROOT / "tilusbuild/embed/cmake")
    machine.use({"command": ""})
    steps = [step for step in steps_of("cmake") if "run" in step]
    outputs = [machine.run(step, {}) for step in steps]
    assert "100% tests passed" in outputs[2]
    assert "Building" not in outputs[3]


# The workflow that uses no action: shards, joined, packaged and signed.
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


def test_the_workflow_packages_what_one_build_would(tmp_path: Path) -> None:
    """Given four shards built in caches of their own, when they are joined and packaged as the
    workflow does it, then its package is that of one build."""
    project = Project(tmp_path / "checkout").write_all(
        {"tilus.toml": MANIFEST, "fill.cu.j2": TEMPLATE}
    )
    key = Ed25519PrivateKey.generate()
    pem, spki = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public = project.directory / "signing.pub"
    public.write_bytes(key.public_key().public_bytes(pem, spki))
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = {"secrets.SIGNING_KEY": key.private_bytes(pem, pkcs8, plain).decode()}
    machine = Machine(project.directory, tmp_path)
    for shard in WORKFLOWS["kernels"]["jobs"]["build"]["strategy"]["matrix"]["shard"]:
        machine.job("build", {"matrix.shard": str(shard)})
        project.cache.rename(tmp_path / f"cache of {shard}")
    output = machine.job("package", secret)
    assert "6 fetched" in output
    assert "signed by signing.pub" in output
    assert len(list(project.directory.glob("junit-*.xml"))) == 4
    assert not (tmp_path / "temp/key.pem").exists()
    packed = (project.directory / "dist/p-0.1.0/tilus-package.json").read_bytes()
    for more in (("build",), ("package", "--format", "dir", "-o", "whole")):
        project.run(*more, "--cache-dir", tmp_path / "one")
    assert (project.directory / "whole/p-0.1.0/tilus-package.json").read_bytes() == packed
