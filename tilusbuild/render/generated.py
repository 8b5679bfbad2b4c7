"""Sources that a Python function returns: the renderer of `generator`.

The function runs in processes that stay, because importing a kernel language takes seconds. A
program's inputs are everything that these processes have read so far, by the names of
`generate.reads`: what an earlier call has read may be kept in a variable. They stand in the place
of a rendering's templates, so that the memo, the no-op record and `watch` know them. Each program
is generated once in a renderer's life.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tilusbuild.errors import Diagnostic, InputError, Location, input_error
from tilusbuild.generate.reads import DIRECTORY, UNTRACKED, digest_read
from tilusbuild.process.base import Command, Sandbox
from tilusbuild.process.landlock import find_version
from tilusbuild.process.local import LocalRunner, name_signal
from tilusbuild.process.resident import ResidentPool, ResidentRunner
from tilusbuild.render.environment import Style
from tilusbuild.render.linemap import LineMap
from tilusbuild.render.renderer import Renderer, Rendering
from tilusbuild.runtime.regular import try_read_text
from tilusbuild.state.stamp import DeviceStamp, Stamp, read_device_stamp
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.toolchain.reach import is_sandbox_requested

_WORKER = """\
import sys
sys.path[:] = filter(None, sys.path)
sys.path.append({package!r})
from tilusbuild.generate.worker import main
address = sys.argv[-1]
sys.argv[1:] = []
main(address)
"""
_MAX_TEXT = 1 << 28
"""Bytes of an answer."""


class GeneratorWorkers:
    """The processes that call the functions of files, as many as there are calls at once. Files
    have processes of their own: two may import different modules of one name. Those of a file write
    in a temporary directory only.

    `can_start` decides whether one more call may start, of the greatest peak so far in bytes,
    beside those that run, as an `Admission` of the engine. One call may always."""

    def __init__(
        self,
        runner: LocalRunner,
        environment: Mapping[str, str],
        timeout: float | None,
        jobs: int,
        can_start: Callable[[int, list[int]], bool],
    ) -> None:
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        self._runner = runner
        self.environment = environment
        self._timeout = timeout
        self.jobs = jobs
        self._can_start = can_start
        self._peak = self._running = 0
        self._ended = threading.Condition()
        self._guard = threading.Lock()
        self._is_sandboxed = is_sandbox_requested(environment) and bool(find_version())
        self._argv = (sys.executable, "-c", _WORKER.format(package=package))
        self._pools: dict[str, tuple[ResidentPool, TemporaryDirectory]] = {}
        self._calls: set[ResidentRunner] = set()

    def release(self) -> None:
        """End the idle processes, and remove what they have written."""
        while self._pools:
            _, (pool, directory) = self._pools.popitem()
            pool.close()
            directory.close()

    def cancel_calls(self) -> None:
        """Kill the processes that answer a call."""
        with self._guard:
            calls = tuple(self._calls)
        for call in calls:
            call.cancel()

    def call(self, root: str, path: str, request: str) -> dict[str, Any]:
        """Return the answer of a worker of the file `path` (`generate.worker`) to a request, a text
        of JSON. A worker that died or took too long is an answer with an error."""
        with self._guard:
            if path not in self._pools:
                pool = ResidentPool(self._runner, self._argv)
                self._pools[path] = pool, TemporaryDirectory("generate")
            pool, directory = self._pools[path]
            runner = ResidentRunner(pool, self._runner.open_scope())
            self._calls.add(runner)
        sandbox = Sandbox((os.sep,), (directory.path, os.devnull))
        command = Command(
            (*self._argv, request),
            root,
            {**self.environment, "TMPDIR": directory.path},
            self._timeout,
            output_limit=_MAX_TEXT,
            sandbox=sandbox if self._is_sandboxed else None,
        )
        try:
            with self._take_memory():
                run = runner.run(command)
        finally:
            with self._guard:
                self._calls.discard(runner)
        self._peak = max(self._peak, run.peak_rss)
        if run.timed_out:
            return {"error": f"took more than {self._timeout:g} s", "reads": {}}
        if not run.ok:
            lines = run.output.decode("utf-8", "replace").strip().splitlines()
            why = f"{lines[-1]}: " if lines else ""
            end = name_signal(run.status) or f"status {run.status}"
            return {"error": f"{why}ended with {end}", "reads": {}}
        answer: dict[str, Any] = json.loads(run.output)
        return answer

    @contextmanager
    def _take_memory(self) -> Iterator[None]:
        """Wait until one more call may start, and count it while the context is open."""
        with self._ended:
            while self._running and not self._can_start(self._peak, [self._peak] * self._running):
                # Not until a call ends: other processes may free memory, too.
                self._ended.wait(0.1)
            self._running += 1
        try:
            yield
        finally:
            with self._ended:
                self._running -= 1
                self._ended.notify_all()


class GeneratedRenderer(Renderer):
    """Returns what a function in a file of the project returns for a schedule."""

    def __init__(self, root: str, style: Style, workers: GeneratorWorkers) -> None:
        super().__init__(root, style=style)
        self._function = style.function
        self._workers = workers
        self._guard = threading.Lock()
        self._answers: dict[str, tuple[bytes, bool, Mapping[str, Any]]] = {}
        self._digests: dict[str, str] = {}
        """By the names of reads: of before each was read."""
        self._stamps: dict[str, DeviceStamp] = {}
        self._current: dict[str, str] = {}
        """Digests of what earlier plans read, as they are in this one."""

    @property
    def jobs(self) -> int:
        return self._workers.jobs

    def render(self, template: str, context: Mapping[str, Any]) -> Rendering:
        compressed, is_cubin, parts = self._generate(template, context)
        with self._guard:
            names = (template, *sorted(self._digests))
        try:
            errors = "surrogateescape" if is_cubin else "strict"
            text = zlib.decompress(compressed).decode(errors=errors)
        except UnicodeDecodeError:
            raise input_error(
                "the source has a lone surrogate", location=Location(template)
            ) from None
        return Rendering(text, names, parts=parts, is_cubin=is_cubin)

    def generate_ir(self, template: str, context: Mapping[str, Any]) -> Mapping[str, str]:
        ir: Mapping[str, str] = self._generate(template, context, dumps=True)[2].get("ir", {})
        return ir

    def _generate(
        self, template: str, context: Mapping[str, Any], *, dumps: bool = False
    ) -> tuple[bytes, bool, Mapping[str, Any]]:
        """Return the compressed text or cubin of a context, whether it is a cubin, and the other
        fields that are set. Raises `InputError`."""
        target = {**context["target"], "limits": context["arch"]}
        values = {k: v for k, v in context.items() if k not in ("target", "arch", "args", "script")}
        path = self.resolve_path(template)
        request = {
            "path": path,
            "root": self._loader.root,
            "function": self._function,
            "values": values,
            "target": target,
            "dumps": dumps,
            "language": None,
        }
        if self._style.language:
            request["language"] = {
                "module": self._style.language,
                "arguments": {
                    name: (
                        argument.dtype,
                        argument.align or 0,
                        _list_sizes(argument.dims),
                        _list_sizes(argument.strides),
                    )
                    for name, argument in context["args"].items()
                },
                **{key: context["script"][key] for key in ("serves", "grid")},
            }
        # The order of the values is that of the function's `**values`.
        key = json.dumps(request)
        if key not in self._answers:
            answer = self._workers.call(self._loader.root, path, key)
            self._add_reads(answer["reads"])
            if "error" in answer:
                raise InputError(self._make_diagnostic(template, values, answer))
            source = answer["source"]
            is_cubin = "data" in source
            if is_cubin:
                data = base64.b64decode(source.pop("data"))
            else:
                data = source.pop("text").encode("utf-8", "surrogatepass")
            parts = {name: value for name, value in source.items() if value is not None}
            self._answers[key] = zlib.compress(data, 1), is_cubin, parts
        return self._answers[key]

    def release_workers(self) -> None:
        self._workers.release()

    def cancel_calls(self) -> None:
        self._workers.cancel_calls()

    def _add_reads(self, reads: Mapping[str, Any]) -> None:
        with self._guard:
            for name, (digest, stamp) in reads.items():
                self._digests.setdefault(name, digest)
                kind, _, value = name.partition(":")
                if kind == "env":
                    # Asked here, too: the no-op record has the variables that a plan asked for.
                    self._workers.environment.get(value)
                elif stamp is not None:
                    numbers, device = stamp
                    self._stamps.setdefault(
                        self.resolve_path(name), DeviceStamp(Stamp(*numbers), device)
                    )

    def _make_diagnostic(
        self, template: str, values: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> Diagnostic:
        """Return the error of a call, at the innermost of its frames in the project."""
        frames = [*answer.get("frames", [])] or [(self.resolve_path(template), None, None)]
        locations = []
        for path, line, column in frames:
            lines = (try_read_text(path, "replace") or "").split("\n")
            text = lines[line - 1] if line is not None and line <= len(lines) else None
            indent = len(text) - len(text.lstrip()) + 1 if text is not None else None
            name = os.path.relpath(path, self._loader.root)
            locations.append(Location(name, line, column or indent, text))
        schedule = ", ".join(f"{name} = {value}" for name, value in values.items())
        hints = [
            answer.get("hint"),
            *(
                f"called at {location}: {(location.text or '').strip()}"
                for location in locations[-2::-1]
            ),
            f"for {schedule}" if schedule else None,
        ]
        message = f"{self._function}: {answer['error']}"
        return Diagnostic(message, locations[-1], "\n".join(filter(None, hints)) or None)

    def digest_template(self, template: str) -> str:
        """Return the digest of something that was read, as of before that; of something that only
        an earlier plan read, as it is now."""
        if ":" not in template:
            return super().digest_template(template)
        if template in self._digests:
            return self._digests[template]
        if template not in self._current:
            stamp = read_device_stamp(template.partition(":")[2])
            self._current[template] = digest_read(template, self._workers.environment)
            if not template.startswith("env:"):
                self._stamps.setdefault(self.resolve_path(template), stamp)
        return self._current[template]

    def resolve_path(self, template: str) -> str:
        """Return the path of something that was read, with a slash at the end for a directory whose
        names do not count; for a variable the working directory's root, which is not an input."""
        kind, colon, value = template.partition(":")
        if not colon:
            return super().resolve_path(template)
        if DIRECTORY in (self._digests.get(template), self._current.get(template)):
            return os.path.join(value, "")
        return value if kind in ("file", "dir", "modules", "stamp") else os.sep

    @property
    def first_stamps(self) -> Mapping[str, DeviceStamp]:
        stamps = {**super().first_stamps, **self._stamps}
        if UNTRACKED in self._digests or UNTRACKED in self._current:
            # Never settled: no record of a build that has nothing to do is written.
            root = self._loader.root
            unsettled = Stamp(0, 1 << 62, 0, 0)
            stamps[f"{root}/{self._function}:"] = DeviceStamp(
                unsettled, read_device_stamp(root).device
            )
        return stamps

    def map_lines(self, template: str, context: Mapping[str, Any], text: str) -> LineMap:
        """Return a map without origins: places stay those of `source.cu`."""
        lines = tuple(text.split("\n"))
        return LineMap(lines, ((),) * len(lines), self._loader.read_text)


def _list_sizes(sizes: Sequence[Any] | None) -> list[int | str] | None:
    """Return sizes as numbers and texts; None for None."""
    return None if sizes is None else [getattr(size, "canonical", size) for size in sizes]
