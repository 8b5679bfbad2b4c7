"""Compiles on the workers of a server of the Remote Execution API.

What a worker answers is believed only after a probe has shown that its tools are this machine's. A
compiler that fails there has failed; a server or a worker in trouble has not answered, and the
command is run here. What came is compared with its digest, and an answer that cannot be one of a
compiler is none.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from msgspec import Struct, field

from tilusbuild.cache import layout
from tilusbuild.engine.events import SENT
from tilusbuild.process.base import (
    CancelledError,
    Command,
    CompletedCommand,
    WorkerRun,
    start_thread,
)
from tilusbuild.process.warden import CapturedOutput
from tilusbuild.reapi import reapi_pb2 as reapi
from tilusbuild.reapi.backend import (
    Blob,
    BlobError,
    ReapiBackend,
    clean_line,
    describe_status,
    make_blob,
    make_digest,
    parse_digest,
    split_into_batches,
)
from tilusbuild.reapi.operations import (
    InputsAbsentError,
    Operations,
    ReportPlace,
    RunningAction,
    clean_worker_name,
)
from tilusbuild.remote.backend import BrokenError, Guard, RemoteTroubleError
from tilusbuild.remote.settings import RemoteSettings
from tilusbuild.runtime.regular import read_bytes

# DEADLINE_EXCEEDED of gRPC.
_TIMED_OUT = 4
# Exit statuses of a shell (126, 127) and of signals. nvcc has 255 for errors of its parts.
_SIGNAL_STATUS = range(126, 193)
# Seconds of an action, whatever a server says.
_MAX_LENGTH = 1e5
# Bytes that are sent together.
_UPLOAD_SIZE = 64 << 20
# Bytes of what a command printed.
_MAX_OUTPUT = 16 << 20
# Seconds that the probe has to remove what it made.
_JOIN_SECONDS = 5.0
# The command's directory on a worker, which may be below the root of its file system. No system has
# a directory of that name there.
WORKING = "w"
Sources: TypeAlias = dict[Blob, bytes]
"""The contents of an action's inputs."""


class _NoAnswerError(Exception):
    """A worker could not do it, which says nothing about the program or the server."""


