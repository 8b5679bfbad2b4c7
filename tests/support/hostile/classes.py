"""The classes of hostile inputs, and what they start from: a built project and its packages."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from support.hostile import lines, manifests, packages, templates, trees
from support.hostile.flags import trial as flags
from support.hostile.trial import Trial

_FORMATS = ("dir", "tar.zst", "wheel", "oci")


@dataclass(frozen=True, slots=True)
class Samples:
    """What trees and packages are changed copies of."""

    project: Path
    packages: Path

    @classmethod
    def made(cls, root: Path) -> Samples:
        """Build the base project for this machine, and package it in every format."""
        project = root / "project"
        project.mkdir(parents=True)
        (project / "tilus.toml").write_text(manifests.text(manifests.BASE))
        (project / "scale.cu.j2").write_bytes(manifests.TEMPLATE)
        command = [sys.executable, "-m", "tilusbuild", "-C", str(project)]
        subprocess.run([*command, "build", "-q"], check=True)
        made = root / "packages"
        words = [word for name in _FORMATS for word in ("--format", name)]
        ran = [*command, "package", "one", "-o", str(made), *words]
        subprocess.run(ran, check=True, capture_output=True)
        return cls(project, made)

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


Make = Callable[[random.Random, Samples], Trial]

CLASSES: Mapping[str, Make] = MappingProxyType(
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
