"""Commands on other machines: the same answers, and here whenever those are in trouble."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs tilusbuild[remote]")

from support.casd import Casd, worker
from support.http_cache import Faults, line_to
from support.processes import run_to_end, wait_until
from support.project import needs_cxx
from tilusbuild.process.base import CancelledError, Command, CompletedCommand, WorkerRun
from tilusbuild.process.local import LocalRunner
from tilusbuild.reapi.execute import RemoteExecutor
from tilusbuild.reapi.operations import ReportPlace, ignore_place
from tilusbuild.reapi.probe import probe_worker
from tilusbuild.reapi.sharing import CompileSlots, SharingRunner
from tilusbuild.remote.settings import make_settings
from tilusbuild.toolchain import DigestMemory, Toolchain, ToolchainRequest, discover_toolchain


@dataclass
class Farmed:
    """An executor, what it warned of, and a directory for commands."""

    executor: RemoteExecutor
    directory: Path
    warnings: list[str] = field(default_factory=list)

    def command(self, script: str, **how: Any) -> Command:
        words = ("sh", "-c", script)
        return Command(words, str(self.directory), {"PATH": "/usr/bin:/bin"}, **how)

    def run(self, script: str, **how: Any) -> CompletedCommand | None:
        return self.executor.run_command(
            self.command(script, **how), threading.Event(), ignore_place
        )


NewFarmed = Callable[..., Farmed]


@pytest.fixture
def farmed(farm: Casd, tmp_path: Path) -> Iterator[NewFarmed]:
    """farmed(address, problem=…) has proved its workers, or found that problem."""
    remotes: list[Farmed] = []

    def make(address: str = "", problem: str | None = None, **settings: Any) -> Farmed:
        directory = tmp_path / f"work-{len(remotes)}"
        (directory / "tmp").mkdir(parents=True)
        (directory / "in").write_text("content")
        options = {"timeout": 20.0, **settings}
        warned: list[str] = []
        executor = RemoteExecutor(
            make_settings(address or farm.address, "test", **options),
            lambda run_on_worker: problem,
            warned.append,
        )
        remotes.append(Farmed(executor, directory, warned))
        remotes[-1].run("true")
        wait_until(lambda: executor._probe_passed is not None or bool(warned))
        return remotes[-1]

    yield make
    for remote in remotes:
        remote.executor.close()


def test_what_a_worker_could_not_do_is_no_answer(farmed: NewFarmed) -> None:
    remote = farmed()
    assert remote.run("kill -9 $$") is None
    assert remote.run("true", outputs=("x",)) is None
    assert remote.run("no-such-compiler") is None
    assert remote.run("exit 1") is None
    done = remote.run("sleep 60", timeout=1.0)
    assert done is not None
    assert done.timed_out
    assert remote.warnings == []


TREXE = shutil.which("trexe")
"""Of Debian's package buildbox: a client of the protocol that shares no code with this one."""


