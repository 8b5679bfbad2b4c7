"""Away from the compiler: a bundle that measures elsewhere, and its log brought back.

A bundle is a tar of one directory: `run.py`, the part of this package that needs the standard
library alone, the programs' libraries, and the cases with inputs and expected outputs. The same
inputs make the same bytes. The log says what was asked; with the same programs in the cache the
same decisions are made from it again.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct, field

import tilusbuild
from tilusbuild.builder.project import Project
from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.naming import snake_case
from tilusbuild.runtime.regular import open_file, read_bytes
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.table_file import Refusal
from tilusbuild.state.outputs import output
from tilusbuild.tune import prepare
from tilusbuild.tune.bench import away
from tilusbuild.tune.bench.bench import Answer
from tilusbuild.tune.bench.race import Decision, campaign, condemned_before
from tilusbuild.tune.bench.session import (
    CASE,
    RUN,
    CaseNote,
    Key,
    RunNote,
    SampleLog,
    TuningSession,
    answers,
    lines,
    read_case_note,
    read_run,
)
from tilusbuild.tune.bench.work import WORK, Candidate, Case
from tilusbuild.tune.tune import BuiltInstance, Publisher, TunedInstance, TuneRequest, sizes_of

_HASH = re.compile("[0-9a-f]{64}")
_ROOT = "tilusbuild-bundle"
_CARRIED_RUNTIME = (
    "__init__",
    "cuda_driver",
    "device",
    "dtypes",
    "durations",
    "errors",
    "process",
    "regular",
    "table_file",
)
_CARRIED = (
    "__init__.py",
    "errors.py",
    "process",
    "state/__init__.py",
    "state/directories.py",
    "state/temporary.py",
    *(f"runtime/{name}.py" for name in _CARRIED_RUNTIME),
)
_CARRIED_TUNE = ("tune/__init__.py", "tune/bench")
_RUN = b"""\
import os
import sys

root = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(root, "lib"))
sys.dont_write_bytecode = True

