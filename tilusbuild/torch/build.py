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
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TextIO

import msgspec
from msgspec import Struct, field

from tilusbuild.builder.outputs import bring_up_to_date
from tilusbuild.builder.project import Project
from tilusbuild.builder.resources import open_builder
from tilusbuild.cache.disk import CacheReadOnlyError
from tilusbuild.cache.entries import compiler_log, lookup, product_of
from tilusbuild.cache.index import record_build
from tilusbuild.cache.scripts import ScriptRecord, publish_script
from tilusbuild.compile.model import HERE, TOOLKIT, Includes, PartOptions, Pipeline, Recipe
from tilusbuild.compile.module import options_text
from tilusbuild.compile.pipelines.library import LIBRARY_PIPELINES
from tilusbuild.compile.pipelines.nvcc import FIRST_SEEDED
from tilusbuild.compile.reads import offered
from tilusbuild.engine.build import build as run_engine
from tilusbuild.engine.events import Event, Finished, Warned
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import InputError
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.sections import BuildSection
from tilusbuild.manifest.settings import settings
from tilusbuild.plan import identity
from tilusbuild.plan.memo import own_code
from tilusbuild.plan.rendering import RenderedProgram, definitions
from tilusbuild.process.stopping import StoppedError
from tilusbuild.render.closure import Root, inside
from tilusbuild.render.headers import Headers, Scans
from tilusbuild.render.known import KnownClosures
from tilusbuild.render.messages import misses_header
from tilusbuild.runtime import option
from tilusbuild.runtime.places import JIT_ROOT_PREFIX
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.signature import Signature
from tilusbuild.state.files import sha256_text, write_atomic
from tilusbuild.status import Status
from tilusbuild.toolchain import DigestMemory, Toolchain, ToolchainRequest, discover
from tilusbuild.torch.command import (
    INCLUDES,
    SYSTEM,
    Compile,
    Entry,
    Include,
    NotCarriedError,
    root_of,
    understood,
    unsure,
)

_RULES = ("compile", "cuda_compile")
_BUILD = re.compile(
    r"^build (?P<out>(?:\$.|[^:$\n])+): (?:cuda_)?compile .*\n(?: .*\n)*", re.MULTILINE
)
REST = "tilusbuild.ninja"
OF_A_TOOLKIT = "crt/host_config.h"
"""A directory with this header is a toolkit's."""
_DAYS = 7 * 86400.0
_RDC = re.compile(r" (?:-dc|--device-c|(?:-rdc|--relocatable-device-code)[= ]true) ")
_NAME = re.compile(r"[\w.+/-]+")
_PACKAGE = re.compile(r"(?P<base>/.*/(?:site|dist)-packages/(?P<name>\w[\w.-]*))(?:/(?P<path>.*))?")


class Job(Struct, frozen=True):
    """A source as the engine has it (`engine.interfaces.Job`)."""

    hash: str
    label: str
    script: str
    index: int
    rendered: RenderedProgram
    compile: Compile
    places: Mapping[str, str]
    """What messages call a file, and where it is."""
    is_default = is_part = True
    kept_here = unit = ""
    needs = ()

    @property
    def instance(self) -> tuple[str, ...]:
        return (self.script, self.label)

    @property
    def instance_label(self) -> str:
        return self.label

    def render(self) -> RenderedProgram:
        return self.rendered

    def readable(self, log: str) -> str:
        for name, path in self.places.items():
            shown = path.replace("\\", r"\\")
            log = re.sub(rf"(?<![\w/.-]){re.escape(name)}(?=[/:(])", shown, log)
        return log


class Trees(Struct):
    """The digests of a memory, each tree looked at once: every source asks for the same."""

    memory: DigestMemory
    known: dict[tuple[str, str], str] = field(default_factory=dict)

    def digest(self, path: str) -> str:
        return self.memory.digest(path)

    def tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        if (root, label) not in self.known:
            self.known[root, label] = self.memory.tree(root, label, select)
        return self.known[root, label]


