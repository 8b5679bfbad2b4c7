"""Hand rules whose schedule exists nowhere are errors of what plans, located at the rule."""

from support.marks import Marks

RULE = "use = { variant = 2 } }"


def edited(project: Marks, *changes: tuple[str, str]) -> Marks:
    manifest = project.directory / "tilus.toml"
    text = manifest.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    manifest.write_text(text)
    return project


NO_TWO = (
    "variant = { range = [0, 3] }\n",
    'variant = { range = [0, 3] }\n\n[script.mark.restrict]\nno_two = "variant != 2"\n',
)


def test_a_rule_that_no_schedule_can_satisfy_is_an_error(copied: Marks) -> None:
    project = edited(copied, NO_TWO)
    line = next(
        number
        for number, text in enumerate(
            (project.directory / "tilus.toml").read_text().splitlines(), 1
        )
        if RULE in text
    )
    for words in (["build"], ["plan"], ["build", "--level", "0"], ["build", "mark"]):
        done = project.run(*words, status=2)
        assert f"tilus.toml:{line}:" in done.err
        assert 'the rule "n <= 4" of mark can never be followed' in done.err
        assert "no schedule has variant = 2" in done.err
        assert RULE in done.err
    project.run("build", "roofed")


def test_a_schedule_that_is_only_not_planned_is_no_error(copied: Marks) -> None:
    copied.run("build", "mark", "--level", "0")
    copied.run("plan", "--level", "0")


def test_a_rule_for_another_target_or_constant_is_no_error(copied: Marks) -> None:
    other = '[target.other]\narch = "cpu"\n\n[script.mark]\n'
    own = "\n[script.mark.override.cpu.space]\nvariant = { range = [0, 1] }\n"
    project = edited(
        copied, ("[script.mark]\n", other), ("[script.modelled]", own + "\n[script.modelled]")
    )
    project.run("plan")
    project.run("plan", "-t", "cpu")
    edited(project, (RULE, "use = { variant = 4 } }"))
    assert "no schedule has variant = 4" in project.run("plan", "-t", "cpu", status=2).err
