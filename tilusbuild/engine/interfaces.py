"""What the engine asks of others: jobs, a compiler, a store.

The engine knows nothing of manifests, templates, nvcc or the cache tree's layout. In a build these
are `plan.planner.ProgramJob`, `builder.compiler.ProgramCompiler` and
`builder.resources.BuildStore`; tests have doubles of each. The store and the compiler are called
from several threads at once, a job from one at a time. The reporter is in `events`, the remote in
`inbox`, and how a build is to run in `running`, with the token source and admission.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from tilusbuild.status import Compiled

if TYPE_CHECKING:
    from tilusbuild.cache.entries import Entry


class Job(Protocol):
    """A program to have: light, because there may be a hundred thousand of them."""

    @property
    def hash(self) -> str:
        """The program's hash. Two jobs with one hash are one program, built once."""

    @property
    def label(self) -> str:
        """What a person calls it, in one line: "matmul/12 sm_90a"."""

    @property
    def script(self) -> str: ...

    @property
    def instance(self) -> tuple[str, ...]:
        """Script, constants and target, as words: what shares a verdict and a history."""

    @property
    def instance_label(self) -> str:
        """What a person calls its instance: "matmul sm_90a"."""

    @property
    def index(self) -> int:
        """Which schedule of its instance."""

    @property
    def is_default(self) -> bool: ...

    @property
    def is_part(self) -> bool:
        """Whether its instance is of no use without it, as of a library's objects."""

    @property
    def needs(self) -> Sequence[str]:
        """The programs that must be built before it is compiled, by hash."""

    @property
    def kept_here(self) -> str:
        """Why no remote is asked for it or given it, in words: its hash does not cover all that it
        is made of. "" for a program of which it does."""

    @property
    def unit(self) -> str:
        """What its first step is shared with: of the jobs with one, the first that is compiled has
        the others wait. "" for a job that shares nothing."""

    def render(self) -> Any:
        """Render the program: its `program_txt` and `options_txt`, of which its hash is made, and
        what else its compiler wants; alive only while it compiles. Raises `TilusbuildError` when an
        input is missing by now."""

    def translate_log(self, log: str, /) -> str:
        """Return a compiler's log with the template's own places and lines, for people."""


class Compiler(Protocol):
    """Fills a stage. `job` and `rendered` are what the build's jobs are and return."""

    def compile(self, job: Any, rendered: Any, stage: ProgramStage, /) -> Compiled:
        """Raises `process.base.CancelledError` after `cancel`, `OSError` when nothing can start."""

    def expect_jobs(self, jobs: Iterable[Any], /) -> None:
        """Called before `compile` is, and again when that changes: these are to be compiled."""

    def cancel(self) -> None:
        """Kill everything that runs; may be called again while something still does."""

    def cancel_job(self, job: Any, /) -> None:
        """Kill the compile that was given this very object; may be called again, also when it has
        ended."""


class ProgramStage(Protocol):
    """A private directory in the store that becomes an entry at once, or never."""

    @property
    def path(self) -> str: ...

    def publish_program(
        self, program: str, program_txt: str, options_txt: str, meta: Mapping[str, Any], /
    ) -> object:
        """Make the entry with this hash, durably. Raises `OSError`."""

    def discard(self) -> None: ...


class Store(Protocol):
    """Programs by their hash. A lookup takes no lock and writes nothing."""

    def find_entry(self, program: str, /) -> Entry | None:
        """Return the entry of a program; None when there is none that is whole. Its `meta` has a
        "reason" when the status is not "built"."""

    def lock_program(self, program: str, /, wait: bool) -> AbstractContextManager[bool]:
        """Take the lock of a program for a block; yield whether we have it. Never waited for."""

    def open_stage(self) -> ProgramStage:
        """Return a new empty stage. Raises `OSError`."""

    def program_path(self, program: str, /) -> str:
        """Return the directory that a published program has."""

    def read_log(self, program: str, /) -> str:
        """Return the compiler's output for a published program; "" without any."""