class Planner(Struct):
    """Makes jobs of compiles; what it looked up is kept for the next one."""

    project: Project
    around: str
    """The directory that sources are named from, where they lie in it."""
    code: str
    """The digest of the code that makes programs of inputs."""
    trees: Trees
    scans: Scans = field(default_factory=dict)
    toolchains: dict[tuple[str, str], Toolchain] = field(default_factory=dict)
    headers: dict[tuple[object, ...], Headers] = field(default_factory=dict)
    known: list[KnownClosures] = field(default_factory=list)
    """To be saved when all is planned."""

    def job(self, found: Compile, index: int) -> Job:
        """Return the program of a compile. Raises `NotCarriedError` and `InputError`."""
        base, script = root_of(found.source, self.around), found.extension
        name = os.path.relpath(found.source, base)
        toolchain = self._toolchain(found)
        words, roots, places = _placed(found, base, toolchain)
        kind = "cuda" if found.nvcc else "beside" if TOOLKIT in words else "cpu"
        pipeline = LIBRARY_PIPELINES[kind, "object"]
        if (flag := unsure(found)) and not (toolchain.sandboxed and offered()):
            raise NotCarriedError(
                f"no hash covers what {flag} does, and this machine has no sandbox"
            )
        text = read_text(found.source, "surrogateescape")
        source = f"#line 1 {json.dumps(name, ensure_ascii=False)}\n{text}"
        headers = self._headers(roots, pipeline, toolchain, script, places)
        closure = headers.closure("\n".join((source, *definitions((), words))))
        rdc = _RDC.search(f" {' '.join(words)} ") is not None
        seeded = toolchain.cuda is not None and toolchain.cuda.release >= FIRST_SEEDED
        recipe = Recipe(
            pipeline=pipeline,
            archs=(),  # the words have them
            ptx=False,
            source=source,
            symbol="",
            signature=Signature(()),
            launch=None,
            constants={},
            includes=Includes(
                closure.digest if closure.headers else None,
                tuple((root.name, root.quoted_only) for root in roots) if closure.headers else (),
            ),
            flags=tuple(words),
            part=PartOptions("cu" if found.nvcc else "c++", rdc, seeded, written=True),
        )
        program_txt = identity.program_text(
            script=script,
            entry=("object", name),
            params={"cpu": _cpu()} if found.native else {},
            schedule={},
            derived={},
            signature=(),
            launch=(),
            source=source,
            headers=[(header.sha256, header.name) for header in closure.headers],
        )
        outside = pipeline.headers(toolchain)
        others = outside.external_header_digests(closure.external, self.trees)
        options_txt = options_text(recipe, toolchain, others)
        rendered = RenderedProgram(program_txt, options_txt, recipe, toolchain, closure)
        shown = {f"include/{tree}": path for tree, path in places.items()}
        return Job(
            rendered.hash, name, script, index, rendered, found, {**shown, name: found.source}
        )

    def _toolchain(self, found: Compile) -> Toolchain:
        """Return the compilers of a command. Raises `NotCarriedError`."""
        nvcc, host = shutil.which(found.nvcc or _nvcc_beside(found)) or "", _gxx(found.compiler)
        if not host or (found.nvcc and not nvcc):
            raise NotCarriedError(
                f"{found.compiler or 'its compiler'} cannot be found, or is not g++"
            )
        if (nvcc, host) not in self.toolchains:
            request = ToolchainRequest(nvcc=nvcc or None, cxx=host, needs_cuda=bool(nvcc))
            try:
                self.toolchains[nvcc, host] = discover(
                    request, os.environ, self.project.runner, self.project.digests
                )
            except InputError as error:
                raise NotCarriedError(error.message) from None
        return self.toolchains[nvcc, host]

    def _headers(
        self,
        roots: tuple[Root, ...],
        pipeline: Pipeline,
        toolchain: Toolchain,
        script: str,
        places: Mapping[str, str],
    ) -> Headers:
        outside = pipeline.outside(toolchain)
        key = roots, outside
        if key not in self.headers:
            memory = self.project.digests
            named = [(root.name, root.quoted_only) for root in roots]
            path = os.path.join(
                self.project.cache.state_path,
                "plans",
                sha256_text(repr((self.code, script, outside, named))),
            )
            where = {f"<{name}>": place for name, place in places.items()}
            known = KnownClosures(path, memory, where)
            self.known.append(known)
            self.headers[key] = Headers(
                roots, outside=outside, digests=memory, scans=self.scans, known=known
            )
        return self.headers[key]


def _nvcc_beside(found: Compile) -> str:
    """Return the nvcc of the toolkit whose headers host code includes, "" for none."""
    places = (each.path for each in found.words if isinstance(each, Include))
    toolkit = next((path for path in places if os.path.isfile(f"{path}/{OF_A_TOOLKIT}")), "")
    return toolkit and os.path.join(os.path.dirname(toolkit), "bin/nvcc")


def _gxx(name: str) -> str:
    """Return the g++ that a name means, by a name by which its gcc is beside it; "" for none."""
    real = os.path.realpath(shutil.which(name or "g++") or "")
    match = re.fullmatch(r"(.*/(?:[^/]*-)?)(?:gcc|g\+\+)(-[\d.]+)?", real)
    return f"{match[1]}g++{match[2] or ''}" if match else ""


