"""What `build` prints is what the other verbs take, also where constants and targets differ."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from support import scale
from support.processes import run_to_end
from support.project import NewProject, Project, needs_cxx
from support.scale import TEMPLATE, manifest, script
from tilusbuild.cli.parser import list_verbs, load_actions

MANY = (
    manifest(
        script(more='targets = ["cpu", "cpu2"]\nparams = { kind = ["a b", "c"] }').replace(
            'targets = ["cpu"]\n', ""
        )
    )
    + '\n[target.cpu2]\narch = "cpu"\nflags = ["-O1"]\n'
)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Project, list[str]]:
    """A project of four instances with two programs each, and the names that the build printed."""
    needs_cxx()
    files = {"tilus.toml": MANY, "kernels/scale.cu.j2": TEMPLATE}
    project = Project(tmp_path_factory.mktemp("names")).write_all(files)
    events = project.run("build", "--json").events
    return project, sorted({event["label"] for event in events if event["event"] == "finished"})


def test_every_printed_name_is_understood_by_every_verb(built) -> None:
    project, names = built
    assert len(names) == 8
    assert names[0] == 'scale[kind="a b"]/0 cpu'
    hashes = set()
    for name in names:
        hashes.add(project.run("cache", "show", name, "--path").out)
        (listed,) = project.run("cache", "ls", name, "--json").events
        assert listed["label"] == name
        (explained,) = project.run("explain", name, "--json").events
        assert (explained["program"], explained["state"]) == (name, "built")
    assert len(hashes) == 8
    ran = project.run("run", names[3], "--size", "n=64")
    assert ran.out.startswith(f"{names[3]}: ")
    summary = project.run("build", names[3], "--json").events[-1]
    assert summary["programs"] == 1


SELECTING: dict[str, list[str]] = {
    "build": ["--json"],
    "plan": ["--json"],
    "render": ["-o", "rendered", "--json"],
    "explain": ["--json"],
    "report": ["--json"],
    "compdb": ["--json"],
    "watch": [],  # runs until it is stopped
    "run": ["--size", "n=64", "--json"],
    "tune": [],  # takes instances: below
    "dispatch": [],
    "check": [],  # takes a package first
    "cache ls": ["--json"],
    "cache show": ["--json"],
    "cache push": [],
    "cache pull": [],
}
"""Every verb that takes several names, with options for a test."""


def test_every_verb_that_takes_names_is_tested() -> None:
    names = {
        f"{verb} {action}".strip()
        for verb in list_verbs()
        for action, declared in load_actions(verb).items()
        if {"script", "scripts", "names", "program"} & {*declared.arguments.__struct_fields__}
    }
    # It names what a package of another build has.
    assert names - {"cmake build"} == SELECTING.keys()


@pytest.mark.parametrize("verb", [verb for verb, options in SELECTING.items() if options])
def test_several_names_select_what_each_does(built, verb) -> None:
    """Given two programs by name, one with its target in the next word, when a verb gets them, then
    it is about both, and about no third one."""
    project, _ = built
    words = [*verb.split(), "scale[kind=c]/0", "cpu", "scale[kind=c]/1 cpu2", *SELECTING[verb]]
    events = project.run(*words).events
    text = json.dumps([event for event in events if event["event"] not in ("timeline", "space")])
    if verb == "plan":
        assert [event["programs"] for event in events] == [1, 1, 2]
    elif verb in ("explain", "cache ls", "report"):
        assert "scale[kind=c]/0 cpu" in text
        assert "scale[kind=c]/1 cpu2" in text
    assert 'scale[kind=c]/1 cpu"' not in text
    assert "a b" not in text


def test_several_instances_are_shown_and_tuned(built) -> None:
    project, _ = built
    words = ("scale[kind=c]", "cpu", "scale[kind=c] cpu2")
    shown = project.run("dispatch", "show", *words, "--json").events
    assert [event["instance"] for event in shown[:-1]] == [
        "scale[kind=c] cpu",
        "scale[kind=c] cpu2",
    ]
    tuned = project.run("tune", *words, "--size", "n=64", "--budget", "8", "--unchecked", "--json")
    instances = [event["instance"] for event in tuned.events if event["event"] == "tuned"]
    assert instances == ["scale[kind=c] cpu", "scale[kind=c] cpu2"]


def test_a_target_in_place_of_a_script_is_recognized(built) -> None:
    project, _ = built
    assert "`--target cpu2`" in project.run("build", "cpu2", status=2).err


def test_an_instance_selects_its_programs(built) -> None:
    project, _ = built
    assert project.run("build", "scale[kind=c]", "--json").events[-1]["programs"] == 4
    assert project.run("build", 'scale["a b"] cpu', "--json").events[-1]["programs"] == 2
    # As a shell hands it over when nobody wrote quotes.
    assert project.run("build", "scale[kind=c]", "cpu", "--json").events[-1]["programs"] == 2
    refused = project.run("build", "scale[kind=d]", status=2)
    assert "scale[kind=c]" in refused.err


@pytest.mark.parametrize("words", [("cache", "show", "scale/1"), ("run", "scale", "--size", "n=8")])
def test_what_means_several_is_listed_as_it_can_be_typed(built, words) -> None:
    project, _ = built
    refused = project.run(*words, status=2)
    offered = re.findall(r"^  ('scale.*)$", refused.err, re.MULTILINE)
    assert len(offered) >= 2, refused.err
    for line in offered:
        typed = shlex.split(line, comments=True)
        project.run(
            *(argument for word in words for argument in (typed if "scale" in word else [word]))
        )


def test_what_fails_is_named_as_it_can_be_typed(built, tmp_path) -> None:
    project = built[0].copy(tmp_path / "own")
    project.edit("kernels/scale.cu.j2", "extern", "#error never\nextern")
    ran = project.run("build", status=1)
    names = re.findall(r"^error: (scale.*): none of its schedules builds", ran.err, re.MULTILINE)
    assert 'scale[kind="a b"] cpu' in names
    assert len(names) == 4
    for name in names:
        assert project.run("plan", name, "--json").events[-1]["programs"] == 2


def test_run_numbers_as_build_does(built) -> None:
    project, names = built
    default = project.run("run", "scale[kind=c] cpu", "--size", "n=8").out.split(":")[0]
    assert default in names
    by_number = project.run("run", "scale[kind=c]/1 cpu", "--size", "n=8").out
    assert by_number.startswith("scale[kind=c]/1 cpu: unroll=2")
    refused = project.run("run", "scale[kind=c]/2 cpu", "--size", "n=8", status=2)
    assert "they go from 0 to 1" in refused.err


# Spaces, quotes, newlines and letters from anywhere in the names of directories and templates.
ODD = 'it\'s "q" $HOME `x` é日\n;#&\\ {0} %s'


@pytest.fixture
def odd(new_project: NewProject, tmp_path: Path):
    """A project, its cache, its template and its headers, all with names to stumble over."""

    def make(target, **environment):
        text = scale.manifest(
            scale.script(target=target, schedules=1)
            + '[script.scale.tune]\nref = "ré f.py:scale"\nsizes = [{ n = 10 }]\n',
            build="include-dirs = ['''in \"cl'ude\n''']",
        ).replace('"kernels/scale.cu.j2"', "'''kern's\n\"els/sc ale.cu.j2'''")
        files = {
            "kern's\n\"els/sc ale.cu.j2": '#include "fac tor.h"\n' + scale.TEMPLATE,
            "in \"cl'ude\n/fac tor.h": "#define FACTOR 1\n",
            "ré f.py": scale.REFERENCE,
        }
        return new_project(text, files, f"{ODD}/project", **environment)

    return make


def build_and_reproduce(project, cache):
    words = ("--cache-dir", str(cache))
    assert project.compiled(*words) == 1
    assert project.compiled(*words) == 0
    assert project.run("cache", "verify", *words).out.strip() == "no problems found"
    (program,) = (cache / "programs").iterdir()
    library = program / "module/lib.so"
    before = library.read_bytes()
    library.unlink()
    subprocess.run([program / "module/compile.sh"], cwd="/", check=True, capture_output=True)
    assert library.read_bytes() == before
    return program


def test_for_the_host(odd, tmp_path: Path):
    project = odd("cpu")
    cache = tmp_path / ODD / "the cache"
    build_and_reproduce(project, cache)
    ran = project.run("run", "scale", "--cache-dir", str(cache))
    assert "1 size agrees" in ran.out


@pytest.mark.nvcc
def test_for_a_gpu(odd, tmp_path: Path):
    accepted = ODD.replace("`", "")  # nvcc's shell would run it in the cache's path
    build_and_reproduce(odd("gpu"), tmp_path / accepted / "the cache")


def test_a_failure_names_the_template(odd, tmp_path: Path):
    project = odd("cpu")
    project.edit("kern's\n\"els/sc ale.cu.j2", "y[i] = a", "y[i] = unknown")
    ran = project.run("build", "--cache-dir", str(tmp_path / ODD / "c"), status=1)
    assert "sc ale.cu.j2:6:" in ran.err
    command = ran.err.partition("  reproduce: ")[2].partition("\n\nerror")[0]
    again = run_to_end(["sh", "-c", command], status=None, cwd=project.directory)
    assert "unknown" in again.stderr


# Nothing but the inputs is in a name.
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
