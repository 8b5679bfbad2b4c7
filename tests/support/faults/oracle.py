"""The one judgement of what a fault left behind.

After whatever happened: nothing that was published is gone, torn or compiled again; the same
command, and then an ordinary build, end well; `cache verify` is clean; `cache gc` removes nothing
that the project needs; every byte is a clean build's; no process and no file is left over; nothing
printed a traceback; the exit status is a documented one, and a failure says why.
"""

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from support.faults.commands import Ended
from support.faults.world import FIRST, Edition, Entries, Tree, World, below, entries, without_log
from tilusbuild.state.directories import remove_tree
from tilusbuild.state.temporary import TemporaryDirectory

COLUMNS = (
    *("lost", "torn", "stale", "twice", "left over", "traceback", "stuck", "status"),
    *("outside", "terminal", "dear"),
)
"""What can be wrong. `stuck`: a command hangs, or fails after the fault is over. `status`: an exit
status that is not documented, or a failure without a word. The last three are those of hostile
inputs (`hostile/trial.py`): what is not the command's was touched, a character acts on a terminal,
or it took much to refuse something."""

NO_WORD = " and no word"
_STOPPED = (129, 130, 143)
_DOCUMENTED = (0, 1, 2, *_STOPPED)
_STAY = re.compile(r"tilusbuild-error-.*|tilusbuild-tune-.*\.lock")
"""What may stay in TMPDIR: the file in which a bug is reported, and the lock of a device, which all
users share and nobody may remove while another waits for it."""
_NOT_STARTED = "error while loading shared libraries"
"""What ld.so says, with status 127, when Python itself could not be loaded: none of us ran."""
_OF_PYTHON = (1, -signal.SIGINT)
"""How Python ends before it comes to code of ours; the second after a Ctrl-C."""
_TRACES = ("Traceback", "Exception ignored", "Fatal Python error", "internal error:")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: its column, and what was seen."""

    column: str
    what: str


@dataclass(frozen=True)
class Scenario:
    """A command in a world, and what it may do."""

    name: str
    words: tuple[str, ...]
    base: str = "built"
    edition: Edition = FIRST
    removes: bool = False
    """It is there to remove programs."""
    logs: bool = True
    """The tools say what they say in a clean build."""
    again: bool = True
    """The same command has to succeed when it is given again, before the ordinary build."""
    measures: bool = False
    """It publishes what it measured: other bytes each time."""

    @property
    def goes_on(self) -> bool:
        """It ends by the trial's own signal."""
        return self.words[0] == "watch"

    @property
    def builds(self) -> bool:
        """When it ends well, everything is built."""
        return self.words[0] in ("build", "install", "merge")


def judge(
    world: World, scenario: Scenario, before: Entries, ended: Ended, *, killed: bool = False
) -> list[Finding]:
    """Say all that is wrong in a world in which `scenario` ended like this. `before` is what was
    published when it began; `killed`: it was to die."""
    findings = [*of_command(ended, killed, stopped=scenario.goes_on)]
    findings += [Finding("left over", f"process {words}") for words in world.server.settle()]
    compiled = world.journal()
    world.obey()
    at_end = entries(world.cache)
    findings += _of_tree(world, at_end, partly=True, scenario=scenario)
    programs = world.whole_programs(at_end, logs=scenario.logs)
    if not scenario.removes:
        lost = sorted(before.keys() - at_end.keys())
        findings += [Finding("lost", f"{path} is gone") for path in lost[:1]]
        again = [program for program in compiled if program in world.whole_programs(before)]
        findings += [Finding("twice", f"{program} was there") for program in again[:1]]
    world.forget_journal()
    if scenario.again and scenario.words[0] != "build":
        findings += _must_end(world, "again", *scenario.words)
        programs = world.whole_programs(entries(world.cache))
        findings += _of_output(world, scenario)
    findings += _of_ordinary_build(world, scenario, programs, ended)
    return findings


