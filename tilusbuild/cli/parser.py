"""The parser of the command line: the verbs, their classes of arguments, and its errors.

The module of a verb is imported only when that verb is used, and imports what it needs when it
runs: a verb starts as fast as it can, whatever the others need. Optional rooms bring more verbs
(`rooms.py`); they are looked for when a word is not a verb of the core, and for `--help`. What is
wrong with a command line is an `InputError` as any other.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from msgspec import Struct

from tilusbuild.cli.arguments import Common, Verb, add_arguments, fill_arguments
from tilusbuild.errors import did_you_mean, find_nearest_word, input_error
from tilusbuild.rooms import find_contributions

# fmt: off
VERBS: dict[str, tuple[str, str, str]] = {
    "init": ("create a project that builds and runs, to start from",
             "start", "init my-kernels"),
    "schema": ("print the JSON schema of tilus.toml",
               "start", "schema"),
    "completions": ("print what makes a shell complete verbs and options",
                    "start", "completions bash"),
    "build": ("build what is out of date, and publish the scripts",
              "build", "build 'gemm[dtype=f16]' -t sm_90a -j 8"),
    "plan": ("show what a build would compile",
             "build", "plan --space gemm"),
    "render": ("write the sources that a build would compile",
               "build", "render gemm --level 0 -o rendered"),
    "package": ("package what was built, for other machines",
                "package and install", "package --format wheel -o dist"),
    "verify": ("verify a package or a cache, also by compiling it again",
               "package and install", "verify dist/kernels-1.0.tar.zst --key release.pem"),
    "install": ("install a package into the cache, or uninstall one",
                "package and install", "install dist/kernels-1.0.tar.zst"),
    "cache": ("inspect and maintain the cache",
              "maintain", "cache show gemm/12 --sass"),
}
# fmt: on
"""The verbs of the core: summary, group of `--help`, example. A room's have its module, too."""
_EXIT_STATUSES = (
    "  0    done",
    "  1    something did not build, verify or agree",
    "  2    the command line, the manifest or a template is wrong",
    "  70   a bug of tilusbuild",
    "  130  interrupted; 128 + n for signal n",
)

_NO_FORCE = (
    "a program is compiled again whenever something that it depends on changes, so there is no"
    " option to force it\n  `tilusbuild verify --rebuild` compiles again and compares the bytes;"
    " `tilusbuild cache clear` empties the cache"
)
# What other build systems call something that we have under another name.
_HINT_OF_FOREIGN_WORD = {
    **dict.fromkeys(("--force", "-f", "-B", "--always-make", "--rebuild", "--no-cache"), _NO_FORCE),
    **dict.fromkeys(
        ("clean", "--clean", "distclean"),
        "`tilusbuild cache gc` removes what no project's last build made,"
        " `tilusbuild cache clear` everything",
    ),
    **dict.fromkeys(("compile", "make"), "`tilusbuild build`"),
    **dict.fromkeys(("new", "create"), "`tilusbuild init DIR`"),
    "list": "`tilusbuild plan` lists what is built, `tilusbuild cache ls` what the cache holds",
    "ls": "`tilusbuild cache ls`",
    "show": "`tilusbuild cache show`",
    "export": "`tilusbuild cache export`",
    "bench": "`tilusbuild tune` measures all programs, `tilusbuild run` one",
    "version": "`tilusbuild --version`",
    "test": "`tilusbuild run` checks a program against the script's reference",
}


class ParsedCommand(Struct, frozen=True):
    """A parsed command line."""

    verb: str
    arguments: Common
    declared: Verb[Any]

    def run(self) -> int:
        """Run the verb. Return the exit status."""
        return self.declared.run(self.arguments)


