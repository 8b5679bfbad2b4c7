"""The compiles of a `build.ninja` of torch, as programs of the user's cache.

Each source is a program by content: its text, the headers that it can reach, its command without
paths, the compilers. What was built anywhere with the same is taken from the cache or from a
remote. What cannot be had so, torch's own command is run for, and a line says why. The rest of the
file (links) runs as torch wrote it, by ninja.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import TextIO

import msgspec
from msgspec import Struct

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
from tilusbuild.runtime.places import JIT_ROOT_PREFIX
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.runtime.where import get_user_cache
from tilusbuild.state.files import write_atomic
from tilusbuild.status import Status
from tilusbuild.torch.command import Entry, NotCarriedError, understood
from tilusbuild.torch.program import Job, Planner, Trees

_RULES = ("compile", "cuda_compile")
_BUILD = re.compile(
    r"^build (?P<out>(?:\$.|[^:$\n])+): (?:cuda_)?compile .*\n(?: .*\n)*", re.MULTILINE
)
REST = "tilusbuild.ninja"
_DAYS = 7 * 86400.0


class Request(Struct, frozen=True):
    """What torch asks ninja for."""

    directory: str
    """That of `build.ninja`."""
    name: str
    """Who keeps the programs, for people: the project's."""
    around: str
    jobs: int | None
    out: TextIO | None
    """Where it is said what happens; None: nowhere."""

    def say(self, text: str) -> None:
        if self.out is not None:
            self.out.write(f"tilusbuild: {text}\n")
            self.out.flush()


class Said:
    """Prints a line for each source that was not in the cache, and what compilers said of it."""

    def __init__(self, request: Request, jobs: Sequence[Job]) -> None:
        self._request = request
        self._jobs = {job.hash: job for job in jobs}
        self.reasons: dict[str, str] = {}
        """Why a program was not built, by its hash."""

    def emit(self, event: Event) -> None:
        if isinstance(event, Warned):
            self._request.say(event.message)
        if not isinstance(event, Finished):
            return
        self.reasons[event.hash] = event.reason
        if event.status == Status.BUILT and (event.remote or not event.cached):
            how = "fetched" if event.remote else f"{event.seconds:.1f} s"
            said = self._jobs[event.hash].translate_log(event.log).strip()
            self._request.say(f"{event.label}: {how}" + (f"\n{said}" if said else ""))

    def tick(self) -> None:
        """Nothing moves."""

    def close(self) -> None:
        """Nothing is held."""


class BuildFailedError(Exception):
    """A source does not compile, or a link failed; the text has the tools' messages."""


def build(request: Request) -> None:
    """Bring everything that `build.ninja` makes up to date. Raises `BuildFailedError` and
    `TilusbuildError`, a signal's as `StoppedError`."""
    text = read_text(os.path.join(request.directory, "build.ninja"))
    rules = [rule for rule in _RULES if f"\nrule {rule}\n" in text]
    listed = json.loads(_ninja(request, "-t", "compdb", *rules, shown=False))
    left: dict[str, str] = {}
    jobs: list[Job] = []
    with _opened(request) as project:
        project.cache.ensure_complete()
        memory = project.digests
        planner = Planner(project, request.around, Trees(memory))
        for index, entry in enumerate(msgspec.convert(listed, list[Entry])):
            try:
                found = understood(entry, os.environ)
                jobs.append(planner.job(found, index))
            except (NotCarriedError, InputError, OSError) as error:
                left[entry.file] = str(error)
        statuses, reasons, compiled = _compiled(project, jobs, request)
        made: set[str] = set()
        for job in jobs:
            status, log = statuses[job.hash], read_compiler_log(project.cache, job.hash)
            there = lookup_entry(project.cache, job.hash)
            if status == Status.BUILT and there is not None:
                product = os.path.join(there.path, get_product(there.meta).name)
                # ninja links nothing again for an object that is as it was.
                update_file(job.compile.output, read_bytes(product))
                made.add(job.compile.output)
            elif status == Status.FAILED and not misses_header(log):
                raise BuildFailedError(job.translate_log(log))
            else:
                left[job.compile.source] = reasons.get(job.hash) or f"it is {status}"
        _published(project, request.name, [job for job in jobs if job.compile.output in made])
    request.say(f"{len(jobs)} sources: {compiled} compiled, {len(made) - compiled} from the cache")
    for source, reason in left.items():
        request.say(f"not cached, and compiled by torch's own command: {source}: {reason}")
    _rest(request, text, made)


