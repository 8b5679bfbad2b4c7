"""Which programs a script's dispatch can choose, whatever the sizes and whatever the device.

A device that a table holds on is served from the table. Any other is served by the rules, the model
and the default, and a model chooses among what is there; so with a table, the programs that only a
model would choose may stay behind. Without one they may not.
"""

from __future__ import annotations

from tilusbuild.runtime.script import Script
from tilusbuild.runtime.tables import read_tables


def reachable(script: Script) -> frozenset[int]:
    """Numbers of the programs that were built and can be chosen. Raises `LoadError`."""
    built = frozenset(range(len(script.programs))) - script.not_built.keys()
    entries = {entry.program for table in read_tables(script) for entry in table.entries}
    if script.model is not None and not entries:
        return built
    chosen = entries | {rule.program for rule in script.rules}
    if script.default is not None:
        chosen.add(script.default)
    found = built & chosen
    # Without a default, and with none that was built, the first program serves.
    return found if script.default in built else found | frozenset(sorted(built)[:1])