def of_command(ended: Ended, killed: bool, *, stopped: bool = False) -> Iterator[Finding]:
    """Say what is wrong with how a command ended. `killed`: it was to die; `stopped`: it was sent
    a signal, and who sent that needs no word of it."""
    if ended.hung:
        yield Finding("stuck", f"never ended: {ended.err[-300:]}")
        return
    if has_not_begun(ended):
        return
    for trace in _TRACES:
        if trace in ended.err or trace in ended.out:
            yield Finding("traceback", ended.err[-1500:])
            return
    if ended.status == 127 and _NOT_STARTED in ended.err:
        return
    if ended.status not in _DOCUMENTED and not (killed and ended.status < 0):
        yield Finding("status", f"status {ended.status}: {ended.err[-300:]}")
    elif stopped and ended.status in _STOPPED:
        return
    elif ended.status > 0 and not (ended.err.strip() or _says_why(ended.out)):
        yield Finding("status", f"status {ended.status}{NO_WORD}")


def has_not_begun(ended: Ended) -> bool:
    """Return whether Python ended before it came to code of ours."""
    has_own_output = ended.out or "tilusbuild" in ended.err or "internal error:" in ended.err
    its = any(frame in ended.err for frame in ("<frozen ", "<no Python frame>"))
    return ended.status in _OF_PYTHON and its and not has_own_output


def _says_why(out: str) -> bool:
    """Return whether a line of JSON says what is wrong: an error, or a summary with one, with
    failures, or with the signal that ended it."""
    for line in out.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if not isinstance(event, dict):
            continue
        if event.get("event") == "error" and event.get("message"):
            return True
        if event.get("event") == "summary" and event.get("exit_status"):
            return any(event.get(key) for key in ("error", "failures", "signal"))
    return False


def _of_tree(
    world: World, files_by_entry: Entries, *, partly: bool = False, scenario: Scenario
) -> Iterator[Finding]:
    """Whatever is published is whole, and what a clean build makes; `partly`: but for scripts,
    which may name a part of their programs."""
    for name, files in files_by_entry.items():
        known = world.forms.get(name, [])
        if partly and name.startswith("scripts/"):
            known = [_names_only(form) for form in known]
            right = any(_names_only(files).items() <= form.items() for form in known)
        elif scenario.measures and name.startswith("scripts/"):
            right = without_measured(files) in map(without_measured, known)
        elif not scenario.logs:
            right = without_log(files) in map(without_log, known)
        else:
            right = files in known
        if not right:
            yield Finding("torn", f"{name} is {_difference(world, name, files)}")


def without_measured(script: Tree) -> Tree:
    """A script's files without those that rest on what was measured, which have other bytes each
    time."""
    return {
        path: data
        for path, data in script.items()
        if not path.startswith(("dispatch/", "latency/", "dispatch_table."))
    }


def _names_only(script: Tree) -> Tree:
    return {
        path: data
        for path, data in script.items()
        if path == "script.txt" or path.startswith(("programs/", "failed/"))
    }


def _difference(world: World, name: str, files: Tree) -> str:
    if name not in world.forms:
        return "not of a clean build"
    known = world.forms[name][0]
    for path in sorted(known.keys() | files.keys()):
        if path not in files:
            return f"without {path}"
        if path not in known or files[path] != known[path]:
            return f"other in {path}"
    return "as it should be"


def _must_end(world: World, name: str, *words: str) -> Iterator[Finding]:
    ended = world.run(*words)
    yield from of_command(ended, killed=False)
    if ended.status:
        output = (ended.out + ended.err)[-1500:]
        yield Finding("stuck", f"{name}: {' '.join(words)} ends {ended.status}: {output}")


