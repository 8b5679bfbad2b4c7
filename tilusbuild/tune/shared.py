"""Measured results by way of a remote cache: of others with the same device, and for them.

What is kept is a case, whole: every check and sample that its decision follows from, taken on one
machine in one go. It is kept under all that makes the measurement comparable: the device, the case
(sizes, inputs, expected outputs, tolerances, caches), the programs by hash and number, how often is
measured, and the version of the measuring code. What comes is a claim, compared in form with what
would have been asked here. Only times of right programs are taken: that a program is wrong, crashes
or is refused, and that the winner is right, is found out here, each time.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tilusbuild import __version__
from tilusbuild.remote.settings import RemoteSettings, not_installed
from tilusbuild.runtime.regular import read_text
from tilusbuild.state.files import sha256_bytes
from tilusbuild.tune.bench.bench import OK, Answer
from tilusbuild.tune.bench.session import Key, TuningSession, answers
from tilusbuild.tune.bench.work import Case, Work

if TYPE_CHECKING:
    from tilusbuild.remote.objects import Objects

_FORMAT = "1"
_FILE = "measured.jsonl"
_MOST_BYTES = 16 << 20
_LONGEST_NOTE = 200


def device_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two devices have in common on which times are comparable: all that the log
    says of one but for its own id; of a cpu, whose name says little, also its caches and number of
    processors."""
    found = {name: facts[name] for name in ("kind", "name", "arch", "driver")}
    if facts["kind"] == "cpu":
        caches = []
        for path in sorted(glob.glob("/sys/devices/system/cpu/cpu0/cache/index*/size")):
            with suppress(OSError, ValueError):
                caches.append(read_text(path).strip())
        found |= {"machine": os.uname().machine, "processors": os.cpu_count(), "caches": caches}
    return found


class SharedResults:
    """Of one instance on one device. Whatever is wrong with the remote is one warning, and then
    everything is measured here."""

    def __init__(
        self,
        settings: RemoteSettings,
        device: Mapping[str, Any],
        work: Work,
        session: TuningSession,
        *,
        seed: int,
        warmup: int,
        takes: bool,
        warn: Callable[[str], None],
    ) -> None:
        """Connects to nothing yet. `device` is of `device_of`; without `takes` results are only
        sent."""
        self._settings = settings
        self._takes = takes
        self._warn = warn
        self._log = session.log
        self._work = work
        self._limited = session.budget.seconds is not None or session.budget.runs is not None
        self._objects: Objects | None = None
        self._troubled = False
        self._common = {
            "what": "measured",
            "format": _FORMAT,
            "tool": __version__,
            "device": dict(device),
            "programs": [[program.index, program.hash] for program in work.programs],
            "rounds": session.rounds,
            "warmup": warmup,
            "seed": seed,
        }

    def close(self) -> None:
        if self._objects is not None:
            self._objects.close()

    def take(self, case: Case) -> None:
        """Add what others measured of a case to the log, if nothing of it was measured here.
        Raises `OSError` where the log cannot be written."""
        if not self._takes or any(key[0] == case.digest for key in self._log.known):
            return
        objects = self._opened()
        if objects is None:
            return
        try:
            found = self._found(objects, case)
        except _MalformedError as error:
            self._warn(f"results for {case.label} of {self._settings.address} are {error}")
            return
        for key, answer in found.items():
            # What it cost was spent elsewhere: no budget counts it.
            self._log.add(key, replace(answer, cost=0.0), origin=self._settings.address)

    def keep(self, case: Case) -> None:
        """Send a case that was measured here, in one go, if one may."""
        if not self._settings.write or self._limited:
            return
        known = {key: a for key, a in self._log.known.items() if key[0] == case.digest}
        if not known.keys() <= self._log.measured or (objects := self._opened()) is None:
            return
        rows = [_row(key, answer) for key, answer in known.items() if _is_taken(key, answer)]
        text = "".join(json.dumps(each) + "\n" for each in (self._header(case), *rows))
        with self._trouble_is_a_warning():
            objects.keep(self._words(case), {_FILE: text.encode()}, {})

    def _found(self, objects: Objects, case: Case) -> Mapping[Key, Answer]:
        """Raises `_MalformedError`."""
        data = None
        with self._trouble_is_a_warning():
            (files,) = objects.find([self._words(case)])
            blob = None if files is None else files.get(_FILE)
            if blob is None:
                return {}
            if blob.size > _MOST_BYTES:
                raise _MalformedError(f"larger than {_MOST_BYTES >> 20} MiB")
            contents = objects.read([blob])
            if blob in contents.wrong and blob not in contents.good:
                raise _MalformedError("not what their sha256 says")
            data = contents.good.get(blob)
        return {} if data is None else self._checked(case, data)

    def _checked(self, case: Case, data: bytes) -> Mapping[Key, Answer]:
        """Return the answers in a file, if it is one that `keep` writes here. Raises
        `_MalformedError`."""
        try:
            header, *rows = (json.loads(line) for line in data.decode("ascii").splitlines())
        except (ValueError, RecursionError):
            raise _MalformedError("malformed") from None
        if header != self._header(case):
            raise _MalformedError("of another device, or of other programs")
        programs = {program.hash for program in self._work.programs}
        found = answers(each for each in rows if isinstance(each, dict))
        if len(found) != len(rows) or not all(map(_is_taken, found.keys(), found.values())):
            raise _MalformedError("malformed")
        for digest, program, what, number in found:
            earlier = (digest, program, *(("sample", number - 1) if number else ("check", 0)))
            begins = (what, number) == ("check", 0)
            if digest != case.digest or program not in programs:
                raise _MalformedError("of another case")
            if not begins and earlier not in found:
                raise _MalformedError("not whole")
        return found

    def _header(self, case: Case) -> Mapping[str, Any]:
        return {**self._common, "case": case.digest}

    def _words(self, case: Case) -> tuple[str, ...]:
        text = json.dumps(self._header(case), sort_keys=True)
        return ("measured", _FORMAT, sha256_bytes(text.encode()))

    def _opened(self) -> Objects | None:
        if self._objects is None and not self._troubled:
            try:
                from tilusbuild.remote.objects import Objects
            except ImportError as error:
                self._troubled = True
                self._warn(f"remote cache: {not_installed(error)}")
                return None
            with self._trouble_is_a_warning():
                self._objects = Objects(self._settings)
        return None if self._troubled else self._objects

    @contextmanager
    def _trouble_is_a_warning(self) -> Iterator[None]:
        from tilusbuild.remote.backend import RemoteTroubleError

        try:
            yield
        except RemoteTroubleError as error:
            self._troubled = True
            self._warn(f"remote cache: {error}; everything is measured here")


class _MalformedError(ValueError):
    """Results that are not used; the text says what they are."""


def _is_taken(key: Key, answer: Answer) -> bool:
    """Return whether an answer of others counts: a program's first check, if it was right, and the
    times of one that is."""
    _, _, what, number = key
    if answer.status != OK or answer.why or len(answer.note) > _LONGEST_NOTE:
        return False
    if what == "check":
        return number == 0 and answer.seconds is None
    return what == "sample" and number >= 0 and answer.seconds is not None and answer.seconds > 0


def _row(key: Key, answer: Answer) -> dict[str, Any]:
    case, program, what, number = key
    return {"case": case, "program": program, "what": what, "number": number, **asdict(answer)}
