"""A compiler's log for people: places as lines of the template, and help for missing headers.

The compiler's own words and its echo of the source stay as they are, with the values of this
schedule; the template's line follows if its text is different. A place that cannot be traced stays
a place in the rendered source.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from tilusbuild.errors import Diagnostic, did_you_mean
from tilusbuild.render.closure import HEADER_SUFFIXES
from tilusbuild.render.linemap import LineMap, Origin

_SEVERITY = r"(?:catastrophic |fatal )?(?:error|warning|note|remark)"
_MAX_ECHO = 8
"""Lines in which nvcc's front end repeats the source and points at it."""


class _MessageHead(Struct, frozen=True):
    """The first line of a message about the rendered source."""

    line: int
    column: int | None
    rest: str
    text: str
    """The line as it is."""
    is_nvcc: bool
    """Whether it is in the style of nvcc's front end, `file(line): `, and not in gcc's."""


def map_messages(log: str, line_map: LineMap, source: str = "source.cu") -> str:
    """Return the log with the places in `source` replaced; other lines are unchanged."""
    return "\n".join(_LogMapper(line_map, source).map_lines(log.split("\n")))


class _LogMapper:
    def __init__(self, line_map: LineMap, source: str) -> None:
        self._map = line_map
        name = rf"(?:[^\s\"'()]*/)?{re.escape(source)}"
        # `source.cu(12): error: identifier "x" is undefined`
        self._nvcc = re.compile(rf"{name}\((\d+)\)(: (?:{_SEVERITY}).*)")
        # `source.cu:12:5: error: 'x' was not declared`
        self._gcc = re.compile(rf"{name}:(\d+):(?:(\d+):)?( .*)")
        # `In file included from source.cu:3:`
        self._included = re.compile(
            rf"(In file included from |\s+from ){name}:(\d+)(?::\d+)?([,:])"
        )
        # `source.cu: In function 'int f()':`
        self._context = re.compile(rf"{name}(: (?:In|At) .*)")
        # `detected during instantiation of "f" at line 12 of source.cu`
        self._reference = re.compile(rf"\bat line (\d+)(?: of ({name})(?!\S))?(?! of )")
        # `header.cuh(7): error: …`
        self._other_file = re.compile(rf"\S.*\(\d+\): {_SEVERITY}")
        self._in_source = True
        """Whether the message of the current line is about the source."""

    def map_lines(self, lines: list[str]) -> Iterator[str]:
        """Yield the lines of the log with the places of the template."""
        index = 0
        while index < len(lines):
            text = lines[index]
            index += 1
            head = self._parse_head(text)
            if head is None:
                # In a message about a header, a bare "at line 12" is a line of that header.
                if self._other_file.match(text):
                    self._in_source = False
                yield self._map_plain_line(text)
                continue
            end = self._find_echo_end(lines, index, head)
            yield from self._format_message(head, lines[index:end])
            index = end

    def _parse_head(self, text: str) -> _MessageHead | None:
        """Return the parsed first line of a message about the source; None for any other line."""
        if match := self._nvcc.fullmatch(text):
            return _MessageHead(int(match[1]), None, match[2], text, is_nvcc=True)
        if match := self._gcc.fullmatch(text):
            column = int(match[2]) if match[2] else None
            return _MessageHead(int(match[1]), column, match[3], text, is_nvcc=False)
        return None

    def _map_plain_line(self, text: str) -> str:
        """Return a line that does not start a message about the source, its references mapped."""
        if match := self._included.fullmatch(text):
            origin = self._map.find_origin(int(match[2]))
            return f"{match[1]}{origin}{match[3]}" if origin else text
        if (match := self._context.fullmatch(text)) and (origin := self._find_template_line()):
            return origin.template + match[1]
        return self._map_references(text)

    def _map_references(self, text: str) -> str:
        """Return a text whose "at line N" names lines of the template."""

        def map_reference(match: re.Match[str]) -> str:
            """Return one "at line N" with the template's place; unchanged if that is unknown."""
            # `at line 10 of source.cu` is certain; a bare `at line 10` is of the file that the
            # message is about.
            names_source = match[2] is not None
            is_source_line = names_source or self._in_source
            origin = self._map.find_origin(int(match[1])) if is_source_line else None
            return f"at {origin}" if origin else match[0]

        return self._reference.sub(map_reference, text)

    def _find_template_line(self) -> Origin | None:
        """Return the place in the template itself of the first rendered line that has an origin; of
        included text, the line that includes it. None if no line has an origin."""
        for number in range(1, len(self._map.rendered) + 1):
            origin = self._map.find_origin(number)
            if origin is not None:
                # The last caller is the outermost one.
                return Origin(*origin.callers[-1]) if origin.callers else origin
        return None

    def _find_echo_end(self, lines: list[str], index: int, head: _MessageHead) -> int:
        """Return the index after the compiler's echo of the source, which starts at `index`."""
        if head.is_nvcc:
            for end in range(index, min(index + _MAX_ECHO, len(lines))):
                if re.fullmatch(r"\s+\^", lines[end]):
                    return end + 1
                # This line starts the next message, so the message has no echo.
                if not lines[end].startswith(" "):
                    break
            return index
        # gcc's echo is `   12 | text` and `      |  ^`. An empty line of it ends at the bar: the
        # blank that is added stands for the missing one.
        while index < len(lines) and re.match(r" *\d* \| ", lines[index] + " "):
            index += 1
        return index

    def _format_message(self, head: _MessageHead, echo: list[str]) -> Iterator[str]:
        """Yield the lines of a message about the source: its head and its echo with places in the
        template, then the template's line. Without an origin, yield head and echo with their own
        places. Set `_in_source`, for the lines of the log that follow."""
        self._in_source = True
        column = self._find_column(head)
        origin = self._map.find_origin(head.line, column)
        if origin is None:
            yield from [head.text, *map(self._map_references, echo)]
            return
        template_column = self._map.find_template_column(head.line, column) if column else None
        rest = self._map_references(head.rest)
        if head.is_nvcc:
            yield f"{origin.template}({origin.line}){rest}"
        else:
            yield f"{origin}{f':{template_column}' if template_column else ''}:{rest}"
        for text in echo:
            # gcc writes the number five characters wide: `   12 | text`.
            number = f"{head.line:>5}"
            if not head.is_nvcc and text.startswith(f"{number} |"):
                text = f"{origin.line:>5}{text[5:]}"
            yield self._map_references(text)
        yield from self._format_snippet(head, origin, template_column, echo)

    def _format_snippet(
        self, head: _MessageHead, origin: Origin, column: int | None, echo: list[str]
    ) -> Iterator[str]:
        """Yield the template's line, if its text is not the echo's, and who called it."""
        text = self._map.read_template_line(origin)
        if text is not None and not (echo and text == self._map.rendered[head.line - 1]):
            width = 1
            if column is None and (word := _find_pointed_identifier(echo)):
                matches = list(re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text))
                # If the word stands twice in the line, it is not known which one is meant.
                if len(matches) == 1:
                    column, width = matches[0].start() + 1, len(word)
            yield f"{origin.line:>5} | {text.expandtabs(4)}"
            if column is not None:
                before = text[: column - 1].expandtabs(4)
                yield f"      | {' ' * len(before)}{'^' * width}"
        for name, line in origin.callers:
            yield f"  called from {name}:{line}"

    def _find_column(self, head: _MessageHead) -> int | None:
        """Return the index, from 1, of the character at gcc's column; None if it is not certain."""
        if head.column is None or not 1 <= head.line <= len(self._map.rendered):
            return None
        text = self._map.rendered[head.line - 1]
        # gcc counts the cells of a terminal. A tab leads to the next stop of eight (-ftabstop).
        cells = 0
        for index, character in enumerate(text, 1):
            if cells >= head.column - 1:
                return index
            cells += 8 - cells % 8 if character == "\t" else 1
            # Another character may take one cell, two or none, so later columns are not certain.
            if not character.isascii():
                return None
        return len(text) + 1


