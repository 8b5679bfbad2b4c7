"""Runs a trial's command in its box, and says how it ended.

Most run in a fork of this process, which has imported everything: tens of milliseconds each. The
others are started as a person starts them, so that what a fork cannot show (an import that fails, a
stream that is closed from the start) is tried too. Either way Landlock keeps this machine: nothing
can be written outside of the box, and what was denied there is a finding of the oracle's.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from support.faults.server import import_everything

if TYPE_CHECKING:
    from support.hostile.trial import Trial

_CPU, _WALL = 20, 300
"""Seconds of processor time, and of any time, after which a command is killed: the second are for
what waits for something, also on a machine that is busy with other things."""
_COMMAND = str(Path(sys.executable).with_name("tilusbuild"))
_PATH = os.environ.get("PATH", os.defpath)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    status: int
    """As a shell says it: 128 and more for a signal."""
    out: str
    err: str
    cpu: float
    memory: int


def warm_up() -> None:
    """Import everything, and declare the command line, once for all forks."""
    from tilusbuild.cli.parser import VERBS, actions_of

    import_everything()
    for verb in VERBS:
        actions_of(verb)
    gc.collect()
    gc.freeze()


def run(trial: Trial, box: Path) -> Ended:
    """Run the command to its end."""
    outputs = box / "tmp-out", box / "tmp-err"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside pytest's threads
        child = os.fork()
    if child == 0:
        _live(trial, box, outputs)
    pidfd = os.pidfd_open(child)
    if not select.select([pidfd], [], [], _WALL)[0]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    os.close(pidfd)
    _, status, usage = os.wait4(child, 0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # what it left running
    code = os.waitstatus_to_exitcode(status)
    out, err = (path.read_bytes().decode("utf-8", "replace") for path in outputs)
    for path in outputs:
        path.unlink()
    seconds = usage.ru_utime + usage.ru_stime
    return Ended(128 - code if code < 0 else code, out, err, seconds, usage.ru_maxrss << 10)


def _live(trial: Trial, box: Path, outputs: tuple[Path, Path]) -> NoReturn:
    """Be the command."""
    status = 99
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for ending in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(ending, signal.SIG_DFL)
        words = [word.replace("@CANARY@", str(box / "canary")) for word in trial.words]
        environment = {
            "PATH": _PATH,
            "HOME": str(box / "home"),
            "TMPDIR": str(box / "tmp"),
            "LANG": "C.UTF-8",
            **trial.environment,
        }
        os.chdir(box / "project")
        for number, path in ((1, outputs[0]), (2, outputs[1])):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
            os.dup2(handle, number)
            os.close(handle)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        _hold(box, trial.tools)
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU, _CPU + 5))
        if trial.start and not any("\0" in word for word in words):
            if trial.inside is not None:
                trial.inside()
            os.execve(_COMMAND, [_COMMAND, *words], environment)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # it was looked up for this process
        status = _call(words, trial.inside)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _hold(room: Path, tools: Path | None) -> None:
    """Let nothing outside of a directory be written, where the kernel can hold that, but what
    stand-ins write beside them."""
    from tilusbuild.process import landlock

    if landlock.version() >= 2:  # the first forbids every rename from one directory to another
        landlock.restrict(["/"], [str(room), str(tools or room), os.devnull, "/dev/tty"])


def _call(words: list[str], inside: Callable[[], object] | None) -> int:
    """Be the command, in this process; return its exit status."""
    from tilusbuild.cli.main import main

    sys.stdout = open(1, "w", encoding="utf-8", errors="strict", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    try:
        if inside is not None:
            inside()
        return main(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 99
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
