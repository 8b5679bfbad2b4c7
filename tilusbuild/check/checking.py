"""Check a package with tests on this machine: every program at every case, compared and timed.

It needs the package's directory, Python's standard library and, on a GPU, the driver: `pip install
--no-deps tilusbuild` is enough for `python -m tilusbuild.check`, and so are its sources. The
runtime's own rules say which instance serves the device, and which program a call would choose.
Programs run in a worker (`tune/bench`), so that the check of the others goes on after a crash.

With a log the programs are compared instead, as `tune` does it (`tune/bench/race.py`), and every
sample is appended to the log. `tune --import` writes the tables from it where the package was made.

Price: a case starts a worker, 0.1 s on the cpu and the driver's start on a GPU.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import TextIO

from tilusbuild.check.results import CheckedLine, ResultLine, ServedLine, format_report
from tilusbuild.errors import input_error
from tilusbuild.process.local import LocalRunner
from tilusbuild.runtime import choose
from tilusbuild.runtime.device import Device, explain_cpu_refusal, get_cpu, may_have_cuda
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.kernel import list_available_programs, make_chooser
from tilusbuild.runtime.library import LIBRARY, check_images, check_library, read_meta
from tilusbuild.runtime.naming import NamePattern, join_targets, parse_name
from tilusbuild.runtime.script import CALLED, Script, read_script
from tilusbuild.runtime.tables import read_dispatch_table
from tilusbuild.tune.bench.bench import OK, DeviceBench, ask_gpu, lock_device
from tilusbuild.tune.bench.race import Outcome, collect_logged_refusals, decide_cases, make_outcome
from tilusbuild.tune.bench.search import find_linked_groups
from tilusbuild.tune.bench.session import (
    Budget,
    ProgramRecord,
    SampleLog,
    TuningSession,
    format_run_note,
    list_integers,
    read_lines,
)
from tilusbuild.tune.bench.work import Case, make_candidate, make_work, read_case

TESTS = "tests"
CORRUPT = "corrupt"
"""The status of a program whose library is not what was built, or not for the device."""
_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """A request to check a package in the directory `root`; messages call the package `shown`."""

    root: str
    shown: str
    names: Sequence[str] = ()
    """Scripts, as `gemm`, `gemm[dtype=f16]` or `gemm/3`; all without one."""
    sizes: Mapping[str, str] | None = None
    """The sizes of the cases to check, by name; None: all cases."""
    chosen: bool = False
    """Whether to check only the programs that a call would choose."""
    device: str | None = None
    """ "cpu", or the number of a GPU; None: the first GPU, else the cpu."""
    limit: float = 30.0
    """Seconds for a call."""
    log: str | None = None
    """The log to which the programs are measured."""
    budget: Budget = field(default_factory=Budget)
    """The limits for measuring one script."""


def check_package(request: CheckRequest) -> Iterator[ResultLine]:
    """Check a package, and yield each result as soon as it is known. With a log, samples are
    appended to it. Raises `InputError` for a package without tests and for an unknown name or
    device, and `WorkerUnusableError`."""
    if not os.path.isdir(request.root):
        raise input_error(
            f"{request.shown} is not a directory",
            hint="unpack it, as by tar --zstd -xf; `tilusbuild check` also reads archives",
        )
    if not os.path.isdir(os.path.join(request.root, TESTS)):
        raise input_error(
            f"{request.shown} has no tests",
            hint="`tilusbuild package --with-tests` makes a package that has them",
        )
    with LocalRunner() as runner:
        device = _find_device(runner, request.device)
        for name, scripts in _select_scripts(request):
            script, why = _choose_instance(scripts, device)
            cases = [] if script is None else _read_cases(request, script)
            yield ServedLine(
                script=_name_script(scripts[0]) if scripts else ", ".join(request.names),
                target=script.target if script else None,
                arch=script.arch if script else "",
                device=str(device),
                programs=len(list_available_programs(script)) if script else 0,
                cases=len(cases),
                why=why,
            )
            if script is None:
                continue
            if request.log is not None and (request.chosen or name.program is not None):
                raise input_error("--measure compares all programs of a script")
            check = _open_check(runner, request, script, cases, name.program, device)
            with closing(check.bench):
                if request.log is None:
                    yield from check.check_programs()
                else:
                    yield from check.compare_programs(request.log)


def _find_device(runner: LocalRunner, name: str | None) -> Device:
    """Return the device with this name, "cpu" or a GPU's number; without a name GPU 0, else the
    cpu. Raises `InputError` and `WorkerUnusableError`."""
    if name == "cpu" or (name is None and not may_have_cuda()):
        return get_cpu()
    if name is not None and not name.isdigit():
        raise input_error(f'--device {name}: write "cpu", or the number of a GPU')
    return ask_gpu(runner, int(name or 0))


def _select_scripts(request: CheckRequest) -> Iterator[tuple[NamePattern, list[Script]]]:
    """Yield (name, instances) for each name in the request and each script with constants that the
    name matches: its instances for all targets. Raises `InputError` for a name that no script has.
    """
    groups: dict[str, list[Script]] = {}
    top = os.path.join(request.root, "scripts")
    # Directories are named by digests: only the file in one says which script it is of.
    for directory in sorted(os.listdir(top)):
        for digest in sorted(os.listdir(os.path.join(top, directory))):
            script = read_script(os.path.join(top, directory, digest))
            if script.form == CALLED:
                groups.setdefault(_name_script(script), []).append(script)
    targets = {script.target for group in groups.values() for script in group}
    for text in join_targets(request.names, targets) or [""]:
        try:
            name = parse_name(text) if text else NamePattern("")
        except ValueError as error:
            raise input_error(f"{text!r}: {error}") from None
        matches = [
            group
            for group in groups.values()
            if not text or name.matches_instance(group[0].name, group[0].params)
        ]
        if not matches:
            raise input_error(f"{request.shown} has no script {text}", hint=", ".join(groups))
        for group in matches:
            yield name, [s for s in group if name.target in (None, s.target, s.arch)]


def _name_script(script: Script) -> str:
    """Return the script's name with its constants: `gemm[dtype=f16]`."""
    return script.label.rpartition(" ")[0]


