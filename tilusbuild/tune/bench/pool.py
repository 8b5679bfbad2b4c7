"""Cases on several benches at the same time: each goes to the first bench that is idle.

A bench works on one case at a time, on a thread of its own; a case stays on its bench. All else
happens on the caller's thread. A bench that can no longer be used is left out, and its case goes to
another one, which gets from the log what is answered already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeAlias, TypeVar

from tilusbuild.process.base import start_thread
from tilusbuild.tune.bench.bench import Bench, WorkerUnusableError
from tilusbuild.tune.bench.work import Case

OpenCase: TypeAlias = Callable[[int], AbstractContextManager[Case]]
"""A case by its number; its files exist until the end of the block."""
_Decision = TypeVar("_Decision")

# Seconds between two attempts to end a worker whose thread may be about to start another one.
_STOP_SECONDS = 0.05


class BenchPool(Generic[_Decision]):
    """The threads of some benches. `on_lost` gets the reason why a bench is left out."""

    def __init__(self, benches: Sequence[Bench], on_lost: Callable[[str], None]) -> None:
        self._idle = deque(benches)
        self._on_lost = on_lost
        self._running: dict[int, tuple[Case, Bench, Thread]] = {}
        self._results: SimpleQueue[tuple[int, _Decision | BaseException]] = SimpleQueue()

    def run_cases(
        self,
        numbers: Sequence[int],
        open_case: OpenCase,
        begin_case: Callable[[int, Case, Sequence[Case]], Callable[[Bench], _Decision] | None],
    ) -> Iterator[tuple[int, _Decision]]:
        """Decide these cases; yield the number and the decision of each as soon as it is known.
        `begin_case` returns the function that decides a case, by its number and the cases that are
        running; None where one of these must be decided before.

        Raises `WorkerUnusableError` of the last bench that can be used, and the first other
        exception of a thread.
        """
        # One case is opened ahead of need, so that no device waits for a reference; but not for a
        # single bench, whose device may be the processor that would be disturbed.
        is_ahead = len(self._idle) > 1
        waiting, ready = deque(numbers), deque[tuple[int, Case]]()
        with ExitStack() as files:
            opened: dict[int, ExitStack] = {}
            while waiting or ready or self._running:
                running = [case for case, _, _ in self._running.values()]
                decide = begin_case(*ready[0], running) if ready and self._idle else None
                if decide is not None:
                    self._start_thread(*ready.popleft(), decide)
                elif waiting and not ready and (self._idle or is_ahead):
                    number = waiting.popleft()
                    opened[number] = files.enter_context(ExitStack())
                    ready.append((number, opened[number].enter_context(open_case(number))))
                else:
                    number, result = self._results.get()
                    case, bench, _ = self._running.pop(number)
                    if isinstance(result, WorkerUnusableError) and (self._idle or self._running):
                        self._on_lost(str(result))
                        ready.appendleft((number, case))
                        continue
                    if isinstance(result, BaseException):
                        raise result
                    self._idle.append(bench)
                    opened.pop(number).close()
                    yield number, result

    def _start_thread(self, number: int, case: Case, decide: Callable[[Bench], _Decision]) -> None:
        """Decide a case on an idle bench, on a new thread. Raises `OSError`."""
        bench = self._idle.popleft()

        def put_result() -> None:
            try:
                self._results.put((number, decide(bench)))
            except BaseException as error:
                self._results.put((number, error))

        self._running[number] = case, bench, start_thread(put_result)

    def close(self) -> None:
        """Cancel the cases that are running, and wait for their threads."""
        for _, bench, thread in self._running.values():
            while thread.is_alive():
                bench.close()
                thread.join(_STOP_SECONDS)
