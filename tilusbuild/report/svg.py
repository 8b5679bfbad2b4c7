"""One chart of the report as SVG, drawn by the page's own code in a JavaScript engine.

The engine, of the extra `svg`, has no files, no network and no clock of ours, and bounds on its
memory and time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from tilusbuild.errors import input_error
from tilusbuild.report.html import LIBRARY, text_of

CHARTS = (
    *("timeline", "funnel", "map", "parallel", "served", "regret", "race", "roofline"),
    *("sizes", "change"),
)
METRICS = ("registers", "spills", "smem", "occupancy", "library", "seconds", "measured")
"""What the charts of a space colour by."""
_MEMORY = 2 << 30
_SECONDS = 120
_MISSING = "var setTimeout = () => 0, clearTimeout = () => {};"
"""What a browser has and the library asks for, though nothing waits here."""


def svg(lines: Iterable[str], name: str, chosen: Mapping[str, str], width: int = 960) -> bytes:
    """Return the chart `name` of lines of JSON. Raises `InputError`."""
    try:
        import quickjs
    except ImportError:
        raise input_error(
            "--svg needs a JavaScript engine", hint="`pip install 'tilusbuild[svg]'`"
        ) from None
    engine = quickjs.Context()
    engine.set_memory_limit(_MEMORY)
    engine.set_time_limit(_SECONDS)
    for text in (_MISSING, *map(text_of, (LIBRARY, "model.js", "charts.js"))):
        engine.eval(text)
    draw = engine.eval(
        "(lines, name, chosen, width) => svgOf(JSON.parse(lines), name, JSON.parse(chosen), width)"
    )
    made: str = draw("[" + ",".join(lines) + "]", name, json.dumps(dict(chosen)), width)
    if not made:
        raise input_error(f"--svg {name}: there is nothing to draw", hint=_NOTHING.get(name))
    return made.encode()


_NOTHING = {
    "timeline": "the first build that compiles something leaves its times",
    "map": "--axes names two parameters that programs differ in",
    "change": "`--against OTHER` says what to compare with",
    **dict.fromkeys(
        ("served", "regret", "race", "roofline"), "`tilusbuild tune SCRIPT` measures programs"
    ),
}
