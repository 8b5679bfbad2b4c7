"""`tilusbuild doctor`: what this machine has, where it was looked for, and which settings hold."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tilusbuild.manifest import Manifest, Settings
    from tilusbuild.toolchain import Finding


def configure(parser: argparse.ArgumentParser) -> None:
    """`doctor` has no options of its own."""


def run(arguments: argparse.Namespace) -> int:
    """Print findings and settings; 1 when something that the project needs is missing."""
    from tilusbuild.errors import InputError
    from tilusbuild.manifest import find, load, settings
    from tilusbuild.process.local import LocalRunner
    from tilusbuild.runtime import option
    from tilusbuild.toolchain import DigestMemory, ToolchainRequest, diagnose

    manifest: Manifest | None = None
    broken: InputError | None = None
    try:
        manifest = load(find(os.getcwd()))
    except InputError as error:
        broken = error
    root = manifest.root if manifest else os.getcwd()
    given = {"cache-dir": arguments.cache_dir}
    chosen = settings(root, given, os.environ, manifest, option.chosen())
    nvcc = manifest.toolchain.nvcc if manifest else None
    runner = LocalRunner()
    try:
        request = ToolchainRequest(nvcc=nvcc, needs_cuda=True, project_root=root)
        findings = diagnose(request, os.environ, runner, DigestMemory())
    finally:
        runner.close()
    needed = _needed(manifest, chosen.device_compiler.value)
    lacking = [f.component for f in findings if f.status == "missing" and f.component in needed]
    if arguments.json:
        _print_json(findings, chosen, lacking)
    else:
        _print(findings, chosen, verbose=arguments.verbose)
        if manifest is not None:
            print(f"\nproject: {manifest.project.name} ({os.path.relpath(manifest.path)})")
        elif broken is not None:
            print("\nproject: " + broken.render())
        if lacking:
            print(f"this project needs what is missing: {', '.join(lacking)}")
    return 1 if lacking else 0


def _needed(manifest: Manifest | None, device_compiler: str) -> set[str]:
    """The components that a build of the project cannot do without."""
    if manifest is None:
        return {"g++"}
    scripts = [
        script
        for name, script in manifest.scripts.items()
        if any(not manifest.targets[target].is_cpu for target in manifest.targets_of(name))
    ]
    if device_compiler == "nvcc":
        return {"g++", "nvcc"} if scripts else {"g++"}
    return {"g++", *("NVRTC" if script.kernel else "nvcc" for script in scripts)}


def _print(findings: Sequence[Finding], chosen: Settings, *, verbose: bool) -> None:
    marks = {"ok": "ok     ", "missing": "missing", "warning": "warning"}
    for finding in findings:
        print(f"{marks[finding.status]}  {finding.component}: {finding.detail}")
        if finding.status != "ok":
            print(f"           it gives: {finding.gives}")
            if finding.remedy:
                lines = finding.remedy.splitlines()
                print("           " + "\n           ".join(lines))
        if verbose or finding.status == "missing":
            for looked in finding.searched:
                print(f"           looked in {looked.where}: {looked.note}")
    print()
    for name, setting in _settings(chosen):
        value = "as each verb has it" if setting[0] is None else setting[0]
        print(f"{name} = {value}  ({setting[1]})")
    for said in _strangers(os.environ):
        print(f"warning  {said}")


def _settings(chosen: Settings) -> list[tuple[str, tuple[object, str]]]:
    from tilusbuild.manifest.settings import OF_KERNEL_CACHE

    found = [(field.name, getattr(chosen, field.name)) for field in fields(chosen)]
    said = [(name.replace("_", "-"), (each.value, each.source)) for name, each in found]
    for variable, default in OF_KERNEL_CACHE.items():
        name = variable.removeprefix("TILUSBUILD_").lower().replace("_", "-")
        value = os.environ.get(variable)
        said.append((name, (value, variable) if value else (default, "default")))
    return said


def _strangers(environment: Mapping[str, str]) -> Iterator[str]:
    """What is said of variables that look like ours and are none."""
    from tilusbuild.errors import did_you_mean
    from tilusbuild.manifest.settings import VARIABLES

    for name in sorted(environment):
        if name.startswith("TILUSBUILD_") and name not in VARIABLES:
            yield f"{name} is no variable of tilusbuild: {did_you_mean(name, VARIABLES)}"


def _print_json(findings: Sequence[Finding], chosen: Settings, lacking: list[str]) -> None:
    for finding in findings:
        line = {
            "event": "finding",
            "component": finding.component,
            "status": finding.status,
            "detail": finding.detail,
            "gives": finding.gives,
            "remedy": finding.remedy,
            "searched": [
                {"where": each.where, "found": each.found, "note": each.note}
                for each in finding.searched
            ],
        }
        print(json.dumps(line, ensure_ascii=False))
    for name, (value, source) in _settings(chosen):
        print(json.dumps({"event": "setting", "name": name, "value": value, "source": source}))
    for said in _strangers(os.environ):
        print(json.dumps({"event": "warning", "message": said}))
    print(json.dumps({"event": "summary", "missing": lacking}))
