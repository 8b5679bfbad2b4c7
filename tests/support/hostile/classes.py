"""The classes of hostile inputs, and what they start from: a built project and its packages."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from support.hostile import lines, manifests, packages, templates, trees
from support.hostile.flags import trial as flags
from support.hostile.trial import Trial
from support.nvcc_journal import UNHELD, make_host, make_toolkit

_FORMATS = ("dir", "tar.zst", "wheel", "oci")


@dataclass(frozen=True, slots=True)
class Samples:
    """What trees and packages are changed copies of, and the tools that they were built with."""

    project: Path
    packages: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Where the tools are, if not this machine's."""
    tools: Path | None = None
    """The stand-ins: they keep objects and a journal beside them."""

    @classmethod
    def made(cls, root: Path, *, real: bool = True) -> Samples:
        """Build the base project for this machine, and package it in every format. Unless `real`,
        with stand-ins for compilers, whose headers are looked through in no time."""
        environment, tools = ({}, None) if real else _stand_ins(root / "tools")
        project = root / "project"
        project.mkdir(parents=True)
        text = manifests.text(manifests.BASE).encode()
        (project / "tilus.toml").write_bytes(text if real else _for_gpus(text))
        (project / "scale.cu.j2").write_bytes(manifests.TEMPLATE)
        command = [sys.executable, "-m", "tilusbuild", "-C", str(project)]
        around = {**os.environ, **environment}
        subprocess.run([*command, "build", "-q"], check=True, env=around)
        made = root / "packages"
        words = [word for name in _FORMATS for word in ("--format", name)]
        ran = [*command, "package", "one", "-o", str(made), *words]
        subprocess.run(ran, check=True, capture_output=True, env=around)
        return cls(project, made, environment, tools)

    def copied(self, into: Path) -> None:
        """Put the built project in place of a directory."""
        shutil.rmtree(into)
        shutil.copytree(self.project, into, symlinks=True)

    def warmed(self, trial: Trial) -> Trial:
        """Return a trial that finds what the last build's state saves: the tools' digests."""

        def prepare(box: Path) -> None:
            ignored = shutil.ignore_patterns("programs", "scripts", "include")
            cache = box / "project" / ".cache"
            shutil.copytree(self.project / ".cache", cache, symlinks=True, ignore=ignored)

        return replace(trial, prepare=prepare)


def _stand_ins(directory: Path) -> tuple[Mapping[str, str], Path]:
    """Return the environment that has them, and the directory that they write."""
    make_toolkit(str(directory))
    make_host(str(directory / "host"))
    found = {
        "PATH": f"{directory}/host:/usr/local/bin:/usr/bin:/bin",
        "CUDA_HOME": str(directory),
        **UNHELD,
    }
    return found, directory


def _for_gpus(manifest: bytes) -> bytes:
    """Return a manifest with a target that the stand-ins compile for."""
    return manifest.replace(b'"arch" = "cpu"', b'"arch" = "sm_80"')


_Make = Callable[[random.Random, Samples], Trial]
_CLASSES: Mapping[str, _Make] = MappingProxyType(
    {
        "manifest": lambda rng, samples: samples.warmed(manifests.trial(rng)),
        "template": lambda rng, samples: samples.warmed(templates.trial(rng)),
        "flags": lambda rng, samples: samples.warmed(flags(rng)),
        "tree": lambda rng, samples: trees.trial(rng, samples.copied),
        "package": lambda rng, samples: packages.trial(rng, samples.packages),
        "line": lambda rng, samples: lines.trial(rng, samples.copied),
        "machine": lambda rng, samples: lines.machine(rng, samples.copied),
    }
)
CLASSES = tuple(_CLASSES)
ROUND = (
    *("manifest", "flags", "tree", "package", "line") * 3,
    *("template", "tree", "package", "line", "template", "machine"),
)
"""One round of a run of all classes: those that cost little come more often."""
_NEEDS_REAL = ("flags",)
REAL, STARTED = 0.05, 0.02
"""The shares of trials with this machine's own compilers, and as processes of their own."""


class Laboratory:
    """Makes trials by class and seed: the same seed is the same trial."""

    def __init__(self, root: Path) -> None:
        self._real = Samples.made(root / "real")
        self._other = Samples.made(root / "other", real=False)
        self.tools = self._other.tools
        self.boxes = root / "boxes"
        self.boxes.mkdir(mode=0o700)

    def trial(self, name: str, seed: str) -> Trial:
        """Return a trial, with its tools and its way to start."""
        chosen = random.Random(f"{seed}:how")
        real, start = chosen.random() < REAL, chosen.random() < STARTED
        samples = self._real if real or name in _NEEDS_REAL else self._other
        trial = _CLASSES[name](random.Random(seed), samples)
        files = {
            name: data if samples is self._real else _for_gpus(data)
            for name, data in trial.files.items()
        }
        return replace(
            trial,
            files=files,
            environment={**samples.environment, **trial.environment},
            start=start if trial.start is None else trial.start,
            tools=samples.tools,
        )

    @contextlib.contextmanager
    def box(self) -> Iterator[Path]:
        """Yield a path where nothing is, always the same; remove what came to be there."""
        box = self.boxes / "box"
        try:
            yield box
        finally:
            shutil.rmtree(box, ignore_errors=True)