def _opened(request: Request) -> Project:
    given = {"jobs": request.jobs}
    # Projects that are installed are unpacked anywhere: the cache is the user's, not a checkout's.
    ours = {"cache-dir": get_user_cache()}
    chosen = decide_settings("/", given, os.environ, ours, option.chosen())
    return Project(Manifest(edition=1, build=BuildSection(timeout=_DAYS)), chosen, os.environ)


def _compiled(
    project: Project, jobs: Sequence[Job], request: Request
) -> tuple[dict[str, str], dict[str, str], int]:
    """Return the status of each program, why it is not built, and how many were compiled here."""
    statuses: dict[str, str] = {}
    reasons: dict[str, str] = {}
    compiled = 0
    pending = list(jobs)
    while pending:
        # As ninja, it starts nothing more after a source that does not compile.
        config = BuildConfig(jobs=project.settings.jobs.value, keep_going=1, verbose=2)
        with open_builder(project, config) as builder, closing(builder.compiler):
            said = Said(request, pending)
            result = run_engine(pending, builder.store, builder.compiler, said, builder.config)
        if result.summary.signal is not None:
            raise StoppedError(result.summary.signal)
        if result.summary.error is not None:
            raise BuildFailedError(result.summary.error)
        statuses.update(result.statuses)
        reasons.update(said.reasons)
        compiled += result.summary.compiled
        failed = any(statuses[job.hash] == Status.FAILED for job in pending)
        skipped = [job for job in pending if statuses[job.hash] == Status.SKIPPED]
        pending = [] if failed or len(skipped) == len(pending) else skipped
    project.cache.sweep_staging()
    return statuses, reasons, compiled


def _published(project: Project, name: str, jobs: Sequence[Job]) -> None:
    """Have the cache keep these programs, in place of those of the extension's last build."""
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
    root = f"{JIT_ROOT_PREFIX}torch {name} {script}"
    with suppress(CacheReadOnlyError):  # everything that is needed is there
        publish_script(project.cache, record)
        record_build(project.cache, root, name or script, [(directory, record.hash)])


def _rest(request: Request, text: str, made: set[str]) -> None:
    """Run what is left of `build.ninja`. Raises `BuildFailedError`."""

    def kept(found: re.Match[str]) -> str:
        out = re.sub(r"\$(.)", r"\1", found["out"])
        return "" if os.path.join(request.directory, out) in made else found[0]

    text = _BUILD.sub(kept, text)
    if re.search(r"^build ", text, re.MULTILINE):
        rest = f"# What tilusbuild did not build of build.ninja.\n{text}"
        write_atomic(os.path.join(request.directory, REST), rest.encode())
        words = () if request.jobs is None else ("-j", str(request.jobs))
        _ninja(request, "-v", "-f", REST, *words, shown=request.out is not None)


def _ninja(request: Request, *words: str, shown: bool) -> str:
    """Run ninja, and return what it printed. Raises `BuildFailedError`."""
    ended = subprocess.run(
        ["ninja", *words],  # noqa: S607 - torch's own, from PATH
        cwd=request.directory,
        stdout=1 if shown else subprocess.PIPE,  # of a parent that has detached its own
        stderr=subprocess.STDOUT,
        check=False,
    )
    text = (ended.stdout or b"").decode(errors="replace")
    if ended.returncode:
        raise BuildFailedError(text or f"ninja ended with status {ended.returncode}")
    return text
