"""Real extensions of PyTorch beside their own builds, with one line changed: `make ship`.

Each project comes from PyPI or its repository, and is installed by pip in fresh environments: as it
is; with its import of `torch.utils.cpp_extension` changed, into an empty cache; the same again from
another copy; and after an edit of a header. Printed are kernels whose machine code is the same
bytes, dynamic symbols, CPU time, and what was compiled. torch is in one environment (PYTHON names
one that has it, with setuptools, wheel and ninja), and the fresh ones see it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from _bench import ROOT, Ran, WorkNotDoneError, as_installed, machine, process
from _real.code import compare

WORK = Path(os.environ.get("SHIP", ROOT / "build/ship")).resolve()
_OURS = "from tilusbuild import torch as"
_IMPORTS = {
    r"from torch\.utils\.cpp_extension import": "from tilusbuild.torch import",
    r"from torch\.utils import cpp_extension(?! as)": f"{_OURS} cpp_extension",
    r"(from torch\.utils |)import (torch\.utils\.|)cpp_extension as": _OURS,
}
"""Patterns of imports in a setup.py, and what docs/torch-extensions.md has in their place."""
_SAID = re.compile(r"tilusbuild: (\d+) sources: (\d+) compiled, (\d+) from the cache")
_LEFT = "compiled by torch's own command"


@dataclass(frozen=True)
class Project:
    """A project: where it comes from, what of it is built, and the header that is edited."""

    source: str
    """A requirement on PyPI, or a repository and a commit."""
    loads: str
    """Python that loads what was built."""
    header: str
    built: Mapping[str, str] = field(default_factory=dict)
    """Its own variables, which say what is built."""


PROJECTS = {
    "fused-ssim": Project(
        "https://github.com/rahul-goel/fused-ssim 0ac916a",
        "import fused_ssim_cuda",
        "ssim3d.h",
        {"CUDA_ARCHITECTURES": "80"},
    ),
    "simple-knn": Project(
        "https://github.com/camenduru/simple-knn 60f461f",
        "import simple_knn._C",
        "simple_knn.h",
    ),
    "torchsort": Project(
        "torchsort==0.1.10", "import torchsort.isotonic_cuda, torchsort.isotonic_cpu", ""
    ),
    "torch-spline-conv": Project(
        "torch_spline_conv==1.2.2",
        "import torch_spline_conv",
        "csrc/cuda/atomics.cuh",
        {"FORCE_ONLY_CUDA": "1"},
    ),
    "xformers": Project(
        "xformers==0.0.35",
        "import glob; [*map(torch.ops.load_library, glob.glob(SITE + '/xformers/*.so'))]",
        "xformers/csrc/sparse24/sparse24_pack.h",
        {"XFORMERS_SELECTIVE_BUILD": "sparse24_apply"},  # of thousands of kernels
    ),
    "apex": Project(
        "https://github.com/NVIDIA/apex 6424da3b",
        "import transducer_joint_cuda, transducer_loss_cuda",
        "apex/contrib/csrc/transducer/philox.cuh",
        {"APEX_TRANSDUCER": "1"},  # two of some thirty extensions
    ),
    "causal-conv1d": Project(
        "causal_conv1d==1.7.0",
        "import causal_conv1d_cuda",
        "csrc/causal_conv1d.h",
        {"CAUSAL_CONV1D_FORCE_BUILD": "TRUE"},
    ),
    "torch-scatter": Project(
        "https://github.com/rusty1s/pytorch_scatter 648dda3",
        "import glob; [*map(torch.ops.load_library, glob.glob(SITE + '/torch_scatter/*.so'))]",
        "csrc/cuda/reducer.cuh",
        {"FORCE_ONLY_CUDA": "1"},
    ),
    "detectron2": Project(
        "https://github.com/facebookresearch/detectron2 02b5c4e2",
        "import glob; [*map(torch.ops.load_library, glob.glob(SITE + '/detectron2/*.so'))]",
        "detectron2/layers/csrc/box_iou_rotated/box_iou_rotated_utils.h",
        {"FORCE_CUDA": "1"},
    ),
    "exllamav2": Project(
        "exllamav2==0.0.4",
        "import exllamav2_ext",
        "exllamav2/exllamav2_ext/cuda/q_gemm_kernel.cuh",
    ),
    "punica": Project(
        "https://github.com/punica-ai/punica 591b598",
        "import punica.ops._kernels",
        "csrc/bgmv/bgmv_config.h",
        {"PUNICA_GROUP_SIZES": "1"},  # of four
    ),
    "grouped-gemm": Project(
        "grouped_gemm==0.3.0", "import grouped_gemm_backend", "csrc/fill_arguments.cuh"
    ),
}


@dataclass(frozen=True)
class Installed:
    """One installation: how it went, and where."""

    ran: Ran
    site: Path
    tree: Path

    @property
    def counts(self) -> tuple[int, int]:
        """Sources that were compiled by us, and that came from the cache."""
        rows = _SAID.findall(self.ran.out)
        return sum(int(row[1]) for row in rows), sum(int(row[2]) for row in rows)

    @property
    def libraries(self) -> list[Path]:
        return sorted(path for path in self.site.rglob("*.so"))


class Workshop:
    """A place for the trees, environments and the cache of one project."""

    def __init__(self, name: str, python: str, jobs: int) -> None:
        self.name, self.python, self.jobs = name, python, jobs
        self.project = PROJECTS[name]
        self.place = WORK / name
        for subdirectory in ("cache", "venvs", "trees"):
            shutil.rmtree(self.place / subdirectory, ignore_errors=True)
        self.source = _source(name, self.project.source, python)

    def install(self, how: str, *, uses_tilusbuild: bool, edited: bool = False) -> Installed:
        """Install a copy of the project into a fresh environment."""
        tree, venv = self.place / "trees" / how / self.name, self.place / "venvs" / how
        shutil.copytree(self.source, tree, symlinks=True)
        if uses_tilusbuild:
            _change_import(tree / "setup.py")
        if edited:
            header = tree / self.project.header
            header.write_text(f"{header.read_text()}\n// edited\n")
        subprocess.run([self.python, "-m", "venv", "--without-pip", venv], check=True)
        (site,) = (venv / "lib").glob("python3*/site-packages")
        asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
        shared = subprocess.check_output([self.python, "-c", asked], text=True).strip()
        # As a line of code: directories of editable installs are read as well.
        (site / "torch.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
        words = [str(venv / "bin/python"), "-m", "pip", "install", "-v", "--no-build-isolation"]
        words += ["--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
        # pip finds what is installed in the shared environment, and must not replace it.
        words += ["--ignore-installed", "."]
        ran = process(words, tree, self.environment(venv))
        print(f"  {how}: {ran.cpu:.1f} s of CPU", file=sys.stderr, flush=True)
        loads = f"import torch; SITE = {str(site)!r}; {self.project.loads}"
        process([str(venv / "bin/python"), "-c", loads], self.place, self.environment(venv))
        return Installed(ran, site, tree)

    def environment(self, venv: Path) -> dict[str, str]:
        beside = os.path.dirname(self.python)
        return {
            "PATH": os.pathsep.join([str(venv / "bin"), beside, os.environ["PATH"]]),
            "TILUSBUILD_CACHE_DIR": str(self.place / "cache"),
            "TORCH_CUDA_ARCH_LIST": "8.0",
            "MAX_JOBS": str(self.jobs),
            **self.project.built,
        }


def _change_import(setup: Path) -> None:
    text = setup.read_text()
    for pattern, replacement in _IMPORTS.items():
        text = re.sub(pattern, replacement, text)
    if text == setup.read_text():
        raise WorkNotDoneError(f"{setup} imports nothing of torch.utils.cpp_extension")
    setup.write_text(text)


def _source(name: str, source: str, python: str) -> Path:
    """Return the project's unpacked source, fetched once."""
    directory = WORK / "sources" / name
    if directory.exists():
        return directory
    fresh = WORK / "fetched" / name
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    if source.startswith("https:"):
        address, commit = source.split()
        subprocess.run(["git", "clone", "-q", address, fresh / name], check=True)
        subprocess.run(["git", "-C", fresh / name, "checkout", "-q", commit], check=True)
        words = ["submodule", "update", "-q", "--init"]
        subprocess.run(["git", "-C", fresh / name, *words], check=True)
        shutil.rmtree(fresh / name / ".git")
    else:
        words = ["-m", "pip", "download", "-q", "--no-binary", ":all:", "--no-deps"]
        words += ["--no-build-isolation", "-d", str(fresh), source]
        subprocess.run([python, *words], check=True)
        (archive,) = fresh.iterdir()
        with tarfile.open(archive) as file:
            file.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.4 on
            file.extractall(fresh / "unpacked")
        (inside,) = (fresh / "unpacked").iterdir()
        inside.rename(fresh / name)
    directory.parent.mkdir(parents=True, exist_ok=True)
    (fresh / name).rename(directory)
    return directory


