"""Anyone can check an entry with the tools that they have; nothing but the inputs is in a name."""

from __future__ import annotations

import os
import subprocess

import pytest

from support import scale
from support.project import NewProject, Project


def sha256sum(directory, command):
    """What a shell's pipeline that ends in sha256sum prints."""
    ran = subprocess.run(["sh", "-c", command], cwd=directory, capture_output=True, check=True)
    return ran.stdout.decode().split()[0]


def check_names(project):
    for name, directory in project.programs.items():
        assert sha256sum(directory, "cat program.txt options.txt | sha256sum") == name
    scripts = sorted(project.cache.glob("scripts/*/*"))
    for directory in scripts:
        assert sha256sum(directory, "sha256sum script.txt") == directory.name
    return scripts


def check_links(project, scripts):
    linked = set()
    for link in [link for script in scripts for link in script.glob("programs/*")]:
        target = os.readlink(link)
        assert target.startswith("../../../../programs/")
        assert link.resolve() == project.cache / "programs" / link.resolve().name
        assert (link / "module/lib.so").is_file()
        linked.add(link.resolve().name)
    return linked


def test_directories_are_named_by_their_texts(project: Project):
    project.write("kernels/other.cu.j2", scale.TEMPLATE)
    project.write("tilus.toml", scale.manifest(scale.script(), scale.script("other")))
    project.build()
    scripts = check_names(project)
    assert [script.parent.name for script in scripts] == ["other", "scale"]
    assert check_links(project, scripts) == set(project.programs)
    for script in scripts:
        assert sorted(os.listdir(script / "programs")) == ["0", "1"]
        assert (script / "schedule.txt").read_text().count("built") == 2


@pytest.mark.nvcc
def test_directories_of_cuda_programs_too(new_project: NewProject):
    text = scale.manifest(
        scale.script(target="gpu").replace('["gpu"]', '["gpu", "cpu"]'), build='flags = ["-O3"]'
    )
    project = new_project(text)
    assert project.compiled() == 4
    scripts = check_names(project)
    assert len(scripts) == 2
    assert check_links(project, scripts) == set(project.programs)


def test_no_name_of_this_machine_is_in_the_tree(project: Project):
    project.write("include/factor.h", "#define FACTOR 2\n")
    project.edit("kernels/scale.cu.j2", "constexpr", '#include "factor.h"\nconstexpr')
    project.edit("tilus.toml", "[build]", '[build]\ninclude-dirs = ["include"]')
    project.build()
    checked = 0
    for directory in ("programs", "scripts", "include"):
        for path in (project.cache / directory).rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert str(project.directory).encode() not in data, path
                checked += 1
    assert checked > 10


def test_a_plan_is_the_same_whatever_the_hash_seed(project: Project):
    project.write("kernels/other.cu.j2", scale.TEMPLATE)
    more = 'defines = { B = 1, A = "x" }\nparams = { dtype = ["f16", "f32"], z = 1, b = "q" }'
    project.write("tilus.toml", scale.manifest(scale.script(), scale.script("other", more=more)))
    plans = []
    for seed in ("0", "1", "12345"):
        project.environment["PYTHONHASHSEED"] = seed
        plans.append(project.run("plan", "--json").out)
    assert plans[0] == plans[1] == plans[2]
    assert plans[0].count('"event": "instance"') == 3
