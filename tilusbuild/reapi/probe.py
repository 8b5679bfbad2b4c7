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

# For a shell, with the arguments COUNT DIRECTORY… FILE…: print one digest for each of the COUNT
# directories, then the digest of each file.
_DIGEST_SCRIPT = """\
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
    digest_of_tool = _map_tool_digests(toolchain)
    directories = toolchain.find_reach().headers
    with TemporaryDirectory("probe") as empty:
        # Here only the headers are digested: the fingerprint has the tools' digests already.
        local_command = _make_command(empty.path, directories, ())
        with ThreadPoolExecutor(1) as thread:
            local_run = thread.submit(runner.run, local_command)
            worker_run = run_there(_make_command(empty.path, directories, tuple(digest_of_tool)))
            local_digests = local_run.result().output.splitlines()
    worker_lines = worker_run.output.splitlines()
    # Not strict: a worker may print any number of lines.
    for directory, local_digest, worker_digest in zip(
        directories, local_digests, worker_lines, strict=False
    ):
        if local_digest != worker_digest:
            return f"a worker has other headers in {directory} than this machine"
    # After the directories, a line "DIGEST  PATH" for each tool, as `sha256sum` prints it.
    worker_digests: dict[str, str] = {}
    for line in worker_lines[len(local_digests) :]:
        words = line.decode("utf-8", "replace").split(None, 1)
        if len(words) == 2:
            digest, path = words
            worker_digests[path] = digest
    for path, expected in digest_of_tool.items():
        if worker_digests.get(path) != expected:
            return f"a worker has another {path} than this machine, or none"
    return _find_nvrtc_problem(toolchain, run_there)


def _find_nvrtc_problem(
    toolchain: Toolchain, run_there: Callable[[Command], CompletedCommand]
) -> str | None:
    """Run NVRTC's command `identify` on a worker, and compare its answer with this machine's NVRTC.

    Return a problem if they differ, None if they agree, and None without NVRTC. Every other answer
    is reported as a lack of Python: the digests of NVRTC's libraries were equal before, so the
    command, a Python program, did not run. Raises the exceptions of `run_there`.
    """
    nvrtc = toolchain.nvrtc
    if nvrtc is None:
        return None
    identify = nvrtc.build_worker_command(("identify",))
    with TemporaryDirectory("probe") as empty:
        command = Command(
            identify.argv, empty.path, identify.env, _PROBE_SECONDS, on_worker=identify
        )
        completed = run_there(command)
    # `identify` prints the release, and the architectures that NVRTC compiles for: "13.0", "75 80".
    major, minor = nvrtc.release
    expected_output = f"{major}.{minor}\n{' '.join(map(str, nvrtc.numbers))}\n"
    if completed.output.decode("utf-8", "replace") != expected_output:
        return "a worker does not run NVRTC: it needs Python 3.8 or later, as python3"
    return None


def _make_command(directory: str, directories: Sequence[str], files: Sequence[str]) -> Command:
    argv = ("sh", "-c", _DIGEST_SCRIPT, "sh", str(len(directories)), *directories, *files)
    return Command(argv, directory, _ENVIRONMENT, _PROBE_SECONDS)


def _map_tool_digests(toolchain: Toolchain) -> dict[str, str]:
    """Return the digest of each program and library that compiles, by its path. Missing files are
    left out."""
    host, cuda = toolchain.host, toolchain.cuda
    tools = [host.cxx, host.cc, host.as_, host.ld, *host.parts]
    if cuda is not None:
        tools += cuda.tools
    digest_of_file = {tool.path: tool.digest for tool in tools}
    nvrtc = toolchain.nvrtc
    if nvrtc is not None:
        # The fingerprint has a line, which ends with the digest, for each of these libraries in
        # this order, and then lines for others that no worker needs: libnvfatbin joins the workers'
        # results, and runs here.
        pairs = zip((nvrtc.library, *nvrtc.builtins), toolchain.fingerprint_nvrtc, strict=False)
        digest_of_file |= {path: line.split()[-1] for path, line in pairs}
    return {path: d for path, d in digest_of_file.items() if path and os.path.isfile(path)}
