"""The proof that a worker has this machine's tools: it digests its own, and they are compared.

A property of a worker is a promise. This is a measurement: the programs that compile, each by the
digest that the fingerprint has, and the directories of headers as wholes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tilusbuild.process.base import Command, CompletedCommand, Runner
from tilusbuild.state.temporary import TemporaryDirectory
from tilusbuild.toolchain import Toolchain

# For a shell: so many directories, each as one digest, and files, each with its own.
_DIGESTS = """\
count=$1; shift
while [ "$count" -gt 0 ]; do
  (cd "$1" && find -L . -type f -print0 | sort -z | xargs -0 -r sha256sum | sha256sum) || exit
  shift; count=$((count - 1))
done
[ $# -eq 0 ] || exec sha256sum -- "$@"
"""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
# Seconds: a worker may read all of a toolkit for the first time.
_PROBE_SECONDS = 600.0


def probe_worker(
    toolchain: Toolchain, runner: Runner, run_there: Callable[[Command], CompletedCommand]
) -> str | None:
    """Return a text on the first difference between a worker's tools and this machine's; None
    without one. Both digest their headers at the same time, here with `runner`. Raises the
    exceptions of both runners."""
    tools, directories = _list_tools(toolchain), toolchain.find_reach().headers
    with TemporaryDirectory("probe") as empty:
        # The tools' digests are those of the fingerprint; of the headers it has other sums.
        local = _make_command(empty.path, directories, ())
        with ThreadPoolExecutor(1) as thread:
            local_run = thread.submit(runner.run, local)
            worker_run = run_there(_make_command(empty.path, directories, tuple(tools)))
            local_digests = local_run.result().output.splitlines()
    worker_lines = worker_run.output.splitlines()
    # Not strict: a worker may print anything.
    for directory, local_digest, worker_digest in zip(
        directories, local_digests, worker_lines, strict=False
    ):
        if local_digest != worker_digest:
            return f"a worker has other headers in {directory} than this machine"
    tool_lines = worker_lines[len(local_digests) :]
    rows = (line.decode("utf-8", "replace").split(None, 1) for line in tool_lines)
    digests = {row[1]: row[0] for row in rows if len(row) == 2}
    for path, expected in tools.items():
        if digests.get(path) != expected:
            return f"a worker has another {path} than this machine, or none"
    return _find_nvrtc_problem(toolchain, run_there)


def _find_nvrtc_problem(
    toolchain: Toolchain, run_there: Callable[[Command], CompletedCommand]
) -> str | None:
    """Run NVRTC's command `identify` on a worker. Return why its answer is not that of this
    machine's NVRTC; None if it is, or without NVRTC. Raises the exceptions of `run_there`."""
    nvrtc = toolchain.nvrtc
    if nvrtc is None:
        return None
    worker = nvrtc.build_worker_command(("identify",))
    with TemporaryDirectory("probe") as empty:
        completed = run_there(
            Command(worker.argv, empty.path, worker.env, _PROBE_SECONDS, on_worker=worker)
        )
    # The release, and the architectures that this NVRTC compiles for.
    expected = f"{nvrtc.release[0]}.{nvrtc.release[1]}\n{' '.join(map(str, nvrtc.numbers))}\n"
    if completed.output.decode("utf-8", "replace") != expected:
        return "a worker does not run NVRTC: it needs Python 3.8 or later, as python3"
    return None


def _make_command(directory: str, directories: Sequence[str], files: Sequence[str]) -> Command:
    argv = ("sh", "-c", _DIGESTS, "sh", str(len(directories)), *directories, *files)
    return Command(argv, directory, _ENVIRONMENT, _PROBE_SECONDS)


def _list_tools(toolchain: Toolchain) -> dict[str, str]:
    """Return the digest of each program and library that compiles, by its path. Missing files are
    left out."""
    host, cuda = toolchain.host, toolchain.cuda
    files: Sequence[tuple[str, str]] = [
        (tool.path, tool.digest)
        for tool in (
            *(host.cxx, host.cc, host.as_, host.ld, *host.parts),
            *(() if cuda is None else cuda.tools),
        )
    ]
    libraries: Sequence[tuple[str, str]] = ()
    nvrtc = toolchain.nvrtc
    if nvrtc is not None:
        # The fingerprint has a line for each of these libraries, in this order, and then others:
        # libnvfatbin joins what comes back, and runs here.
        pairs = zip((nvrtc.library, *nvrtc.builtins), toolchain.fingerprint_nvrtc, strict=False)
        libraries = [(path, line.split()[-1]) for path, line in pairs]
    return {path: digest for path, digest in (*files, *libraries) if path and os.path.isfile(path)}
