"""A process that has imported tilusbuild once, and forks itself for each command.

A trial that starts Python and imports everything takes a second, and one that forks a tenth of it.
A child runs `tilusbuild.cli.main` as `python -m tilusbuild` does, in a session of its own, with the
environment, directory and output files that it is given; what it leaves behind falls to the server,
which is a subreaper (`--reap`), and so is found without searching.

A fork shares its parent's memory until it touches it, and to touch what a command needs takes most
of the time of a small one. So commands to which nothing happens are given to a *worker*, a fork
that runs one after the other, and forgets in between what functions of tilusbuild remember.

The server reads a request a line (JSON) and writes an answer a line:

    {"start": {"words", "cwd", "env", "out", …}}              {"started": PID}
                                                                   {"ended": PID, "status": N}
    {"warm": {"words", "cwd", "env", "out", "err"}}                {"calm": STATUS}
    {"freeze": true}
    {"work": true}                                                 {"started": PID}, of a worker
    {"calm": {"words", "cwd", "env", "out", "err"}}                {"calm": STATUS}
    {"retire": true}                                               {"ended": PID, "status": N}
    {"settle": SECONDS}                                            {"left": ["command line", …]}

It is a script of its own process: `Server` starts it and speaks to it."""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
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
        made = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(made, handle, inheritable=True)
        os.close(made)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["tilusbuild", *request["words"]]


def _run(request: dict[str, Any]) -> int:
    """Be the command; return its exit status."""
    os.setsid()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _take(request)
    if request["group"]:
        with open(request["group"], "w") as file:
            file.write(str(os.getpid()))
    if request["stopped"]:
        os.kill(os.getpid(), signal.SIGSTOP)
    for name, limit in request["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
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
    from tilusbuild.cli.main import main

    try:
        return main(words)
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


def _work(requests: int) -> None:
    """Be a worker until the requests end. Never returns."""
    os.setsid()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with open(requests, encoding="utf-8") as lines:
            for line in lines:
                _answer(calm=_calm(json.loads(line)))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _calm(request: dict[str, Any]) -> int:
    """Run a command in this process; return its exit status."""
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    _forget()
    _take(request)
    try:
        return _main(request["words"])
    finally:
        os.chdir("/")  # a disk that was mounted for a trial must not stay in use
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@functools.cache
def _caches() -> list[Callable[[], None]]:
    """Return what forgets the results that functions of tilusbuild keep."""
    return [
        value.cache_clear
        for name, module in list(sys.modules.items())
        if name.startswith("tilusbuild.")
        for value in vars(module).values()
        if isinstance(value, functools._lru_cache_wrapper)
    ]


def _forget() -> None:
    for clear in _caches():
        clear()


def _children(of: int) -> list[int]:
    """The children of a process, by whichever of its threads."""
    found = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{of}/task"):
            with open(f"/proc/{of}/task/{task}/children") as file:
                found += [int(pid) for pid in file.read().split()]
    return found


def _command(pid: int) -> str:
    with suppress(OSError):
        for name in ("cmdline", "comm"):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                if words := file.read().replace(b"\0", b" ").decode(errors="replace").strip():
                    return words
    return str(pid)


def _settle(seconds: float, worker: int) -> list[str]:
    """Wait for all but the worker, and kill those that do not end; returns their command lines."""
    deadline = time.monotonic() + seconds
    left: list[str] = []
    while children := [pid for pid in _children(os.getpid()) if pid != worker] + _children(worker):
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > deadline:
            for pid in children:
                left.append(_command(pid))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            deadline += 1
        time.sleep(0.001)
    return left


def _status(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # what settled has killed it
        return -signal.SIGKILL


def _answer(**answer: object) -> None:
    os.write(_OUT, (json.dumps(answer) + "\n").encode())


class Serving:
    """What a server has running."""

    def __init__(self) -> None:
        self._running: dict[int, int] = {}  # pidfd: pid
        self._worker = 0
        self._to_worker = -1

    def until_the_end(self) -> None:
        """Serve until the input ends."""
        pending = b""
        while True:
            ready, _, _ = select.select([_IN, *self._running], [], [])
            for handle in ready:
                if handle != _IN:
                    pid = self._running.pop(handle)
                    os.close(handle)
                    _answer(ended=pid, status=_status(pid))
            if _IN not in ready:
                continue
            data = os.read(_IN, 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self._serve(json.loads(line))

    def _serve(self, request: dict[str, Any]) -> None:
        match request:
            case {"settle": seconds}:
                _answer(left=_settle(seconds, self._worker))
            case {"start": command}:
                self._started(self._fork(_become, command))
            case {"work": _}:
                requests, self._to_worker = os.pipe()
                self._worker = self._fork(_work, requests)
                os.close(requests)
                self._started(self._worker)
            case {"warm": command}:
                _answer(calm=_calm(command))
            case {"freeze": _}:
                assert len(os.listdir("/proc/self/task")) == 1
                _forget()
                gc.collect()
                gc.freeze()
            case {"calm": command}:
                with suppress(BrokenPipeError):  # that it has ended is told
                    os.write(self._to_worker, (json.dumps(command) + "\n").encode())
            case {"retire": _}:
                os.close(self._to_worker)
                self._worker = 0

    def _fork(self, run: Callable[[Any], None], given: object) -> int:
        pid = os.fork()
        if not pid:
            if self._worker:
                os.close(self._to_worker)
            run(given)
        return pid

    def _started(self, pid: int) -> None:
        self._running[os.pidfd_open(pid)] = pid
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
    Serving().until_the_end()


if __name__ == "__main__":
    main()