@pytest.mark.skipif(TREXE is None, reason="needs trexe")
def test_an_independent_client_finds_our_action(farm: Casd, farmed: NewFarmed) -> None:
    remote = farmed(properties={"OSFamily": "linux"})
    (remote.directory / "tmp" / "run").write_text("x")
    (remote.directory / "tmp" / "run").chmod(0o755)
    (remote.directory / "as").symlink_to("/usr/bin/as")
    words, about = f"cat in > out; echo {remote.directory}", remote.directory.parent / "about.json"
    assert remote.run(words, timeout=30.0, outputs=("out",)) is not None
    (remote.directory / "out").unlink()
    action, _ = remote.executor._actions.build_action(
        remote.command(words, timeout=30.0, outputs=("out",))
    )
    options = {
        "remote": farm.address.replace("grpc", "http"),
        "input-path": f"{remote.directory}:w",
        "working-dir": "w",
        "output-path": "out",
        "env": "PATH=/usr/bin:/bin",
        "exec-timeout": "30",
        "platform-properties": "OSFamily=linux",
        "result-metadata-file": about,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    command = [str(TREXE), *arguments, "--do-not-follow-symlinks", "sh", "-c", words]
    output = run_to_end(command).stdout
    assert output == f"{remote.directory}\n"
    metadata = json.loads(about.read_text())
    assert metadata["actionDigest"] == {"hash": action.digest, "sizeBytes": str(action.size)}
    assert metadata["actionResultMetadata"]["cachedResult"] is True


@pytest.mark.parametrize("seed", range(4))
def test_a_line_in_trouble_ends_in_an_answer_or_none(seed, farm, farmed) -> None:
    random = Random(seed)
    faults = Faults(delay=random.choice([0, 0.2]), loss=random.choice([0, 0.1]))
    with line_to(farm.port, faults) as line:
        remote = farmed(line.at("grpc"), timeout=1.0)
        if seed % 2:
            faults.cut_after, faults.cuts_left = random.randrange(1, 3000), 1
        else:
            faults.silent_after = random.randrange(3000)
        for number in range(3):
            done = remote.run(f"sleep 0.2; echo {number} | tee x; : {seed}", outputs=("x",))
            assert done is None or done.output == b"%d\n" % number
    assert len(remote.warnings) <= 1


class Here:
    """A runner that is told when to end."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.go_on = threading.Event()

    def run(self, command: Command) -> CompletedCommand:
        self.ran.append(command.argv[0])
        self.go_on.wait()
        return CompletedCommand(0, b"", 0.0, 1)

    def cancel(self) -> None: ...

    def close(self) -> None: ...


DONE_THERE = CompletedCommand(0, b"", 0.0, 0, elsewhere=WorkerRun("grpc://x"))


class There:
    """An executor that has an answer or none."""

    def __init__(self, answer: CompletedCommand | None = None) -> None:
        self.answer = answer
        self.ran: list[str] = []
        self.available = True

    def is_ready(self) -> bool:
        return self.available

    def run_command(
        self, command: Command, cancelled: threading.Event, tell: ReportPlace
    ) -> CompletedCommand | None:
        self.ran.append(command.argv[0])
        return self.answer

    def cancel_command(self, cancelled: threading.Event) -> None: ...


def sharing(
    local_runner: Here, executor: Any, limit: int, tell: ReportPlace = ignore_place
) -> SharingRunner:
    return SharingRunner(local_runner, lambda: executor, CompileSlots(lambda: limit), tell)


def test_places_here_are_taken_first() -> None:
    local_runner, executor = Here(), There(DONE_THERE)
    with ThreadPoolExecutor(2) as threads:
        runner = sharing(local_runner, executor, 1)
        first = threads.submit(runner.run, Command(("1",), "/", outputs=("x",)))
        wait_until(lambda: local_runner.ran == ["1"])
        assert runner.run(Command(("2",), "/", outputs=("x",))).elsewhere
        local_runner.go_on.set()
        assert not first.result().elsewhere
        assert not runner.run(Command(("3",), "/")).elsewhere
    assert (local_runner.ran, executor.ran) == (["1", "3"], ["2"])


def test_an_executor_that_is_ready_later_gets_what_still_waits() -> None:
    local_runner, executor = Here(), There(DONE_THERE)
    executor.available = False
    command = Command(("1",), "/", outputs=("x",))
    with ThreadPoolExecutor(3) as threads:
        runner = sharing(local_runner, executor, 1)
        every = [threads.submit(runner.run, command) for _ in range(3)]
        wait_until(lambda: len(local_runner.ran) == 1)
        executor.available = True
        wait_until(lambda: len(executor.ran) == 2)
        local_runner.go_on.set()
        assert sum(future.result().elsewhere is not None for future in every) == 2


def test_no_more_run_here_than_there_are_places() -> None:
    local_runner = Here()
    with ThreadPoolExecutor(3) as threads:
        runner = sharing(local_runner, There(), 1)
        command = Command(("1",), "/", outputs=("x",))
        every = [threads.submit(runner.run, command) for _ in range(3)]
        wait_until(lambda: len(local_runner.ran) == 1)
        time.sleep(0.3)
        assert len(local_runner.ran) == 1
        local_runner.go_on.set()
        assert [future.result().status for future in every] == [0, 0, 0]
        waits = sharing(local_runner, There(), 0)
        waiting = threads.submit(waits.run, command)
        waits.cancel()
        with pytest.raises(CancelledError):
            waiting.result()


def test_a_compile_that_stays_takes_a_place_and_says_so() -> None:
    local_runner, executor = Here(), There(DONE_THERE)
    stages: list[tuple[str, str]] = []
    with ThreadPoolExecutor(3) as threads:
        runner = sharing(local_runner, executor, 1, lambda *stage: stages.append(stage))
        every = [threads.submit(runner.run, Command(("1",), "/", stays=True)) for _ in range(3)]
        wait_until(lambda: len(local_runner.ran) == 1 and stages.count(("waiting", "")) == 2)
        time.sleep(0.3)
        assert len(local_runner.ran) == 1
        local_runner.go_on.set()
        assert [future.result().elsewhere for future in every] == [None] * 3
    assert stages.count(("here", "")) == 3
    assert executor.ran == []


def proved(server: Casd, tools: Toolchain, runner: LocalRunner) -> Farmed:
    """An executor that has been before the real probe."""
    warned: list[str] = []
    executor = RemoteExecutor(
        make_settings(server.address, "test"),
        lambda run_on_worker: probe_worker(tools, runner, run_on_worker),
        warned.append,
    )
    assert not executor.is_ready()
    wait_until(lambda: executor._probe_passed is not None or bool(warned), 120)
    return Farmed(executor, Path("/"), warned)


@pytest.fixture
def host() -> Iterator[tuple[Toolchain, LocalRunner]]:
    """This machine's host compiler, and a runner."""
    needs_cxx()
    runner = LocalRunner()
    request = ToolchainRequest(needs_cuda=False)
    yield discover_toolchain(request, os.environ, runner, DigestMemory()), runner
    runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["as_", "cxx"])
def test_a_worker_with_one_other_tool_is_found_out(name, host, tmp_path) -> None:
    tool = os.path.realpath(getattr(host[0].host, name).path)
    data = Path(tool).read_bytes()
    other = tmp_path / "other"
    other.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    other.chmod(0o755)
    mount = f"--runner-arg=--ro-bind-mount={other}:{tool}"
    server = Casd(tmp_path / "farm", *worker(), mount)
    remote = proved(server, *host)
    remote.executor.close()
    server.kill()
    (warning,) = remote.warnings
    assert f"a worker has another {getattr(host[0].host, name).path}" in warning


def test_a_worker_that_does_not_run_the_probe_is_named(farm: Casd, tmp_path: Path) -> None:
    warned: list[str] = []
    command = Command(("sh", "-c", "exit 127"), str(tmp_path), {"PATH": "/usr/bin:/bin"})
    executor = RemoteExecutor(
        make_settings(farm.address, "test"),
        lambda run_on_worker: str(run_on_worker(command)),
        warned.append,
    )
    assert not executor.is_ready()
    wait_until(lambda: executor._probe_passed is not None or bool(warned))
    executor.close()
    (warning,) = warned
    assert "a worker does not run the probe: sh ended with status 127" in warning
