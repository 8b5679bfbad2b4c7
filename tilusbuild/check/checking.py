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
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import TextIO

from tilusbuild.check.results import CheckedLine, ResultLine, ServedLine, format_report
from tilusbuild.errors import input_error
from tilusbuild.process.local import LocalRunner
from tilusbuild.runtime import choose
from tilusbuild.runtime.device import Device, get_cpu, may_have_cuda
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.kernel import list_available_programs, make_chooser
from tilusbuild.runtime.library import LIBRARY, check_images, check_library, read_meta
from tilusbuild.runtime.naming import NamePattern, parse_name
from tilusbuild.runtime.script import CALLED, Script, read_script
from tilusbuild.runtime.tables import read_serving_tables
from tilusbuild.tune.bench.bench import OK, DeviceBench, ask_gpu, lock_device
from tilusbuild.tune.bench.race import (
    Outcome,
    collect_logged_refusals,
    decide_cases,
    find_linked_groups,
)
from tilusbuild.tune.bench.session import (
    Budget,
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
    """What is checked. `root` is the package's directory, `shown` what people call it."""

    root: str
    shown: str
    names: Sequence[str] = ()
    """Scripts, as `gemm`, `gemm[dtype=f16]` or `gemm/3`; all without one."""
    sizes: Mapping[str, str] | None = None
    """Only cases with these."""
    chosen: bool = False
    """Only the programs that a call would choose."""
    device: str | None = None
    """ "cpu", or the number of a GPU; None: the first GPU, else the cpu."""
    limit: float = 30.0
    """Seconds for a call."""
    log: str | None = None
    """The log to which the programs are measured."""
    budget: Budget = field(default_factory=Budget)
    """What measuring one script may take."""


def check_package(request: CheckRequest) -> Iterator[ResultLine]:
    """Check a package, and yield each result at once. Raises `InputError` for a place without
    tests, a name or a device that is not there, and `WorkerUnusableError`."""
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
            yield _make_served_line(request, scripts, script, device, len(cases), why)
            if script is not None:
                yield from _check_script(runner, request, script, cases, name.program, device)


def _find_device(runner: LocalRunner, device: str | None) -> Device:
    """Return the device; a GPU is asked in a process of its own. Raises `InputError` and
    `WorkerUnusableError`."""
    if device == "cpu" or (device is None and not may_have_cuda()):
        return get_cpu()
    if device is not None and not device.isdigit():
        raise input_error(f'--device {device}: write "cpu", or the number of a GPU')
    return ask_gpu(runner, int(device or 0))


def _select_scripts(request: CheckRequest) -> Iterator[tuple[NamePattern, list[Script]]]:
    """Yield the scripts that are to be checked, each with its instances of equal constants. Raises
    `InputError` for a name that no script has."""
    groups: dict[str, list[Script]] = {}
    top = os.path.join(request.root, "scripts")
    for directory in sorted(os.listdir(top)):
        for digest in sorted(os.listdir(os.path.join(top, directory))):
            script = read_script(os.path.join(top, directory, digest))
            if script.form == CALLED:
                groups.setdefault(_name_script(script), []).append(script)
    for text in request.names or [""]:
        try:
            name = parse_name(text) if text else NamePattern("")
        except ValueError as error:
            raise input_error(f"{text!r}: {error}") from None
        matches = [
            (
                name,
                [script for script in group if name.target in (None, script.target, script.arch)],
            )
            for group in groups.values()
            if not text or name.matches_instance(group[0].name, group[0].params)
        ]
        if not matches:
            raise input_error(f"{request.shown} has no script {text}", hint=", ".join(groups))
        yield from matches


def _name_script(script: Script) -> str:
    return script.label.rpartition(" ")[0]


def _choose_instance(
    scripts: Sequence[Script], device: Device
) -> tuple[Script | None, tuple[str, ...]]:
    """Return the instance that serves the device, None where none does, and the verdicts."""
    try:
        script, evaluations = choose.choose_instance(scripts, device)
    except LoadError as error:
        return None, tuple(str(error).splitlines())
    return script, tuple(str(evaluation) for evaluation in evaluations)


def _make_served_line(
    request: CheckRequest,
    scripts: Sequence[Script],
    script: Script | None,
    device: Device,
    cases: int,
    why: tuple[str, ...],
) -> ServedLine:
    return ServedLine(
        script=_name_script(scripts[0]) if scripts else ", ".join(request.names),
        target=script.target if script else None,
        arch=script.arch if script else "",
        device=str(device),
        programs=len(list_available_programs(script)) if script else 0,
        cases=cases,
        why=why,
    )


def _read_cases(request: CheckRequest, script: Script) -> list[tuple[str, Case]]:
    """Return the cases of a script, in the manifest's order, with their directories."""
    top = os.path.abspath(os.path.join(request.root, TESTS, script.hash))
    try:
        names = sorted(os.listdir(top), key=int)
        all_cases = [(f"{top}/{name}", read_case(f"{top}/{name}")) for name in names]
    except FileNotFoundError:
        return []
    except ValueError as error:
        message = f"{request.shown}: a test of {script.label} cannot be read: {error}"
        raise input_error(message, hint="`tilusbuild verify` finds damage") from None
    sizes = request.sizes or {}
    return [
        (path, case)
        for path, case in all_cases
        if all(str(case.sizes.get(name)) == value for name, value in sizes.items())
    ]


def _check_script(
    runner: LocalRunner,
    request: CheckRequest,
    script: Script,
    cases: Sequence[tuple[str, Case]],
    program_number: int | None,
    device: Device,
) -> Iterator[CheckedLine]:
    if request.log is not None and (request.chosen or program_number is not None):
        raise input_error("--measure compares all programs of a script")
    chooser, _ = make_chooser(script, read_serving_tables(script), device)
    if program_number is not None and program_number not in chooser.available:
        available = ", ".join(map(str, sorted(chooser.available)))
        message = f"{request.shown} has no program {_name_script(script)}/{program_number}"
        raise input_error(message, hint=f"its programs are {available}")
    directories = {case.digest: path for path, case in cases}
    bench = DeviceBench(runner, script.kind, device.ordinal, directories, limit=request.limit)
    usable = sorted(chooser.available - chooser.refused.keys())
    with closing(bench):
        if request.log is not None:
            for case, outcome in _compare_programs(
                bench, request, request.log, script, cases, usable, device
            ):
                yield _make_checked_line(request, script, case, outcome, chooser, device)
            return
        for _, case in cases:
            programs = usable if program_number is None else [program_number]
            if request.chosen and program_number is None:
                programs = [_choose_program(chooser, case)]
            for program in programs:
                outcome = _check_program(bench, script, case, program, device)
                yield _make_checked_line(request, script, case, outcome, chooser, device)


def _choose_program(chooser: choose.Chooser, case: Case) -> int:
    return chooser.choose_program(
        {name: int(value) for name, value in list_integers(case).items()}
    ).program


def _check_program(
    bench: DeviceBench, script: Script, case: Case, program: int, device: Device
) -> Outcome:
    """Call a program with a case and time it."""
    tested = make_candidate(script, program)
    if damage := _find_damage(script, program, device):
        return Outcome(tested, None, (), CORRUPT, damage)
    answer = bench.check_program(case, tested, 0)
    answers = [answer]
    if answer.status == OK:
        answers += [bench.time_program(case, tested, number, 0.0) for number in range(_SAMPLES)]
    wrong = next((answer for answer in answers if answer.status != OK), None)
    if wrong is not None:
        return Outcome(tested, None, (), wrong.status, wrong.why, error=answer.error)
    samples = tuple(answer.seconds for answer in answers if answer.seconds is not None)
    return Outcome(tested, median(samples or [0]), samples, OK, "", error=answer.error)


def _find_damage(script: Script, program: int, device: Device) -> str:
    """Return why a program's library is not the one that was built, or not one for the device; ""
    for a good one."""
    try:
        meta = read_meta(script, program)
        if device.kind == "cuda":
            check_images(script, program, meta, device)
        check_library(script.get_library_path(program), meta["files"][LIBRARY]["sha256"])
    except LoadError as problem:
        return str(problem)
    return ""


def _compare_programs(
    bench: DeviceBench,
    request: CheckRequest,
    path: str,
    script: Script,
    cases: Sequence[tuple[str, Case]],
    programs: Sequence[int],
    device: Device,
) -> Iterator[tuple[Case, Outcome]]:
    """Compare programs as `tune` does, and append the samples to the log; yield what came of each
    program in each case. Raises `InputError` for a log of another device, and `OSError`."""
    if not cases:
        return
    sound = []
    for program in programs:
        if damage := _find_damage(script, program, device):
            outcome = Outcome(make_candidate(script, program), None, (), CORRUPT, damage)
            yield from ((case, outcome) for _, case in cases)
        else:
            sound.append(program)
    names = [(name,) for name in script.schedules]
    work = make_work(script, sound, names, cases[0][1].judge)
    work = replace(work, groups=find_linked_groups(work))
    facts = bench.describe_device()
    _check_same_device(path, facts)
    waiting = lock_device(str(facts["id"]), _report_waiting)
    with waiting, closing(SampleLog(path)) as log:
        log.append_line(format_run_note(work, facts, len(cases)))
        decisions = decide_cases(
            TuningSession(log, bench, request.budget),
            work,
            lambda numbers: (cases[number][1] for number in numbers),
            [case.sizes for _, case in cases],
            0,
            lambda decision: None,
            collect_logged_refusals(read_lines(path)),
        )
    yield from ((decision.case, outcome) for decision in decisions for outcome in decision.outcomes)


def _report_waiting() -> None:
    sys.stderr.write("waiting for another measurement on this device\n")


def _check_same_device(path: str, facts: Mapping[str, object]) -> None:
    """Raise `InputError` for a log with measurements of another device: its answers would be taken
    for those of this one."""
    for row in read_lines(path):
        device = row.get("device")
        if isinstance(device, dict) and any(
            facts.get(name) != value for name, value in device.items()
        ):
            raise input_error(
                f"{path} has measurements of {device.get('name')}, and this is {facts['name']}",
                hint="measure each device to a log of its own",
            )


def _make_checked_line(
    request: CheckRequest,
    script: Script,
    case: Case,
    outcome: Outcome,
    chooser: choose.Chooser,
    device: Device,
) -> CheckedLine:
    name = f"{_name_script(script)}/{outcome.program.index}"
    return CheckedLine(
        script=_name_script(script),
        target=script.target,
        program=outcome.program.index,
        hash=outcome.program.hash,
        sizes=case.sizes,
        status=outcome.status,
        why=outcome.why,
        compared=any(argument.want is not None for argument in case.arguments),
        error=outcome.error,
        seconds=outcome.seconds,
        chosen=outcome.program.index == _choose_program(chooser, case),
        again="" if outcome.status == OK else _format_command(request, name, case, device),
    )


def _format_command(request: CheckRequest, name: str, case: Case, device: Device) -> str:
    sizes = ",".join(f"{key}={value}" for key, value in case.sizes.items())
    device_option = "cpu" if device.kind == "cpu" else str(device.ordinal)
    arguments = ["tilusbuild", "check", request.shown, name, "--device", device_option]
    return shlex.join([*arguments, *(["--size", sizes] if sizes else [])])


def parse_sizes(text: str) -> dict[str, str]:
    """Return the sizes in `m=16,n=4096`. Raises `InputError`."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and value for name, _, value in pairs):
        raise input_error(f"--size {text}: write it as in m=16,n=4096")
    return {name.strip(): value.strip() for name, _, value in pairs}


def write_results(request: CheckRequest, out: TextIO, *, as_json: bool) -> list[ResultLine]:
    """Check, and write each result as a line of JSON, or a report at the end."""
    rows = []
    for row in check_package(request):
        rows.append(row)
        if as_json:
            out.write(json.dumps({"event": row.event, **asdict(row)}) + "\n")
            out.flush()
    if not as_json:
        out.write(format_report(rows))
    return rows