def _find_pointed_identifier(echo: list[str]) -> str | None:
    """Return the identifier that the echo's last line, a caret, points at."""
    if len(echo) < 2 or "^" not in echo[-1]:
        return None
    match = re.match(r"[A-Za-z_]\w*", echo[-2][echo[-1].index("^") :])
    return match[0] if match else None


_MISSING = re.compile(
    r"fatal error: (?P<gcc>.+): No such file or directory|cannot open source file \"(?P<nvcc>.+)\""
)
_MAX_COUNT = 20_000
"""Names of headers to compare a misspelt one with."""

_LIBRARY = re.compile(r"[a-z_]+|(?:assert|float|limits|math|std[a-z]+|string|time)\.h")
"""The names of headers of the C++ library, which have no suffix, and of the C library."""


def misses_header(log: str) -> bool:
    """Return whether a compiler reports a missing header."""
    return _MISSING.search(log) is not None


def explain_missing_header(
    log: str,
    notes: Sequence[Diagnostic],
    *,
    nvrtc: bool = False,
    directories: Sequence[str] = (),
    beside: Sequence[str] = (),
) -> str:
    """Return lines to append to a compiler's log; "" if no header is missing.

    `notes` are those of the source's closure: a compile sees a copy of the closure's headers only.
    `directories` are those in which the project's headers are searched, `beside` those in which
    only `#include "…"` searches.
    """
    match = _MISSING.search(log)
    if match is None:
        return ""
    name = match["gcc"] or match["nvcc"]
    # NVRTC has no library headers. nvcc takes them from the host compiler, so a source that is
    # right for nvcc may need this advice.
    if nvrtc and _LIBRARY.fullmatch(name):
        return _explain_library_header(name) + "\n"
    certain_notes = [note.render() for note in notes if not note.undetermined]
    uncertain_notes = [note.render() for note in notes if note.undetermined]
    # Only if the closure knows no certain cause, the general one is explained.
    unsearched = beside if f"<{name}>" in log else ()
    causes = certain_notes or [
        _explain_unsearched_header(name, directories, unsearched)
        or _explain_absent_header(name, [*directories, *beside])
    ]
    return "\n".join([*causes, *uncertain_notes]) + "\n"