def _placed(
    found: Compile, base: str, toolchain: Toolchain
) -> tuple[list[str], tuple[Root, ...], dict[str, str]]:
    """Return the words with names for directories, the directories in search order, and where
    each tree of them is. Raises `NotCarriedError`."""
    own = os.path.dirname(os.path.relpath(found.source, base))
    beside = inside("project", base, own, quoted_only=True)
    found_as: list[tuple[int, Root]] = []
    taken = {"project": base}
    quote = f"{HERE}/include/{beside.name}"
    words = ["-iquote", quote]
    if found.nvcc:
        words = [each for word in words for each in ("-Xcompiler", word)]
    system = {*toolchain.host.compiler_headers, *toolchain.host.system_headers}
    toolkit = toolchain.cuda.include_dirs if toolchain.cuda else ()
    for each in found.words:
        if isinstance(each, str):
            words.append(each)
            continue
        real = os.path.realpath(each.path)
        if real in system and each.option != "-I":
            raise NotCarriedError(f"{each.option} {each.path} is a directory of the compiler's")
        if real in system or not _has_files(each.path):
            continue  # as for the compiler
        if real in toolkit[:1]:
            words += [each.option, TOOLKIT]
            continue
        root = _root(each.path, base, taken, quoted_only=each.option == "-iquote")
        if not _NAME.fullmatch(root.name):
            raise NotCarriedError(f"{each.path} has characters that compilers read otherwise")
        found_as.append((INCLUDES.index(each.option), root))
        words += [each.option, f"{HERE}/include/{root.name}"]
    # As gcc does: by kind, then in order; what is a directory of the system's is no other.
    system = {root.name for rank, root in found_as if rank >= SYSTEM}
    ranked = sorted(found_as, key=lambda each: each[0])
    roots = (root for rank, root in ranked if rank >= SYSTEM or root.name not in system)
    if beside.name in system:
        raise NotCarriedError("its own directory is declared as one of the system's")
    return words, (beside, *dict.fromkeys(roots)), taken


def _root(path: str, base: str, taken: dict[str, str], *, quoted_only: bool) -> Root:
    """Return a directory by a name without a place: a package's, the project's, or its last."""
    if match := _PACKAGE.fullmatch(path):
        tree, above, below = match["name"], match["base"], match["path"] or ""
    elif path == base or path.startswith(base + "/"):
        tree, above, below = "project", base, os.path.relpath(path, base)
    else:
        tree, above, below = os.path.basename(path) or "headers", path, ""
    number, name = 1, tree
    while taken.setdefault(name, above) != above:
        number += 1
        name = f"{tree}-{number}"
    return inside(name, above, below, quoted_only=quoted_only)


def _has_files(path: str) -> bool:
    return any(files for _, _, files in os.walk(path))


def _cpu() -> str:
    """Return what `-march=native` depends on."""
    lines = read_text("/proc/cpuinfo").partition("\n\n")[0].splitlines()
    facts = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part", "cache size")
    return sha256_text("\n".join(each for each in lines if each.startswith(facts)))[:16]


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
            said = self._jobs[event.hash].readable(event.log).strip()
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
        project.cache.ensure()
        memory = project.digests
        planner = Planner(project, request.around, own_code(memory), Trees(memory))
        for index, entry in enumerate(msgspec.convert(listed, list[Entry])):
            try:
                found = understood(entry, os.environ)
                jobs.append(planner.job(found, index))
            except (NotCarriedError, InputError, OSError) as error:
                left[entry.file] = str(error)
        statuses, reasons, compiled = _compiled(project, jobs, request)
        for known in planner.known:
            known.save()
        made: set[str] = set()
        for job in jobs:
            status, log = statuses[job.hash], compiler_log(project.cache, job.hash)
            there = lookup(project.cache, job.hash)
            if status == Status.BUILT and there is not None:
                product = os.path.join(there.path, product_of(there.meta).name)
                # ninja links nothing again for an object that is as it was.
                bring_up_to_date(job.compile.output, read_bytes(product))
                made.add(job.compile.output)
            elif status == Status.FAILED and not misses_header(log):
                raise BuildFailedError(job.readable(log))
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
    ours = {"cache-dir": os.path.join("~", ".cache", "tilus")}
    chosen = settings("/", given, os.environ, ours, option.chosen())
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
    project.cache.sweep()
    return statuses, reasons, compiled


def _published(project: Project, name: str, jobs: Sequence[Job]) -> None:
    """Have the cache keep these programs, in place of those of the extension's last build."""
    if not jobs:
        return
    script = jobs[0].script
    numbered = {job.index: job.hash for job in jobs}
    text = identity.script_text(
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