class _Parser(argparse.ArgumentParser):
    """argparse with our errors, which suggest a near option for a mistyped one."""

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        # argparse says "positional arguments".
        self._positionals.title = "arguments"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but refuse unknown arguments, and take `--size m=1 n=2` for one
        size, and `--grid m=1,2 n=3` for two sides of a grid."""
        namespace, unknown = super().parse_known_args(_join_sizes(args), namespace)
        # argparse leaves them to the parser of the verbs, which would suggest other verbs' options.
        if unknown:
            self.error("unrecognized arguments: " + " ".join(unknown))
        return namespace, unknown

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Return the value of a word. Raises `InputError` for a word that is not a number."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            kind = "a whole number" if action.type is int else "a number"
            name = "/".join(action.option_strings)
            raise input_error(f'{name} must be {kind}, not "{arg_string}"') from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise `InputError` for a value that is not among an argument's choices."""
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings) or action.metavar
            hint = did_you_mean(str(value), map(str, action.choices))
            raise input_error(f'{name} cannot be "{value}"', hint=hint)

    def error(self, message: str) -> NoReturn:
        """Raise `InputError`, with a hint at the option or verb that may be meant."""
        hint = None
        if message.startswith("unrecognized arguments: "):
            words = message.removeprefix("unrecognized arguments: ").split()
            first_word = words[0] if words else ""
            hint = _HINT_OF_FOREIGN_WORD.get(first_word)
            if not hint and first_word.startswith("-"):
                hint = self._suggest_option(first_word.partition("=")[0])
        see = f"see `{self.prog} --help`"
        raise input_error(message, hint=f"{hint}\n{see}" if hint else see)

    def _suggest_option(self, word: str) -> str | None:
        """Return a hint for an unknown option: the option with the nearest name or choice, else all
        options if they are few."""
        text_by_word: dict[str, str] = {}
        options: list[str] = []
        for action in walk_actions(self):
            for option in action.option_strings:
                choices = map(str, action.choices or ())
                text_by_word |= {choice: f"{option} {choice}" for choice in choices}
                text_by_word[option.lstrip("-")] = option
                options.append(option)
        # Without its dashes: with them `--ref` would be near to `--target`.
        near = find_nearest_word(word.lstrip("-"), text_by_word, 0.7)
        if near is not None:
            return f'did you mean "{text_by_word[near]}"?'
        return did_you_mean(word, options, likeness=1)


_PAIR = re.compile(r"[\w.]+(\[\d+\])?=[^=]*")


def _join_sizes(words: Sequence[str]) -> list[str]:
    """Return the words, where pairs NAME=N after the one of `--size` are joined to it, and each
    after that of `--grid` has the option, too."""
    joined: list[str] = []
    option = previous = ""
    for word in words:
        if not option or not _PAIR.fullmatch(word):
            option = previous if previous in ("--size", "--grid") else ""
            joined.append(word)
        elif option == "--size":
            joined[-1] = f"{joined[-1].rstrip(',')},{word}"
        else:
            joined += [option, word]
        previous = word
    return joined


class _TopParser(_Parser):
    """The parser of the verbs. Only its help looks for the optional rooms."""

    def format_help(self) -> str:
        self.epilog = _format_listing()
        return super().format_help()


def walk_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of all its subparsers."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from walk_actions(subparser)


def load_actions(verb: str) -> Mapping[str, Verb[Any]]:
    """Import a verb. Return its actions by name; the key is "" for a verb without actions."""
    # A verb of an optional room is (summary, group, example, module).
    module_name = f"tilusbuild.cli.{verb}" if verb in VERBS else find_contributions("verb")[verb][3]
    module = importlib.import_module(module_name)
    actions: Mapping[str, Verb[Any]] = getattr(module, "ACTIONS", None) or {"": module.VERB}
    return actions


def make_full_parser() -> argparse.ArgumentParser:
    """Import all verbs, and return the parser of them."""
    return _make_parser({verb: load_actions(verb) for verb in list_verbs()}, listed=True)


def list_verbs() -> dict[str, Sequence[str]]:
    """Return the summary, group and example of each verb, those of optional rooms last."""
    return VERBS | find_contributions("verb")


