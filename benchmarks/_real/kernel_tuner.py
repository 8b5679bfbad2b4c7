"""Kernel Tuner: scripts with the sources of its package, by `tilusbuild import`.

Its own way is to compile each configuration when its turn comes, by PyCUDA's nvcc command: the
source behind a `#define` of each parameter. ninja compiles what it would, for sm_80, since nothing
here has a device. Both spaces are compared.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from _bench import ninja, nvcc

from _real import tuner_instances, world
from _real.project import Project, tilusbuild
from _real.schedules import hold_equal, schedules

PACKAGE = "kernel-tuner==1.5.0"

_NINJA = """\
rule cu
  command = {nvcc} --cubin -arch sm_80 -e {kernel} $in -o $out
"""


def prepare(script: str, instances: int | None) -> Project:
    """Lay a script out, `readme` or `convolution`, with `instances` of its configurations, or
    all."""
    world.install(PACKAGE)
    tree = world.WORK / "kernel_tuner" / script
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    package = world.source(PACKAGE)
    if script == "readme":
        (example,) = re.findall(
            r"(?s)```python\n(import numpy.*?tune_kernel\(.*?)```",
            (package / "README.md").read_text(),
        )
        (tree / "readme.py").write_text(example)
        kernel, source = "vector_add", "kernels/vector_add.cu"
    else:
        world.port("kernel_tuner", tree)
        shutil.copyfile(package / "test/convolution.cu", tree / "convolution.cu")
        kernel, source = "convolution_kernel", "convolution.cu"
    run = {"cwd": tree, "env": world.environment(), "check": True, "stdout": subprocess.PIPE}
    subprocess.run(tilusbuild("import", f"{script}.py"), **run)  # type: ignore[call-overload]
    words = [world.python(), tuner_instances.__file__, f"{script}.py", str(instances or 1 << 30)]
    result = subprocess.run([*words, "theirs"], **run)  # type: ignore[call-overload]
    report = json.loads(result.stdout.splitlines()[-1])
    manifest = tree / "tilus.toml"
    _hold_equal(manifest, kernel, report["all"], script)
    if instances is not None:
        _narrow(manifest, kernel, report["chosen"])
    return _project(script, tree, kernel, source, (len(report["chosen"]), len(report["all"])))


def _project(script: str, tree: Path, kernel: str, source: str, counts: tuple[int, int]) -> Project:
    build, numbers = tree / "theirs", range(counts[0])
    rules = [_NINJA.format(nvcc=nvcc(), kernel=kernel)]
    rules += [f"build {n}/kernel.cubin: cu {n}/kernel.cu | ../{source}" for n in numbers]
    (build / "build.ninja").write_text("\n".join(rules) + "\n")
    cubins = [build / f"{n}/kernel.cubin" for n in numbers]
    return Project(
        name=f"Kernel Tuner, {script}: {counts[0]} of {counts[1]} configurations",
        tree=tree,
        theirs=[(build, [ninja(), "-j2"])],
        made=lambda: cubins,
        theirs_again=(build, [ninja(), "-j2"]),
        theirs_code=lambda: cubins,
        theirs_compiles=len(cubins),
        products=(lambda: list(tree.rglob("programs/**/module/lib.so")), lambda: cubins),
        header=tree / source,
        names=_configuration,
    )


def _configuration(path: Path, symbol: str) -> str:
    """Return a kernel's plain name, and which configuration its program is of."""
    if path.suffix == ".cubin":
        text = path.with_suffix(".cu").read_text()
        found = re.findall(r"(?m)^#define (\w+) (\d+)$", text.partition("#line 1\n")[0])
    else:
        found = re.findall(r" -D(\w+)=(\d+)", (path.parents[1] / "options.txt").read_text())
    own = ("kernel_tuner", "grid_size", "block_size_z")
    values = {name: value for name, value in found if not name.startswith(own)}
    values.setdefault("block_size_y", "1")
    plain = re.sub(r"^_Z(\d+)(\w+)", lambda match: match[2][: int(match[1])], symbol)
    return " ".join([plain, *(f"{name}={values[name]}" for name in sorted(values))])


def _hold_equal(
    manifest: Path, kernel: str, peer_schedules: list[Mapping[str, object]], of_what: str
) -> None:
    own_schedules = list(schedules(manifest, kernel, "gpu"))
    names = sorted(peer_schedules[0])
    hold_equal(
        [tuple(schedule[name] for name in names) for schedule in own_schedules],
        [tuple(schedule[name] for name in names) for schedule in peer_schedules],
        f"Kernel Tuner's {of_what}",
    )


def _narrow(manifest: Path, kernel: str, chosen: list[Mapping[str, object]]) -> None:
    """Restrict the import to a sample."""
    rules = [" and ".join(f"{name} == {value}" for name, value in p.items()) for p in chosen]
    rule = f'sample = "{" or ".join(f"({condition})" for condition in rules)}"\n'
    head = f"[script.{kernel}.restrict]\n"
    text = manifest.read_text()
    if head in text:
        manifest.write_text(text.replace(head, head + rule))
    else:
        manifest.write_text(f"{text}\n{head}{rule}")
