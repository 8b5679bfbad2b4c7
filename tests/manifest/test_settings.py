"""Where settings come from, and which of several places wins."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tilusbuild.errors import InputError
from tilusbuild.manifest import Setting, decide_settings, find_project_manifest
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.sections import parse_requirement
from tilusbuild.manifest.table import ValueFault
from tilusbuild.runtime import where


@pytest.mark.parametrize(
    ("options", "environment", "message", "expected"),
    [
        ({"jobs": 1}, {"TILUSBUILD_JOBS": "2"}, {"jobs": 3}, Setting(1, "--jobs")),
        ({"jobs": None}, {"TILUSBUILD_JOBS": "2"}, {"jobs": 3}, Setting(2, "TILUSBUILD_JOBS")),
        ({}, {"TILUSBUILD_JOBS": ""}, {"jobs": 3}, Setting(3, "tilus.toml")),
    ],
)
def test_the_command_line_then_the_environment_then_the_manifest(
    options: Mapping[str, int | None],
    environment: Mapping[str, str],
    message: Mapping[str, int],
    expected: Setting[int],
) -> None:
    assert decide_settings("/", options, environment, message).jobs == expected


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    decided = decide_settings("/", {}, {})
    assert decided.jobs.value >= 1
    assert (decided.level.value, decided.device_compiler.value) == (2, "nvcc")
    assert decided.level.source == "default"
    assert decided.cache_dir == Setting(str(tmp_path / ".cache" / "tilus"), "default")


def test_what_a_manifest_says(load_script: Callable[[str], Manifest], project: Path) -> None:
    manifest = load_script(
        '[build]\njobs = 5\nlevel = 0\ncache-dir = "a/../b"\n'
        '[toolchain]\ndevice-compiler = "nvrtc"\n'
    )
    decided = decide_settings(manifest.root, {}, {}, manifest)
    assert (decided.jobs.value, decided.level.value) == (5, 0)
    assert decided.device_compiler == Setting("nvrtc", "tilus.toml")
    assert decided.cache_dir == Setting(str(project / "b"), "tilus.toml")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TILUSBUILD_JOBS": "many"}, 'TILUSBUILD_JOBS must be at least 1, not "many"'),
        ({"TILUSBUILD_JOBS": "0"}, 'TILUSBUILD_JOBS must be at least 1, not "0"'),
        ({"TILUSBUILD_LEVEL": "3"}, 'TILUSBUILD_LEVEL must be a number from 0 to 2, not "3"'),
        (
            {"TILUSBUILD_DEVICE_COMPILER": "nvc"},
            'TILUSBUILD_DEVICE_COMPILER must be one of nvcc, nvrtc, not "nvc"',
        ),
        *(
            ({f"TILUSBUILD_{name}": "\udcff"}, f'TILUSBUILD_{name} must be {what}, not "\udcff"')
            for name, what in (
                ("DEVICE_COMPILER", "one of nvcc, nvrtc"),
                ("NICE", "a number from 0 to 19"),
            )
        ),
    ],
)
def test_bad_settings_name_the_culprit(environment: Mapping[str, str], message: str) -> None:
    with pytest.raises(InputError) as raised:
        decide_settings("/", {}, environment)
    assert raised.value.message == message


def test_a_manifest_that_is_not_there_names_where_it_was_searched(tmp_path: Path) -> None:
    inner = tmp_path / "repo" / "a"
    inner.mkdir(parents=True)
    (tmp_path / "repo" / ".git").write_text("gitdir: elsewhere\n")
    (tmp_path / "tilus.toml").write_text("")
    with pytest.raises(InputError) as raised:
        find_project_manifest(str(inner))
    hint = raised.value.diagnostics[0].hint or ""
    assert hint.startswith(f"searched in:\n  {inner}\n  {inner.parent}\n`tilusbuild init`")
    assert where.choose_project_cache(str(inner), None).path == str(inner.parent / ".cache")


def test_finding_and_deciding_import_nothing_heavy() -> None:
    program = (
        "import sys; from tilusbuild.manifest import decide_settings, find_project_manifest;"
        "decide_settings('/', {}, {});"
        "heavy = {'pydantic', 'jinja2', 'numpy', 'tomllib'} & sys.modules.keys();"
        "print(sorted(heavy), [name for name in sys.modules if name.endswith('.room')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[] []"


# Requirements on a version of nvcc.
@pytest.mark.parametrize(
    ("requirement", "version", "accepted"),
    [
        (">=12.4,<14", "13.0.88", True),
        (">=12.4,<14", "12.3.107", False),
        (">=12.4,<14", "14.0", False),
        (">=12.4", "12.4.0", True),
        (">12.4", "12.4.0", False),
        ("==12.4", "12.4.131", False),
        ("==12.4.*", "12.4.131", True),
        ("==12.4.*", "12.40.1", False),
        ("!=13.0.*, >=12", "13.0.88", False),
        ("<=13", "13.0", True),
    ],
)
def test_accepts(requirement: str, version: str, accepted: bool) -> None:
    assert (version in parse_requirement(requirement)) is accepted


@pytest.mark.parametrize("text", ["", "12.4", ">=12.4,", ">=12.*", "=>12", ">= twelve", "~=12.4"])
def test_refuses(text: str) -> None:
    with pytest.raises(ValueFault):
        parse_requirement(text)
