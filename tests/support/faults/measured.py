"""What `tune` leaves in a script's directory, looked at by what it says: its bytes are other ones
each time."""

from __future__ import annotations

import json

from support.faults.world import Tree
from tilusbuild.dispatch.latency import TIE

_TEXT_ROW = "  measured  "


def without_measured(script: Tree) -> Tree:
    """A script's files without those that rest on what was measured."""
    return {
        path: data
        for path, data in script.items()
        if not path.startswith(("dispatch/", "latency/", "dispatch_table."))
    }


def measured_problem(script: Tree) -> str | None:
    """Return what is wrong with the measurements in a script's directory; None when each size that
    was measured has a row with the first of the programs that are as good as the quickest, and its
    time, in both tables, and there is a dispatcher."""
    try:
        best = _quickest(script)
        entries = [
            entry
            for table in json.loads(script["dispatch_table.json"])["tables"]
            for entry in table["entries"]
        ]
        rows = {tuple(key): (seconds, program) for key, program, _, seconds in entries}
        text = script["dispatch_table.txt"]
        assert isinstance(text, bytes)
        lines = [line.split() for line in text.decode().splitlines() if _TEXT_ROW in line]
        said = {tuple(map(int, words[:-3])): int(words[-3]) for words in lines}
    except (ValueError, KeyError, TypeError, IndexError, AssertionError) as error:
        return f"not as tune writes it: {error!r}"
    if rows != best:
        return f"the table has {rows}, and measured was {best}"
    if said != {key: program for key, (_, program) in rows.items()}:
        return f"the text has {said}, and the table {rows}"
    if not {"dispatch/dispatch.json", "dispatch/libscale.so"} <= script.keys():
        return "there is no dispatcher"
    return None


def _quickest(script: Tree) -> dict[tuple[int, ...], tuple[float, int]]:
    found = {}
    for path, data in script.items():
        if path.startswith("latency/") and path.endswith(".json"):
            measured = json.loads(data)
            (of_device,) = measured["measured"]
            times = {int(program): time for program, time in of_device["seconds"].items()}
            bound = min(times.values()) * (1 + TIE)
            program = min(program for program, time in times.items() if time <= bound)
            found[tuple(measured["key"])] = (times[program], program)
    return found
