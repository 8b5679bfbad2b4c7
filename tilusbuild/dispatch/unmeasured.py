"""What is chosen while nothing is measured: the rules by hand, then the model or the default.

It follows from the script's description and from who is refused, so the file of tables says it from
the first build on, below "unmeasured", where people and other programs look for it:

    "unmeasured": {"rules": [{"when": "n <= 4", "program": 2}],
                   "source": "default", "program": 1, "why": "the default schedule"}

Nothing chooses by it: a reader that finds no tables asks rules, model and default themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilusbuild.runtime.choose import Chooser
from tilusbuild.runtime.errors import ProgramNotFoundError
from tilusbuild.runtime.refused import Refusal, by_number
from tilusbuild.runtime.script import Script
from tilusbuild.table import Cell, table


def unmeasured(script: Script, refused: Sequence[Refusal]) -> dict[str, Any]:
    """Return it as the file has it. Without any program, and where the answer is a refusal, the
    source is "none"."""
    out = by_number(script.programs, refused)
    built = frozenset(range(len(script.programs))) - script.not_built.keys()
    rules: list[dict[str, object]] = [
        {"when": rule.source, "program": rule.program}
        for rule in script.rules
        if rule.program in built
    ]
    if script.model is not None and _is_costed(script.model.columns, built - out.keys()):
        rest = _rest("model", None, f"least cost by {script.model.source}")
    else:
        try:
            found = Chooser(script, (), built, out).default()
            rest = _rest(found.source, found.program, found.why)
        except ProgramNotFoundError as error:
            rest = _rest("none", None, str(error).splitlines()[0])
    return {"rules": rules, **rest}


def _rest(source: str, program: int | None, why: str) -> dict[str, Any]:
    return {"source": source, "program": program, "why": why}


def _is_costed(columns: Mapping[str, Sequence[object]], programs: frozenset[int]) -> bool:
    """Return whether a model knows all that it reads of any of the programs."""
    return any(all(c[program] is not None for c in columns.values()) for program in programs)


def unmeasured_text(script: Script, refused: Sequence[Refusal]) -> str:
    """Return it for people."""
    found = unmeasured(script, refused)
    rows: list[tuple[Cell, ...]] = [
        (rule["when"], rule["program"], *script.schedule(rule["program"]).values(), "table")
        for rule in found["rules"]
    ]
    program = found["program"]
    values = (
        script.schedule(program).values() if program is not None else [None] * len(script.schedules)
    )
    rows.append(("else" if rows else "all sizes", program, *values, found["source"]))
    listed = table(("when", "choice", *script.schedules, "source"), rows)
    return f"nothing is measured yet: {found['why']}\n\n{listed}"
