"""What the hash of a program does not cover, no compile of it can read: by any spelling, through
any compiler, in a sandbox and without one. Nothing of it is published."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from support import scale
from support.project import NewProject, Project
from tilusbuild.process import landlock

UP = "../" * 24

HEADERS = {
    "absolute": '#include "{path}"',
    "angled": "#include <{path}>",
    "macro": '#define NAME "{path}"\n#include NAME',
    "stringised": "#define S(x) S_(x)\n#define S_(x) #x\n#include S({path})",
    "in_a_dead_branch": '#if 0\n#elif defined(__cplusplus)\n#include "{path}"\n#endif',
    "out_of_a_search_directory": f"#include <{UP}{{path}}>",
    "out_of_the_working_directory": f'#include "/proc/self/cwd/{UP}{{path}}"',
    "beside_the_source": f'#include "{UP}{{path}}"',
    "through_the_root": '#include "/proc/self/root{path}"',
    "if_it_is_there": '#if __has_include("{path}")\n#include "{path}"\n#endif',
}
ASSEMBLED = {
    "incbin": 'asm(".incbin \\"{path}\\"");',
    "assembled": 'asm(".include \\"{path}\\"");',
    "incbin_upwards": f'asm(".incbin \\"{UP}{{path}}\\"");',
    "incbin_in_pieces": 'asm(".inc" "bin \\"{path}\\", 0, 4");',
}
SOME = {name: HEADERS[name] for name in ("absolute", "stringised", "if_it_is_there")}
LANDLOCK = pytest.mark.skipif(not landlock.find_version(), reason="no Landlock")
HOST_ENTRY = """
#ifdef __CUDACC__
__global__ void kernel(float a, const float *x, float *y, long long n) { y[0] = a * x[n]; }
extern "C" int launch_it(float a, const float *x, float *y, long long n, cudaStream_t stream) {
  kernel<<<1, 1, 0, stream>>>(a, x, y, n);
  return cudaGetLastError();
}
#endif
"""
CONTENT = "#define SECRET 1\n"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    header = tmp_path / "elsewhere" / "secret.h"
    header.parent.mkdir()
    header.write_text(CONTENT)
    return header


def project_of(new_project: NewProject, secret: Path, spellings: dict[str, str], target: str):
    """A script for each spelling; `host` is a target, too: of templates with an entry."""
    real = target.replace("host", "gpu")
    scripts, templates = [], {}
    for name, spelling in spellings.items():
        text = scale.script(name, target=real, schedules=1)
        if target == "host":
            text = text.replace('kernel = "scale"', 'entry = "launch_it"')
            text = "".join(line for line in text.splitlines(True) if "launch =" not in line)
        scripts.append(text)
        body = HOST_ENTRY if target == "host" else scale.TEMPLATE
        # Line 2 of the template names the file.
        named = spelling.replace("{path}", str(secret))
        templates[f"kernels/{name}.cu.j2"] = f"// {name}\n{named}\n{body}"
    return new_project(scale.manifest(*scripts), templates)


def check(project: Project, spellings: Mapping[str, str], *words: str) -> None:
    """A build publishes no result, and says of each script where it names the file."""
    outcome_by_script = {}
    for event in project.run("build", "--json", *words, status=1).events:
        if event["event"] == "finished":
            outcome_by_script[event["script"]] = event["status"], event["reason"]
    assert sorted(outcome_by_script) == sorted(spellings)
    for name, (status, reason) in outcome_by_script.items():
        assert (name, status) == (name, "crashed"), reason
        assert reason.startswith((f"kernels/{name}.cu.j2:", "source.cu: error: the incl")), reason
        assert "include-dirs" in reason
    assert project.programs == {}
    kept = [path for path in project.cache.rglob("*") if path.is_file()]
    assert not [path for path in kept if CONTENT.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("compiler", "target", "spellings", "sandbox"),
    [
        pytest.param("", "cpu", HEADERS | ASSEMBLED, "1", marks=LANDLOCK),
        ("", "cpu", HEADERS | ASSEMBLED, "0"),
        pytest.param("nvcc", "gpu", SOME, "1", marks=[LANDLOCK, pytest.mark.nvcc]),
        pytest.param(
            "nvcc",
            "host",
            {name: (HEADERS | ASSEMBLED)[name] for name in ("absolute", "incbin", "assembled")},
            "0",
            marks=pytest.mark.nvcc,
        ),
        ("nvrtc", "gpu", HEADERS, "0"),
    ],
    ids=["host compiler, held", "host compiler", "nvcc", "nvcc with host code", "nvrtc"],
)
def test_nothing_outside_is_read(new_project, secret, sandbox, compiler, target, spellings):
    project = project_of(new_project, secret, spellings, target)
    project.environment["TILUSBUILD_SANDBOX"] = sandbox
    events = project.run("doctor", "--json", status=None).events
    known = [(line.get("component"), line.get("status")) for line in events]
    if compiler == "nvrtc" and ("NVRTC", "ok") not in known:
        pytest.skip("needs NVRTC")
    check(project, spellings, *(("--device-compiler", compiler) if compiler else ()))
