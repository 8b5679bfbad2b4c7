"""A package that tests itself: `package --with-tests`, and `check` where it arrived."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

import tilusbuild
from tilusbuild.check.checking import CheckRequest, check_package
from tilusbuild.errors import InputError

New = Callable[..., Any]
MODES = ("wrong", "crash", "fast", "hang", "beside")
MODES4 = ("wrong", "slow", "crash", "fast")


@pytest.fixture
def packed(tune_project: New) -> Callable[..., tuple[Any, str]]:
    """packed(*modes, sizes=…) is a project and the path of its package with tests."""

    def make(*modes: str, form: str = "dir", sizes: tuple[int, ...] = (1000,)) -> tuple[Any, str]:
        project = tune_project(*modes, sizes=sizes)
        project.run("build")
        path = project.run("package", "--with-tests", "--format", form).out.strip()
        return project, path

    return make


def bare(path: str, *words: str, status: int = 1) -> list[dict[str, Any]]:
    """The lines of `python -m tilusbuild.check` where Python has its standard library alone."""
    root = os.path.dirname(os.path.dirname(tilusbuild.__file__))
    start = f"import sys; sys.path.insert(0, {root!r}); from tilusbuild.check import __main__; "
    start += "sys.exit(__main__.main(sys.argv[1:]))"
    argv = [sys.executable, "-I", "-S", "-c", start, path, *words, "--json"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    # Another test may measure meanwhile.
    err = ended.stderr.replace("waiting for another measurement on this device\n", "")
    assert (ended.returncode, err) == (status, "")
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_bad_programs_are_named_and_the_rest_is_checked(packed: New) -> None:
    project, path = packed(*MODES)
    served, *checked, summary = project.events("check", path, "--time-limit", "2", status=1)
    assert (served["target"], served["programs"], served["cases"]) == ("cpu", 5, 1)
    assert summary == {"event": "summary", "right": 1, "wrong": 4}
    outcome_by_mode = {MODES[row["program"]]: (row["status"], row["why"]) for row in checked}
    assert outcome_by_mode.pop("wrong")[0] == "incorrect"
    assert outcome_by_mode == {
        "crash": ("crash", "killed by SIGSEGV"),
        "fast": ("ok", ""),
        "hang": ("timeout", "no answer in 2 s"),
        "beside": ("incorrect", "it wrote after the tensor y"),
    }
    beside = checked[MODES.index("beside")]
    _, *again = shlex.split(beside["again"])
    shown = project.run(*again, status=1).out
    assert "it wrote after the tensor y" in shown
    assert "crash" not in shown
    alone = bare(str(project.directory / path), "--time-limit", "2")
    assert [row["status"] for row in alone[1:]] == [row["status"] for row in checked]


def test_the_file_of_a_reference_is_executed_once(packed: New) -> None:
    """Given tests at three sizes, whose results are of a reference in a file that counts."""
    project, _ = packed("fast", sizes=(1000, 2000, 3000))
    reference = project.directory / "ref.py"
    reference.write_text(reference.read_text() + "print(end='1', file=open('count', 'a'))\n")
    project.run("package", "--with-tests", "--format", "dir")
    assert (project.directory / "count").read_text() == "1"


def test_only_what_a_call_chooses_is_checked(packed: New) -> None:
    project, path = packed("fast", "wrong", form="tar.zst", sizes=(100, 5000))
    out = project.run("check", path, "--chosen", "--junit", "result.xml").out
    assert out.count("1 ok") == 2
    (suite,) = Xml.parse(project.directory / "result.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")
    _, one, _ = project.events("check", path, "scale/0", "--size", "n=5000")
    assert (one["sizes"], one["status"], one["chosen"]) == ({"n": 5000}, "ok", True)


def test_a_library_that_changed_is_not_called(packed: New) -> None:
    project, path = packed("fast")
    (library,) = Path(project.directory, path).glob("programs/*/module/lib.so")
    library.write_bytes(library.read_bytes() + b"x")
    assert "1 corrupt" in project.run("check", path, status=1).out


def test_a_log_from_a_machine_without_a_compiler_is_as_good_as_a_tuning_here(
    packed: New, tmp_path: Path
) -> None:
    """Given programs that were measured by the standard library alone, when their log is imported,
    then the tables, the refusals, the latencies and the file for the repository are those of a
    tuning here that got the same answers."""
    project, path = packed("wrong", "slow", "crash", "fast", sizes=(1000, 50_000))
    measured = '\n[script.scale.dispatch]\nkeys = ["n"]\nmeasured = "scale.jsonl"\n'
    project.edit("tilus.toml", "\n[script.scale.space]", measured + "\n[script.scale.space]")
    project.run("build")
    path = project.run("package", "--with-tests", "--format", "dir").out.strip()
    log = tmp_path / "log.jsonl"
    words = (str(project.directory / path), "--measure", str(log))
    served, *checked = bare(*words)
    assert (served["cases"], len(checked)) == (2, 8)
    assert {MODES4[row["program"]]: row["status"] for row in checked} == {
        "wrong": "incorrect",
        "slow": "ok",
        "crash": "crash",
        "fast": "ok",
    }
    assert bare(*words)[1:] == checked, "a complete log is not measured again"

    def results() -> dict[str, bytes]:
        project.run("dispatch", "export", "scale")
        files = [*project.script.glob("dispatch_table.*"), *project.script.glob("latency/*/*")]
        content_by_path = {
            str(path.relative_to(project.script)): path.read_bytes() for path in files
        }
        return {**content_by_path, "scale.jsonl": (project.directory / "scale.jsonl").read_bytes()}

    *tuned, summary = project.events("tune", "--import", str(log))
    assert [row["schedule"] for row in tuned] == [{"mode": "fast"}] * 2
    assert summary == {"event": "summary", "tuned": 2, "without": 0}
    taken_over = results()
    project.rows.unlink()
    device = json.loads(log.read_text().splitlines()[0])["device"]
    facts = f"{device['name']} {device['arch']} {device['driver']}"
    name = re.sub(r"[^A-Za-z0-9]+", "-", facts).strip("-")
    own = project.directory / ".cache" / "state" / "tune" / "scale" / f"{name}.jsonl"
    shutil.copy(log, own)
    samples = log.read_text().count('"what": "sample"')
    assert project.events("tune", "scale")[-3:] == [*tuned, summary]
    assert results() == taken_over
    assert own.read_text().count('"what": "sample"') == samples


def test_a_log_is_of_one_device_and_of_all_programs(packed: New) -> None:
    project, path = packed("fast")
    assert "compares all" in project.run("check", path, "scale/0", "--measure", "l", status=2).err
    project.run("check", path, "--measure", "log", "--budget", "10s")
    log = project.directory / "log"
    log.write_text(log.read_text().replace('"name": "', '"name": "Other '))
    project.run("tune", "--import", str(log))
    assert project.table["fingerprint"]["device"].startswith("Other ")
    err = project.run("check", path, "--measure", str(log), status=2).err
    assert "has measurements of Other " in err
    assert "--budget" in project.run("check", path, "--budget", "soon", status=2).err


def test_a_size_too_large_to_carry_is_named(tune_project: New) -> None:
    project = tune_project("fast", sizes=(1000, 3_000_000))
    project.run("build")
    ended = project.run("package", "--with-tests", "--format", "dir")
    assert "no test of scale cpu: n=3000000: 11 MiB of outputs" in ended.err
    assert project.run("check", ended.out.strip()).out.count("1 ok") == 1
    project.run("package", "--large-tests", "--format", "dir")
    assert project.run("check", ended.out.strip()).out.count("1 ok") == 2


def test_a_mistake_in_the_call_is_status_2(packed: New) -> None:
    project, path = packed("fast")
    assert "has no script nothing" in project.run("check", path, "nothing", status=2).err
    assert "cpu" in project.run("check", path, "--device", "gpu", status=2).err
    assert "its programs are 0" in project.run("check", path, "scale/99", status=2).err
    (case,) = Path(project.directory, path).glob("tests/*/0/case.json")
    case.write_text("{")
    assert "a test of scale cpu cannot be read" in project.run("check", path, status=2).err
    project.run("package", "--format", "dir")
    assert "package --with-tests" in project.run("check", path, status=2).err


def test_without_the_builder_only_a_directory_is_read(packed: New) -> None:
    project, path = packed("fast", form="tar.zst")
    request = CheckRequest(root=str(project.directory / path), shown=path)
    with pytest.raises(InputError, match=r"tar\.zst is not a directory"):
        next(check_package(request))