class ExecutionCounts(Struct):
    """The numbers of what other machines did for a build."""

    commands: int = 0
    remembered: int = 0
    """The commands of these that the server had run before."""
    seconds: float = 0.0
    inputs: int = 0
    """Bytes that were sent."""
    outputs: int = 0
    """Bytes that were fetched."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_command(self, completed: CompletedCommand) -> None:
        """Count a command that a worker ran."""
        with self.lock:
            self.commands += 1
            if completed.elsewhere is not None and completed.elsewhere.remembered:
                self.remembered += 1
            self.seconds += completed.seconds

    def add_bytes(self, *, inputs: int = 0, outputs: int = 0) -> None:
        """Count bytes of inputs that were sent, and of outputs that were fetched."""
        with self.lock:
            self.inputs += inputs
            self.outputs += outputs


class RemoteExecutor:
    """Runs commands on workers.

    `probe` gets a function that runs a command on a worker, and is called before any result of a
    worker is used. May be used from several threads.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        probe: Callable[[Callable[[Command], CompletedCommand]], str | None],
        warn: Callable[[str], None],
    ) -> None:
        """Connects to nothing yet. Raises `RemoteTroubleError`."""
        self._settings = settings
        self._backend = ReapiBackend(settings)
        self._actions = ActionBuilder(settings.properties)
        self._guard = Guard(lambda why: warn(f"{why}; this build compiles here"))
        self._probe = probe
        self._lock = threading.Lock()
        self._uploaded_blobs: set[Blob] = set()
        """Blobs that the server has, as far as we know."""
        self._operations = Operations(self._backend, settings)
        self._running: dict[threading.Event, RunningAction] = {}
        self._probe_passed: bool | None = None
        """True once the probe has found no difference; None before, and if it found one."""
        self._probe_thread: threading.Thread | None = None
        self.executed = ExecutionCounts()

    def is_ready(self) -> bool:
        """Return whether a command can run now. The first call starts the probe."""
        with self._lock, suppress(OSError):  # no thread can be started: the next call tries again
            if self._probe_thread is None:
                self._probe_thread = start_thread(self._probe_worker)
        has_room = len(self._running) < self._settings.jobs
        return bool(self._probe_passed) and has_room and not self._guard.is_broken

    def run_command(
        self, command: Command, cancelled: threading.Event, report_place: ReportPlace
    ) -> CompletedCommand | None:
        """Run a command on a worker to its end, and write its outputs into its `cwd`. Return None
        if no worker can run it now, or if the answer is not usable.

        `report_place` is called with the stages. Raises `CancelledError` after `cancelled` was set
        and `cancel_command` was called.
        """
        if not self.is_ready():
            return None
        try:
            completed = self._guard.call_request(
                lambda: self._run_action(command, RunningAction(cancelled, report_place))
            )
            self.executed.add_command(completed)
            return completed
        except (BrokenError, _NoAnswerError, OSError, BlobError):
            return None

    def cancel_command(self, cancelled: threading.Event) -> None:
        """Give up the command that has this event; does not wait."""
        with self._lock:
            running = self._running.get(cancelled)
        if running is not None:
            self._operations.abandon_action(running)

    def close(self) -> None:
        """Cancel all commands, wait for the probe (`_JOIN_SECONDS` at most), and disconnect."""
        self._guard.break_circuit(None)
        with self._lock:
            running_actions = list(self._running.values())
        for action in running_actions:
            action.cancelled.set()
            if action.call is not None:
                action.call.cancel()
        if self._probe_thread is not None:
            self._probe_thread.join(_JOIN_SECONDS)
        self._backend.close()

    def _probe_worker(self) -> None:
        """Run the probe on a worker, and set `_probe_passed` if it finds no problem; else break the
        circuit. A broken circuit or a cancellation ends it quietly."""

        def run_uncached(command: Command) -> CompletedCommand:
            # Not cached: the server may have an answer of another worker.
            return self._guard.call_request(
                lambda: self._run_action(command, RunningAction(threading.Event()), cached=False)
            )

        try:
            problem = self._probe(run_uncached)
        except (BrokenError, CancelledError):
            return
        except _NoAnswerError as error:
            problem = f"a worker does not run the probe: {error}"
        except OSError as error:
            problem = str(error)
        if problem is None:
            self._probe_passed = True
        else:
            self._guard.break_circuit(f"{self._settings.address}: {problem}")

    def _run_action(
        self, command: Command, running: RunningAction, *, cached: bool = True
    ) -> CompletedCommand:
        """Run a command on a worker and return its result, outputs written into its `cwd`.

        Inputs that the server misses are sent first, and once again if it has removed some. Without
        `cached`, the server runs the command even if it has the result. Raises `_NoAnswerError`,
        `RemoteTroubleError`, `CancelledError`, `BlobError`, `OSError`.
        """
        action, sources = self._actions.build_action(command, cached=cached)
        request = reapi.ExecuteRequest(
            instance_name=self._settings.instance,
            skip_cache_lookup=not cached,
            action_digest=make_digest(action),
            inline_stdout=True,
            inline_stderr=True,
            inline_output_files=sorted(command.outputs),
        )
        with self._lock:
            if len(self._running) >= self._settings.jobs:
                raise _NoAnswerError("enough runs there")
            self._running[running.cancelled] = running
        try:
            for is_second_attempt in (False, True):
                self._upload_inputs(sources, again=is_second_attempt)
                running.report_place(SENT, "")
                try:
                    answer = self._operations.execute_action(request, running, command.timeout)
                    return self._read_result(answer, command)
                except InputsAbsentError as error:
                    server_message = clean_line(str(error))
            raise RemoteTroubleError(
                f"{self._settings.address}: {server_message or 'inputs are missing there'}"
            )
        finally:
            with self._lock:
                del self._running[running.cancelled]

    def _upload_inputs(self, sources: Sources, *, again: bool) -> None:
        """Send the inputs that the server does not have. Inputs that were sent before count as
        there, unless `again`: then the server is asked. Raises `RemoteTroubleError`."""
        with self._lock:
            if again:  # the server has removed inputs that it had
                self._uploaded_blobs.difference_update(sources)
            unconfirmed = sources.keys() - self._uploaded_blobs
        missing = self._backend.find_missing(unconfirmed) if unconfirmed else ()
        for batch in split_into_batches(missing, _UPLOAD_SIZE):
            self._backend.send_blobs({blob: sources[blob] for blob in batch})
            self.executed.add_bytes(inputs=sum(blob.size for blob in batch))
        with self._lock:
            self._uploaded_blobs |= unconfirmed

    def _read_result(self, answer: reapi.ExecuteResponse, command: Command) -> CompletedCommand:
        """Write the outputs of a command into its directory and return its status and output.

        Raises `RemoteTroubleError` for a malformed answer, `BlobError` and `OSError`. Raises
        `_NoAnswerError` for an answer that says nothing about the program: the command was killed
        or not started, made not all outputs, or failed and printed nothing.
        """
        result = answer.result
        exit_status = result.exit_code
        timed_out = answer.status.code == _TIMED_OUT and command.timeout is not None
        if answer.status.code and not timed_out:
            raise RemoteTroubleError(f"{self._settings.address}: {describe_status(answer.status)}")
        if not answer.HasField("result") and not timed_out:
            raise RemoteTroubleError(f"{self._settings.address}: an answer has no result")
        # Names that were not asked for could lead anywhere.
        outputs = {file.path: file for file in result.output_files if file.path in command.outputs}
        if not timed_out:
            silent_statuses = () if command.on_worker is None else command.on_worker.silent
            if exit_status in _SIGNAL_STATUS or exit_status < 0 or exit_status in silent_statuses:
                # The command was killed, perhaps for want of memory, or was not started.
                raise _NoAnswerError(f"{command.argv[0]} ended with status {exit_status}")
            if exit_status == 0 and outputs.keys() != set(command.outputs):
                raise _NoAnswerError(f"{command.argv[0]} made no {', '.join(command.outputs)}")
        output = self._read_output(result, command.output_limit)
        if exit_status and not output and not timed_out:
            # A compiler that fails prints why: this failure is not the compiler's.
            raise _NoAnswerError(
                f"{command.argv[0]} failed with status {exit_status}, and printed nothing"
            )
        targets = {os.path.join(command.cwd, path): file for path, file in outputs.items()}
        # All outputs are fetched before the first gets its name: if a fetch fails, the command runs
        # here, and must find none of them.
        for target, file in targets.items():
            self._fetch_output(file, f"{target}.coming")
        for target, file in targets.items():
            os.replace(f"{target}.coming", target)
            if file.is_executable:
                os.chmod(target, 0o755)  # noqa: S103 - as the tool left it there
        metadata = result.execution_metadata
        reported_seconds = _count_seconds(
            metadata.execution_start_timestamp, metadata.execution_completed_timestamp
        )
        seconds = min(reported_seconds, command.timeout or _MAX_LENGTH)
        worker_name = clean_worker_name(metadata.worker)
        worker_run = WorkerRun(self._settings.address, worker_name, answer.cached_result)
        return CompletedCommand(
            exit_status, output, seconds, peak_rss=0, timed_out=timed_out, elsewhere=worker_run
        )

    def _read_output(self, result: reapi.ActionResult, limit: int) -> bytes:
        """Return stdout and then stderr of a command, cut to `limit` bytes. Raises
        `RemoteTroubleError`, and `BlobError` for one of more than `_MAX_OUTPUT` bytes."""
        captured = CapturedOutput(limit)
        for raw, digest in (
            (result.stdout_raw, result.stdout_digest),
            (result.stderr_raw, result.stderr_digest),
        ):
            # A server puts a short output into the answer, and names a long one by its digest.
            if raw or not digest.size_bytes:
                captured.add_data(raw)
                continue
            blob = parse_digest(digest)
            if blob.size > _MAX_OUTPUT:
                raise BlobError(f"{blob.size} bytes of output")
            data = self._backend.read_blobs([blob]).get(blob, b"")
            if make_blob(data) != blob:
                raise self._make_digest_error()
            self.executed.add_bytes(outputs=blob.size)
            captured.add_data(data)
        return captured.join_pieces()

    def _make_digest_error(self) -> RemoteTroubleError:
        return RemoteTroubleError(f"{self._settings.address}: an output is not what it says")

    def _fetch_output(self, file: reapi.OutputFile, path: str) -> None:
        """Write an output of a command to a file, which is removed again if its content is wrong.
        Raises `BlobError`, `OSError`, and `RemoteTroubleError` for content with another digest."""
        blob = parse_digest(file.digest)
        # A server may put a small file into the answer. If it did not, `contents` is empty and its
        # digest is wrong: then the file is fetched.
        is_right = _write_blob(path, blob, (file.contents,))

        def keep_output(_: Blob, pieces: Iterable[bytes]) -> None:
            nonlocal is_right
            is_right = _write_blob(path, blob, pieces)

        try:
            if not is_right:
                self._backend.fetch_blobs({blob}, keep_output)
            self.executed.add_bytes(outputs=blob.size)
            if not is_right:
                raise self._make_digest_error()
        finally:
            if not is_right:
                os.unlink(path)


