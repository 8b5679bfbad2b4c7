"""A process that has imported tilusbuild once, and forks itself for each command.

A trial that starts Python and imports everything takes a second, and one that forks a tenth of it.
A child runs `tilusbuild.cli.main` as `python -m tilusbuild` does, in a session of its own, with the
environment, directory and output files that it is given; what it leaves behind falls to the server,
which is a subreaper (`--reap`), and so is found without searching.

The code that a fork runs is slow until it has run: the specialized instructions, patterns and
tables that a process makes for itself are its own. So the server first runs commands itself
(`warm`), forgets what functions of tilusbuild remember of them, and forks from then on.

The server reads a request a line (JSON) and writes an answer a line:

    {"start": {"words", "cwd", "env", "out", …}}                   {"started": PID}
                                                                   {"ended": PID, "status": N, …}
    {"warm": {"words", "cwd", "env", "out", "err"}}                {"warmed": STATUS}
    {"settle": SECONDS}                                            {"left": ["command line", …]}

It is a script of its own process: `Server` starts it and speaks to it."""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_IN, _OUT = 200, 201
"""Where the server hears and answers; a command has the first three."""
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
_SCRIPTS = ("tilusbuild.__main__", "tilusbuild.process.warden")
_LATE = (
    "email.parser",
    "encodings.utf_8_sig",
    "filelock",
    "jinja2.ext",
    "multiprocessing.popen_spawn_posix",
    "pprint",
)
"""What commands import only when they need it: ten milliseconds of each."""


def import_everything() -> None:
    """Import every module of tilusbuild that can be."""
    import tilusbuild

    for module in pkgutil.walk_packages(tilusbuild.__path__, "tilusbuild."):
        if module.name not in _SCRIPTS:
            with suppress(Exception):  # it needs what is not installed
                importlib.import_module(module.name)
    for name in _LATE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _take(request: dict[str, Any]) -> None:
    """Have the streams, environment, directory and words of a request."""
    for handle, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, handle, inheritable=True)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.umask(request.get("umask", 0o022))
    sys.argv = ["tilusbuild", *request["words"]]


def _run(request: dict[str, Any]) -> int:
    """Be the command; return its exit status."""
    os.setsid()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _take(request)
    exec(request["inside"], {})
    if request["stopped"]:
        os.kill(os.getpid(), signal.SIGSTOP)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["interpreter"]:  # which joins by its environment
        os.execve(
            sys.executable, [sys.executable, "-m", "tilusbuild", *request["words"]], os.environ
        )
    if request["join"]:
        ctypes.CDLL(None).faults_join()
    return _main(None)


def _main(words: list[str] | None) -> int:
    """Run `main`; return its exit status, also where it raises."""
    from tilusbuild.__main__ import main as process
    from tilusbuild.cli.main import main

    try:
        return process() if words is None else main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1


def _become(request: dict[str, Any]) -> None:
    """Be the command to its end. Never returns."""
    status = 1
    try:
        status = _run(request)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _warm(request: dict[str, Any]) -> int:
    """Run a command in this process, and forget it; return its exit status."""
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    _take(request)
    try:
        return _main(request["words"])
    finally:
        os.chdir("/")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name, module in list(sys.modules.items()):
            for value in vars(module).values() if name.startswith("tilusbuild.") else ():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
        gc.collect()
        gc.freeze()
        # A thread that was joined may still have an instruction or two to go.
        deadline = time.monotonic() + 10
        while len(os.listdir("/proc/self/task")) > 1:
            assert time.monotonic() < deadline, f"a fork would lack {threading.enumerate()}"
            time.sleep(0.001)


def _children(of: int) -> list[int]:
    """The children of a process, by whichever of its threads."""
    process_ids = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{of}/task"):
            with open(f"/proc/{of}/task/{task}/children") as file:
                process_ids += [int(pid) for pid in file.read().split()]
    return process_ids


def _command(pid: int) -> str:
    with suppress(OSError):
        for name in ("cmdline", "comm"):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                if words := file.read().replace(b"\0", b" ").decode(errors="replace").strip():
                    return words
    return str(pid)


def _settle(seconds: float) -> list[str]:
    """Wait for all, and kill those that do not end; returns their command lines."""
    deadline = time.monotonic() + seconds
    commands: list[str] = []
    while children := _children(os.getpid()):
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > deadline:
            for pid in children:
                commands.append(_command(pid))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            deadline += 1
        time.sleep(0.001)
    return commands


def _ended(pid: int) -> dict[str, float]:
    """How a child ended, the seconds of processor time that it took, and its most memory."""
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:  # what settled has killed it
        return {"status": -signal.SIGKILL, "cpu": 0.0, "memory": 0}
    code, seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    return {"status": code, "cpu": seconds, "memory": usage.ru_maxrss << 10}


def _answer(**answer: object) -> None:
    os.write(_OUT, (json.dumps(answer) + "\n").encode())


def _serve() -> None:
    """Serve until the input ends."""
    running: dict[int, int] = {}  # pidfd: pid
    pending = b""
    while True:
        ready, _, _ = select.select([_IN, *running], [], [])
        for handle in ready:
            if handle != _IN:
                pid = running.pop(handle)
                os.close(handle)
                _answer(ended=pid, **_ended(pid))
        if _IN not in ready:
            continue
        data = os.read(_IN, 1 << 16)
        if not data:
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            match json.loads(line):
                case {"settle": seconds}:
                    _answer(left=_settle(seconds))
                case {"warm": command}:
                    _answer(warmed=_warm(command))
                case {"start": command}:
                    pid = os.fork()
                    if not pid:
                        _become(command)
                    running[os.pidfd_open(pid)] = pid
                    _answer(started=pid)


def main() -> None:
    """Serve."""
    os.dup2(0, _IN, inheritable=False)
    os.dup2(1, _OUT, inheritable=False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that children end by it before they are ready
    import_everything()
    if "--reap" in sys.argv:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _answer(ready=os.getpid())
    _serve()


if __name__ == "__main__":
    main()
