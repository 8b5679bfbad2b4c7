"""Trials one after the other in one process, which is what makes a long run of them cheap.

A fork shares its parent's memory until it touches it, and to touch what a command needs takes most
of the time of a small one. So a worker answers a series of trials before it ends. What it finds is
tried again alone: only a finding of a process of its own is one. Trials that change their process,
or are to be started, are alone from the first.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import marshal
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import NoReturn

from support.hostile.classes import Laboratory
from support.hostile.running import WALL, Ended, as_started, call, environment_of, hold, words_of
from support.hostile.trial import Trial, attempt
from tilusbuild.process.stopping import STOPPING

LENGTH = 24
"""Trials of one worker."""


class Series:
    """Runs trials, most of them in workers. `keep` is where the boxes of findings go."""

    def __init__(self, laboratory: Laboratory, keep: Path | None = None) -> None:
        self._laboratory = laboratory
        self._keep = keep
        self._worker: _Worker | None = None

    def attempt(self, name: str, seed: str) -> tuple[Trial, Ended, list[str]]:
        """Run a trial; return it, how it ended and what is wrong with that."""
        trial = self._laboratory.trial(name, seed)
        if trial.inside is None and not trial.start:
            answer = self._asked(name, seed)
            if answer is not None and not answer[1]:
                return trial, *answer
        with self._laboratory.box() as box:
            ended, wrong = attempt(trial, box)
            if wrong and self._keep is not None:
                shutil.copytree(box, self._keep / seed.replace(":", "-"), symlinks=True)
        return trial, ended, wrong

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _asked(self, name: str, seed: str) -> tuple[Ended, list[str]] | None:
        if self._worker is None:
            self._worker = _Worker(self._laboratory)
        answer = self._worker.ask(name, seed)
        self._worker.left -= 1
        if answer is None or answer[1] or not self._worker.left:
            self.close()
        return answer


class _Worker:
    """A fork that answers with how trials ended."""

    def __init__(self, laboratory: Laboratory) -> None:
        self.left = LENGTH
        requests, self._to = os.pipe()
        self._from, answers = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._to)
            os.close(self._from)
            _serve(laboratory, requests, answers)
        os.close(requests)
        os.close(answers)

    def ask(self, name: str, seed: str) -> tuple[Ended, list[str]] | None:
        """Return how a trial ended; None where it ended the worker, or did not end."""
        with contextlib.suppress(OSError, EOFError):
            os.write(self._to, marshal.dumps((name, seed)))
            if select.select([self._from], [], [], WALL)[0]:
                with open(self._from, "rb", closefd=False) as file:
                    ended, wrong = marshal.load(file)
                return Ended(*ended), wrong
        return None

    def end(self) -> None:
        """Kill it, and what it left running."""
        for pipe in (self._to, self._from):
            os.close(pipe)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _serve(laboratory: Laboratory, requests: int, answers: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        as_started()
        caches = list(_caches())
        hold(laboratory.boxes, laboratory.tools)
        with open(requests, "rb", buffering=0) as file:
            while True:
                name, seed = marshal.load(file)
                trial = laboratory.trial(name, seed)
                for clear in caches:
                    clear()
                with laboratory.box() as box:
                    ended, wrong = attempt(trial, box, run=_inline)
                os.write(answers, marshal.dumps((astuple(ended), wrong)))
    finally:
        os._exit(0)


def _caches() -> Iterator[Callable[[], None]]:
    """Yield what forgets the results that functions of tilusbuild keep."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tilusbuild."):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    yield value.cache_clear


def _inline(trial: Trial, box: Path) -> Ended:
    """Run the command in this process, and put back what it changed of it."""
    outputs = box / "tmp-out", box / "tmp-err"
    handlers = {each: signal.getsignal(each) for each in STOPPING}
    before, streams = _used(), (sys.stdout, sys.stderr)
    os.environ.clear()
    os.environ.update(environment_of(trial, box))
    tempfile.tempdir = None
    os.chdir(box / "project")
    for number, path in ((1, outputs[0]), (2, outputs[1])):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        os.dup2(handle, number)
        os.close(handle)
    status = call(words_of(trial, box))
    sys.stdout, sys.stderr = streams
    os.chdir("/")
    for number, handler in handlers.items():
        signal.signal(number, handler)
    gc.collect(0)
    after = _used()
    out, err = (path.read_bytes().decode("utf-8", "replace") for path in outputs)
    for path in outputs:
        path.unlink()
    return Ended(status, out, err, after[0] - before[0], after[1])


def _used() -> tuple[float, int]:
    """Return seconds of processor time, and the most bytes of memory of one process."""
    mine, others = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = mine.ru_utime + mine.ru_stime + others.ru_utime + others.ru_stime
    return seconds, max(mine.ru_maxrss, others.ru_maxrss) << 10