def _write_blob(path: str, blob: Blob, pieces: Iterable[bytes]) -> bool:
    """Write content to a file and return whether it has the blob's size and digest. Stop at the
    piece that exceeds the size. Raises `OSError`."""
    hasher, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for piece in pieces:
            size += len(piece)
            if size > blob.size:
                break
            hasher.update(piece)
            file.write(piece)
    return size == blob.size and hasher.hexdigest() == blob.digest


def _count_seconds(start: Any, end: Any) -> float:
    """Return the seconds between two times of one machine (protobuf's Timestamp); 0 if one of them
    is not set."""
    if not start.seconds or not end.seconds:
        return 0.0
    seconds: float = end.seconds - start.seconds + (end.nanos - start.nanos) / 1e9
    return max(0.0, seconds)


class ActionBuilder:
    """Builds the Action of a command: its directory as a Merkle tree, its arguments, its
    environment and its outputs. May be used from several threads.

    A private directory is small and is read each time. The tree of an include directory is made
    once a build for all links to it. Another link names a tool, which the worker has at the same
    path.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._headers: dict[str, tuple[Blob, Sources]] = {}
        """The trees of header directories, by their real paths."""
        self._platform = reapi.Platform()
        for name, value in sorted(properties.items()):
            self._platform.properties.add(name=name, value=value)

    def build_action(self, command: Command, *, cached: bool = True) -> tuple[Blob, Sources]:
        """Return the blob of a command's Action, and the contents of all blobs that the Action
        needs. With `cached`, the server may keep the result. Raises `OSError`."""
        sources: Sources = {}
        worker = command.on_worker
        extra_files = {} if worker is None else worker.files
        working_tree = self._add_directory(command.cwd, sources, extra_files)
        root = reapi.Directory()
        root.directories.add(name=WORKING, digest=make_digest(working_tree))
        environment = command.env if worker is None else worker.env
        message = reapi.Command(
            arguments=command.argv if worker is None else worker.argv,
            output_paths=sorted(command.outputs),
            working_directory=WORKING,
            platform=self._platform,
        )
        for name, value in sorted(environment.items()):
            message.environment_variables.add(name=name, value=value)
        action = reapi.Action(
            command_digest=make_digest(_add_message(message, sources)),
            input_root_digest=make_digest(_add_message(root, sources)),
            platform=self._platform,
            do_not_cache=not cached,
        )
        if command.timeout is not None:
            action.timeout.seconds = math.ceil(command.timeout)
        return _add_message(action, sources), sources

    def _add_directory(
        self, path: str, sources: Sources, extra_files: Mapping[str, str] | None = None
    ) -> Blob:
        """Add a directory with all below it to `sources`; return the blob of its Directory message.
        `extra_files` has paths of further files by their names in it. Raises `OSError`."""
        directory = reapi.Directory()
        path_of_name = {name: os.path.join(path, name) for name in os.listdir(path)}
        path_of_name |= extra_files or {}
        # Sorted, as the protocol wants it: equal directories have one digest.
        for name, source in sorted(path_of_name.items()):
            if os.path.islink(source):
                self._add_link(source, name, directory, sources)
            elif os.path.isdir(source):
                blob = self._add_directory(source, sources)
                directory.directories.add(name=name, digest=make_digest(blob))
            else:
                data = read_bytes(source)
                blob = make_blob(data)
                sources[blob] = data
                directory.files.add(
                    name=name,
                    digest=make_digest(blob),
                    is_executable=os.access(source, os.X_OK),
                )
        return _add_message(directory, sources)

    def _add_link(self, path: str, name: str, directory: reapi.Directory, sources: Sources) -> None:
        """Add a link to a directory message: as a link or, if its target is a header directory, as
        that directory, whose tree is read once. Raises `OSError`."""
        target = os.readlink(path)
        if not os.path.isfile(os.path.join(path, layout.MANIFEST)):
            directory.symlinks.add(name=name, target=target)
            return
        # The lock is held while the tree is read, too: programs that begin together have the same
        # headers, which are read once.
        with self._lock:
            if target not in self._headers:
                headers: Sources = {}
                self._headers[target] = self._add_directory(target, headers), headers
            blob, headers = self._headers[target]
        sources.update(headers)
        directory.directories.add(name=name, digest=make_digest(blob))


def _add_message(message: Any, sources: Sources) -> Blob:
    """Add the bytes of a message to `sources`; return their blob."""
    # Deterministic: else protobuf may order the entries of a map anyhow, and equal messages would
    # have different digests.
    data = message.SerializeToString(deterministic=True)
    blob = make_blob(data)
    sources[blob] = data
    return blob
