"""The classes of hostile inputs, and what they start from: a built project and its packages."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

from support.faults.oracle import Finding
from support.faults.world import FORMATS, World
from support.hostile import flags, lines, manifests, packages, templates, trees
from support.hostile.trial import Trial, attempt


@dataclass(frozen=True, slots=True)
class Samples:
    """What trees and packages are changed copies of, and the environment of their tools."""

    project: Path
    packages: Path
    environment: Mapping[str, str]

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


@cache
def _samples(world: World, real: bool) -> Samples:
    """Build the base project, for this machine or with the world's stand-ins for compilers, and
    package it in every format."""
    root = world.directory / f"samples-{real}"
    project = root / "project"
    project.mkdir(parents=True)
    text = manifests.text(manifests.BASE).encode()
    (project / "tilus.toml").write_bytes(text if real else _for_gpus(text))
    (project / "scale.cu.j2").write_bytes(manifests.TEMPLATE)
    world.empty()
    around = world.environment()
    if real:
        around = {name: around[name] for name in ("HOME", "TMPDIR", "LANG")}
        around["PATH"] = os.environ.get("PATH", os.defpath)
    formats = [word for name in FORMATS for word in ("--format", name)]
    for words in (("build", "-q"), ("package", "one", "-o", str(root / "packages"), *formats)):
        world.must(*words, cwd=project, environment=around)
    return Samples(project, root / "packages", around)


def _for_gpus(manifest: bytes) -> bytes:
    """Return a manifest with a target that the stand-ins compile for."""
    return manifest.replace(b'"arch" = "cpu"', b'"arch" = "sm_80"')


@dataclass(frozen=True)
class Inputs:
    """A class of inputs."""

    name: str
    make: Callable[[Random, Samples], Trial]
    often: int = 4
    """Of 16 trials of all classes; those that cost little come more often."""
    sample: int = 0

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`NUMBER`, the trial's seed."""
        return [str(chance.randrange(1 << 32)) for _ in range(_TRIALS * self.often)]

    def run(self, world: World, fault: str) -> list[Finding]:
        chosen = Random(f"{fault}:how")
        real = chosen.random() < _REAL or self.name == "flags"
        samples = _samples(world, real)
        trial = self.make(Random(fault), samples)
        environment = {**samples.environment, **trial.environment}
        if not real:
            files = {name: _for_gpus(data) for name, data in trial.files.items()}
            trial = replace(trial, files=files)
        if trial.start is not None:
            world.server.interpreters = trial.start
        if any("\0" in word for word in trial.words):
            world.server.interpreters = False
        return [*attempt(world, replace(trial, environment=environment))]


_TRIALS = 5000
_REAL = 0.05
"""The share of trials with this machine's own compilers."""
CLASSES = (
    Inputs("manifest", lambda rng, samples: samples.warmed(manifests.trial(rng)), 3),
    Inputs("template", lambda rng, samples: samples.warmed(templates.trial(rng)), 2),
    Inputs("flags", lambda rng, samples: samples.warmed(flags.trial(rng)), 3),
    Inputs("tree", lambda rng, samples: trees.trial(rng, samples.copied)),
    Inputs("package", lambda rng, samples: packages.trial(rng, samples.packages)),
    Inputs("line", lambda rng, samples: lines.trial(rng, samples.copied)),
    Inputs("machine", lambda rng, samples: lines.machine(rng, samples.copied), 1),
)
