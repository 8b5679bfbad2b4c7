"""A compiler's log in the words of whoever wrote the template and the manifest.

A line of a rendering is shown as the template's line that wrote it. A kernel's C++ name, and a
struct's layout, are lines at the source's end: what a compiler finds wrong with them is wrong in
the manifest. Imported only when a compiler says something.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from tilusbuild.compile.kernel_names import VARIABLE
from tilusbuild.errors import InputError, Place
from tilusbuild.plan import library
from tilusbuild.plan.instance import InstanceSpec, ScriptReader, is_source
from tilusbuild.plan.rendering import make_context
from tilusbuild.render.linemap import LineMap, Origin, Piece
from tilusbuild.render.messages import map_messages
from tilusbuild.space import Schedule


def make_log_readable(
    spec: InstanceSpec, sources: ScriptReader, schedule: Schedule, log: str
) -> str:
    """Return a compiler's log with places in the template and the manifest instead of the rendered
    source. It is unchanged if its places are right already, or if the template was edited."""
    # A linker's log has no lines of a source.
    if spec.is_link:
        return library.make_log_readable(spec, log)
    # Both have `#line` in the text that is compiled: the compiler's places are right.
    if is_source(spec.owner) or spec.manifest.build.line_directives:
        return log
    try:
        variables = make_context(spec, schedule)
        renderer = sources.renderer.with_style(spec.style)
        template = spec.owner.template
        source = renderer.render(template, variables).text
        lines = renderer.map_lines(template, variables, source)
        values = spec.merge_values(schedule)
        symbol = spec.valued.name_symbol(values)
        full_source = spec.valued.make_full_source(source, symbol, spec.list_unit_kernels(values))
        return map_log(log, lines, full_source, spec.valued.map_places(), symbol)
    # The template was edited since: the log stays as it is.
    except InputError:
        return log


_NVRTC = "__nv_name_map"
"""The file in which NVRTC has the name that it was asked for, in line 2."""
_UNDECIDED = re.compile(r'(error: )cannot deduce "auto" type')
"""What nvcc says of a name that is not of one function; also after what it says else."""


def map_log(
    log: str, line_map: LineMap, full_source: str, places: Mapping[str, Place], symbol: str
) -> str:
    """Return a compiler's log with places in the template and the manifest.

    `full_source` is the rendered source and the lines that were added behind it. `places` has the
    manifest's place of an added line by its text, and that of the kernel `symbol` by "".
    """
    kernel_place = places[""]
    # Behind another error the same words may be about a name that this error left undeclared.
    if len(re.findall(r"\berror: ", log)) == 1:
        log = _UNDECIDED.sub(
            rf'\1"{symbol}" is not the name of one kernel: it is overloaded, or a '
            "template that needs other arguments",
            log,
        )
    lines = full_source.split("\n")
    pieces: list[tuple[Piece, ...]] = list(line_map.pieces)
    for text in lines[len(line_map.rendered) :]:
        line_place = _find_place(text, places)
        pieces.append(() if line_place is None else (_make_piece(text, line_place),))

    def read_text(name: str) -> str:
        place = next((place for place in places.values() if place.path == name), None)
        return line_map.read(name) if place is None else _reconstruct_manifest(places, name)

    extended = replace(line_map, rendered=tuple(lines), pieces=tuple(pieces), read=read_text)
    # NVRTC's file of names has the symbol in its second line.
    name_map = LineMap(("", symbol), ((), (_make_piece(symbol, kernel_place),)), read_text)
    return map_messages(map_messages(log, extended), name_map, _NVRTC)


def _find_place(line: str, places: Mapping[str, Place]) -> Place | None:
    """Return the place in the manifest of a line behind the rendered source, or None."""
    return places[""] if f" {VARIABLE}" in line else places.get(line)


def _make_piece(text: str, place: Place) -> Piece:
    return Piece(1, text, Origin(place.path, place.line or 1), literal=False)


def _reconstruct_manifest(places: Mapping[str, Place], name: str) -> str:
    """Return the lines of a manifest that its places have; other lines are empty."""
    known = {place.line or 1: place.text or "" for place in places.values() if place.path == name}
    return "\n".join(known.get(number, "") for number in range(1, max(known) + 1))