def _of_ordinary_build(
    world: World, scenario: Scenario, programs: set[str], ended: Ended
) -> Iterator[Finding]:
    edition = scenario.edition
    built, summary = world.build()
    yield from of_command(built, killed=False)
    if built.status or not summary:
        yield Finding("stuck", f"build ends {built.status}: {built.err[-1500:]}")
    missing = world.programs_of(edition) - programs
    if scenario.builds and ended.status == 0 and missing:
        yield Finding("lost", f"it said that all was well, and {len(missing)} had to be compiled")
    extra = [program for program in world.journal() if program not in missing]
    if extra:
        yield Finding("twice", f"{extra[0]} was there, and is compiled by the next build")
    for program in missing:
        if world.journal().count(program) > 1:
            yield Finding("twice", f"{program} is compiled twice in the next build")
    yield from _must_end(world, "after it", "cache", "verify")
    yield from _must_end(world, "after it", "cache", "gc")
    at_end, wanted = entries(world.cache), world.references[edition]
    for name in wanted:
        # What was installed needs no headers.
        if name not in at_end and not name.startswith("include/"):
            yield Finding("lost", f"{name} is not there in the end")
    for finding in _of_tree(world, at_end, scenario=scenario):
        yield Finding("stale", f"{finding.what} in the end")
    if scenario.measures:
        yield from _must_end(world, "after it", "dispatch", "check", "scale")
    yield from _of_files(world)
    yield from (Finding("left over", f"process {words}") for words in world.server.settle())


def _of_output(world: World, scenario: Scenario) -> Iterator[Finding]:
    """What was packaged is a clean build's package, and nothing else is there."""
    if scenario.words[0] != "package":
        return
    actual, wanted = below(world.output), world.packages[scenario.words[2]]
    for name in sorted(actual.keys() | wanted.keys()):
        if name not in wanted:
            yield Finding("left over", f"out/{name}")
            return
        if actual.get(name) != wanted[name]:
            yield Finding("stale", f"out/{name} is other than a clean build's, or missing")
            return


def _of_files(world: World) -> Iterator[Finding]:
    """Nothing of what was under way is left."""
    for directory in (world.project, world.home, world.output, world.temporary):
        for name in below(directory):
            parts = name.split("/")
            if any(part.startswith(".tmp-") for part in parts) or "staging" in parts[:-1]:
                yield Finding("left over", f"{directory.name}/{name}")
                return
    _need_a_directory(world)
    for name in below(world.temporary):
        if not _STAY.fullmatch(name):
            yield Finding("left over", f"tmp/{name}")
            return


def _need_a_directory(world: World) -> None:
    """Make one in TMPDIR: what a killed command left there is removed by the next one that does,
    and a build that asks no tool makes none."""
    TemporaryDirectory("oracle", str(world.temporary)).close()


def _take_away(world: World, damaged: str, output: str) -> None:
    """Do as `verify` says with what stands where a file of the cache belongs: it is somebody's."""
    name = damaged.partition("/")[2]
    if f"{name}: is unknown\n" in output:
        remove_tree(str(world.cache / name))


def judge_repaired(
    world: World, scenario: Scenario, damaged: str, *, gc_first: bool
) -> list[Finding]:
    """Say all that is wrong in a world in which somebody else damaged the file `damaged`.

    Nothing crashes or hangs, only a damaged program is compiled again, garbage collection removes
    no other, and what `cache verify` finds, its own repair and a build mend.
    """
    findings: list[Finding] = []
    steps = [scenario.words, ("cache", "gc")]
    for words in steps[::-1] if gc_first else steps:
        ended = world.run(*words)
        findings += of_command(ended, killed=False)
        if ended.status and words == scenario.words:
            findings.append(Finding("stuck", f"{words} ends {ended.status}: {ended.err[-800:]}"))
    for words in (("cache", "verify"), ("cache", "verify", "--repair")):
        ended = world.run(*words)
        findings += of_command(ended, killed=False)
        _take_away(world, damaged, ended.out)
    findings += _must_end(world, "repaired", *scenario.words)
    findings += _must_end(world, "repaired", "cache", "verify")
    findings += _must_end(world, "repaired", "cache", "gc")
    for program in sorted(set(world.journal())):
        if f"programs/{program}/" not in damaged or world.journal().count(program) > 1:
            findings.append(Finding("twice", f"{program} is compiled"))
    at_end = entries(world.cache)
    findings += [
        Finding("lost", f"{name} is not there in the end")
        for name in world.references[scenario.edition]
        if name not in at_end and not name.startswith("include/")
    ]
    findings += (
        Finding("stale", f"{f.what} in the end") for f in _of_tree(world, at_end, scenario=scenario)
    )
    findings += _of_files(world)
    return findings
