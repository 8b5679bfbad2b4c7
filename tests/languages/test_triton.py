"""Triton's kernels ahead of time (docs/triton.md)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.dlpack import ON_GPU
from support.fake_driver import build_driver
from support.project import Project, needs_cxx

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tilusbuild[triton]'")

PAGE = (Path(__file__).parents[2] / "docs" / "triton.md").read_text()
MANIFEST, KERNELS = re.findall(r"```(?:toml|python)\n(.*?)```", PAGE, re.DOTALL)
MANIFEST = MANIFEST.replace("[target", '[build]\ncache-dir = ".cache"\n[target', 1)
# Compiles as Triton's own users do, where all promises of the page's manifest hold.
OWN = """\
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels import softmax
signature = dict(y="*fp32", x="*fp32", rows="i32", columns="i32", BLOCK="constexpr")
divisible = {(i,): [["tt.divisibility", 16]] for i in (0, 1, 3)}
for arch, block, warps in ((a, b, w) for a in (80, 90) for b in (1024, 2048) for w in (4, 8)):
    source = ASTSource(softmax, signature, {"BLOCK": block}, divisible)
    target = GPUTarget("cuda", arch, 32)
    kernel = triton.compile(source, target, dict(num_warps=warps))
    print(kernel.asm["cubin"].hex(), warps * 32, kernel.metadata.shared)
"""
# A call by Triton's own launcher, and one by a wheel, on devices that a made up driver has.
OWN_CALL = """\
from kernels import softmax

class Memory:
    dtype = "float32"
    def __init__(self, address):
        self.data_ptr = lambda: address