def _make_parser(
    actions_by_verb: Mapping[str, Mapping[str, Verb[Any]]], *, listed: bool = False
) -> argparse.ArgumentParser:
    """Return a parser of these verbs and their options. Without a verb, return one that knows all
    verbs by name, without their options.

    With `listed` each verb has its summary, which is otherwise in the groups of `--help`.
    """
    from tilusbuild._version import __version__

    parser = _TopParser(
        prog="tilusbuild",
        description="The build system for projects of tuned CUDA kernels.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser, Common)
    parser.add_argument("-V", "--version", action="version", version=f"tilusbuild {__version__}")
    subparsers = parser.add_subparsers(
        dest="verb", metavar="VERB", parser_class=_Parser, help="one of those below"
    )
    # A verb of the core does not wait for the optional rooms.
    has_core_verbs_only = bool(actions_by_verb) and actions_by_verb.keys() <= VERBS.keys()
    descriptions = VERBS if has_core_verbs_only else list_verbs()
    for name in actions_by_verb or descriptions:
        summary, actions = descriptions[name][0], actions_by_verb.get(name)
        summary_option: dict[str, Any] = {"help": summary} if listed else {}
        subparser = subparsers.add_parser(
            name,
            description=_format_sentence(summary) if actions else None,
            epilog=f"example:\n  tilusbuild {descriptions[name][2]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **summary_option,
        )
        if actions:
            _add_actions(subparser, actions)
    return parser


def _format_listing() -> str:
    """Return the verbs in groups, and the exit statuses, for `--help`."""
    descriptions = list_verbs()
    width = max(map(len, descriptions)) + 2
    lines = []
    for title in dict.fromkeys(group for _, group, *_ in descriptions.values()):
        rows = (
            f"  {name:<{width}}{summary}"
            for name, (summary, group, *_) in descriptions.items()
            if group == title
        )
        lines += [f"{title}:", *rows, ""]
    return "\n".join([*lines, "exit status:", *_EXIT_STATUSES])


def _add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, Verb[Any]]) -> None:
    """Add a verb's arguments, or a subparser for each of its actions."""
    if "" in actions:
        add_arguments(parser, actions[""].arguments)
        return
    add_arguments(parser, Common)
    subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in actions.items():
        subparser = subparsers.add_parser(
            name, help=action.help, description=_format_sentence(action.help), allow_abbrev=False
        )
        add_arguments(subparser, action.arguments)


def _format_sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


_FLAGS = ("--json", "-q", "--quiet", "-v", "-vv", "--verbose", "-h", "--help", "-V", "--version")
_VALUED_OPTIONS = ("-C", "--cache-dir", "--color", "--progress")
"""The options of every verb without and with a value."""


def _is_verb(word: str) -> bool:
    # A verb of the core does not wait for the optional rooms.
    return word in VERBS or word == "help" or word in find_contributions("verb")


def _move_first(argv: Sequence[str], is_name: Callable[[str], bool]) -> list[str]:
    """Return the words with a verb or action first, if there is one: the options before it, such as
    `--target host build`, come behind it. After an option that this verb alone has a word may be
    its value: the first name is meant then, else the last such word."""
    candidate: int | None = None
    before = ""
    for number, word in enumerate(argv):
        if not word.startswith("-") and before not in _VALUED_OPTIONS:
            candidate = number
            if before in ("", *_FLAGS) or "=" in before or is_name(word):
                break
        # After a value any word may be a name.
        before = word if word.startswith("-") else ""
    if candidate is None:
        return [*argv]
    return [argv[candidate], *argv[:candidate], *argv[candidate + 1 :]]


def parse_command(argv: Sequence[str], **extra_fields: object) -> ParsedCommand:
    """Parse a command line. Raises `InputError`; exits after `--help` and `--version`.

    `extra_fields` are values for fields of the arguments that are not options.
    """
    argv = _move_first(argv, _is_verb)
    # `help`, `help VERB` and `help VERB ACTION` mean the same with --help.
    if argv[:1] == ["help"]:
        argv = [*_move_first(argv[1:], _is_verb), "--help"]
    verb = argv[0] if argv and not argv[0].startswith("-") else None
    # Before argparse, whose message lists all verbs and suggests none.
    if verb is not None and not _is_verb(verb):
        hint = _HINT_OF_FOREIGN_WORD.get(verb) or did_you_mean(verb, list_verbs())
        raise input_error(f'unknown verb "{verb}"', hint=hint)
    actions = load_actions(verb) if verb is not None else {}
    if verb is not None and "" not in actions:
        argv = [verb, *_move_first(argv[1:], actions.__contains__)]
    parser = _make_parser({verb: actions} if verb is not None else {})
    parser.set_defaults(**extra_fields)
    namespace = parser.parse_args(argv)
    if namespace.verb is None:
        parser.print_help(sys.stderr)
        sys.exit(2)
    action = actions["" if "" in actions else namespace.action]
    return ParsedCommand(namespace.verb, fill_arguments(action.arguments, namespace), action)
