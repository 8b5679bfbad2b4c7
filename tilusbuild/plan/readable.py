"""A compiler's log in the words of whoever wrote the template and the manifest.

A line of a rendering is shown as the template's line that wrote it. A kernel's C++ name, and a
struct's layout, are lines at the source's end: what a compiler finds wrong with them is wrong in
the manifest. Imported only when a compiler says something.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tilusbuild.compile.kernel_names import VARIABLE
from tilusbuild.compile.model import HERE
from tilusbuild.errors import InputError, Location
from tilusbuild.manifest.table import format_toml
from tilusbuild.plan import library
from tilusbuild.plan.instance import InstanceSpec, ScriptReader, is_source
from tilusbuild.plan.rendering import make_context
from tilusbuild.render.closure import Root
from tilusbuild.render.linemap import LineMap, Origin, Piece
from tilusbuild.render.messages import map_messages
from tilusbuild.runtime.where import is_within
from tilusbuild.space.model import Schedule


def make_log_readable(
    spec: InstanceSpec, sources: ScriptReader, schedule: Schedule, log: str
) -> str:
    """Return a compiler's log with places in the template and the manifest instead of the rendered
    source. It is unchanged if its places are right already, or if the template was edited."""
    # A linker's log names objects, and no lines of a source.
    if spec.is_link:
        return library.make_log_readable(spec, log)
    # In both cases the compiled text has `#line` directives, so the compiler's places are right.
    if is_source(spec.owner) or spec.manifest.build.line_directives:
        return log
    try:
        variables = make_context(spec, schedule)
        template = spec.owner.template
        source = sources.renderer.render(template, variables).text
        lines = sources.renderer.map_lines(template, variables, source)
        values = spec.merge_values(schedule)
        symbol = spec.valued.name_symbol(values)
        full_source = spec.valued.make_full_source(source, symbol, spec.list_unit_kernels(values))
        return map_log(log, lines, full_source, spec.valued.map_places(), symbol)
    # The template was edited since it was compiled and has a mistake now: the log is unchanged.
    except InputError:
        return log


def restore_header_paths(log: str, roots: Sequence[Root], project: str) -> str:
    """Return the log with the headers' own paths, relative to the project or absolute, in place of
    those of the copy that a compile sees: `include/project/inc/a.cuh` is `inc/a.cuh`."""
    directories = {f"include/{root.tree}": root.base[1] for root in roots}
    # nvcc gets a directory by its number where it cannot take its name (`list_include_links`).
    directories |= {f"include-{number}": root.path for number, root in enumerate(roots)}
    names = "|".join(map(re.escape, directories))
    # `_` are the levels that `Root.add_levels` adds.
    copy = re.compile(rf"(?<![\w./-])(?:{HERE}/)?({names})/(?:_/)*")

    def restore_directory(match: re.Match[str]) -> str:
        """Return the directory that a part of the copy is of, with a `/` at its end."""
        path = directories[match[1]]
        relative = os.path.relpath(path, project) if is_within(path, project) else path
        return "" if relative == "." else f"{relative}/"

    return copy.sub(restore_directory, log) if roots else log


_CUDA_WORD = re.compile(
    r"error:.*\b(__(global|device|shared|constant|launch_bounds)__|threadIdx|blockIdx|blockDim)\b"
)


def explain_missing_branch(spec: InstanceSpec, log: str) -> str:
    """Return lines to append to a compiler's log; "" unless CUDA was compiled for a cpu target."""
    gpus = [name for name, target in spec.manifest.targets.items() if not target.is_cpu]
    if spec.target.kind != "cpu" or spec.is_part or not _CUDA_WORD.search(log):
        return ""
    return (
        f"\n{spec.target.name} is a cpu target, and this is CUDA: write a branch for it, as in"
        ' {% if target.kind == "cpu" %} … {% else %} … {% endif %},\n  or '
        + (
            f"leave it out: targets = {format_toml(gpus)} in [script.{spec.script}]\n"
            if gpus
            else "declare a target for a GPU\n"
        )
    )


_NVRTC_NAME_FILE = "__nv_name_map"
"""The file that NVRTC's messages about the kernel's name are in: its line 2 has the name."""
_AMBIGUOUS_NAME = re.compile(r'(error: )cannot deduce "auto" type')
"""nvcc's message for a name that is not the name of one function. nvcc may also write it after
another error, which left the name undeclared."""


def map_log(
    log: str, line_map: LineMap, full_source: str, locations: Mapping[str, Location], symbol: str
) -> str:
    """Return a compiler's log with places in the template and the manifest.

    `full_source` is the rendered source and the lines that were added behind it. `places` has the
    manifest's place of an added line by its text, and that of the kernel `symbol` by "".
    """
    kernel_location = locations[""]
    # If there is another error, the name may be undeclared because of it, and not ambiguous.
    if len(re.findall(r"\berror: ", log)) == 1:
        log = _AMBIGUOUS_NAME.sub(
            rf'\1"{symbol}" is not the name of one kernel: it is overloaded, or a '
            "template that needs other arguments",
            log,
        )
    full_lines = full_source.split("\n")
    pieces: list[tuple[Piece, ...]] = list(line_map.pieces)
    for added_line in full_lines[len(line_map.rendered) :]:
        is_of_kernel = f" {VARIABLE}" in added_line
        line_location = kernel_location if is_of_kernel else locations.get(added_line)
        pieces.append(() if line_location is None else (_make_piece(added_line, line_location),))

    def read_text(name: str) -> str:
        """Return the text of a template or, if `places` are in a file `name`, of the manifest."""
        is_manifest = any(location.path == name for location in locations.values())
        return _reconstruct_manifest(locations, name) if is_manifest else line_map.read(name)

    full_map = replace(line_map, rendered=tuple(full_lines), pieces=tuple(pieces), read=read_text)
    # The file is an empty line and a line with the symbol.
    name_map = LineMap(("", symbol), ((), (_make_piece(symbol, kernel_location),)), read_text)
    return map_messages(map_messages(log, full_map), name_map, _NVRTC_NAME_FILE)


def _make_piece(text: str, location: Location) -> Piece:
    return Piece(1, text, Origin(location.path, location.line or 1), literal=False)


def _reconstruct_manifest(locations: Mapping[str, Location], name: str) -> str:
    """Return the lines of a manifest that its places have; other lines are empty."""
    text_by_line = {
        location.line or 1: location.text or ""
        for location in locations.values()
        if location.path == name
    }
    line_numbers = range(1, max(text_by_line) + 1)
    return "\n".join(text_by_line.get(number, "") for number in line_numbers)
