"""What the ports of real projects are held to, without the projects: they come from the network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.project import Project
from tilusbuild.manifest.loading import load

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PORTS = BENCHMARKS / "_real/ports"

FORWARD = """\
// A comment of its generator.
#include "namespace_config.h"
#include "flash_fwd_launch_template.h"
namespace FLASH_NAMESPACE {
template<>
void run_mha_fwd_<TYPE, HEAD, CAUSAL>(Flash_fwd_params &params, cudaStream_t stream) {
    run_mha_fwd_hdimHEAD<TYPE, CAUSAL>(params, stream);
}
} // namespace FLASH_NAMESPACE"""
SPLIT = """\
#include "namespace_config.h"
#include "flash_fwd_launch_template.h"
namespace FLASH_NAMESPACE {
template void run_mha_fwd_splitkv_dispatch<TYPE, HEAD, CAUSAL>(Flash_fwd_params &params, \
cudaStream_t stream);
} // namespace FLASH_NAMESPACE"""
FORMS = {"fwd": FORWARD, "fwd_split": SPLIT, "bwd": FORWARD.replace("fwd", "bwd")}
TYPES = {"fp16": "cutlass::half_t", "bf16": "cutlass::bfloat16_t"}


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """FlashAttention's port over files as its generator writes them."""
    shutil.copytree(PORTS / "flash_attention", tmp_path, dirs_exist_ok=True)
    sources = tmp_path / "csrc/flash_attn/src"
    sources.mkdir(parents=True)
    (tmp_path / "csrc/cutlass/include").mkdir(parents=True)
    (sources.parent / "flash_api.cpp").write_text("")
    for way, form in FORMS.items():
        for name, element in TYPES.items():
            for head in ("32", "64", "96", "128", "192", "256"):
                for causal in ("false", "true"):
                    text = form.replace("TYPE", element).replace("HEAD", head)
                    file = sources / f"{way}_{name}_{head}_{causal}.cu"
                    file.write_text(text.replace("CAUSAL", causal))
    return tmp_path


@pytest.fixture
def flash_attention(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> ModuleType:
    """The module, with this interpreter for that of the projects, and a torch of no headers."""
    from _real import flash_attention, world

    site = tmp_path_factory.mktemp("site")
    (site / "torch/include/torch/csrc/api/include").mkdir(parents=True)
    (site / "torch/__init__.py").write_text("raise RuntimeError('it is not imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setattr(world, "python", lambda: sys.executable)
    return flash_attention


def test_flash_attention_s_instances_are_those_of_its_generator(
    tree: Path, flash_attention: ModuleType
) -> None:
    flash_attention._hold_equal(tree)
    file = tree / "csrc/flash_attn/src/bwd_bf16_192_true.cu"
    file.write_text(file.read_text().replace("192", "160"))
    with pytest.raises(Exception, match=r"1 of ours and 1 of theirs .* of 72 and 72"):
        flash_attention._hold_equal(tree)


def test_a_sample_of_flash_attention_is_what_was_chosen(
    tree: Path, flash_attention: ModuleType
) -> None:
    from _real.schedules import schedules

    every = list(schedules(tree / "tilus.toml", "instances", "ampere"))
    chosen = sorted(every, key=flash_attention._turn)[:4]
    assert [flash_attention._name(each) for each in chosen] == [
        "flash_fwd_hdim32_fp16_sm80",
        "flash_fwd_split_hdim32_fp16_sm80",
        "flash_bwd_hdim32_fp16_sm80",
        "flash_fwd_hdim32_bf16_sm80",
    ]
    flash_attention._narrow(tree / "tilus.toml", chosen)
    narrowed = list(schedules(tree / "tilus.toml", "instances", "ampere"))
    assert sorted(map(str, narrowed)) == sorted(map(str, chosen))


def test_cutlass_s_port_has_the_macros_and_the_sources_of_the_other_build(tmp_path: Path) -> None:
    from _real import cutlass

    shutil.copytree(PORTS / "cutlass", tmp_path, dirs_exist_ok=True)
    for directory, source in cutlass.EXAMPLES:
        file = tmp_path / f"examples/{directory}/{source}.cu"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    manifest = load(str(tmp_path / "tilus.toml"))
    macros = {name: str(value) for name, value in manifest.build.defines.items()}
    assert macros.pop("NDEBUG") == "True"  # CMake's own, of a Release
    assert macros == dict(re.findall(r"-D(CUTLASS_\w+)=(\d+)", cutlass._CMAKE))
    listed = [source for library in manifest.libraries.values() for source in library.sources]
    assert listed == [f"examples/{where}/{source}.cu" for where, source in cutlass.EXAMPLES]


def test_links_of_libraries_are_no_compiles(tmp_path: Path) -> None:
    from _real.project import compiles_planned

    project = Project(tmp_path)
    project.write_all({"a.cpp": "int a;\n", "b.cpp": "int b;\n", "c.cpp": "int c;\n"})
    manifest = """\
edition = 1
[project]
name = "p"
version = "0.1.0"
[build]
cache-dir = ".cache"
[target.host]
arch = "cpu"
[library.one]
sources = ["a.cpp"]
[library.two-parts]
sources = ["b.cpp", "c.cpp"]
"""
    project.write("tilus.toml", manifest)
    said = project.run("plan").out
    assert "5 to compile" in said
    assert compiles_planned(said, manifest) == 3
    assert project.compiled() == 5
    project.edit("c.cpp", "int c", "int d")
    assert compiles_planned(project.run("plan").out, manifest) == 1


EXTENSION = """\
import os, subprocess
import torch, torch.version
assert torch.cuda._is_compiled() and torch.version.cuda

def build(directory):
    with open(os.path.join(directory, "build.ninja"), "w") as file:
        file.write("# of torch " + torch.__version__)
    _run_ninja_build(directory, True, error_prefix="")
    raise RuntimeError("it was compiled")

def _run_ninja_build(build_directory, verbose, error_prefix):
    raise RuntimeError("it is compiled")
"""


def test_pytorch_writes_its_ninja_file_and_compiles_nothing(tmp_path: Path) -> None:
    files = {
        "site/torch/__init__.py": "raise RuntimeError('it is not imported')\n",
        "site/torch/version.py": "__version__ = '2.14.1'\ncuda = None\n",
        "site/torch/utils/cpp_extension.py": EXTENSION,
        "setup.py": "import os\nfrom torch.utils.cpp_extension import build\nbuild(os.getcwd())\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, BENCHMARKS / "_real/extension_ninja.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [str(tmp_path / "build.ninja")]
    assert (tmp_path / "build.ninja").read_text() == "# of torch 2.14.1"
