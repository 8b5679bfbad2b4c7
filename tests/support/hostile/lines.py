"""Command lines from the parser's own declarations, and machines that are short of something."""

import argparse
import os
import random
from collections.abc import Callable
from pathlib import Path

from support.hostile.manifests import BASE, EVIL, TEMPLATE, text
from support.hostile.trial import Trial

_WORDS = (
    *("scale", "scale/0", "s/²", "X", "0", "-1", "1e999", "9" * 5000, "nan", "", " ", "-"),
    *(
        "n=8",
        "n=-1",
        "n=99999999999999",
        "n=1e30",
        "n=",
        "=1",
        "n=8,n=9",
        "m=1",
        "cpu",
        "gpu",
        "--",
    ),
    *("/dev/null", "/nonexistent/x", ".", "..", "tilus.toml", ".cache", "é", "a" * 5000, "\udcff"),
    *("10GB", "25d", "sm_80", "wheel", "tilus", "../outside/secret", "../outside", "*", "[", "~"),
    *(argument for argument in EVIL if "\0" not in argument),
)


def _actions(verb: str) -> dict[str, list[argparse.Action]]:
    from tilusbuild.cli.arguments import add_arguments
    from tilusbuild.cli.parser import load_actions

    actions = {}
    for name, declared in load_actions(verb).items():
        parser = argparse.ArgumentParser(add_help=False)
        add_arguments(parser, declared.arguments)
        actions[name] = parser._actions
    return actions


def _line(rng: random.Random) -> tuple[str, ...]:
    from tilusbuild.cli.parser import VERBS

    # Of the rooms' verbs `watch` never ends, and `tune` runs long.
    verb = rng.choice([*VERBS, "check", "compdb", "diff", "run"])
    actions = _actions(verb)
    name = rng.choice(list(actions))
    words = [verb, name] if name else [verb]
    for action in rng.sample(actions[name], min(len(actions[name]), rng.randint(0, 4))):
        if action.option_strings:
            words.append(rng.choice(action.option_strings))
        if action.nargs != 0:
            choices = [str(choice) for choice in action.choices or ()]
            known = bool(choices) and rng.random() < 0.7
            words.append(rng.choice(choices) if known else rng.choice(_WORDS))
    if rng.random() < 0.2:
        words.insert(rng.randrange(len(words) + 1), rng.choice((*_WORDS, "--nope", "-x", "--help")))
    return tuple(words)


_MAY_WRITE = ("project", "home")
"""A command line may name any file of the project as an output; nothing outside of it."""


def trial(rng: random.Random, copy: Callable[[Path], None]) -> Trial:
    """Return a random command line in a built project."""
    # A person who says `-C ..` or `-o ../outside` means it.
    words = tuple(word for word in _line(rng) if "/dev" not in word and ".." not in word)
    return Trial(words, prepare=lambda box: copy(box / "project"), writes=_MAY_WRITE)


_LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_{0}, ({1}, {1}))"
_FEW = tuple(_LIMIT.format("NOFILE", number) for number in (4, 6, 8, 12, 20, 40))
_LITTLE_MEMORY = """
import resource
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (100 << 20),) * 2)
"""
_SMALL_FILES = _LIMIT.format("FSIZE", 100)
_NO_DIRECTORY = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"
_NO_OUTPUT, _NO_ERRORS, _NO_STREAMS = (
    f"import os; [os.close(number) for number in {numbers}]" for numbers in ([1], [2], [0, 1, 2])
)
_NOBODY = "import os; os.setgid(65534); os.setuid(65534)"
_VERBS = (
    *(("plan",), ("build", "-q"), ("build", "--json"), ("doctor",), ("report",), ("schema",)),
    *(("cache", "ls"), ("cache", "verify"), ("cache", "gc"), ("init", "new"), ("--help",)),
    *(("run", "scale", "--size", "n=8"), ("package", "one", "-o", "dist")),
)


def machine(rng: random.Random, copy: Callable[[Path], None]) -> Trial:
    """Return a command on a machine that lacks something, or has something odd."""
    closed = rng.choice((_NO_OUTPUT, _NO_ERRORS, _NO_STREAMS))
    inside = rng.choice(
        (
            *(*_FEW, closed, _LITTLE_MEMORY, _NO_DIRECTORY, _SMALL_FILES),
            *((_NOBODY,) if os.geteuid() == 0 else ()),
            *("", ""),
        )
    )
    # Python itself does not start after some of these, or not from every place.
    in_fork = inside in (*_FEW, _NOBODY, _LITTLE_MEMORY)
    environment = {}
    for name in rng.sample(_VARIABLES, rng.randint(0, 2)):
        environment[name] = rng.choice([word for word in _WORDS if "\0" not in word])
    built = rng.random() < 0.5
    files = {"project/tilus.toml": text(BASE).encode(), "project/scale.cu.j2": TEMPLATE}
    return Trial(
        rng.choice(_VERBS),
        {} if built else files,
        prepare=(lambda box: copy(box / "project")) if built else None,
        inside=inside,
        silent=inside in (_NO_ERRORS, _NO_STREAMS, _SMALL_FILES),
        environment=environment,
        writes=_MAY_WRITE,
        start=True if inside == closed else False if in_fork else None,
    )


_VARIABLES = (
    *("HOME", "TMPDIR", "PATH", "LANG", "LC_ALL", "XDG_CACHE_HOME", "PAGER", "NO_COLOR", "COLUMNS"),
    *("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "MAKEFLAGS", "NVCC", "CXX"),
    *("CUDA_HOME", "TILUSBUILD_CACHE_DIR", "TILUSBUILD_JOBS", "TILUSBUILD_LEVEL", "TERM", "PWD"),
)
