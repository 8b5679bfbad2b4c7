"""A real `tilusbuild watch`: what a save leads to, and what it does not."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from support.nvcc_journal import as_release, read_journal

NO_EVENTS = """\
from watchdog.observers import api

def schedule(*_, **__):
    raise OSError(28, "No space left on device")

api.BaseObserver.schedule = schedule
"""


def compiled(events: list[dict[str, Any]]) -> Counter[str]:
    """How many programs of each script were compiled."""
    return Counter(event["script"] for event in events if event["event"] == "started")


def renders(events: list[dict[str, Any]]) -> int:
    return sum(event["renders"] for event in events if event["event"] == "replanned")


def changed(events: list[dict[str, Any]]) -> list[str]:
    return [path for event in events if event["event"] == "changed" for path in event["paths"]]


def test_a_save_builds_what_it_changed_and_nothing_else(project, watch):
    watching = watch(project)
    first = watching.rest()
    assert compiled(first) == {"scale": 3, "add": 3}
    starts = [event["label"] for event in first if event["event"] == "started"]
    assert set(starts[:2]) == {"scale/1 gpu", "add/1 gpu"}, "defaults come first"

    project.kernel("scale", "edited")
    events = watching.rest()
    assert changed(events) == ["kernels/scale.cu.j2"]
    assert (compiled(events), renders(events)) == ({"scale": 3}, 3)
    starts = [event["label"] for event in events if event["event"] == "started"]
    assert "scale/1 gpu" in starts[:2], "and so after an edit"
    (rebuilt,) = [event for event in events if event["event"] == "rebuilt"]
    assert (rebuilt["ok"], rebuilt["programs"], rebuilt["scripts"]) == (True, 3, ["scale"])

    project.save("include/part.h", "// other\n")
    assert compiled(watching.rest()) == {"scale": 3, "add": 3}

    project.manifest("scale", "add", "add2")
    project.save("kernels/add2.cu.j2", (project.directory / "kernels/add.cu.j2").read_text())
    events = watching.until("watching", ok=True)
    assert compiled(events) == {"add2": 3}
    assert renders(events) == 3


def test_what_changes_no_program_compiles_nothing(project, watching):
    path = project.directory / "kernels/scale.cu.j2"
    text = path.read_text()
    project.save("kernels/scale.cu.j2", "{# a comment #}" + text)
    events = watching.rest()
    assert (compiled(events), renders(events)) == ({}, 3)
    assert events[-1]["ok"]

    for name in ("kernels/.scale.cu.j2.swp", "kernels/4913", "kernels/notes.txt", "first/new.txt"):
        project.write(name, "x")
    os.utime(path)
    project.save("include/part.h", "// part\n")
    assert watching.quiet(1.0) == []

    project.save("tilus.toml", (project.directory / "tilus.toml").read_text() + "# a comment\n")
    events = watching.rest()
    assert (changed(events), compiled(events), renders(events)) == (["tilus.toml"], {}, 0)


def test_rows_of_the_repository_are_followed(project, watching):
    """A file that comes, one that is wrong, and one that is right again."""
    text = (project.directory / "tilus.toml").read_text()
    dispatch = 'dispatch = { keys = ["n"], measured = "scale.jsonl" }\nspace.unroll'
    project.save("tilus.toml", text.replace("space.unroll", dispatch, 1))
    watching.until("watching", ok=True)
    row = {"target": "gpu", "device": "d", "arch": "sm_80", "params": {}, "sizes": {"n": 8}}
    head = json.dumps({"schema": 1, "script": "scale"})
    lines = [head, json.dumps({**row, "schedule": {"unroll": 3}, "seconds": 1})]
    project.save("scale.jsonl", "\n".join(lines))
    events = watching.rest()
    assert (changed(events), compiled(events)) == (["scale.jsonl"], {})
    table_file = next(project.cache.glob("scripts/scale/*/dispatch_table.json"))
    tables = json.loads(table_file.read_bytes())["tables"]
    assert tables[0]["entries"] == [[[8], 2, 1, [8], "scale.jsonl", False, []]]
    project.save("scale.jsonl", "\n".join([*lines, "<<<<<<<"]))
    events = watching.until("watching", ok=False)
    (problem,) = [event for event in events if event["event"] == "problem"]
    assert problem["message"].startswith("scale.jsonl:3:1: error: not measurements of scale: JSON")
    project.save("scale.jsonl", head)
    assert watching.rest()[-1]["ok"]
    assert json.loads(table_file.read_bytes())["tables"] == []


def test_a_new_header_that_shadows_another_is_seen(project, watching):
    project.write("first/all.h", "// shadows\n")
    assert compiled(watching.rest()) == {"scale": 3, "add": 3}
    (project.directory / "first/all.h").unlink()
    events = watching.rest()
    assert (changed(events), compiled(events)) == (["first/all.h"], {}), "it was built before"


def test_directories_moved_away_and_back_and_files_renamed(project, watching):
    os.rename(project.directory / "kernels", project.directory / "away")
    events = watching.until("watching", ok=False)
    problem = next(event["message"] for event in events if event["event"] == "problem")
    assert re.match(r'tilus\.toml:\d+:\d+: error: file not found: "kernels/', problem)
    os.rename(project.directory / "away", project.directory / "kernels")
    assert compiled(watching.until("watching", ok=True)) == {}
    # A copy is another directory under the old name: later saves in it have to be seen.
    os.rename(project.directory / "kernels", project.directory / "away")
    shutil.copytree(project.directory / "away", project.directory / "kernels")
    watching.quiet(1.0)
    project.kernel("add", "in the copy")
    assert compiled(watching.until("watching", ok=True)) == {"add": 3}


def test_hundreds_of_files_at_once_are_one_build_of_the_final_state(project, watching):
    names = [f"h{i}.h" for i in range(200)]
    watching.process.send_signal(signal.SIGSTOP)  # on a busy machine our pauses are ends to it
    project.write("include/all.h", "".join(f'#include "{name}"\n' for name in names))
    for name in names * 2:
        project.save(f"include/{name}", "// one of them\n")
    project.kernel("scale", "with them")
    watching.process.send_signal(signal.SIGCONT)
    events = watching.rest() + watching.quiet(1.0)
    assert compiled(events) == {"scale": 3, "add": 3}
    assert Counter(event["event"] for event in events)["summary"] == 1


def test_a_broken_template_is_shown_and_the_next_save_tries_again(project, watching):
    text = (project.directory / "kernels/add.cu.j2").read_text()
    project.save("kernels/add.cu.j2", text + "{{ unrol }}\n")
    events = watching.rest()
    (problem,) = [event for event in events if event["event"] == "problem"]
    assert "kernels/add.cu.j2:7:4" in problem["message"]
    assert 'did you mean "unroll"?' in problem["message"]
    assert not events[-1]["ok"]

    project.kernel("scale", "saved meanwhile")
    events = watching.rest()
    assert (compiled(events), events[-1]["ok"]) == ({}, False), "nothing is built of half a plan"
    assert [event for event in events if event["event"] == "problem"] == [], "once"
    project.save("kernels/add.cu.j2", text)
    events = watching.rest()
    assert (compiled(events), events[-1]["ok"]) == ({"scale": 3}, True)


def test_while_a_template_is_wrong_files_that_no_plan_reads_count_for_nothing(project, watching):
    """As its own output: `tilusbuild watch > watch.log`."""
    project.save("kernels/add.cu.j2", "{% if %}\n")
    assert not watching.rest()[-1]["ok"]
    for name in ("watch.log", "kernels/watch.log", "kernels/unused.cu.j2", "notes.json"):
        for lines in (1, 2):
            project.write(name, "problem\n" * lines)
    assert watching.quiet(1.5) == []
    project.kernel("add", "mended")
    assert compiled(watching.until("watching", ok=True)) == {"add": 3}


def test_a_broken_manifest_is_shown_until_it_is_fixed(project, watching):
    text = (project.directory / "tilus.toml").read_text()
    project.save("tilus.toml", text.replace("kernel =", "kernle =", 1))
    events = watching.rest()
    assert 'did you mean "kernel"?' in events[-2]["message"]
    (project.directory / "tilus.toml").unlink()
    assert not watching.rest()[-1]["ok"]
    project.save("tilus.toml", text.replace("[1, 3]", "[1, 4]"))
    assert compiled(watching.until("watching", ok=True)) == {"scale": 1, "add": 1}


def test_an_edited_signature_that_args_are_read_off_is_taken_up(project, watching):
    text = (project.directory / "kernels/scale.cu.j2").read_text()
    declared = (project.directory / "tilus.toml").read_text()
    shapes = 'args = { x = "[n]", y = "[n]" }'
    project.save("tilus.toml", re.sub(r"^args = .*", shapes, declared, count=1, flags=re.MULTILINE))
    assert compiled(watching.rest()) == {}, "the signature says what args said"

    def saved(a: str) -> list[dict[str, Any]]:
        project.save("kernels/scale.cu.j2", text.replace("float a,", a))
        return watching.rest()

    events = saved("double a,")
    assert (compiled(events), events[-1]["ok"]) == ({"scale": 3}, True)
    published = (project.cache / "scripts/scale").glob("*/script.json")
    first = [json.loads(script.read_bytes())["arguments"][0] for script in published]
    assert {arg["dtype"] for arg in first} == {"f32", "f64"}, "before and after"

    events = saved("half4 a,")
    (problem,) = [event["message"] for event in events if event["event"] == "problem"]
    assert problem.startswith("kernels/scale.cu.j2:4:12: error: the type of the parameter ")
    assert (compiled(events), events[-1]["ok"]) == ({}, False)
    project.save("include/part.h", "// other\n")
    events = watching.rest()
    assert [event for event in events if event["event"] == "problem"] == [], "once"
    assert saved("double a,")[-1]["ok"]


def test_an_include_that_is_missing_is_awaited(project, watching):
    text = (project.directory / "kernels/add.cu.j2").read_text()
    project.save("kernels/add.cu.j2", '{% include "more/new.j2" %}\n' + text)
    assert not watching.rest()[-1]["ok"]
    project.write("more/new.j2", "// new\n")
    assert compiled(watching.until("watching", ok=True)) == {"add": 3}
    project.write("more/new.j2", "// newer\n")
    assert compiled(watching.rest()) == {"add": 3}


def test_without_a_right_manifest_and_with_a_wrong_word_it_ends(project, watch):
    watching = watch(project, "scael")
    assert watching.process.wait(60) == 2
    project.save("tilus.toml", "[nothing")
    watching = watch(project)
    assert watching.process.wait(60) == 2


def test_a_save_ends_the_compiles_that_are_of_no_more_use(project, watching):
    before = set(project.tree())
    project.kernel("scale", "fake: hang")
    watching.until("started")
    project.kernel("scale", "goes on")
    events = watching.rest()
    assert events[-1]["ok"]
    finished = [event for event in events if event["event"] == "finished"]
    assert {event["status"] for event in finished} == {"built"}
    assert len([e for e in events if e["event"] == "dropped"]) >= 1
    assert os.listdir(project.cache / "staging") == []
    new = {name.split("/")[1] for name in set(project.tree()) - before if name[:8] == "programs"}
    assert len(new) == 3, "nothing of what was dropped is there"
    # Left are the watch, what starts its compilers, and what renders.
    assert not [process for process in watching.processes.alive() if "tilusbuild" not in process]


def test_a_compile_that_is_still_of_use_goes_on(project, watch):
    project.kernel("add", "fake: slow 1.0")
    watching = watch(project)
    watching.until("started", script="add")
    project.kernel("scale", "edited meanwhile")
    events = watching.until("watching", ok=True)
    assert compiled(events)["add"] == 3 - 1, "the one that ran was not begun again"
    assert not [e for e in events if e["event"] == "dropped" and e["label"].startswith("add")]


def test_a_command_runs_after_each_build_that_is_well(project, watch):
    watching = watch(project, "--exec", 'echo "[$TILUSBUILD_REBUILT]"; exit 3')
    watching.rest()
    project.kernel("add", "edited")
    events = watching.rest()
    assert next(e["line"] for e in events if e["event"] == "output") == "[add]"
    (ended,) = [event for event in events if event["event"] == "command"]
    assert ended["status"] == 3
    project.kernel("add", "fake: fail")
    events = watching.rest()
    assert not [event for event in events if event["event"] == "command"]
    assert any("exit status 3" in line for line in watching.errors)


def test_a_command_is_ended_by_the_next_save(project, watch):
    watching = watch(project, "--exec", "sleep 1000")
    watching.until("rebuilt")
    project.kernel("add", "edited")
    events = watching.until("command")
    assert events[-1]["status"] is None
    watching.until("rebuilt")
    assert watching.interrupt() == 130


def test_without_events_the_clock_finds_the_same(project, watch):
    """As on NFS, or where the system has no more events to give."""
    project.write("without/sitecustomize.py", NO_EVENTS)
    project.environment["PYTHONPATH"] = str(project.directory / "without")
    watching = watch(project)
    watching.rest()
    project.kernel("add", "edited")
    assert compiled(watching.rest()) == {"add": 3}
    project.write("first/all.h", "// shadows\n")
    assert compiled(watching.rest()) == {"scale": 3, "add": 3}


def test_ctrl_c_in_a_build_leaves_nothing_running(project, watch):
    project.kernel("scale", "fake: hang")
    watching = watch(project)
    watching.until("started", script="scale")
    assert watching.interrupt() == 130
    assert watching.processes.alive() == []
    assert os.listdir(project.cache / "staging") == []
    project.kernel("scale", "fine")
    assert project.build(status=None)["exit_status"] == 0


def test_it_ends_when_its_output_is_closed(project):
    watching = project.start("watch", "--json", stderr=subprocess.DEVNULL)
    assert watching.stdout is not None
    with watching.stdout:
        while '"watching"' not in watching.stdout.readline():
            pass
    project.kernel("scale", "edited")
    assert watching.wait(60) == 128 + signal.SIGPIPE


def test_each_script_is_built_with_its_own_toolchain(project, watch, tmp_path):
    toolkit = Path(project.nvcc).parents[1]
    other = shutil.copytree(toolkit, tmp_path / "other", ignore=shutil.ignore_patterns("journal"))
    nvcc = as_release(str(other), "13.1.15")
    text = (project.directory / "tilus.toml").read_text()
    named = f'[toolchain.named.other]\nnvcc = "{nvcc}"\n[target.gpu]'
    text = text.replace("[target.gpu]", named)
    text = text.replace("[script.add]\n", '[script.add]\ntoolchain = "other"\n')
    project.save("tilus.toml", text)
    watching = watch(project)
    assert compiled(watching.rest()) == {"scale": 3, "add": 3}
    assert len(read_journal(nvcc)) == 3

    project.kernel("add", "edited")
    assert compiled(watching.rest()) == {"add": 3}
    assert len(read_journal(nvcc)) == 6

    ptxas = other / "bin/ptxas"
    again = ptxas.with_name("again")
    again.write_bytes(ptxas.read_bytes() + b"// another\n")
    again.chmod(0o755)
    again.rename(ptxas)
    assert compiled(watching.until("watching", ok=True)) == {"add": 3}

    project.save("tilus.toml", text.replace('toolchain = "other"\n', ""))
    assert compiled(watching.until("watching", ok=True)) == {"add": 3}
    assert len(read_journal(nvcc)) == 9
