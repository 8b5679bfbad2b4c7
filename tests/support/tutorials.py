"""Tutorials as what they ask a reader to do: files to write and commands to give, in order.

A page is read as a person reads it. A fenced block after a paragraph that ends in "`PATH`:" is
that file. A block of `console` has commands after `$ ` (continued after a backslash) and what they
print. A comment `<!-- needs: torch -->` before a block names what not every machine has: it is left
out there. All commands of a page run in one shell.

What is printed is compared with times, hashes and widths of columns taken off; in a page `…` stands
for anything, on a line of its own for any lines.
"""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?:`(?P<path>[^`\n]+)`:\n\n)?(?:<!-- needs: (?P<needs>[^\n]+) -->\n\n?)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_SECONDS = 300


def _nginx() -> bool:
    """Whether there is one, and nobody has the port of the page."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", 18719))
        except OSError:
            return False
    return shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is not None


HERE: dict[str, Callable[[], bool]] = {
    "g++": lambda: shutil.which("g++") is not None,
    "nginx": _nginx,
    "nvcc": lambda: shutil.which("nvcc") is not None,
    "protobuf": lambda: importlib.util.find_spec("google.protobuf") is not None,
    "torch": lambda: importlib.util.find_spec("torch") is not None,
}
"""Whether this machine has what a block may need."""


@dataclass(frozen=True)
class File:
    """A file to be written."""

    needs: frozenset[str]
    path: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command, and what the page says that it prints."""

    needs: frozenset[str]
    line: str
    printed: str


@dataclass(frozen=True)
class Tutorial:
    """A page."""

    path: Path
    steps: Sequence[File | Command]

    @property
    def needs(self) -> list[str]:
        return sorted(set().union(*(step.needs for step in self.steps)))


def read(path: Path) -> Tutorial:
    """Read a page; every block of it has to be something."""
    text = path.read_text()
    return Tutorial(path, list(_steps(text)))


def _steps(text: str) -> Iterator[File | Command]:
    for block in _BLOCK.finditer(text):
        needs = frozenset((block["needs"] or "").split(", ")) - {""}
        if block["language"] == "console":
            for command in _COMMAND.finditer(block["text"]):
                yield Command(needs, command[1], command[2])
        else:
            assert block["path"], f"no file is named before this block:\n{block['text']}"
            yield File(needs, block["path"], block["text"])


def run(tutorial: Tutorial, directory: Path, home: Path) -> list[tuple[Command, str]]:
    """Do what a page asks for in a directory; return each command that ran with its output.

    The home may be that of earlier pages."""
    missing = {name for name in tutorial.needs if not HERE[name]()}
    steps = [step for step in tutorial.steps if not step.needs & missing]
    staged = home / f"staged-{tutorial.path.stem}"
    staged.mkdir()
    script = ["exec 2>&1"]
    for number, step in enumerate(steps):
        if isinstance(step, File):
            (staged / str(number)).write_text(step.text)
            script += [f"mkdir -p $(dirname {step.path}); cp {staged / str(number)} {step.path}"]
        else:
            line = f"PYTHONPATH= {step.line}" if "torch" in step.needs else step.line
            script += [f"printf '\\036'; {line}", "printf '\\037%d\\n' $?"]
    programs = os.path.dirname(sys.executable)
    environment = {
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": os.environ["PYTHONPATH"],
        "PYTHONUNBUFFERED": "1",  # stdout and stderr in order, as on a terminal
    }
    (home / "script").write_text("\n".join(script) + "\n")
    done = subprocess.run(
        ["bash", str(home / "script")],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=_SECONDS,
        check=False,
    )
    outputs = done.stdout.decode().replace(str(home), "~").split("\036")[1:]
    commands = [step for step in steps if isinstance(step, Command)]
    assert len(outputs) == len(commands), done.stdout.decode()
    return [
        (command, _ended(command, output))
        for command, output in zip(commands, outputs, strict=True)
    ]


def _ended(command: Command, output: str) -> str:
    printed, _, status = output.partition("\037")
    assert int(status) == 0, f"$ {command.line}\n{printed}"
    return printed


def agrees(command: Command, printed: str) -> bool:
    """Whether a command printed what its page says."""
    pattern = ""
    for line in _plain(command.printed).splitlines():
        if line == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(map(re.escape, line.split("…"))) + "\n"
    return re.fullmatch(pattern, _plain(printed)) is not None


def _plain(text: str) -> str:
    """Text without what differs from one run to the next."""
    text = re.sub(r"(, about \d+:\d\d)| \(about \d+:\d\d left\)", "", text)  # on a slow machine
    text = re.sub(r"(?m)^waiting for another (tuning|measurement) on .*\n", "", text)  # of a test
    text = re.sub(r"\d+\.\d+(e[+-]\d+)?", "#", text)
    text = re.sub(r"\b[0-9a-f]{12,}\b", "HASH", text)
    text = re.sub(r"-{3,}", "---", text)
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line)
