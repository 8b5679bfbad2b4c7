"""The parser and the dataclasses of arguments: what is declared is what is parsed, and its type."""

import argparse
from typing import Any, get_type_hints

import pytest
from msgspec.structs import fields

from tilusbuild.cli.arguments import Common, Verb, add_arguments
from tilusbuild.cli.parser import list_verbs, load_actions, parse_command
from tilusbuild.errors import InputError

ACTIONS = [
    pytest.param(action, id=f"{verb} {name}".strip())
    for verb in list_verbs()
    for name, action in load_actions(verb).items()
]
GIVEN = {"record": b"", "started": 0}
"""What `main` gives a verb that is no option."""


@pytest.mark.parametrize("action", ACTIONS)
def test_the_fields_of_a_verb_and_their_types_are_those_of_its_options(action: Verb[Any]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, action.arguments)
    dests = {option.dest for option in parser._actions} - {"help"}
    assert dests == {option.name for option in fields(action.arguments)} - set(GIVEN)
    hints = get_type_hints(action.arguments)
    for option in parser._actions:
        if option.dest == "help":
            continue
        hint = hints[option.dest]
        if isinstance(option, argparse._StoreTrueAction):
            assert hint is bool, option.dest
        elif isinstance(option, argparse._CountAction):
            assert hint is int, option.dest
        elif isinstance(option, argparse._AppendAction) or option.nargs in ("*", "+"):
            assert hint == tuple[str, ...], option.dest
        else:
            parsed: Any = option.type or str
            required = option.required and option.nargs is None
            always = required or option.default is not None
            assert hint == (parsed if always else parsed | None), option.dest


def test_options_of_every_verb_may_stand_before_and_after_its_name() -> None:
    for words in (["--json", "-C", "x", "plan"], ["plan", "--json", "-C", "x"]):
        arguments = parse_command(words).arguments
        assert (arguments.json, arguments.directory, arguments.quiet) == (True, "x", False)


@pytest.mark.parametrize(
    "line",
    [
        "--target host build",
        "-t host build",
        "-q --target host build",
        "--target=host build",
        "-j 2 --target host build",
        "-C build --target host build",
        "--json --target plan plan",
    ],
)
def test_options_of_a_verb_may_stand_before_it(line: str) -> None:
    command = parse_command(line.split(), record=b"", started=0)
    assert command.verb == line.split()[-1]
    assert command.arguments.targets in (("host",), ("plan",))  # type: ignore[attr-defined]


def test_options_of_an_action_may_stand_before_it() -> None:
    for line in ("--target host cache pull", "cache --target host pull", "cache pull -t host"):
        assert parse_command(line.split()).arguments.targets == ("host",)  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", ["-q biuld", "-j 8 biuld", "-j8 biuld", "biuld -t build"])
def test_a_mistyped_verb_gets_a_suggestion_after_any_option(line: str) -> None:
    with pytest.raises(InputError, match='unknown verb "biuld"'):
        parse_command(line.split())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("build -j many", '-j/--jobs must be a whole number, not "many"'),
        ("build -j 1.5", '-j/--jobs must be a whole number, not "1.5"'),
        ("tune --time-limit soon", '--time-limit must be a number, not "soon"'),
    ],
)
def test_a_word_for_a_number_is_named(line: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_command(line.split())
    assert raised.value.diagnostics[0].message == message


def test_an_action_has_its_own_arguments() -> None:
    command = parse_command(["cache", "-q", "gc", "--forget", "a", "--forget", "b"])
    assert command.arguments.quiet
    assert command.arguments.forget == ("a", "b")  # type: ignore[attr-defined]
    assert type(parse_command(["cache", "dir"]).arguments) is Common


@pytest.mark.parametrize(
    ("line", "sizes", "grid"),
    [
        ("tune gemm --size m=1 n=2 --size m=3, n=4 -q", ("m=1,n=2", "m=3,n=4"), ()),
        ("tune --size m=1,p.s[0]=2 gemm", ("m=1,p.s[0]=2",), ()),
        ("tune --size m=1 gemm[v=2]", ("m=1",), ()),
        ("tune gemm --grid m=1,2 n=3,4", (), ("m=1,2", "n=3,4")),
    ],
)
def test_sizes_may_be_several_words(
    line: str, sizes: tuple[str, ...], grid: tuple[str, ...]
) -> None:
    arguments: Any = parse_command(line.split()).arguments
    assert (arguments.size, arguments.grid) == (sizes, grid)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("plan --spcae", 'did you mean "--space"?'),
        ("run gemm --warm", 'did you mean "--cache warm"?'),
        ("run gemm --ref r.py:f", "known: --cache, "),
    ],
)
def test_an_unknown_option_gets_a_suggestion(line: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_command(line.split())
    assert hint in str(raised.value)
    assert f"see `tilusbuild {line.split()[0]} --help`" in str(raised.value)


def test_an_option_of_another_verb_is_not_suggested() -> None:
    with pytest.raises(InputError, match=r"unrecognized arguments: --target") as raised:
        parse_command(["cache", "export", "axpby/0", "--target", "cpu", "--layout", "tilus", "out"])
    assert "did you mean" not in str(raised.value)
    assert "see `tilusbuild cache export --help`" in str(raised.value)
