"""The one table printer: plain text with aligned columns, for files and terminals alike.

The look is that of Tilus' own tables: a header, a rule of dashes, two spaces between columns.
Columns of numbers align to the right, others to the left. A cell never breaks its line.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

Cell = bool | int | float | str | None
"""What a table shows. None is an empty cell; booleans print as in TOML."""

_HEADER_PADDING = 2
_GAP = "  "
_UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))


def format_table(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return the table, each line with its newline. Raises `ValueError` for uneven rows."""
    body = [tuple(row) for row in rows]
    for row in body:
        if len(row) != len(headers):
            raise ValueError(f"a row of {len(row)} cells under {len(headers)} headers")
    columns = [_format_column(header, [row[i] for row in body]) for i, header in enumerate(headers)]
    return "".join(_GAP.join(line).rstrip() + "\n" for line in zip(*columns, strict=True))


def format_times(seconds: Sequence[float | None]) -> tuple[str, list[str | None]]:
    """Return the unit in which the shortest of some times is at least 1, and the times in it,
    aligned."""
    # A time of 0 fits no unit, and comes of a clock that is too coarse: it does not count.
    shortest = min((time for time in seconds if time), default=1.0)
    fitting_units = [(unit, scale) for unit, scale in _UNITS if shortest * scale >= 1]
    unit, scale = fitting_units[0] if fitting_units else _UNITS[-1]
    texts = [None if time is None else f"{time * scale:.2f}" for time in seconds]
    width = max((len(text) for text in texts if text), default=0)
    return unit, [None if text is None else text.rjust(width) for text in texts]


def format_cell(cell: Cell) -> str:
    """Return a cell's text as one line: control characters are shown as escapes."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if not isinstance(cell, str):
        return repr(cell)
    if cell.isprintable():
        return cell
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cell)


def _is_numeric(cell: Cell) -> bool:
    # A bool is an int in Python, and prints as a word.
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))


def _format_column(header: str, cells: list[Cell]) -> list[str]:
    """Return the header, a rule and the cells as texts of one width."""
    is_right_aligned = all(map(_is_numeric, cells))
    texts = [format_cell(text) for text in (header, *cells)]
    widths = [_measure_width(text) for text in texts]
    column_width = max(widths[0] + _HEADER_PADDING, *widths)
    padded_texts = []
    for text, width in zip(texts, widths, strict=True):
        blanks = " " * (column_width - width)
        padded_texts.append(blanks + text if is_right_aligned else text + blanks)
    return [padded_texts[0], "-" * column_width, *padded_texts[1:]]


def _measure_width(text: str) -> int:
    """Return the terminal columns of a text: 2 for an East Asian wide character, 0 for a combining
    mark."""
    if text.isascii():
        return len(text)
    width = 0
    for character in text:
        if not unicodedata.combining(character):
            width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return width
