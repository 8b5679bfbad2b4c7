"""Renders in a child process that is killed when a template takes too much.

A template is a program of somebody's, and any operation of it, in any combination, may take memory
or time without end: no list of dangerous ones is complete. So the kernel holds the limits: address
space and processor time of a fork that holds nothing else. Python notices most of them first (a
`MemoryError`, a signal's handler), and the error has the template's line. The child reads templates
once, as `ProjectLoader` does, and sends their texts along, so that the parent knows what was read.
It ends when its parent does: its pipe does.
"""

from __future__ import annotations

import contextlib
import marshal
import math
import os
import pickle
import resource
import select
import signal
import struct
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from tilusbuild.errors import Diagnostic, InputError, Place, input_error
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.process import stopping
from tilusbuild.render.environment import MAX_CHARACTERS, LimitExceededError

if TYPE_CHECKING:
    from tilusbuild.render.environment import Environment, ProjectLoader

_LENGTH = struct.Struct("<Q")
_FOR_C = 1.0
"""Seconds after the limit for an operation in C, within which Python's handler does not run."""
_MESSAGE = 4 << 20
"""Characters after which the child answers, whatever else it was asked for."""
_PATIENCE = 20
"""So many times its limit may a rendering wait for a processor."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one rendering may take: seconds of processor time, bytes, characters of its result."""

    seconds: float = 3.0
    memory: int = 256 << 20
    characters: int = MAX_CHARACTERS


Rendered: TypeAlias = tuple[str, tuple[str, ...]]
"""A text, and the names of the templates that were asked for."""
Render = Callable[["Environment", str, Mapping[str, Any], dict[str, None], int], str]


class RenderWorker:
    """The child process of one renderer; started by its first rendering, and again after a crash.
    May be used from several threads: one rendering at a time."""

    def __init__(self, environment: Environment, limits: RenderLimits, render: Render) -> None:
        self._environment = environment
        self._limits = limits
        self._render = render
        self._guard = threading.Lock()
        self._child: _Child | None = None

    def render(self, template: str, contexts: Sequence[Mapping[str, Any]]) -> list[Rendered]:
        """Return the texts of the first of `contexts`, of one at least. Raises `InputError` when
        the first of them has none."""
        request = pickle.dumps((template, contexts), pickle.HIGHEST_PROTOCOL)
        with self._guard:
            if self._child is None:
                self._child = _Child(self._serve)
            patience = _PATIENCE * len(contexts) * (self._limits.seconds + _FOR_C)
            answer = self._child.ask(request, patience)
            if answer is None:
                child, self._child = self._child, None
                raise input_error(self._ended(child.end()), place=Place(template))
        rendered, read, problems = marshal.loads(answer)  # noqa: S302 - it is our own fork
        self._environment.templates.add(*read)
        if not rendered:
            raise InputError(*map(_diagnostic, problems))
        return rendered  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the child."""
        with self._guard:
            if self._child is not None:
                self._child.end()
                self._child = None

    def _ended(self, status: int) -> str:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if number in (signal.SIGXCPU, signal.SIGALRM):
            return _too_long(self._limits)
        if number == signal.SIGKILL:
            return "the process that rendered the template was killed, for lack of memory or time"
        name = (
            signal.Signals(number).name if number else f"status {os.waitstatus_to_exitcode(status)}"
        )
        return f"the template ends the process that renders it ({name})"

    def _serve(self, requests: int, answers: int) -> None:
        """Answer until the parent is gone. Runs in the child."""
        clock = _Clock(self._limits)
        _limit_memory(self._limits.memory)
        told = _Told(self._environment.templates)
        while (request := _receive(requests)) is not None:
            template, contexts = pickle.loads(request)  # noqa: S301 - our parent's
            rendered: list[Rendered] = []
            problems: list[Diagnostic] = []
            size = 0
            for context in contexts:
                try:
                    with clock:
                        rendered.append(self._rendered(template, context))
                except InputError as error:
                    problems = list(error.diagnostics)
                    break
                except LimitExceededError as error:  # between one rendering and the next
                    problems = [Diagnostic(str(error), Place(template))]
                    break
                size += len(rendered[-1][0])
                if size > _MESSAGE:
                    break
            try:
                answer = marshal.dumps((rendered, told.news(), [_plain(each) for each in problems]))
            except MemoryError:
                rendered.clear()
                answer = marshal.dumps(([], ({}, {}), [_plain(_no_memory(template))]))
            _send(answers, answer)

    def _rendered(self, template: str, context: Mapping[str, Any]) -> Rendered:
        used: dict[str, None] = {}
        try:
            text = self._render(self._environment, template, context, used, self._limits.characters)
            text.encode()
        except UnicodeEncodeError:
            raise input_error("the rendering has a lone surrogate", place=Place(template)) from None
        except MemoryError:
            raise InputError(_no_memory(template)) from None
        return text, tuple(used)


def _no_memory(template: str) -> Diagnostic:
    return Diagnostic(
        "the template needs more memory than it may have",
        Place(template),
        "template-memory in [build] says how much",
    )


class _Told:
    """What the child read, less what the parent knows of it."""

    def __init__(self, loader: ProjectLoader) -> None:
        self._loader = loader
        self._texts, self._seen = set(loader.texts), set(loader.sightings)

    def news(self) -> tuple[dict[str, str], dict[str, Any]]:
        """Return the texts and the sightings since the last call, as `ProjectLoader.add` takes
        them."""
        texts = {n: text for n, text in self._loader.texts.items() if n not in self._texts}
        seen = {
            path: (tuple(each.stamp), each.device)
            for path, each in self._loader.sightings.items()
            if path not in self._seen
        }
        self._texts.update(texts)
        self._seen.update(seen)
        return texts, seen


def _too_long(limits: RenderLimits) -> str:
    return (
        f"the rendering takes more than {limits.seconds:g} s (template-timeout in [build] says "
        "how long it may)"
    )


class _Clock:
    """Within the block, processor time is limited: first by an exception, then by death."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._on = False
        signal.signal(signal.SIGPROF, self._expire)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        self._most = resource.getrlimit(resource.RLIMIT_CPU)[1]

    def __enter__(self) -> None:
        self._on = True
        seconds = self._limits.seconds
        signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
        # The kernel counts whole seconds of the process's life, also those in the kernel.
        end = math.ceil(time.process_time() + seconds + _FOR_C)
        if self._most == resource.RLIM_INFINITY or end < self._most:
            resource.setrlimit(resource.RLIMIT_CPU, (end, self._most))

    def __exit__(self, *raised: object) -> None:
        self._on = False
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _expire(self, number: int, frame: object) -> None:
        if self._on:
            raise LimitExceededError(_too_long(self._limits))


