"""The cases that a package carries to test itself: inputs, expected outputs and tolerances.

A case is what `tune` and `run` make of the manifest's `sizes`, `ref` and tolerances, and what
`tune/bench` reads: the machine that checks the package needs no reference, no NumPy and no
compiler. Price: expected outputs are stored, so a case with more than `MAX_CASE` bytes of outputs
is left out, and named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from tilusbuild.builder.project import Project
from tilusbuild.cache.layout import TESTS
from tilusbuild.errors import InputError
from tilusbuild.expr import Value
from tilusbuild.manifest.model import Manifest
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.tune import inputs, prepare

MAX_CASE = 2 << 20
"""Bytes of the outputs of a case."""


class PackageTests(Struct, frozen=True):
    """The files of the cases by their paths in the package, and what has no case, with the
    reason."""

    files: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def make_tests(
    project: Project, instances: Iterable[PlannedInstance], directory: str, *, seed: int = 0
) -> PackageTests:
    """Write the cases of all instances below a directory, from the manifest's sizes. Raises
    `InputError` for a reference that fails, and `OSError`."""
    made = PackageTests()
    for instance in instances:
        if project.manifest.scripts[instance.script].form not in ("kernel", "entry"):
            continue  # a library has no call
        for number, size in enumerate(_sizes(project.manifest, instance, made)):
            name = f"{TESTS}/{instance.hash}/{number}"
            path = os.path.join(directory, name)
            prepare.prepare_case(
                path,
                instance.spec.signature,
                size,
                _check(project.manifest, instance.script),
                seed=seed,
                cold=True,
            )
            for each in sorted(os.listdir(path)):
                made.files[f"{name}/{each}"] = os.path.join(path, each)
    return made


def _check(manifest: Manifest, script: str) -> prepare.OutputCheck:
    """Return how outputs are checked; without a `ref`, a call that ends and writes nothing beside
    its tensors is all that can be asked for."""
    tune = manifest.scripts[script].tune
    return prepare.checking(manifest, script, unchecked=tune is None or tune.ref is None)


def _sizes(
    manifest: Manifest, instance: PlannedInstance, made: PackageTests
) -> Iterable[Mapping[str, Value]]:
    """Yield the sizes that a case is made of; the others are noted."""
    signature = instance.spec.signature
    try:
        sizes = prepare.sizes_of(manifest, instance.script, (), signature)
    except InputError as error:
        made.left_out.append(f"{instance.label}: {error}")
        return
    for size in sizes:
        count = inputs.output_bytes(signature, size)
        if count <= MAX_CASE:
            yield size
        else:
            at = ", ".join(f"{name}={value}" for name, value in size.items())
            made.left_out.append(f"{instance.label}: {at}: {count >> 20} MiB of outputs")