softmax[(3,)](Memory(1 << 20), Memory(2 << 20), 3, 1008, BLOCK=1024, num_warps=4)
"""
WHEEL_CALL = f"""\
import ctypes, sys
{ON_GPU}
sys.path.append(sys.argv[1])
import softmax
from softmax._runtime import device
device.may_have_cuda = lambda: True  # it looks into /dev, where a made up driver leaves nothing
softmax.load("softmax")(OnGpu(0, 1 << 20, 3, 1008), OnGpu(0, 2 << 20, 3, 1008))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project of the page, built where no nvcc is."""
    needs_cxx()
    project = Project(tmp_path_factory.mktemp("softmax"))
    project.environment["NVCC"] = "/nowhere"
    return project.write_all({"tilus.toml": MANIFEST, "kernels.py": KERNELS, "own.py": OWN})


def test_the_cubins_are_those_of_triton_itself(project: Project, tmp_path: Path) -> None:
    # Given the page's project, when it is built,
    assert project.compiled("--dump-ir") == 8
    # then its cubins, blocks and shared memory are those of Triton's own compiles,
    own = subprocess.run(
        [sys.executable, "own.py"],
        cwd=project.directory,
        env={"TRITON_DISABLE_LINE_INFO": "1", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {tuple(line.split()) for line in own.stdout.splitlines()}
    built = set()
    for program in project.programs.values():
        text = (program / "program.txt").read_text()
        block, smem = re.findall(r"^(?:block|smem) = (\d+)", text, re.MULTILINE)
        built.add(((program / "module" / "kernel.cubin").read_bytes().hex(), block, smem))
        # and the kernel gets its arguments and two null pointers.
        parameters = "y, x, rows, columns, null pointer, null pointer"
        assert "grid = rows\n" in text
        assert f"parameters = {parameters}\n" in text
        assert 'compiler = "triton ' in text
        for name in ("ir/softmax.ttir", "ir/softmax.ttgir", "module/ir/softmax.llir"):
            assert (program / name).read_text()
    assert built == expected
    # Nothing is left to do, also where other variables are set.
    project.environment["SHLVL"] = "9"
    assert project.compiled() == 0


def test_a_file_that_asks_for_a_gpu_is_compiled(project: Project, tmp_path: Path) -> None:
    # Given a file that asks a GPU for its configurations, and calls its kernel at its end,
    device = "device = triton.runtime.driver.active.get_current_target()\n"
    tuned = "@triton.autotune([*range(device.arch)], key=[])\n@triton.jit"
    asking = KERNELS.replace("@triton.jit", f"{device}{tuned}") + "softmax[(1,)](device, 0, 1, 1)\n"
    other = Project(tmp_path).write_all({"tilus.toml": MANIFEST, "kernels.py": asking})
    # then its instance is that of the kernel alone.
    hashes = [
        re.findall(r"[0-9a-f]{64}", checkout.run("plan", "--json", "-t", "ampere").out)
        for checkout in (project, other)
    ]
    assert len(hashes[0]) == 1
    assert hashes[0] == hashes[1]


def test_what_serves_does_not_promise_is_not_assumed(project: Project, tmp_path: Path) -> None:
    # Given the kernel without promises, and with one that makes an argument a constant,
    plain = Project(tmp_path / "plain").write_all({"kernels.py": KERNELS})
    one = MANIFEST.replace("[1024, 2048]", "[1024]").replace("[4, 8]", "[4]")
    one = one.replace('[target.hopper]\narch = "sm_90a"\n', "")
    less = one.replace(", align = 16", "").replace(', whole = "columns % 16 == 0"', "")
    more = one.replace("columns % 16 == 0", "rows == 1 and columns % 16 == 0")
    sources = {}
    for name, manifest in {"one": one, "less": less, "more": more}.items():
        # when each is built,
        plain.write("tilus.toml", manifest)
        plain.run("build", "--dump-ir")
        listed = plain.run("cache", "ls", "softmax", "--json").out
        program = max(plain.programs.values(), key=lambda path: path.stat().st_mtime_ns)
        sources[name] = (program / "ir" / "softmax.ttir").read_text(), listed
        parameters = re.findall(r"parameters = (.*)", (program / "program.txt").read_text())
        assert ("rows" in parameters[0]) == (name != "more")
    # then only a promise makes a parameter divisible.
    assert sources["one"][0].count("tt.divisibility = 16") == 3
    assert "tt.divisibility" not in sources["less"][0]


def test_a_wheel_without_triton_launches_as_triton_does(project: Project, tmp_path: Path) -> None:
    # Given a wheel in an environment with nothing but its dependency,
    environment = project.unpack_wheel(tmp_path / "site")
    driver = build_driver(tmp_path / "driver")

    def launch(journal: Path, *argv: object, **variables: str) -> list[str]:
        made_up = {
            "FAKE_CUDA_ARCHS": "80",
            "FAKE_CUDA_PARAMETERS": "ptr ptr i32 i32 ptr ptr",
            "FAKE_CUDA_JOURNAL": str(journal),
            "LD_LIBRARY_PATH": str(driver),
        }
        command = [sys.executable, *map(str, argv)]
        subprocess.run(command, cwd=project.directory, env={**made_up, **variables}, check=True)
        return [line for line in journal.read_text("latin-1").splitlines() if "launch" in line]

    # when it launches a kernel, and Triton launches its own,
    wheel_launches = launch(
        tmp_path / "ours", "-I", "-S", "-c", WHEEL_CALL, environment, PATH="/nowhere"
    )
    triton = {"TRITON_LIBCUDA_PATH": str(driver), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    triton_launches = launch(tmp_path / "theirs", "-c", OWN_CALL, **triton, PATH=os.environ["PATH"])
    # then the driver gets the same grid, block, shared memory and parameters.
    assert len(wheel_launches) == 1
    assert wheel_launches == triton_launches
    # A driver of before the CUDA of Triton's ptxas is refused.
    package = f"{environment}/softmax/tilus"
    project.run("preflight", package, "--device", "sm_80", "--driver", "13.9")
    refused = project.run("preflight", package, "--device", "sm_80", "--driver", "11.8", status=1)
    assert "made with CUDA 1" in refused.out


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("kernels.py", ("BLOCK: tl", "SIZE: tl.constexpr, BLOCK: tl"), '"SIZE" is not in space'),
        ("kernels.py", ("tl.exp(", "tl.exq("), "kernels.py:12:"),
        ("kernels.py", ("tl.exp(v", "helper.half(v"), "helper.py:3:1: error: softmax: c is"),
        ("kernels.py", ("import triton.language", "import triton.nosuch"), "kernels.py:3:1: error"),
        ("tilus.toml", ("args.rows", "args.raws"), '"rows" is not in args'),
        ("tilus.toml", ('"sm_80"', '["sm_80", "sm_86"]'), "Triton has no code for sm_80, sm_86"),
        ("tilus.toml", ('"sm_80"', '"sm_90"'), 'set arch = "sm_90a"'),
        ("tilus.toml", ("launch = ", "# "), "launch.grid has 1 to 3 sizes, not 0"),
        ("tilus.toml", ("py:softmax", "py:softmix"), "there is no function softmix"),
        ("tilus.toml", ("py:softmax", "py:tl"), "it is not a function with @triton.jit"),
    ],
)
def test_a_mistake_is_one_error(
    tmp_path: Path, file: str, change: tuple[str, str], message: str
) -> None:
    project = Project(tmp_path).write_all(
        {"tilus.toml": MANIFEST, "kernels.py": "import helper\n" + KERNELS}
    )
    project.write("helper.py", "import triton\n@triton.jit\ndef half(a): return a * c\n")
    project.edit(file, *change)
    if "raws" in change[1]:
        project.edit("tilus.toml", "[rows, columns]", "[raws, columns]")
        project.edit("tilus.toml", 'grid = ["rows"]', 'grid = ["raws"]')
    assert message in project.run_to_error("build", "-t", "ampere")
