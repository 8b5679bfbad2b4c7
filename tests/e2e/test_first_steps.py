"""A first hour with tilusbuild: make a project, build it, run it, look around."""

import json
from pathlib import Path

from support import scale
from support.project import NewProject, Project


def test_a_new_project_builds_and_runs(new_project: NewProject, tmp_path: Path):
    project = new_project(directory="elsewhere", files={})
    result = project.run("init", str(tmp_path / "my kernels"))
    assert "next:" in result.out
    mine = new_project((tmp_path / "my kernels/tilus.toml").read_text(), {}, "my kernels")
    read = mine.run("plan", "-v").out
    assert "project: my-kernels, as its directory is called" in read
    assert '  args.n = "i64"' in read

    words = ("--target", "cpu", "--cache-dir", "cache")
    first = mine.build(*words)
    assert (first["programs"], first["compiled"], first["cached"]) == (2, 2, 0)
    second = mine.build(*words)
    assert (second["programs"], second["compiled"], second["cached"]) == (2, 0, 2)

    ran = mine.run("run", "axpby", *words)
    assert "all 2 sizes agree with ref.py:axpby" in ran.out
    again = project.run("init", str(mine.directory), status=2)
    assert "already exists" in again.err


def test_run_checks_the_numbers(new_project: NewProject):
    tuned = scale.manifest(
        scale.script() + '[script.scale.tune]\nref = "ref.py:scale"\nsizes = [{ n = 1000 }]\n'
    )
    project = new_project(tuned, {"kernels/scale.cu.j2": scale.TEMPLATE, "ref.py": scale.REFERENCE})
    right = project.run("run", "scale", "--json", "--size", "n=1", "--size", "n=777")
    calls = [event for event in right.events if event["event"] == "call"]
    assert [(call["sizes"], call["max_error"], call["mismatch"]) for call in calls] == [
        ({"n": 1}, 0.0, None),
        ({"n": 777}, 0.0, None),
    ]
    assert right.summary == {"event": "summary", "calls": 2, "wrong": 0}
    assert [call["calls"] for call in calls] == [32, 32], "samples, as in a tuning"

    project.edit("ref.py", "np.float32(a) * x", "np.float32(a) * x + 1")
    wrong = project.run("run", "scale", status=1)
    assert "wrong at n=1000: " in wrong.out
    assert project.run("run", "scale", "--json", status=1).summary["wrong"] == 1

    assert 'did you mean "scale"?' in project.run("run", "scal", status=2).err


def test_looking_around(project: Project):
    """`plan`, `explain` and `cache` before and after a build, to read and as JSON."""
    (before, total) = project.run("plan", "--json").events
    assert (before["programs"], before["to_compile"], before["built"]) == (2, 2, 0)
    assert total == {"event": "summary", "programs": 2, "instances": 1}
    assert "2 programs, 2 to compile" in project.run("plan").out
    explained = project.run("explain", "--json").events
    assert {(e["state"], *e["reasons"]) for e in explained} == {
        ("missing", "the cache has no earlier build of it")
    }
    assert not project.cache.exists(), "looking writes nothing"

    dry = project.build("--dry-run")
    assert (dry["compiled"], dry["skipped"]) == (0, 2)
    assert not project.programs
    project.build()

    (after, _) = project.run("plan", "--json").events
    assert (after["to_compile"], after["built"], after["hash"]) == (0, 2, before["hash"])
    (one,) = project.run("explain", "--json", "scale/1").events
    assert (one["state"], one["program"], one["reasons"]) == ("built", "scale/1 cpu", [])
    assert one["hash"] in project.programs
    assert "2 programs are up to date" in project.run("explain").out


def test_looking_into_the_cache(project: Project):
    project.build()
    ((name, directory), _) = project.programs.items()

    def cache(*words):
        return project.run("cache", *words)

    assert cache("dir").out.strip() == str(project.cache)
    (script,) = cache("ls", "--json").events
    assert (script["script"], script["target"], script["statuses"]) == (
        "scale",
        "cpu",
        {"built": 2, "failed": 0, "pruned": 0, "missing": 0},
    )
    (shown,) = cache("show", name[:16], "--json").events
    assert (shown["status"], shown["path"]) == ("built", str(directory))
    (stats,) = cache("stats", "--json").events
    assert stats["programs"]["built"] == 2
    for words in (("ls",), ("ls", "scale"), ("show", "scale/0"), ("stats",), ("verify",)):
        assert cache(*words).out.strip()


def test_schema_and_doctor(project: Project):
    schema = json.loads(project.run("schema").out)
    assert {"edition", "project", "script", "target"} <= set(schema["properties"])

    result = project.run("doctor", "--json")
    findings = {e["component"]: e for e in result.events if e["event"] == "finding"}
    assert findings["g++"]["status"] == "ok"
    settings = {e["name"]: e for e in result.events if e["event"] == "setting"}
    assert settings["cache-dir"]["value"] == str(project.cache)
    assert result.summary["missing"] == []
    assert "g++" in project.run("doctor").out

    project.environment["PATH"] = "/nowhere"
    assert "g++" in project.run("doctor", status=1).out
    refused = project.run("build", status=2)
    assert "g++" in refused.err
    assert not project.cache.exists()


def test_doctor_shows_the_source_of_a_setting_and_unknown_variables(project: Project):
    wrong = "TILUSBUILD_JOB"
    project.environment |= {"TILUSBUILD_JOBS": "3", "TILUSBUILD_DUMP_IR": "1", wrong: "4"}
    output = project.run("doctor").out
    assert "jobs = 3  (TILUSBUILD_JOBS)" in output
    assert "dump-ir = True  (TILUSBUILD_DUMP_IR)" in output
    assert f'{wrong} is not a variable of tilusbuild: did you mean "TILUSBUILD_JOBS"?' in output
    project.environment["TILUSBUILD_LEVEL"] = "x"
    assert "TILUSBUILD_LEVEL must be a number from 0 to 2" in project.run("plan", status=2).err


def test_without_ptxas_optimisation_programs_are_other_programs(new_project, fake_cuda):
    project = new_project(scale.manifest(scale.script(target="gpu")))
    project.environment |= fake_cuda.environment
    assert project.compiled() == 2
    project.environment["TILUSBUILD_DISABLE_PTXAS_OPT"] = "1"
    assert project.compiled() == 2
    options = [(directory / "options.txt").read_text() for directory in project.programs.values()]
    assert sorted("--ptxas-options=-O0" in text for text in options) == [False, False, True, True]
    del project.environment["TILUSBUILD_DISABLE_PTXAS_OPT"]
    assert project.compiled() == 0
