"""The compiles of a `build.ninja` of torch, as programs of the user's cache.

Each source is a program by content: its text, the headers that it can reach, its command without
paths, the compilers. A program that was built anywhere is taken from the cache or from a remote.
Torch's own command is run for a source that cannot be a program, and a line gives the reason. The
rest of the file (links) runs as torch wrote it, by ninja.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import NamedTuple, TextIO

import msgspec
from msgspec import Struct

from tilusbuild.builder.build import limit_cache
from tilusbuild.builder.outputs import update_file
from tilusbuild.builder.project import Project
from tilusbuild.builder.resources import open_builder
from tilusbuild.cache.disk import CacheReadOnlyError
from tilusbuild.cache.entries import get_product, lookup_entry, read_compiler_log
from tilusbuild.cache.index import record_build
from tilusbuild.cache.scripts import ScriptRecord, publish_script
from tilusbuild.engine.build import build_jobs as run_engine
from tilusbuild.engine.events import Event, Finished, Warned
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import InputError
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.sections import BuildSection
from tilusbuild.manifest.settings import decide_settings
from tilusbuild.plan import identity
from tilusbuild.process.stopping import StoppedError
from tilusbuild.render.messages import misses_header
from tilusbuild.runtime import option
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.runtime.search_roots import JIT_ROOT_PREFIX
from tilusbuild.runtime.where import get_user_cache
from tilusbuild.state.files import write_atomic
from tilusbuild.state.variables import AskedVariables
from tilusbuild.status import Status
from tilusbuild.torch.command import CompdbEntry, NotCarriedError, parse_compile_command
from tilusbuild.torch.program import CompilePlanner, TorchJob, TreeDigests

_RULES = ("compile", "cuda_compile")
# Such as `build gemm.cuda.o: cuda_compile /src/gemm.cu`, with indented lines after it.
_COMPILE_EDGE = re.compile(
    r"^build (?P<out>(?:\$.|[^:$\n])+): (?:cuda_)?compile .*\n(?: .*\n)*", re.MULTILINE
)
REST = "tilusbuild.ninja"
_DAYS = 7 * 86400.0


class NinjaRequest(Struct, frozen=True):
    """A build that torch would run by ninja."""

    directory: str
    """The directory of `build.ninja`."""
    name: str
    """The name of the project, under which the index keeps its programs."""
    project_directory: str
    jobs: int | None
    out: TextIO | None
    """The stream for lines of progress; None: none are printed."""

    def print_line(self, text: str) -> None:
        """Print a line with our name, unless there is no output."""
        if self.out is not None:
            self.out.write(f"tilusbuild: {text}\n")
            self.out.flush()


class CompileReporter:
    """Prints a line for each source that was compiled or fetched, with the output of its
    compiler."""

    def __init__(self, request: NinjaRequest, jobs: Sequence[TorchJob]) -> None:
        self._request = request
        self._jobs = {job.hash: job for job in jobs}
        self.reasons: dict[str, str] = {}
        """Why a program was not built, by its hash."""

    def emit(self, event: Event) -> None:
        """Print a warning, or a line for a source that was built; keep the reason of each end."""
        if isinstance(event, Warned):
            self._request.print_line(event.message)
        if not isinstance(event, Finished):
            return
        self.reasons[event.hash] = event.reason
        if event.status == Status.BUILT and (event.remote or not event.cached):
            work = "fetched" if event.remote else f"{event.seconds:.1f} s"
            line = f"{event.label}: {work}"
            compiler_output = self._jobs[event.hash].translate_log(event.log).strip()
            self._request.print_line(f"{line}\n{compiler_output}" if compiler_output else line)

    def tick(self) -> None:
        """Do nothing: there is no progress display."""

    def close(self) -> None:
        """Do nothing: the reporter holds no resource."""


class BuildFailedError(Exception):
    """A source does not compile, or a link failed. The text has the messages of the tools."""


def build_ninja_file(request: NinjaRequest) -> None:
    """Run the `build.ninja` of torch in the directory of a request, with compiles from the cache.

    Each source that can be a program is compiled or taken from the cache or a remote, and its
    object is updated. Then ninja runs the rest: the links, and torch's own command for each source
    that cannot be cached. The programs are published in the index; lines of progress are printed.

    Raises `BuildFailedError` and `TilusbuildError`; `StoppedError` on a signal.
    """
    text = read_text(os.path.join(request.directory, "build.ninja"))
    # Without names of rules, ninja lists the commands of links, too.
    rules = [rule for rule in _RULES if f"\nrule {rule}\n" in text]
    compdb_entries = json.loads(_run_ninja(request, "-t", "compdb", *rules, is_shown=False))
    reason_by_source: dict[str, str] = {}
    jobs: list[TorchJob] = []
    with _open_user_project(request) as project:
        project.cache.ensure_complete()
        planner = CompilePlanner(project, request.project_directory, TreeDigests(project.digests))
        collects_garbage = gc.isenabled()
        # The plan's objects stay. Collections would go through them and torch's million again and
        # again: half of the time of planning.
        gc.disable()
        try:
            for index, entry in enumerate(msgspec.convert(compdb_entries, list[CompdbEntry])):
                try:
                    compile_command = parse_compile_command(entry, os.environ)
                    jobs.append(planner.plan_job(compile_command, index))
                except (NotCarriedError, InputError, OSError) as error:
                    reason_by_source[entry.file] = str(error)
        finally:
            if collects_garbage:
                gc.enable()
        outcome = _compile_all(project, jobs, request)
        objects: set[str] = set()
        for job in jobs:
            status, log = outcome.statuses[job.hash], read_compiler_log(project.cache, job.hash)
            program = lookup_entry(project.cache, job.hash)
            if status == Status.BUILT and program is not None:
                product = os.path.join(program.path, get_product(program.meta).name)
                # An equal object keeps its time, so that ninja does not link again.
                update_file(job.compile.output, read_bytes(product))
                objects.add(job.compile.output)
            # A header may be missing for tilusbuild only: torch's own command searches the whole
            # machine, so it is tried.
            elif status == Status.FAILED and not misses_header(log):
                raise BuildFailedError(job.translate_log(log))
            else:
                reason = outcome.reasons.get(job.hash) or f"it is {status}"
                reason_by_source[job.compile.source] = reason
        built = [job for job in jobs if job.compile.output in objects]
        _publish_programs(project, request.name, built)
        # The objects are copied: nothing of this build needs the cache any more.
        if outcome.compiled:
            limit_cache(project)
    compiled = outcome.compiled
    request.print_line(
        f"{len(jobs)} sources: {compiled} compiled, {len(objects) - compiled} from the cache"
    )
    for source, reason in reason_by_source.items():
        request.print_line(f"not cached, and compiled by torch's own command: {source}: {reason}")
    # The remaining edges come after the objects, because their links need them.
    _run_remaining_edges(request, text, objects)


def _open_user_project(request: NinjaRequest) -> Project:
    """Open a project with an empty manifest, whose cache is the user's unless an option or the
    environment names another."""
    arguments = {"jobs": request.jobs}
    # pip unpacks a project that it installs into some temporary directory, so that a cache beside
    # it would be lost.
    defaults = {"cache-dir": get_user_cache()}
    project_settings = decide_settings("/", arguments, os.environ, defaults, option.chosen())
    manifest = Manifest(edition=1, build=BuildSection(timeout=_DAYS))
    return Project(manifest, project_settings, AskedVariables(os.environ))


class _CompileOutcome(NamedTuple):
    """The results of the compiles: the status of each program and the reason of its end, by hash,
    and the number of programs that were compiled here."""

    statuses: dict[str, str]
    reasons: dict[str, str]
    compiled: int


def _compile_all(
    project: Project, jobs: Sequence[TorchJob], request: NinjaRequest
) -> _CompileOutcome:
    """Build all programs: from the cache, a remote, or by compiling. Stop after a source that does
    not compile; the status of the rest is then "skipped".

    Raises `BuildFailedError` for an error of the build itself, and `StoppedError` on a signal.
    """
    statuses: dict[str, str] = {}
    reasons: dict[str, str] = {}
    compiled = 0
    pending = list(jobs)
    while pending:
        # As ninja does, stop after the first source that does not compile (`keep_going=1`).
        config = BuildConfig(jobs=project.settings.jobs.value, keep_going=1, verbose=2)
        with open_builder(project, config) as builder, closing(builder.compiler):
            reporter = CompileReporter(request, pending)
            result = run_engine(pending, builder.store, builder.compiler, reporter, builder.config)
        if result.summary.signal is not None:
            raise StoppedError(result.summary.signal)
        if result.summary.error is not None:
            raise BuildFailedError(result.summary.error)
        statuses.update(result.statuses)
        reasons.update(reporter.reasons)
        compiled += result.summary.compiled
        failed = any(statuses[job.hash] == Status.FAILED for job in pending)
        skipped = [job for job in pending if statuses[job.hash] == Status.SKIPPED]
        # The engine also skips the rest after an error that a later attempt may not meet. So the
        # skipped jobs are tried again, as long as each round finishes some.
        pending = [] if failed or len(skipped) == len(pending) else skipped
    project.cache.sweep_staging()
    return _CompileOutcome(statuses, reasons, compiled)


def _publish_programs(project: Project, name: str, jobs: Sequence[TorchJob]) -> None:
    """Publish a listing of the programs, and record it in the index in place of the extension's
    last one, so that garbage collection keeps them. Does nothing without jobs, or for a cache that
    cannot be written."""
    if not jobs:
        return
    script = jobs[0].script
    numbered = {job.index: job.hash for job in jobs}
    text = identity.format_script_text(
        script=script, params={}, target="torch", arch="", signature=(), programs=numbered.items()
    )
    directory = re.sub(r"[^a-z0-9]+", "_", f"torch_{name}_{script}".lower()).strip("_")
    record = ScriptRecord(
        directory, text, ("program", "source"), [(str(job.index), job.label) for job in jobs]
    )
    # One listing for each project and extension: the next build of it replaces this one.
    root = f"{JIT_ROOT_PREFIX}torch {name} {script}"
    # If the cache may only be read, the listing is left out: the build does not need it.
    with suppress(CacheReadOnlyError):
        publish_script(project.cache, record)
        record_build(project.cache, root, name or script, [(directory, record.hash)])


def _run_remaining_edges(request: NinjaRequest, text: str, objects: set[str]) -> None:
    """Write `text`, the content of `build.ninja`, without the edges that make these objects to
    `tilusbuild.ninja`, and run it. Does nothing if no edge remains. Raises `BuildFailedError`."""

    def drop_if_built(match: re.Match[str]) -> str:
        # ninja escapes blanks and colons in paths by `$`.
        output = re.sub(r"\$(.)", r"\1", match["out"])
        return "" if os.path.join(request.directory, output) in objects else match[0]

    remaining_text = _COMPILE_EDGE.sub(drop_if_built, text)
    if re.search(r"^build ", remaining_text, re.MULTILINE):
        remaining_text = f"# What tilusbuild did not build of build.ninja.\n{remaining_text}"
        write_atomic(os.path.join(request.directory, REST), remaining_text.encode())
        jobs = () if request.jobs is None else ("-j", str(request.jobs))
        _run_ninja(request, "-v", "-f", REST, *jobs, is_shown=request.out is not None)


def _run_ninja(request: NinjaRequest, *arguments: str, is_shown: bool) -> str:
    """Run ninja in the request's directory. Return its output; with `is_shown`, let it go to our
    own stdout, and return "". Raises `BuildFailedError` with the output."""
    completed = subprocess.run(
        ["ninja", *arguments],  # noqa: S607 - torch's own, from PATH
        cwd=request.directory,
        stdout=1 if is_shown else subprocess.PIPE,  # of a parent that has detached its own
        stderr=subprocess.STDOUT,
        check=False,
    )
    text = (completed.stdout or b"").decode(errors="replace")
    if completed.returncode:
        raise BuildFailedError(text or f"ninja ended with status {completed.returncode}")
    return text
