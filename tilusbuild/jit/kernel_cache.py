"""`KernelCache`: returns kernels from memory, from disk, or compiled.

A kernel in memory is returned until one of its input files changes. Two threads that request one
kernel wait for one compile. On disk a kernel is a program of the cache tree like any other. The
index lists it under a name of its own, so that no collection removes it, and no listing of a
project's build changes.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.builder.build import BuildRequest, build_request, limit_cache
from tilusbuild.builder.project import Project
from tilusbuild.builder.publish import ScriptPublication
from tilusbuild.cache import layout
from tilusbuild.cache.garbage import hold_exclusive_use, remove_unread
from tilusbuild.cache.index import forget_projects, list_scripts, read_index
from tilusbuild.cache.tree import Tree
from tilusbuild.compile.steps import find_launcher
from tilusbuild.engine.events import CompositeReporter, Reporter
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import TilusbuildError
from tilusbuild.expr import Value
from tilusbuild.jit.request import (
    AUTO,
    KernelRequest,
    OpenedRequest,
    Source,
    open_project_of_request,
    to_request,
)
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import Plan
from tilusbuild.process.stopping import StoppedError
from tilusbuild.report.plain import PlainReporter
from tilusbuild.report.summary import find_first_error
from tilusbuild.runtime import library, option
from tilusbuild.runtime.kernel import Kernel
from tilusbuild.runtime.reader_lock import ReaderLock
from tilusbuild.runtime.regular import read_bytes, read_text, try_read_text
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.search_roots import JIT_ROOT_PREFIX, get_cache_dir
from tilusbuild.state.clock import FileTime
from tilusbuild.state.files import sha256_file, sha256_text
from tilusbuild.state.stamp import read_path_content
from tilusbuild.status import Status


class Stats(Struct, frozen=True):
    """Counts of the kernels that a cache returned, by source."""

    memory_hits: int = 0
    disk_hits: int = 0
    compiles: int = 0


class CachedKernel(Kernel):
    """A kernel of one program, whose library is open. Calls are those of `Kernel`.

    The paths are those of the cache tree.
    """

    def __init__(
        self,
        script: Script,
        launch: Callable[..., Any],
        *,
        backend: str,
        hold: ReaderLock,
    ) -> None:
        """`launch` calls the program. `hold` keeps the program's files from being removed."""
        self.backend = backend
        """The name of the execution backend: "tvm_ffi", "ctypes" or "nvrtc"."""
        self.script = script
        """The description of the kernel: target, constants, schedule and arguments."""
        super().__init__([self.script], hold=hold, launch=launch)

    def __repr__(self) -> str:
        return f"<CachedKernel {self.script.label} through {self.backend}>"

    @property
    def device_kernel_path(self) -> str:
        """Return the path of the rendered source."""
        return self._join_file_path(layout.SOURCE)

    @property
    def host_kernel_path(self) -> str | None:
        """Return the path of the generated launcher; None where the template has host code."""
        digests = layout.find_header_digests(read_bytes(self._join_file_path(layout.COMPILE_SH)))
        include = os.path.join(self.script.root, layout.INCLUDE)
        return find_launcher(os.path.join(include, digest) for digest in digests)

    @property
    def kernel_lib_path(self) -> str:
        """Return the path of the library."""
        return self._join_file_path(layout.LIBRARY)

    @property
    def params_path(self) -> str:
        """Return the path of the signature, constants and schedules, as JSON."""
        return os.path.join(self.script.path, layout.SCRIPT_JSON)

    def get_kernel_source(self) -> str:
        """Return the rendered source. Raises `OSError` when its file was removed."""
        return read_text(self.device_kernel_path)

    def get_host_source(self) -> str:
        """Return the launcher's source; "" without one. Raises `OSError` when it was removed."""
        path = self.host_kernel_path
        return "" if path is None else read_text(path)

    def _join_file_path(self, name: str) -> str:
        """Return the absolute path of a file of the program."""
        program = self.script.programs[self.script.first_program]
        return os.path.join(self.script.root, layout.PROGRAMS, program, name)

    def release_files(self) -> None:
        """Let the cache remove the kernel's files: its library is open, and can be called."""
        self._hold = None


class _KernelSlot(Struct):
    """The kernel of one request. `lock` is held during a build; `kernel` and `inputs` are None
    before the first build."""

    lock: threading.Lock
    kernel: CachedKernel | None = None
    inputs: KernelInputs | None = None

    def get_current_kernel(self) -> CachedKernel | None:
        """Return the kernel; None before the first build, and after a change of an input."""
        return self.kernel if self.inputs is not None and self.inputs.are_current() else None


