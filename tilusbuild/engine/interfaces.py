"""The interfaces that the engine calls: jobs, a compiler, a store.

The engine knows no manifest, template, nvcc or layout of the cache tree. A build passes
`plan.planner.ProgramJob`, `builder.compiler.ProgramCompiler` and `builder.resources.BuildStore`;
tests have doubles of each. Several threads call the store and the compiler at once; a job is called
by one thread at a time. The reporter is in `events`, the remote in `inbox`, and the configuration
in `running`, with the token source and admission.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from tilusbuild.status import Compiled

if TYPE_CHECKING:
    from tilusbuild.cache.entries import Entry


class Job(Protocol):
    """A program to build. Small, because a plan may have 100,000 jobs."""

    @property
    def hash(self) -> str:
        """The program's hash. Two jobs with one hash are one program, built once."""

    @property
    def label(self) -> str:
        """The program's name for people, in one line: "matmul/12 sm_90a"."""

    @property
    def script(self) -> str: ...

    @property
    def instance(self) -> tuple[str, ...]:
        """Script, constants and target. The jobs of an instance share a verdict and a history."""

    @property
    def instance_label(self) -> str:
        """The instance's name for people: "matmul sm_90a"."""

    @property
    def index(self) -> int:
        """The number of its schedule in the instance."""

    @property
    def is_default(self) -> bool: ...

    @property
    def is_part(self) -> bool:
        """Whether the instance fails without this program, as a library without an object."""

    @property
    def needs(self) -> Sequence[str]:
        """The hashes of the programs that must be built before this one is compiled."""

    @property
    def kept_here(self) -> str:
        """Why no remote cache is used for the program, in words: its hash does not cover all of its
        inputs. "" when it does."""

    @property
    def unit(self) -> str:
        """The name of the first step that it shares with other jobs; "" for none. While the first
        program of a unit is compiled, the others of the unit wait."""

    def render(self) -> Any:
        """Return the rendered program: `program_txt` and `options_txt`, whose digest is the hash,
        and the compiler's further inputs. Raises `TilusbuildError` when an input is missing."""

    def translate_log(self, log: str, /) -> str:
        """Return a compiler's log with the places of the source replaced by the template's."""


class Compiler(Protocol):
    """Compiles a program into a stage. `rendered` is what `job.render` returned."""

    def compile(self, job: Any, rendered: Any, stage: ProgramStage, /) -> Compiled:
        """Fill the stage. Return the status and its cause. Raises `process.base.CancelledError`
        after `cancel`, and `OSError` when no process can start."""

    def cancel(self) -> None:
        """Kill all running compiles. May be called again."""

    def cancel_job(self, job: Any, /) -> None:
        """Kill the compile of this very object, not of an equal one. Does nothing when it has
        ended."""


class ProgramStage(Protocol):
    """A private directory in the store that becomes an entry by one rename, or is discarded."""

    @property
    def path(self) -> str: ...

    def publish_program(
        self, program: str, program_txt: str, options_txt: str, meta: Mapping[str, Any], /
    ) -> object:
        """Rename the directory to the entry with this hash, synced to disk. Raises `OSError`."""

    def discard(self) -> None: ...


class Store(Protocol):
    """The published programs, by hash."""

    def find_entry(self, program: str, /) -> Entry | None:
        """Return the entry of a program; None when it is missing or damaged. Takes no lock and
        writes nothing. `meta` has a "reason" when the status is not "built"."""

    def lock_program(self, program: str, /, wait: bool) -> AbstractContextManager[bool]:
        """Return a context that holds a program's lock, and yields whether the lock was free."""

    def open_stage(self) -> ProgramStage:
        """Return a new empty stage. Raises `OSError`."""

    def program_path(self, program: str, /) -> str:
        """Return the directory of a published program."""

    def read_log(self, program: str, /) -> str:
        """Return the compiler's output for a published program; "" without any."""
