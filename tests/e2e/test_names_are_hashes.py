"""Anyone can check an entry with the tools that they have; nothing but the inputs is in a name."""

import subprocess

from support import scale
from support.project import Project


def sha256sum(directory, command):
    """What a shell's pipeline that ends in sha256sum prints."""
    ran = subprocess.run(["sh", "-c", command], cwd=directory, capture_output=True, check=True)
    return ran.stdout.decode().split()[0]


def test_directories_are_named_by_their_texts(project: Project):
    project.build()
    for name, directory in project.programs.items():
        assert sha256sum(directory, "cat program.txt options.txt | sha256sum") == name
    (script,) = project.cache.glob("scripts/*/*")
    assert sha256sum(script, "sha256sum script.txt") == script.name


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