from tilusbuild.tune.bench.away import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], root))
"""


def export(project: Project, wanted: TuneRequest, ready: Iterable[BuiltInstance], path: str) -> int:
    """Write a bundle; its size in bytes. Raises `InputError` and `OSError`."""
    check = prepare.checking(project.manifest, wanted.script, unchecked=wanted.unchecked)
    private = project.cache.private(uses=True)
    try:
        mode = "w:gz" if path.endswith((".gz", ".tgz")) else "w"
        made = os.path.join(private.path, "bundle")
        with tarfile.open(made, mode) as tar:  # type: ignore[call-overload]
            _add(tar, "run.py", _RUN)
            for name in (*_CARRIED, *_CARRIED_TUNE):
                _add_code(tar, name)
            for number, each in enumerate(ready):
                cases = os.path.join(private.path, str(number))
                _add_work(tar, project, wanted, each, number, cases, check)
        size = os.stat(made).st_size
        with open_file(made) as file, output(path) as out:
            shutil.copyfileobj(file, out)
        return size
    finally:
        private.discard()


def _add_work(
    tar: tarfile.TarFile,
    project: Project,
    wanted: TuneRequest,
    ready: BuiltInstance,
    number: int,
    directory: str,
    check: prepare.OutputCheck,
) -> None:
    home = f"{away.WORKS}/{number}"
    names = []
    for place, size in enumerate(sizes_of(project, wanted, ready.instance)):
        case = os.path.join(directory, str(place))
        prepare.prepare_case(
            case, ready.instance.spec.signature, size, check, seed=wanted.seed, cold=wanted.cold
        )
        names.append(f"{home}/cases/{place}")
        for name in sorted(os.listdir(case)):
            _add(tar, f"{names[-1]}/{name}", read_bytes(os.path.join(case, name)))
    programs = []
    for program in ready.work.programs:
        name = f"programs/{program.hash}.so"
        _add(tar, name, read_bytes(program.library))
        programs.append(replace(program, library=name))
    work = replace(ready.work, programs=tuple(programs), cases=tuple(names), judge=check.judge)
    _add(tar, f"{home}/{WORK}", work.to_json())


def _add_code(tar: tarfile.TarFile, name: str) -> None:
    package = os.path.dirname(os.path.abspath(tilusbuild.__file__))
    path = os.path.join(package, name)
    found = [name]
    if os.path.isdir(path):
        found = [f"{name}/{each}" for each in sorted(os.listdir(path)) if each.endswith(".py")]
    for each in found:
        _add(tar, f"lib/tilusbuild/{each}", read_bytes(os.path.join(package, each)))


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(f"{_ROOT}/{name}")
    entry.size = len(data)
    entry.mode = 0o755 if name.endswith(("run.py", ".so")) else 0o644
    tar.addfile(entry, io.BytesIO(data))


class UnmeasuredError(TilusbuildError):
    """The log ends before a decision can be made."""


class _NothingMore:
    """A bench for a log that is all there is."""

    def check(self, case: Case, program: Candidate, number: int) -> Answer:
        raise UnmeasuredError(f"{case.label}: program {program.index} was not checked")

    def sample(self, case: Case, program: Candidate, number: int, expected: float) -> Answer:
        raise UnmeasuredError(f"{case.label}: program {program.index} was not timed")


class _Segment(Struct):
    """One tuning in a log."""

    run: RunNote
    out: Mapping[str, Refusal]
    """Who was condemned in the log before this tuning began: it took no part."""
    cases: list[CaseNote] = field(default_factory=list)


def take_back(project: Project, path: str) -> tuple[list[TunedInstance], list[str]]:
    """Decide from a bundle's log and write the tables; also what could not be decided, in words.

    Raises `InputError` for a log that is none, or of programs that this cache does not have.
    """
    if not os.path.isfile(path):
        raise input_error(f"no log {path}")
    found = list(lines(path))
    segments: dict[tuple[str, str], _Segment] = {}
    last: _Segment | None = None
    try:
        for number, line in enumerate(found):
            if line.get("what") == RUN:
                last = _Segment(read_run(line), condemned_before(found[:number]))
                segments[last.run.script_hash, last.run.device["id"]] = last
            elif line.get("what") == CASE and last is not None:
                last.cases.append(read_case_note(line))
    except ValueError as error:
        raise input_error(f"{path} is not a log of `tilusbuild tune`: {error}") from None
    if not segments:
        raise input_error(f"{path} is not a log of `tilusbuild tune`, or nothing was measured")
    known = answers(found)
    missing: list[str] = []
    out = condemned_before(found)
    tuned = [_decided(project, each, known, out, missing, path) for each in segments.values()]
    return tuned, missing


def _decided(
    project: Project,
    segment: _Segment,
    known: dict[Key, Answer],
    out: Mapping[str, Refusal],
    missing: list[str],
    path: str,
) -> TunedInstance:
    run = segment.run
    directory = project.cache.script_path(snake_case(run.script), run.script_hash)
    if not _HASH.fullmatch(run.script_hash) or not os.path.isdir(directory):
        raise input_error(
            f"{path} is about {run.script} {run.script_hash[:12]}…, which is not in"
            f" {project.cache.root}",
            hint="import where the bundle was made, with the same sources and toolkit",
        )
    script = read_script(directory)
    _check_fits(script, segment, path)
    work = prepare.work_of(script, run.programs, run.groups, run.judge)
    said = run.device
    device = Device(said["kind"], 0, said["name"], said["arch"], said["driver"])
    publisher = Publisher(script, device.fingerprint(script.hash), run.judge)
    publisher.refuse(out.values())
    session = TuningSession(SampleLog("", known), _NothingMore(), run.budget, rounds=run.rounds)
    noted = segment.cases[: run.cases]
    numbers = {each.case: each.integers for each in noted}
    decisions: dict[str, Decision] = {}

    def cases(wanted: Sequence[int]) -> Iterator[Case]:
        for number in wanted:
            if number < len(noted):
                yield Case(noted[number].case, noted[number].sizes, (), cold=True)

    def done(decision: Decision) -> None:
        publisher.add(numbers[decision.case.digest], decision)
        decisions[decision.case.digest] = decision

    try:
        sizes = [each.sizes for each in noted] + [{}] * (run.cases - len(noted))
        campaign(session, work, cases, sizes, run.seed, done, segment.out)
        if len(noted) < run.cases:
            missing.append(f"{run.cases - len(noted)} sizes were not begun")
    except UnmeasuredError as error:
        missing.append(str(error))
    publisher.end(project)
    found, shared = tuple(decisions.values()), tuple(publisher.shared)
    return TunedInstance(script, work, device, found, shared, publisher.reasons, path)


def _check_fits(script: Script, segment: _Segment, path: str) -> None:
    """Raises `InputError` for programs, parameters or sizes that the script does not have."""
    run = segment.run
    wrong: list[object] = [i for i in run.programs if i not in script.programs]
    wrong += [name for group in run.groups for name in group if name not in script.schedules]
    wrong += [key for noted in segment.cases for key in script.keys if key not in noted.integers]
    if wrong:
        raise input_error(f"{path} does not fit {script.label}: {wrong[0]!r}")
