"""`tilusbuild dispatch` on a built project."""

from pathlib import Path

from support.marks import Marks, record
from tilusbuild.runtime.device import get_cpu
from tilusbuild.runtime.tables import TableEntry


def measure(built: Marks) -> None:
    script = built.script("mark")
    fingerprint = get_cpu().make_fingerprint(script.hash)
    record(script, fingerprint, [TableEntry((n,), 0, 1e-6, (n,)) for n in (64, 1024)])


def test_show_and_coverage(copied: Marks) -> None:
    measure(copied)
    text = copied.run("dispatch", "show", "mark").out
    for line in ("rule: n <= 4 → program 2", "default: program 1", "64         0  measured"):
        assert line in text
    *events, summary = copied.run("dispatch", "coverage", "mark", "--json").events
    choices = [(event["sizes"]["n"], event["program"], event["source"]) for event in events]
    assert choices == [(64, 0, "measured"), (1024, 0, "measured")]
    assert summary == {"event": "summary", "instances": 1}


def test_check_finds_what_is_wrong(copied: Marks) -> None:
    copied.run("dispatch", "check", "mark")
    measure(copied)
    stale = copied.run("dispatch", "check", "mark", status=1)
    assert "`tilusbuild dispatch build` builds it again" in stale.out
    assert copied.run("dispatch", "build", "mark").out.endswith("libmark.so\n")
    copied.run("dispatch", "check", "mark")
    script = copied.script("mark")
    Path(script.get_library_path(2)).write_bytes(b"")
    Path(script.path, "dispatch_table.json").write_text("[]")
    done = copied.run("dispatch", "check", "mark", status=1)
    assert "is not a dispatch table" in done.out
    assert "is not what was built" in done.out


def test_mistakes_are_told(copied: Marks) -> None:
    for words, text in (
        (["show", "marc"], 'did you mean "mark"?'),
        (["show", "mark", "-t", "gpu"], 'no target "gpu"'),
        (["shew", "mark"], 'did you mean "show"?'),
    ):
        done = copied.run("dispatch", *words, status=2)
        assert text in done.err


# Hand rules whose schedule exists nowhere are errors of what plans, located at the rule.
RULE = "use = { variant = 2 } }"


NO_TWO = (
    "variant = { range = [0, 3] }\n",
    'variant = { range = [0, 3] }\n\n[script.mark.restrict]\nno_two = "variant != 2"\n',
)


def test_a_rule_that_no_schedule_can_satisfy_is_an_error(copied: Marks) -> None:
    copied.edit("tilus.toml", *NO_TWO)
    text = (copied.directory / "tilus.toml").read_text()
    line = text.partition(RULE)[0].count("\n") + 1
    for words in (["build"], ["plan"], ["build", "--level", "0"], ["build", "mark"]):
        done = copied.run(*words, status=2)
        assert f"tilus.toml:{line}:" in done.err
        assert 'the rule "n <= 4" of mark can never be followed' in done.err
        assert "no schedule has variant = 2" in done.err
        assert RULE in done.err
    copied.run("build", "modelled")


def test_a_rule_for_another_target_constant_or_level_is_no_error(copied: Marks) -> None:
    copied.run("build", "mark", "--level", "0")
    other = '[target.other]\narch = "cpu"\n\n[script.mark]\n'
    own = "\n[script.mark.override.cpu.space]\nvariant = { range = [0, 1] }\n"
    copied.edit("tilus.toml", "[script.mark]\n", other)
    copied.edit("tilus.toml", "[script.modelled]", own + "\n[script.modelled]")
    copied.run("plan")
    copied.run("plan", "-t", "cpu")
    copied.edit("tilus.toml", RULE, "use = { variant = 4 } }")
    assert "no schedule has variant = 4" in copied.run("plan", "-t", "cpu", status=2).err