def _choose_instance(
    scripts: Sequence[Script], device: Device
) -> tuple[Script | None, tuple[str, ...]]:
    """Return the instance that serves the device, None where none does or where this CPU does not
    run its code, and the verdicts."""
    try:
        script, evaluations = choose.choose_instance(scripts, device)
    except LoadError as error:
        return None, tuple(str(error).splitlines())
    if (refusal := explain_cpu_refusal(script.code.isa)) is not None:
        return None, (f"{script.label} is {refusal}",)
    return script, tuple(str(evaluation) for evaluation in evaluations)


def _read_cases(request: CheckRequest, script: Script) -> list[Case]:
    """Return the cases of a script that have the request's sizes, in the manifest's order. Raises
    `InputError` for a damaged case."""
    top = os.path.abspath(os.path.join(request.root, TESTS, script.hash))
    try:
        # A directory's name is the number of its case in the manifest's `sizes`.
        names = sorted(os.listdir(top), key=int)
        cases = [read_case(f"{top}/{name}") for name in names]
    except FileNotFoundError:
        return []
    except ValueError as error:
        message = f"{request.shown}: a test of {script.label} cannot be read: {error}"
        raise input_error(message, hint="`tilusbuild verify` finds damage") from None
    sizes = request.sizes or {}
    return [
        case
        for case in cases
        if all(str(case.sizes.get(key)) == value for key, value in sizes.items())
    ]


def _open_check(
    runner: LocalRunner,
    request: CheckRequest,
    script: Script,
    cases: Sequence[Case],
    program: int | None,
    device: Device,
) -> _ScriptCheck:
    """Return the check of a script, with its worker. Raises `InputError` for a program that the
    package does not have."""
    chooser, _ = make_chooser(script, read_dispatch_table(script), device)
    if program is not None and program not in chooser.available:
        available = ", ".join(map(str, sorted(chooser.available)))
        message = f"{request.shown} has no program {_name_script(script)}/{program}"
        raise input_error(message, hint=f"its programs are {available}")
    bench = DeviceBench(runner, script.kind, device.ordinal, limit=request.limit)
    # A program that was refused where the package was made is not called here.
    usable = sorted(chooser.available - chooser.refused.keys())
    programs = usable if program is None else [program]
    chosen = request.chosen and program is None
    return _ScriptCheck(
        request=request,
        script=script,
        cases=cases,
        programs=programs,
        chosen=chosen,
        device=device,
        chooser=chooser,
        bench=bench,
    )