def _list_header_names(directories: Sequence[str]) -> list[str]:
    """Return the names by which includes find the project's headers. If there are more than
    `_MAX_COUNT`, some are missing."""
    header_names: list[str] = []
    for directory in directories:
        for parent, inner, names in os.walk(directory):
            inner[:] = [name for name in inner if not name.startswith(".")]
            relative = os.path.relpath(parent, directory)
            header_names += [
                os.path.normpath(os.path.join(relative, name))
                for name in names
                if name.endswith(HEADER_SUFFIXES)
            ]
            # A system's /usr/include may be a directory of the project.
            if len(header_names) > _MAX_COUNT:
                return header_names
    return header_names


def _explain_library_header(name: str) -> str:
    """Return what to do about a header of the C or C++ library, which NVRTC does not have."""
    # `stdint.h` is `cuda/std/cstdint` there, and `vector` is `cuda/std/vector`.
    stem = name.removesuffix(".h")
    toolkit_name = f"c{stem}" if name.endswith(".h") else stem
    return (
        f"{name}: NVRTC has no C and C++ library; if anything of it is needed,"
        f"\n  the toolkit's <cuda/std/{toolkit_name}> may have it"
    )


def _explain_unsearched_header(
    name: str, directories: Sequence[str], unsearched: Sequence[str]
) -> str | None:
    """Return what to do about a header that only `unsearched` directories have; None if they have
    not."""
    has_header = lambda directory: os.path.isfile(os.path.join(directory, name))  # noqa: E731
    if any(map(has_header, directories)) or not any(map(has_header, unsearched)):
        return None
    return (
        f"{name}: #include <…> does not search the directory of the source;"
        f'\n  write #include "{name}", or add the directory to include-dirs in [build]'
    )


def _explain_absent_header(name: str, directories: Sequence[str]) -> str:
    """Return why a compile may miss a header, and what to do."""
    exists = any(os.path.isfile(os.path.join(directory, name)) for directory in directories)
    if directories and not exists:
        advice = did_you_mean(name, _list_header_names(directories), max_listed=0)
        for variable in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"):
            for directory in filter(None, os.environ.get(variable, "").split(os.pathsep)):
                if os.path.isfile(os.path.join(directory, name)):
                    advice = (
                        f'no compile gets {variable}: include-dirs = ["{directory}"] in [build]'
                    )
        if advice is None and re.match(r"(torch|ATen|c10)/", name):
            advice = "PyTorch has it: torch = true in [library.NAME]"
        return (
            f"{name}: neither include-dirs, nor the toolkit, nor the host compiler has it;"
            f"\n  {advice or 'add its directory to include-dirs in [build] or in the script'}"
        )
    return (
        f"{name}: a compile sees only those headers of include-dirs that it is seen to need;"
        f'\n  declare another one with headers = ["{name}"] in [build] or in the script'
    )
