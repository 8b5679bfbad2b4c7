"""A package for Hugging Face's `kernels`: variants, metadata, and a module under any name."""

import json
import shutil
from pathlib import Path

import pytest

from support.packed import PackedProject
from support.processes import run_python
from tilusbuild.kernels import variants as layout
from tilusbuild.package.listing import FileList

CPU = "tvm-ffi01-cpu-x86_64-linux"
STEM = "Marks-1.2.kernels"


@pytest.fixture(scope="module")
def laid_out(_built: PackedProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kernels")
    _built.run("package", "--format", "kernels", "-o", str(directory))
    return directory / STEM


def test_a_module_of_any_name_has_the_scripts_as_functions(laid_out: Path) -> None:
    code = f"""\
import importlib.util, sys
sys.modules["torch"] = sys.modules["tilusbuild"] = None
import numpy as np
found = importlib.util.spec_from_file_location("any", {str(laid_out / "build" / CPU)!r}
                                               + "/__init__.py")
any = importlib.util.module_from_spec(found)
sys.modules["any"] = any
found.loader.exec_module(any)
print(any.DoubleIt_1(np.ones(2, "float32")), any.load("mark", target="host"), any.__all__)
"""
    assert run_python(code).stdout.splitlines() == [
        "[3. 3.] <Kernel mark host> ['load', 'path', 'DoubleIt_0', 'DoubleIt_1', 'mark']"
    ]


def test_the_package_in_it_verifies(laid_out: Path, project: PackedProject) -> None:
    project.run("verify", str(laid_out / "build" / CPU / "tilus"))
    refused = project.run("verify", str(laid_out), status=1)
    assert f"{laid_out}: it holds a package for each variant, in build/*/tilus" in refused.out


def test_it_is_replaced_by_the_next(laid_out: Path, project: PackedProject, tmp_path: Path) -> None:
    shutil.copytree(laid_out, tmp_path / STEM)
    (tmp_path / STEM / "build" / CPU / "__init__.py").unlink()
    project.run("package", "--format", "kernels", "-o", str(tmp_path))
    assert (tmp_path / STEM / "build" / CPU / "__init__.py").exists()


def test_a_variant_is_for_a_kind_of_device(listed: FileList) -> None:
    assert layout._list_variants(listed) == {
        CPU: {"type": "cpu"},
        "tvm-ffi01-cu130-x86_64-linux": {"type": "cuda", "archs": ["9.0a"]},
    }


def test_names_that_kernels_does_not_take_are_refused(project: PackedProject) -> None:
    project.edit("tilus.toml", 'name = "Marks"', 'name = "m"')
    project.run("build")
    refused = project.run("package", "--format", "kernels", status=1)
    assert '"m" is not a name that kernels takes' in refused.err


@pytest.mark.usefixtures("with_torch")
def test_the_real_library_chooses_checks_and_calls(laid_out: Path, listed: FileList) -> None:
    pytest.importorskip("kernels", reason="needs Hugging Face's kernels")
    pytest.importorskip("torch", reason="needs torch")
    cuda = list(layout._list_variants(listed))
    code = f"""\
import sys
from pathlib import Path
import torch, kernels
from kernels._rust import Digest, DigestAlgorithm
from kernels.backends import CUDA
from kernels.variants import _resolve_variant_for_system, parse_variant
from packaging.version import Version

path = Path({str(laid_out)!r})
module = kernels.get_local_kernel(path)
(loaded,) = kernels.get_loaded_kernels()
variant = path / "build" / {CPU!r}
loaded.metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, variant))
print(module.DoubleIt_1(torch.ones(2)).tolist(), module.DoubleIt_1)
compiled = torch.compile(module.DoubleIt_0, fullgraph=True, backend="aot_eager")
print(compiled(torch.ones(2)).tolist(), "tilusbuild" in sys.modules)
for version in ("12.8", "13.0", "13.1"):
    found, _ = _resolve_variant_for_system(
        variants=[parse_variant(each) for each in {cuda!r}],
        selected_backend=CUDA(Version(version)), cpu="x86_64", os="linux",
        torch_version=Version("2.13"), torch_cxx11_abi=True,
        tvm_ffi_version=Version("0.1"), macos_version=None,
    )
    print(version, [each.variant_str for each in found])
"""
    identifier = json.loads((laid_out / "build" / CPU / "metadata.json").read_text())["id"]
    assert run_python(code).stdout.splitlines() == [
        f"[3.0, 3.0] {identifier}.DoubleIt_1",
        "[2.0, 2.0] False",
        "12.8 []",
        "13.0 ['tvm-ffi01-cu130-x86_64-linux']",
        "13.1 ['tvm-ffi01-cu130-x86_64-linux']",
    ]
