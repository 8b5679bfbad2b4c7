"""The devices of a Ray cluster as benches: an actor for each, and here a proxy that calls it.

Ray decides which process has which GPU, and reports a lost node as the error of a call: the bench
can no longer be used then, and its case goes to another one. Files travel through Ray's object
store: a library once for all nodes, a case to the node that measures it.

Price: a call takes about a millisecond, for each check and sample. Ray pickles, so a cluster is
trusted as this machine is.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

from tilusbuild._version import __version__
from tilusbuild.errors import input_error
from tilusbuild.ray.actor import DeviceActor
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.tune.bench.bench import (
    INCORRECT,
    OK,
    WARMUP,
    Answer,
    Bench,
    WorkerUnusableError,
    to_device,
)
from tilusbuild.tune.bench.work import Candidate, Case

# Seconds for the actors to start: Ray starts processes, and may wait for a GPU that is in use.
_START_SECONDS = 120.0
_CONNECT_SECONDS = 10.0


class RayBenches:
    """The devices of the cluster at an address, as `ray.init` takes it. Raises `InputError` if
    there is no cluster, and `ModuleNotFoundError` without Ray. `on_other` gets a message for each
    device that is left out."""

    def __init__(self, address: str, on_other: Callable[[str], None]) -> None:
        import ray

        self._on_other = on_other
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        try:
            if colon:
                # `ray.init` waits for minutes where nothing answers.
                socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
            # Ray prints on stdout that a node has ended. Its debugger has no other way, either.
            ray._private.worker._worker_logs_enabled = False
            ray.init(address, log_to_driver=False, logging_level="error")
        except (OSError, ValueError, RuntimeError) as error:
            raise input_error(f"--ray {address}: {_first_line(error)}") from None

    def find_gpu(self) -> Device | None:
        """Return a GPU of the cluster; None without one."""
        if not any(_list_nodes("cuda")):
            return None
        benches = self.open_benches("cuda", limit=60.0, warmup=WARMUP)
        for bench in benches[1:]:
            bench.close()
        with closing(benches[0]) as bench:
            return to_device(bench.describe_device(), 0)

    def open_benches(self, kind: str, *, limit: float, warmup: int) -> Sequence[Bench]:
        """Return a bench for each GPU of the cluster; for the cpu, for each node with a CPU."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # In the object store a library is once for all benches.
        put_library = cache(lambda path: ray.put(read_bytes(path)))
        benches = {}
        for node in _list_nodes(kind):
            actor = ray.remote(DeviceActor).options(
                num_cpus=1,
                num_gpus=1 if kind == "cuda" else 0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            handle = actor.remote(kind, limit, warmup)
            benches[handle.describe_device.remote()] = RayBench(handle, put_library)
        if not benches:
            raise input_error(f"the cluster of --ray has no node for the target kind {kind}")
        ready, _ = ray.wait([*benches], num_returns=len(benches), timeout=_START_SECONDS)
        usable = []
        for reference, bench in benches.items():
            try:
                if reference not in ready:
                    raise WorkerUnusableError(f"it is not free within {_START_SECONDS:.0f} s")
                bench.check_version()
                usable.append(bench)
            except WorkerUnusableError as error:
                bench.close()
                self._on_other(f"a device of the cluster is left out: {error}")
        if not usable:
            raise WorkerUnusableError("no device of the cluster can be used")
        return usable


def _list_nodes(kind: str) -> Iterator[str]:
    """Yield the id of the node of each GPU, or of each node with a CPU."""
    import ray

    for node in ray.nodes():
        resources = node["Resources"] if node["Alive"] else {}
        count = int(resources.get("GPU", 0)) if kind == "cuda" else int("CPU" in resources)
        yield from [node["NodeID"]] * count


class RayBench:
    """The bench of an actor. `put_library` returns the reference of a library in the object store,
    by its path."""

    def __init__(self, actor: Any, put_library: Callable[[str], Any]) -> None:
        self._actor = actor
        self._put_library = put_library
        self._case = ""
        self._sent_programs: set[str] = set()

    def describe_device(self) -> dict[str, Any]:
        """Return the facts of the device."""
        facts: dict[str, Any] = self._call_actor("describe_device")
        return facts

    def check_version(self) -> None:
        """Raise `WorkerUnusableError` if the node has another version of tilusbuild."""
        version = self.describe_device()["version"]
        if version != __version__:
            raise WorkerUnusableError(f"it has tilusbuild {version}, not {__version__}")

    def check_program(self, case: Case, program: Candidate, number: int) -> Answer:
        """Call a program, and compare its outputs."""
        answer: Answer
        if case.find_mismatch is None:
            answer = self._ask_about_program("check_program", case, program, number)
            return answer
        answer, outputs = self._ask_about_program("collect_outputs", case, program, number)
        why = case.explain_mismatch(outputs)
        if answer.status != OK or why is None:
            return answer
        self._call_actor("end_worker")
        return replace(answer, status=INCORRECT, why=why)

    def time_program(self, case: Case, program: Candidate, number: int, expected: float) -> Answer:
        """Take one sample of a program."""
        answer: Answer = self._ask_about_program("time_program", case, program, number, expected)
        return answer

    def close(self) -> None:
        """End the actor."""
        import ray

        ray.kill(self._actor)

    def _ask_about_program(
        self, method: str, case: Case, program: Candidate, *arguments: float
    ) -> Any:
        """Return the actor's answer, after it has got the files that are new to it."""
        if case.digest != self._case:
            names = os.listdir(case.directory)
            files = {name: read_bytes(os.path.join(case.directory, name)) for name in names}
            self._call_actor("add_case", files)
            self._case = case.digest
        if program.hash not in self._sent_programs:
            self._call_actor("add_library", program.hash, self._put_library(program.library))
            self._sent_programs.add(program.hash)
        # The function and all that it imports are of the project, which the nodes do not have.
        sent_case = replace(case, find_mismatch=None)
        return self._call_actor(method, sent_case, program, *arguments)

    def _call_actor(self, method: str, *arguments: object) -> Any:
        """Return the result of a method of the actor. Raises `WorkerUnusableError`."""
        import ray

        try:
            return ray.get(getattr(self._actor, method).remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            raise WorkerUnusableError(str(error.cause)) from None
        except ray.exceptions.RayActorError:
            # Ray's text is about actors.
            raise WorkerUnusableError(
                "its process has ended, or its node does not answer"
            ) from None
        except ray.exceptions.RayError as error:
            raise WorkerUnusableError(_first_line(error)) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
