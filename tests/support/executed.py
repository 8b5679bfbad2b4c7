"""An executor of remote actions whose workers are proved, before a double."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.farm_double import FarmDouble, farm_double
from support.processes import wait_until
from tilusbuild.process.base import Command, CompletedCommand
from tilusbuild.reapi.execute import RemoteExecutor
from tilusbuild.reapi.operations import ignore_place
from tilusbuild.remote.settings import make_settings


@dataclass
class Executed:
    """An executor whose workers are proved, before a double."""

    double: FarmDouble
    executor: RemoteExecutor
    directory: Path
    warnings: list[str] = field(default_factory=list)

    @property
    def heard(self) -> int:
        """How many actions the server has said something of."""
        return sum(action.has_messages for action in [*self.executor._running.values()])

    def run(
        self, outputs: tuple[str, ...] = ("out",), cancelled: threading.Event | None = None
    ) -> CompletedCommand | None:
        command = Command(("true",), str(self.directory), {}, 1.0, outputs=outputs)
        return self.executor.run_command(command, cancelled or threading.Event(), ignore_place)


@contextmanager
def executors(tmp_path: Path) -> Iterator[Callable[..., Executed]]:
    """What it yields, called with (timeout=…, **double), is ready to run."""
    opened: list[Any] = []

    def make(timeout: float = 20.0, jobs: int = 64, **how: Any) -> Executed:
        opened.append(farm_double(**how))
        double, address = opened[-1].__enter__()
        warned: list[str] = []
        settings = make_settings(address, "test", timeout=timeout, jobs=jobs)
        executor = RemoteExecutor(settings, lambda run_on_worker: None, warned.append)
        opened.append(executor)
        (tmp_path / "work").mkdir(exist_ok=True)
        remote = Executed(double, executor, tmp_path / "work", warned)
        remote.run()
        wait_until(lambda: executor._probe_passed is not None)
        double.calls.clear()
        return remote

    yield make
    for resource in reversed(opened):
        resource.close() if isinstance(resource, RemoteExecutor) else resource.__exit__(
            None, None, None
        )