@dataclass(frozen=True, slots=True)
class _ScriptCheck:
    """The check of the programs of one script, in all of its cases."""

    request: CheckRequest
    script: Script
    cases: Sequence[Case]
    programs: Sequence[int]
    chosen: bool
    """Whether to check only the programs that a call would choose."""
    device: Device
    chooser: choose.Chooser
    bench: DeviceBench

    def check_programs(self) -> Iterator[CheckedLine]:
        """Call and time the programs with each case, and yield a line for each."""
        for case in self.cases:
            sizes = list_integers(case)
            serving = [p for p in self.programs if not self.script.explain_refusal(p, sizes)]
            for program in [self.choose_program(case)] if self.chosen else serving:
                yield self._make_line(case, self._check_program(case, program))

    def choose_program(self, case: Case) -> int:
        """Return the program that a call with the sizes of a case would choose."""
        sizes = {name: int(value) for name, value in list_integers(case).items()}
        return self.chooser.choose_program(sizes).program

    def _check_program(self, case: Case, program: int) -> Outcome:
        """Call a program with a case and time it; return the outcome. A damaged library is not
        called, and a program that is wrong is not timed."""
        candidate = make_candidate(self.script, program)
        # A damaged library is not opened, as it may do anything.
        damage = self._find_damage(program)
        if damage:
            return Outcome(candidate, CORRUPT, damage)
        check_answer = self.bench.check_program(case, candidate, number=0)
        answers = [check_answer]
        if check_answer.status == OK:
            # expected=0.0: no earlier sample shortens the time limit.
            answers += [
                self.bench.time_program(case, candidate, number, expected=0.0)
                for number in range(_SAMPLES)
            ]
        samples = [answer.seconds for answer in answers if answer.seconds is not None]
        failure = next((answer for answer in answers if answer.status != OK), None)
        record = ProgramRecord(candidate, samples, failure, check_answer.error)
        return make_outcome(record, candidate)

    def _find_damage(self, program: int) -> str:
        """Return why a program's library is not the one that was built, or not one for the device;
        "" for a good one."""
        try:
            meta = read_meta(self.script, program)
            if self.device.kind == "cuda":
                check_images(self.script, program, meta, self.device)
            library = self.script.get_library_path(program)
            check_library(library, meta["files"][LIBRARY]["sha256"])
        except LoadError as problem:
            return str(problem)
        return ""

    def compare_programs(self, path: str) -> Iterator[CheckedLine]:
        """Compare the programs as `tune` does, append the samples to the log `path`, and yield a
        line for each program and case. A program with damaged files is not called, and its lines
        say so. Samples in the log are not taken again. Raises `InputError` for a log of another
        device, and `OSError`."""
        if not self.cases:
            return
        damages = {program: self._find_damage(program) for program in self.programs}
        for program, damage in damages.items():
            if not damage:
                continue
            candidate = make_candidate(self.script, program)
            for case in self.cases:
                yield self._make_line(case, Outcome(candidate, CORRUPT, damage))
        sound_programs = [program for program, damage in damages.items() if not damage]
        parameters = [(name,) for name in self.script.schedules]
        work = make_work(self.script, sound_programs, parameters)
        work = replace(work, groups=find_linked_groups(work))
        facts = self.bench.describe_device()
        _check_same_device(path, facts)
        with lock_device(str(facts["id"]), _report_waiting):
            log = SampleLog(path)
            judge = self.cases[0].judge
            log.append_line(format_run_note(self.script, work, facts, len(self.cases), judge))
            decisions = decide_cases(
                TuningSession(log, [self.bench], self.request.budget),
                work,
                lambda number: nullcontext(self.cases[number]),
                [case.sizes for case in self.cases],
                seed=0,
                on_decision=lambda decision: None,
                known_refusals=collect_logged_refusals(read_lines(path)),
            )
        for decision in decisions:
            yield from (self._make_line(decision.case, outcome) for outcome in decision.outcomes)

    def _make_line(self, case: Case, outcome: Outcome) -> CheckedLine:
        """Return the line with the outcome of a program in a case."""
        program, script = outcome.program, _name_script(self.script)
        return CheckedLine(
            script=script,
            target=self.script.target,
            program=program.index,
            hash=program.hash,
            sizes=case.sizes,
            status=outcome.status,
            why=outcome.why,
            compared=any(argument.want is not None for argument in case.arguments),
            error=outcome.error,
            seconds=outcome.seconds,
            chosen=program.index == self.choose_program(case),
            again="" if outcome.status == OK else self._format_command(program.index, case),
        )

    def _format_command(self, program: int, case: Case) -> str:
        """Return the command that checks one program in one case."""
        sizes = ",".join(f"{key}={value}" for key, value in case.sizes.items())
        name = f"{_name_script(self.script)}/{program}"
        device = "cpu" if self.device.kind == "cpu" else str(self.device.ordinal)
        arguments = ["tilusbuild", "check", self.request.shown, name, "--device", device]
        return shlex.join([*arguments, *(["--size", sizes] if sizes else [])])


def _report_waiting() -> None:
    sys.stderr.write("waiting for another measurement on this device\n")


def _check_same_device(path: str, facts: Mapping[str, object]) -> None:
    """Raise `InputError` for a log with measurements of another device."""
    # Else the log's answers would be taken for those of this device.
    for row in read_lines(path):
        device = row.get("device")
        if isinstance(device, dict) and any(facts.get(n) != value for n, value in device.items()):
            raise input_error(
                f"{path} has measurements of {device.get('name')}, and this is {facts['name']}",
                hint="measure each device to a log of its own",
            )


def parse_sizes(text: str) -> dict[str, str]:
    """Return the sizes by name in a text such as `m=16,n=4096`. Raises `InputError`."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and value for name, _, value in pairs):
        raise input_error(f"--size {text}: write it as in m=16,n=4096")
    return {name.strip(): value.strip() for name, _, value in pairs}


def write_results(request: CheckRequest, out: TextIO, *, as_json: bool) -> list[ResultLine]:
    """Check a package, and write each result as a line of JSON, else a report at the end. Return
    the results. Raises as `check_package`."""
    rows = []
    for row in check_package(request):
        rows.append(row)
        if as_json:
            out.write(json.dumps({"event": row.event, **asdict(row)}) + "\n")
            out.flush()
    if not as_json:
        out.write(format_report(rows))
    return rows