class KernelCache:
    """Builds and keeps kernels by their script, constants and schedule. Threads may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[tuple[object, ...], _KernelSlot] = {}
        self._stats = Stats()

    @property
    def stats(self) -> Stats:
        """Return the counts since the cache was created."""
        return self._stats

    def cached(
        self,
        source_or_script: Source | str | os.PathLike[str],
        out_idx: int | Sequence[int] | None = None,
        *args: Value,
        target: str | None = None,
        target_host: str | None = None,
        execution_backend: str = AUTO,
        verbose: bool | None = None,
        pass_configs: Mapping[str, bool] | None = None,
        compile_flags: str | Sequence[str] | None = None,
        **params: Value,
    ) -> CachedKernel:
        """Return the kernel of a script of the project around the working directory (`"matmul"`),
        of another project (`"DIR:matmul"`), or of a `Source`.

        `params` are constants and values of the schedule; the default schedule has the other
        values. `args` are constants in declared order. `out_idx`: the positions of the outputs
        among the passed arguments, as if these and no others were declared `out`. `target`: a
        target's name, an architecture, "cuda", "cpu", or "auto", the best for this machine; else
        `TILUSBUILD_TARGET`.
        `target_host`: the host code's `-march`.
        `execution_backend`: "tvm_ffi", "ctypes", "nvrtc"; "auto" is `TILUSBUILD_EXECUTION_BACKEND`,
        else "tvm_ffi". `verbose` (`TILUSBUILD_VERBOSE`) shows the build on stderr. `pass_configs`:
        "disable_ptxas_opt", "dump_ir", "line_directives". `compile_flags`: more flags for the
        device compiler, or on the cpu for the host's.

        Raises `InputError`, `KernelNotBuilt`, `CacheError`, and `LoadError`s.
        """
        kernel_request = to_request(
            source_or_script,
            args,
            params,
            out_idx=out_idx,
            target=target,
            target_host=target_host,
            execution_backend=execution_backend,
            verbose=verbose,
            pass_configs=pass_configs,
            compile_flags=compile_flags,
        )
        return self._get_kernel(kernel_request)

    def __reduce__(self) -> tuple[type[KernelCache], tuple[()]]:
        """Copy and pickle as an empty cache: kernels are on disk."""
        return KernelCache, ()

    def _get_kernel(self, kernel_request: KernelRequest) -> CachedKernel:
        """Return the kernel of a request. Raises as `cached`."""
        # Options and the cache may change between two calls with the same arguments.
        key = (kernel_request.key, tuple(sorted(option.chosen().items())), get_cache_dir())
        with self._lock:
            slot = self._slots.setdefault(key, _KernelSlot(threading.Lock()))
        with slot.lock:
            # Looked up under the lock, because another thread may just have built it.
            current_kernel = slot.get_current_kernel()
            if current_kernel is not None:
                self._count_kernel("memory_hits")
                return current_kernel
            # No collection may remove a `Source`'s project, or the program, before it is in use.
            is_source = isinstance(kernel_request.source, Source)
            with Tree(get_cache_dir()).hold_use() if is_source else nullcontext():
                opened = open_project_of_request(kernel_request)
                with opened.project, opened.project.cache.hold_use():
                    script, compiled, inputs = _build_kernel(opened, kernel_request)
                    hold = ReaderLock(script.root, [script.hash])
            if compiled:
                limit_cache(opened.project)
            launch = library.load_launcher(script, script.first_program, None)
            kernel = CachedKernel(script, launch, backend=kernel_request.backend, hold=hold)
            # A new cache: with `self`, each kernel would keep all kernels of this cache in memory.
            kernel.load_again = partial(KernelCache()._get_kernel, kernel_request)
            slot.kernel, slot.inputs = kernel, inputs
        self._count_kernel("compiles" if compiled else "disk_hits")
        return kernel

    def clear_cache(self) -> None:
        """Forget every kernel, and remove the requested programs from the cache tree, except those
        that a build of a project, a package or another process uses. Kernels that this cache
        returned can still be called. Raises `CacheError`."""
        with self._lock:
            slots, self._slots = list(self._slots.values()), {}
        for slot in slots:
            with slot.lock:
                if slot.kernel is not None:
                    slot.kernel.release_files()
        clear_requested_kernels(get_cache_dir())

    def _count_kernel(self, stat: str) -> None:
        """Add 1 to a field of `stats`."""
        with self._lock:
            self._stats = replace(self._stats, **{stat: getattr(self._stats, stat) + 1})


class KernelInputs:
    """The files from which a kernel was built: the manifest and all inputs of its plan."""

    def __init__(self, project: Project, paths: Iterable[str], read_since: FileTime) -> None:
        """Read the present content of the manifest and of `paths`, for later comparisons.
        `read_since` is the time at which the build began to read them."""
        self._now = project.clock.read_recent_time
        self._observations = {
            path: read_path_content(path, project.digests.digest_file, now=self._now)
            for path in sorted({project.manifest.path, *paths})
        }
        # A file that changed after `read_since` may have been read before its change: then the next
        # request plans again. The files of a `Source` are always that young, but cannot change:
        # their directory is named by the digest of their content.
        sources = os.path.join(project.cache.state_path, layout.SOURCES, "")
        self._is_unchanged = all(
            not content.may_have_changed_since(read_since) or path.startswith(sources)
            for path, content in self._observations.items()
        )

    def are_current(self) -> bool:
        """Return whether every input has the same content as when the kernel was built. Once False,
        the answer stays False. Newer stamps of equal files are remembered."""
        for path, old in self._observations.items():
            # This is one `stat`, unless the stamp is too young to be trusted.
            new = self._observations[path] = read_path_content(
                path, sha256_file, now=self._now, before=old
            )
            if new.content != old.content:
                # The answer stays False, because `new` has replaced the content that the kernel was
                # built from.
                self._is_unchanged = False
        return self._is_unchanged


def plan_default(project: Project, script: str, target: str) -> tuple[Plan, PlanSelection]:
    """Plan the default program (level 0) of a script for a target, and return the plan and its
    selection. Remembered plans are neither read nor written. Raises `InputError`."""
    selection = PlanSelection((script,), (target,), level=0)
    # Without the memo: one program must not replace the remembered plan of the project.
    planner = replace(project.make_planner(selection), memo=None)
    return planner.make_plan(selection), selection


def _build_kernel(
    opened: OpenedRequest, kernel_request: KernelRequest
) -> tuple[Script, bool, KernelInputs]:
    """Build the requested program into the cache, unless the cache has it, and record it in the
    index. Return the script of the program, whether a compiler ran, and the inputs.

    Raises `InputError`, `CacheError`, `KernelNotBuilt`, and `StoppedError` on a signal.
    """
    project = opened.project
    plan, selection = plan_default(project, opened.script, opened.target)
    (instance,) = plan.instances
    inputs = KernelInputs(project, plan.inputs, opened.read_since)
    # The name in the index differs for each manifest and instance, so a request replaces neither
    # another kernel's listing nor that of a build of the project.
    root = JIT_ROOT_PREFIX + sha256_text(f"{project.manifest.path}\0{instance.hash}")[:16]
    dump_ir = kernel_request.has_config("dump_ir") or project.settings.dump_ir.value
    request = BuildRequest(plan, selection, ScriptPublication(root), dump_ir=dump_ir)
    config = BuildConfig(jobs=project.settings.jobs.value)
    # By default nothing is printed: the error has the messages.
    reporter: Reporter = CompositeReporter()
    if kernel_request.verbose:
        reporter = PlainReporter(sys.stderr, verbose=True)
    result = build_request(project, request, config, reporter)
    if result.summary.signal is not None:
        raise StoppedError(result.summary.signal)
    (program,) = instance.programs
    if result.statuses.get(program) != Status.BUILT:
        messages = [group.message for group in result.summary.failures]
        if not messages:
            messages = [result.summary.error or "its compiler died"]
        text = "\n".join([f"{instance.label} was not built", *messages])
        raise KernelNotBuilt(text, project.manifest.root)
    built_script = read_script(project.cache.script_path(instance.directory, instance.hash))
    return built_script, result.summary.compiled > 0, inputs


class KernelNotBuilt(TilusbuildError):  # noqa: N818 - named for what is the case
    """The compiler refused the kernel. The text has its messages, with lines of the template.

    `message` is the first message. `path`, `line`, `column` and `text` (the line itself) are its
    place, as those of an `InputError`; each is None if the message names no place. `hint` is None.
    """

    hint = None

    def __init__(self, text: str, root: str = "") -> None:
        """Find the first message of a compiler in `text`, whose paths are relative to `root`, and
        read the line that it names."""
        super().__init__(text)
        error = find_first_error(text)
        self.message = text.partition("\n")[0] if error is None else error.message
        self.path = None if error is None else os.path.normpath(os.path.join(root, error.file))
        self.line = None if error is None else error.line
        self.column = None if error is None else error.column
        self.text: str | None = None
        if self.path is not None and self.line is not None:
            with suppress(IndexError):
                self.text = (try_read_text(self.path) or "").splitlines()[self.line - 1]


def clear_requested_kernels(root: str) -> None:
    """Remove from the cache tree at `root` the scripts that only kernel caches requested, programs
    that only those scripts have, and the projects of `Source`s.

    A script that a process has loaded stays, but leaves the index. Wait for builds that use the
    cache. Raises `CacheError` and `CorruptFileError`.
    """
    cache = Tree(root)
    if not os.path.isdir(root) or not cache.exists():
        return
    projects = read_index(cache)
    jit_names = [name for name in projects if name.startswith(JIT_ROOT_PREFIX)]
    # (directory, hash) of each script
    requested = {pair for name in jit_names for pair in projects.pop(name).scripts}
    # Scripts that a remaining project has, too, stay.
    requested -= {pair for project in projects.values() for pair in project.scripts}
    # The index forgets scripts before they are removed, so that it never names a missing one.
    forget_projects(cache, jit_names)
    with hold_exclusive_use(cache, wait=True):
        programs_of = {
            (listing.directory, listing.hash): listing.programs for listing in list_scripts(cache)
        }
        # Programs are removed after their scripts, and only if no other script lists them.
        unused: set[str] = set()
        for pair in requested:
            if remove_unread(cache, *pair):
                unused.update(programs_of.pop(pair, ()))
        for program in unused.difference(*programs_of.values()):
            cache.remove_entry(cache.program_path(program))
    shutil.rmtree(os.path.join(cache.state_path, layout.SOURCES), ignore_errors=True)