class _Child:
    """A fork that answers requests over two pipes."""

    def __init__(self, serve: Callable[[int, int], None]) -> None:
        requests, self._to = os.pipe()
        self._from, answers = os.pipe()
        with warnings.catch_warnings():
            # Python warns of locks that other threads may hold: the child takes none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            with stopping.held_back():
                self._pid = os.fork()
                if self._pid == 0:
                    _live(serve, requests, answers)
        os.close(requests)
        os.close(answers)
        self._closed = weakref.finalize(self, _end, self._pid, self._to, self._from)

    def ask(self, request: bytes, patience: float) -> bytes | None:
        """Return the answer; None when the child has ended instead, or is past all patience."""
        try:
            _send(self._to, request)
        except BrokenPipeError:
            return None
        poller = select.poll()
        poller.register(self._from, select.POLLIN)
        if not poller.poll(min(patience, 1e6) * 1000):
            os.kill(self._pid, signal.SIGALRM)
        return _receive(self._from)

    def end(self) -> int:
        """Close the pipes, wait, and return the status of the process."""
        status: int | None = self._closed()
        return 0 if status is None else status


def _end(pid: int, *pipes: int) -> int:
    for pipe in pipes:
        os.close(pipe)
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return 0  # somebody waits for all children of this process


def _live(serve: Callable[[int, int], None], requests: int, answers: int) -> NoReturn:
    """Be the child: nothing of the parent's stays open, and no exit handler of its runs."""
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        stopping.forget()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        low, high = sorted((requests, answers))
        os.closerange(3, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, max(256, os.sysconf("SC_OPEN_MAX")))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        serve(requests, answers)
    finally:
        os._exit(0)


def _send(pipe: int, data: bytes) -> None:
    view = memoryview(_LENGTH.pack(len(data)) + data)
    while view:
        view = view[os.write(pipe, view) :]


def _receive(pipe: int) -> bytes | None:
    """Return one message; None at the end of the pipe."""
    head = _exactly(pipe, _LENGTH.size)
    return None if head is None else _exactly(pipe, _LENGTH.unpack(head)[0])


def _exactly(pipe: int, size: int) -> bytes | None:
    parts = []
    while size:
        with contextlib.suppress(InterruptedError):
            part = os.read(pipe, min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _limit_memory(more: int) -> None:
    """Let this process have `more` bytes of address space than it has."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _address_space() + more
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _address_space() -> int:
    """Return the bytes of this process's address space; none known, where there is no /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 1 << 30


def _plain(diagnostic: Diagnostic) -> Any:
    place = diagnostic.place
    where = None if place is None else astuple(place)
    return diagnostic.message, where, diagnostic.hint, diagnostic.severity


def _diagnostic(plain: Any) -> Diagnostic:
    message, where, hint, severity = plain
    return Diagnostic(message, None if where is None else Place(*where), hint, severity)
