"""`tilusbuild tune` on the cpu target, from the manifest to a call through the table."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.processes import wait_until
from tilusbuild.runtime import load
from tilusbuild.runtime.device import get_cpu

New = Callable[..., Any]


def measured(log: Path) -> list[dict[str, Any]]:
    """The whole answers in a log."""
    answers = []
    for line in log.read_text().splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if value["what"] in ("check", "sample"):
            answers.append(value)
    return answers


def test_bad_programs_are_tuned_around_and_each_is_reported(tune_project: New) -> None:
    modes = ("wrong", "crash", "slow", "hang", "beside", "input", "fast", "exit")
    project = tune_project(*modes)
    *_, tuned, summary = project.events("tune", "scale", "--cache", "warm", "--time-limit", "2")
    assert summary == {"event": "summary", "tuned": 1, "without": 0}
    assert tuned["schedule"] == {"mode": "fast"}
    refused = {modes[int(i)]: why for i, why in tuned["refused"].items()}
    assert refused.pop("wrong").startswith("incorrect: ")
    assert refused == {
        "crash": "crash: killed by SIGSEGV",
        "hang": "timeout: no answer in 2 s",
        "beside": "incorrect: it wrote after the tensor y",
        "input": "incorrect: it changed its input x",
        "exit": "crash: exit status 3",
    }
    report = (project.script / "latency" / "1024" / "report.txt").read_text()
    assert "crash: killed by SIGSEGV" in report
    ((key, program, seconds, sizes, *_),) = project.table["entries"]
    assert (key, program, sizes) == ([1024], modes.index("fast"), [1000])
    assert seconds == pytest.approx(tuned["seconds"])


def test_choices_go_to_the_file_of_the_repository_from_a_tuning_and_from_a_log(
    tune_project: New,
) -> None:
    project = tune_project("slow", "fast")
    space = "\n[script.scale.space]"
    measured = '\n[script.scale.dispatch]\nkeys = ["n"]\nmeasured = "scale.jsonl"\n'
    project.edit("tilus.toml", space, measured + space)
    hint = "for the repository: `tilusbuild dispatch export scale` writes scale.jsonl\n"
    assert project.run("tune", "scale", "--cache", "warm").out.endswith(hint)
    project.run("dispatch", "export", "scale")
    file = project.directory / "scale.jsonl"
    _, line = file.read_text().splitlines()
    row = json.loads(line)
    assert (row["sizes"], row["schedule"]) == ({"n": 1000}, {"mode": "fast"})

    for path in (file, project.rows):
        path.unlink()
    assert project.run("tune", "--import", str(project.log)).out.endswith(hint)
    project.run("dispatch", "export", "scale")
    assert json.loads(file.read_text().splitlines()[1]) == row


def test_tune_and_run_speak_of_one_thing(tune_project: New) -> None:
    """The caches in the head, one unit a table, the gain over the default, sizes by their names."""
    project = tune_project("slow", "fast", sizes=(100, 5000))
    tuned = project.run("tune", "scale").out.splitlines()
    ran = project.run("run", "scale", "-t", "cpu").out.splitlines()
    assert tuned[0].endswith(", cold caches")
    assert ran[0].endswith("; cold caches")
    warm = project.run("run", "scale", "--cache", "warm").out.splitlines()
    assert warm[0].endswith("; warm caches")
    texts = [line.split()[4] for line in tuned[3:5]]  # such as 2.31x (2.20-2.40)
    gains = [1.0 if text == "no" else float(text.removesuffix("x")) for text in texts]
    (speedup_line,) = (line for line in tuned if line.startswith("speed-up over program 0: "))
    mean = float(speedup_line.split("x over all sizes (geometric mean)")[0].split()[-1])
    assert mean == pytest.approx((gains[0] * gains[1]) ** 0.5, abs=0.02)
    shown = project.run("dispatch", "show", "scale").out
    assert [line.split()[0] for line in shown.splitlines()[-2:]] == ["100", "5000"]
    coverage = project.run("dispatch", "coverage", "scale").out
    assert "measured at n = 100\n" in coverage
    assert coverage.count("measured at") == 2
    kernel = load("scale", where=str(project.directory / ".cache"))
    assert kernel.select(n=120).why == "measured at n = 100"
    assert kernel.select(n=900).why == "nothing is measured for n = 900; n = 5000 is nearest"
    lines = project.events("report")
    sizes = [line["sizes"] for line in lines if line["event"] == "measured"]
    assert sizes == [{"n": 100}, {"n": 5000}]


def test_a_rule_by_hand_or_a_fit_that_outranks_the_winner_is_said(tune_project: New) -> None:
    project = tune_project("slow", "fast", sizes=(100, 5000))
    table = 'table = [{ when = "n < 200", use = { mode = "slow" } }]'  # keys: all dimensions
    dispatch = f"[script.scale.dispatch]\n{table}\n\n[script.scale.space]"
    project.edit("tilus.toml", "[script.scale.space]", dispatch)
    device = {"target": "cpu", "device": get_cpu().name, "arch": "cpu", "params": {}}
    cost = {**device, "cost": "1e-9 * n", "schedule": {"mode": "slow"}}
    ruled = project.run("tune", "scale", "--cache", "warm").out
    assert "x over 1 of 2 sizes (geometric mean)\n" in ruled, "no call gets the other's speed-up"
    project.edit("tilus.toml", "table = [", 'measured = "scale.jsonl"\ntable = [')
    project.write("scale.jsonl", f'{{"schema": 1, "script": "scale"}}\n{json.dumps(cost)}\n')
    err = project.run("tune", "scale", "--cache", "warm").err
    by_hand, by_fit = (line for line in err.splitlines() if "note:" in line)
    call = "note: scale cpu: at n={} a call takes program 0, "
    assert by_hand == call.format(100) + "by hand (rule: n < 200), and not 1"
    fit = "of the last `tilusbuild dispatch fit scale`"
    assert by_fit == call.format(5000) + f"{fit} (measured at n = 5000), and not 1"


def test_a_package_says_what_it_packs_without_measurements_of_its_code(tune_project: New) -> None:
    project = tune_project("slow", "fast")
    project.run("build")
    untuned = project.run("package", "--format", "dir").err
    assert "note: packed without measurements: scale cpu (`tilusbuild tune scale`)\n" in untuned
    refused = project.run("package", "--strict", status=2).err
    assert refused.startswith("error: --strict: packed without measurements: scale cpu")
    project.run("tune", "--cache", "warm")  # all scripts that can be tuned
    assert "note" not in project.run("package", "--strict", "--format", "dir").err
    project.edit("scale.cu.j2", "++repeat", "repeat++")
    project.run("build")
    edited = project.run("package", "--strict", status=2).err
    assert "packed with measurements of earlier code: scale cpu" in edited


@pytest.fixture
def wide_project(tune_project: New) -> Any:
    """The script `scale` with 4,096 programs, of which every eighth does not compile."""
    project = tune_project("fast")
    space = "[script.scale.space]\n"
    project.edit("tilus.toml", space, f"{space}more = {{ range = [1, 4096] }}\n")
    repeats = 'repeat < {{ "error" if more % 8 == 4 else more }} * '
    project.edit("scale.cu.j2", "repeat < ", repeats)
    return project


def test_a_search_compiles_what_it_looks_at_and_measures_meanwhile(wide_project: Any) -> None:
    words = ("tune", "scale", "--cache", "warm", "--budget", "100", "-j", "2")
    *_, tuned, summary = wide_project.events(*words)
    assert (summary["tuned"], summary["without"]) == (1, 0)
    assert tuned["program"] is not None
    assert tuned["seen"] + tuned["unseen"] < 4096, "some do not compile"
    built = list((wide_project.directory / ".cache" / "programs").iterdir())
    assert len(built) <= 100 + 2 * 2
    lines = [json.loads(line) for line in wide_project.log.read_text().splitlines()]
    answers = [line["what"] for line in lines if "number" in line]
    assert answers[:3] == ["compile", "check", "sample"]
    assert len([line for line in lines if line.get("what") == "compile"]) < len(lines) / 2

    # The tuned script serves calls and is packed with what was built.
    wide_project.run("package", "--format", "dir")
    (package,) = wide_project.directory.glob("dist/*")
    for tree in (wide_project.directory / ".cache", package):
        assert load("scale", where=str(tree)).select(n=1000).program == tuned["program"]
    assert len(list((package / "programs").iterdir())) <= len(built)

    # Again nothing is compiled but what had begun when the first tuning ended.
    wide_project.run(*words)
    begun = {
        program
        for line in lines
        if line.get("what") == "compile"
        for program in line.get("programs", ())
    }
    again = {path.name for path in (wide_project.directory / ".cache" / "programs").iterdir()}
    assert {path.name for path in built} <= again <= {path.name for path in built} | begun


def test_programs_without_a_compile_are_an_error(tune_project: New) -> None:
    project = tune_project("slow", "fast", "wrong")
    project.edit("scale.cu.j2", "y[i] = a", "y[i] = unknown")
    for budget in ((), ("--budget", "50")):
        failed = project.run("tune", "scale", *budget, status=2)
        assert failed.err.endswith("error: none of the programs of scale cpu is built\n")
        assert "unknown" in failed.err


def test_nothing_usable_is_status_1(tune_project: New) -> None:
    project = tune_project("wrong")
    *_, tuned, summary = project.events("tune", "scale", status=1)
    assert tuned["program"] is None
    assert summary["without"] == 1
    table = json.loads((project.script / "dispatch_table.json").read_text())
    assert table["tables"] == []
    ((wrong,)) = table["refused"]
    assert (wrong["status"], wrong["sizes"]) == ("incorrect", {"n": 1000})


def test_again_measures_nothing_and_fresh_everything(tune_project: New) -> None:
    project = tune_project("slow", "fast")
    first = project.events("tune", "scale", "--cache", "warm")
    answers = measured(project.log)
    assert project.events("tune", "scale", "--cache", "warm") == first
    assert measured(project.log) == answers
    project.run("tune", "scale", "--cache", "warm", "--fresh")
    assert measured(project.log) != answers


def test_cores_share_the_sizes_and_write_one_log_and_table(tune_project: New) -> None:
    project = tune_project("slow", "fast", "crash", sizes=(1000, 2000, 5000, 9000))
    *tuned, summary = project.events("tune", "scale", "--cache", "warm", "--device", "all")
    assert summary == {"event": "summary", "tuned": 4, "without": 0}
    # Lines are in the order of the decisions; a size is decided again without a rejected program.
    assert {line["sizes"]["n"]: line["schedule"]["mode"] for line in tuned} == dict.fromkeys(
        (1000, 2000, 5000, 9000), "fast"
    )
    assert len(project.table["entries"]) == 4
    answers = measured(project.log)
    project.run("tune", "scale", "--cache", "warm", "--device", "0")
    assert measured(project.log) == answers, "of one model: nothing is measured again"


@pytest.mark.slow
def test_killed_at_any_time_it_goes_on_from_the_last_sample(tune_project: New) -> None:
    project = tune_project("slow", "fast", "wrong", sizes=(1000, 100_000, 3_000_000))
    project.run("build")
    kept: list[dict[str, Any]] = []
    for _ in range(2):
        process = project.start("tune", "scale")
        goal = len(kept) + 3
        while process.poll() is None:
            if project.log_exists() and len(measured(project.log)) >= goal:
                break
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        answers = measured(project.log)
        assert answers[: len(kept)] == kept
        kept = answers
    project.run("tune", "scale")
    answers = measured(project.log)
    assert answers[: len(kept)] == kept, "what was measured stays"
    questions = [(a["case"], a["program"], a["what"], a["number"]) for a in answers]
    assert len(set(questions)) == len(questions), "nothing is measured twice"
    assert not list((project.directory / ".cache" / "staging").iterdir())
    table = (project.script / "dispatch_table.json").read_bytes()
    project.rows.unlink()
    project.run("tune", "--import", str(project.log))
    again = (project.script / "dispatch_table.json").read_bytes()
    assert again == table, "the same timings without an interruption"


def test_interrupted_it_keeps_what_it_has(tune_project: New) -> None:
    project = tune_project("slow", "hang")
    project.run("build")
    process = project.start("tune", "scale")
    wait_until(lambda: project.log_exists() and len(measured(project.log)) >= 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert len(measured(project.log)) >= 2


def test_a_second_tuning_of_the_device_waits(tune_project: New) -> None:
    project = tune_project("slow", "hang")
    project.run("build")
    first = project.start("tune", "scale", "--time-limit", "1000")
    wait_until(lambda: project.log_exists() and len(measured(project.log)) >= 2)
    second = project.start("tune", "scale", "--time-limit", "3")
    assert second.stderr is not None
    for line in second.stderr:
        if "waiting" in line:
            break
    else:
        pytest.fail("it did not wait")
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    second.communicate(timeout=120)
    assert second.returncode == 0


def test_a_log_that_ends_early_decides_what_it_can(tune_project: New, tmp_path: Path) -> None:
    project = tune_project("slow", "fast", sizes=(1000, 50_000))
    project.run("tune", "scale")
    lines = project.log.read_bytes().splitlines(keepends=True)
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(lines[: len(lines) - 3]))
    project.rows.unlink()
    err = project.run("tune", "--import", str(log), status=1).err
    assert "not finished: n=50000: program" in err
    assert [row[0] for row in project.table["entries"]] == [[1024]]


def import_edited(project: Any, old: str, new: str, count: int = -1) -> Any:
    """The import of a log of a tuning of which a text was replaced."""
    project.run("tune", "scale")
    written = project.log.read_text()
    assert old in written
    log = project.directory / "log.jsonl"
    log.write_text(written.replace(old, new, count))
    return project.run("tune", "--import", str(log), status=None)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"programs": [0]', '"programs": [7]', "1 row: malformed"),
        ('"programs": [0]', '"programs": 7', "names their script is malformed"),
        ('"kind": "cpu"', '"kind": "cuda"', "1 row: malformed"),
        ('"integers": {"n": 1000}', '"integers": {}', "1 row: malformed"),
        ('"integers": {"n": 1000}', f'"integers": {{"n": {1 << 80}}}', "1 row: malformed"),
        ('"sizes": {"n": 1000}', '"sizes": {"n": [1]}', "1 row: malformed"),
        ('"script": "scale"', '"script": "../../.."', ": ../../.. "),
        ('"script": "scale"', '"script": "\\u001b[2J"', "1 row: malformed"),
        ('"script_hash": "', '"script_hash": "../', "1 row: malformed"),
    ],
)
def test_a_log_without_a_usable_row_is_refused(
    tune_project: New, old: str, new: str, text: str
) -> None:
    ran = import_edited(tune_project("fast"), old, new)
    assert ran.status == 2
    assert "or nothing was measured" in ran.err
    assert text in ran.err


DEVICE = '"device": {"kind": "cpu", "name": "a", "arch": "cpu", "id": "cpu", "driver": 0}'
OTHER_RUN = f'{{"what": "run", "script": "gone", "script_hash": "{"0" * 64}", {DEVICE}'
OTHER_CHECK = '{"case": "x", "program": "y", "what": "check", "number": 0, "status": "ok"'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "1 row: malformed"),
        ("[" * 100_000, "1 row: malformed"),
        ('{"what": "sample"}', "1 row: malformed"),
        (OTHER_CHECK + ', "cost": 1, "seconds": null, "note": ""}', "1 row: malformed"),
        ('{"what": "case", "case": "x", "sizes": {}, "integers": {}}', "1 row: malformed"),
        (
            OTHER_CHECK + ', "cost": 1, "seconds": null, "why": "", "note": ""}',
            "1 row: scale cpu does not have the program",
        ),
        (
            OTHER_RUN + ', "programs": [0], "cases": 1, "judge": ""}\n{"a": 1}\n{"b": 1}',
            "3 rows: gone 000000000000 is not in this cache",
        ),
    ],
)
def test_rows_that_do_not_count_are_counted(tune_project: New, line: str, reason: str) -> None:
    project = tune_project("fast")
    project.run("tune", "scale")
    before = project.table
    log = project.directory / "log.jsonl"
    log.write_text(project.log.read_text() + line + "\n")
    project.rows.unlink()
    assert f"skipped {reason}\n" in project.run("tune", "--import", str(log), status=1).err
    assert project.table == before


def test_a_text_of_a_log_does_not_reach_the_terminal_as_it_is(tune_project: New) -> None:
    project = tune_project("fast", "crash")
    ran = import_edited(project, "killed by SIGSEGV", "\\u001b[2J" + "x" * 5000)
    assert ran.status == 0
    assert "crash: " in ran.out
    assert "\x1b" not in ran.out
    assert len(ran.out) < 5000


def test_without_a_reference_nothing_is_tuned_but_on_demand(tune_project: New) -> None:
    project = tune_project("wrong", "slow")
    manifest = project.directory / "tilus.toml"
    manifest.write_text(manifest.read_text().replace('ref = "ref.py:scale"\n', ""))
    project.run("tune", "scale", status=2)
    *_, tuned, _ = project.events("tune", "scale", "--unchecked")
    assert tuned["refused"] == {}


def test_numbers_of_a_grid_are_written_as_those_of_a_size(tune_project: New) -> None:
    project = tune_project("fast")
    project.run("tune", "scale", "--grid", "n=1e3,2_000")
    sizes = [json.loads(line)["sizes"] for line in project.rows.read_text().splitlines()]
    assert sizes == [{"n": 1000}, {"n": 2000}]


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU here")
def test_a_target_that_cannot_run_here_is_the_user_s_mistake(tune_project: New) -> None:
    project = tune_project("fast", targets=("gpu",))
    err = project.run("tune", "scale", status=2).err
    assert "this machine cannot run: it has no CUDA device" in err
    assert "check --measure" in err


def test_mistakes_exit_with_status_2(tune_project: New) -> None:
    project = tune_project("fast")
    for words in (
        "scalee",
        "scale --budget soon",
        "scale --grid n=many",
        "scale --grid n=1 --grid n=2",
        "scale --size k=3",
        "scale --device 0,x",
        "scale --device 0,0",
        "scale --device 4096",
    ):
        project.run("tune", *words.split(), status=2)
    project.run("tune", "scale", "--import", "nothing.jsonl", status=2)