def _python() -> str:
    """Return an interpreter that has torch, made unless there is one."""
    venv = WORK / "venv"
    python = str(venv / "bin/python")
    if not (venv / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        words = [python, "-m", "pip", "install", "-q", os.environ.get("TORCH", "torch")]
        tools = ["setuptools", "wheel", "ninja", "numpy", "-e", str(ROOT)]
        subprocess.run([*words, *tools], check=True)
        (venv / ".ready").touch()
    return python


def _exports(libraries: list[Path]) -> set[tuple[str, str]]:
    """Return the symbols that libraries define for others, with each one's file."""
    symbols = set()
    for path in libraries:
        output = subprocess.check_output(["nm", "-D", "--defined-only", path], text=True)
        symbols |= {(path.name, line.split()[-1]) for line in output.splitlines()}
    return symbols


def _includers(tree: Path, header: str) -> str:
    """Return how many objects of a build by ninja were made of a header."""
    records, count = [*tree.rglob("build.ninja")], 0
    for record in records:
        output = subprocess.run(
            ["ninja", "-t", "deps"], cwd=record.parent, capture_output=True, text=True, check=True
        ).stdout
        blocks = re.split(r"\n(?=\S)", output)
        count += sum(f"/{header}\n" in f"{block}\n" for block in blocks)
    return f"{count}" if records else "not known without ninja"


def measure(shop: Workshop) -> None:
    """Install four times, and print what there is to see."""
    peer_install = shop.install("theirs", uses_tilusbuild=False)
    first = shop.install("first", uses_tilusbuild=True)
    second = shop.install("second", uses_tilusbuild=True)
    code = compare(first.libraries, peer_install.libraries)
    mine, other = _exports(first.libraries), _exports(peer_install.libraries)
    torch_count = first.ran.out.count(_LEFT)
    rows = [
        ("sources compiled, left to torch", f"{first.counts[0]}, {torch_count}"),
        ("kernels with the same machine code", str(code)),
        (
            "dynamic symbols, and others in one of the two",
            f"{len(mine & other)}, {len(mine ^ other)}",
        ),
        ("CPU, first install by theirs", _by(first, peer_install)),
        ("CPU, second install by first", _by(second, first)),
        ("second install: compiled, from the cache", "{}, {}".format(*second.counts)),
    ]
    if shop.project.header:
        edited = shop.install("edited", uses_tilusbuild=True, edited=True)
        expected = _includers(peer_install.tree, shop.project.header)
        rows.append(
            ("a header edited: compiled, that include it", f"{edited.counts[0]}, {expected}")
        )
    print(f"\n{shop.name} ({shop.project.source})")
    for what, value in rows:
        print(f"  {what:48}{value}", flush=True)


def _by(one: Installed, other: Installed) -> str:
    return f"{one.ran.cpu / other.ran.cpu:.3f} ({one.ran.cpu:.1f} s, {other.ran.cpu:.1f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("projects", nargs="*", metavar="PROJECT", help=", ".join(PROJECTS))
    parser.add_argument("--python", help="an interpreter that has torch (default: made)")
    parser.add_argument("-j", dest="jobs", type=int, default=2)
    asked = parser.parse_args()
    if unknown := sorted(set(asked.projects) - set(PROJECTS)):
        parser.error(f"{unknown[0]} is not a project; there are {', '.join(PROJECTS)}")
    python = asked.python or _python()
    as_installed()
    for name in asked.projects or PROJECTS:
        print(f"{name} …", file=sys.stderr, flush=True)
        measure(Workshop(name, python, asked.jobs))
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()
