"""`tilusbuild doctor`: what this machine has, where it was searched for, which settings apply."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from tilusbuild.cli.arguments import Common, Verb
from tilusbuild.cli.options import emit_line
from tilusbuild.preflight.diagnose import Finding
from tilusbuild.report.jsonl import ProblemLine, Scalar, declare_line
from tilusbuild.runtime.option import find_unknown_variables

if TYPE_CHECKING:
    from tilusbuild.errors import InputError
    from tilusbuild.manifest import Settings
    from tilusbuild.manifest.model import Manifest
    from tilusbuild.manifest.settings import Setting
    from tilusbuild.remote.settings import RemoteSettings


FindingLine = declare_line("finding", inlined="finding", finding=Finding)
"""A component of the toolchain."""


SettingLine = declare_line("setting", name=str, value=Scalar | None, source=str)
"""A setting, and where its value is from."""


DoctorSummary = declare_line("summary", missing=tuple[str, ...])
"""The components that the project needs and that are missing."""


def run(arguments: Common) -> int:
    """Print the components of this machine, the settings and the project. Return 1 when a component
    that the project needs is missing. Remote servers are asked."""
    from tilusbuild.errors import InputError
    from tilusbuild.manifest import decide_settings, find_project_manifest
    from tilusbuild.manifest.loading import load_manifest
    from tilusbuild.runtime import option

    manifest: Manifest | None = None
    manifest_error: InputError | None = None
    try:
        manifest = load_manifest(find_project_manifest(os.getcwd()))
    except InputError as error:
        manifest_error = error
    # A broken manifest is a finding: the machine is described all the same.
    root = manifest.root if manifest else os.getcwd()
    overrides = {"cache-dir": arguments.cache_dir}
    settings = decide_settings(root, overrides, os.environ, manifest, option.chosen())
    findings = (
        *_diagnose_tools(manifest, root),
        *_diagnose_remotes(manifest),
        *_diagnose_cache(str(settings.cache_dir.value)),
    )
    needed = _list_needed_components(manifest, settings.device_compiler)
    missing = [
        finding.component
        for finding in findings
        if finding.status == "missing" and finding.component in needed
    ]
    if arguments.json:
        for finding in findings:
            emit_line(FindingLine(finding))
        for setting in _list_settings(settings):
            emit_line(SettingLine(*setting))
        for message in find_unknown_variables(os.environ):
            emit_line(ProblemLine(message, kind="warning"))
        emit_line(DoctorSummary(tuple(missing)))
        return 1 if missing else 0
    _print_report(findings, settings, verbose=bool(arguments.verbose))
    if manifest is not None:
        print(f"\nproject: {manifest.project.name} ({os.path.relpath(manifest.path)})")
    elif manifest_error is not None:
        print("\nproject: " + manifest_error.render())
    if missing:
        print(f"missing, and needed by this project: {', '.join(missing)}")
    return 1 if missing else 0


def _diagnose_tools(manifest: Manifest | None, root: str) -> Iterator[Finding]:
    """Yield the findings on the tools of every toolchain."""
    from tilusbuild.builder.project import make_toolchain_request
    from tilusbuild.preflight.diagnose import diagnose_components
    from tilusbuild.process.local import LocalRunner
    from tilusbuild.toolchain import DigestMemory, ToolchainRequest

    # Shared, so that a tool of two toolchains is read once.
    memory = DigestMemory()
    if manifest is None:
        requests = [ToolchainRequest(project_root=root)]
    else:
        requests = [
            make_toolchain_request(manifest, name) for name in ("", *manifest.toolchain.named)
        ]
    with LocalRunner() as runner:
        for request in requests:
            yield from diagnose_components(request, os.environ, runner, memory)


def _diagnose_remotes(manifest: Manifest | None) -> Iterator[Finding]:
    """Yield a finding on the remote cache and on the executor, if they are set."""
    from tilusbuild.remote.user_settings import choose_remote

    section = manifest.remote if manifest else None
    for key, component, gives in (
        ("cache", "remote cache", "programs that others compiled"),
        ("executor", "remote executor", "compiles on other machines"),
    ):
        remote = choose_remote(section, os.environ, key)
        if remote is None:
            continue
        detail, is_ok = _query_server(remote, executes=key == "executor")
        remedy = f"set by {remote.source}; builds go on without it"
        yield Finding(component, "ok" if is_ok else "warning", detail, gives, remedy)


def _diagnose_cache(root: str) -> Iterator[Finding]:
    """Yield a finding for each problem that this machine has with the programs in the cache."""
    from tilusbuild.cache.verify import list_loading_problems

    for message in list_loading_problems(root):
        problem, _, remedy = message.partition("\n  ")
        yield Finding("cache", "warning", problem, "calling the programs in it here", remedy)


def _query_server(remote: RemoteSettings, *, executes: bool) -> tuple[str, bool]:
    """Ask a remote server. Return its answer in words, and whether builds can use the server.
    `executes` asks about compiles instead of the cache."""
    from tilusbuild.remote.backend import RemoteTroubleError, open_backend

    try:
        with closing(open_backend(remote)) as backend:
            reply = backend.check_access(write=remote.write and not executes)
            # The connection is open by now: each question of a build takes as long as this one.
            began = time.monotonic()
            backend.has_file("tilusbuild doctor")
            reply += f", a round trip in {1e3 * (time.monotonic() - began):.1f} ms"
    except RemoteTroubleError as error:
        return str(error), False
    if executes:
        access = "asked to execute"
    elif remote.write:
        access = "read and written"
    else:
        access = "read"
    is_ok = not executes or "executes nothing" not in reply
    return f"{remote.address}, {access}: {reply}", is_ok


def _list_needed_components(manifest: Manifest | None, setting: Setting[str]) -> set[str]:
    """Return the components without which the project cannot be built."""
    if manifest is None:
        return {"g++"}
    from tilusbuild.manifest.settings import BY_DEFAULT
    from tilusbuild.preflight.diagnose import name_component
    from tilusbuild.toolchain import DeviceCompiler

    compiler = DeviceCompiler(setting.value, setting.source in BY_DEFAULT)
    needed = {"g++"}
    for name, script in manifest.scripts.items():
        for target in manifest.list_script_targets(name):
            toolchain = manifest.find_toolchain_name(name, target)
            needed.add(name_component("g++", toolchain))
            if not manifest.targets[target].is_cpu:
                declared_compiler = manifest.find_script_device_compiler(name, target)
                by_nvrtc = (
                    script.kernel and compiler.choose_for_script(declared_compiler) == "nvrtc"
                )
                needed.add(name_component("NVRTC" if by_nvrtc else "nvcc", toolchain))
    return needed


def _print_report(findings: Sequence[Finding], settings: Settings, *, verbose: bool) -> None:
    """Print each finding with its remedy, then the settings and the unknown variables."""
    for finding in findings:
        print(f"{finding.status:<7}  {finding.component}: {finding.detail}")
        if finding.status != "ok":
            print(f"           needed for: {finding.gives}")
            for line in (finding.remedy or "").splitlines():
                print(f"           {line}")
        if verbose or finding.status == "missing":
            for search in finding.searched:
                print(f"           searched {search.where}: {search.note}")
    print()
    for name, value, source in _list_settings(settings):
        unset = "chosen by tune" if name.startswith("bench-") else "no limit"
        print(f"{name} = {unset if value is None else value}  ({source})")
    for message in find_unknown_variables(os.environ):
        print(f"warning  {message}")


def _list_settings(settings: Settings) -> Iterator[tuple[str, Scalar | None, str]]:
    """Yield the name, value and source of each setting."""
    from tilusbuild.manifest.settings import OF_KERNEL_CACHE

    for name, setting in asdict(settings).items():
        yield name.replace("_", "-"), setting.value, setting.source
    for variable, default in OF_KERNEL_CACHE.items():
        name = variable.removeprefix("TILUSBUILD_").lower().replace("_", "-")
        value = os.environ.get(variable)
        yield (name, value, variable) if value else (name, default, "default")


VERB = Verb(Common, run, (FindingLine, SettingLine, ProblemLine, DoctorSummary))
