"""Tables and lines that fit the terminal, or plain text without a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_WIDTH = 80  # columns of a pipe or a file, unless COLUMNS is set
_BETWEEN = 3  # characters between two columns: a blank, a line, a blank
_LONGEST_NUMBER = 14  # characters of a number with its unit, which is never broken
_LEAST_WORD = 12  # longer words may be broken
_NUMBER = re.compile(r"(?:[-+<>~]?\s?\d.*|[-+]|)\Z", re.DOTALL)


def output_width(stream: TextIO) -> int:
    """Columns for a stream: COLUMNS, else the width of its terminal, else 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or PLAIN_WIDTH
    except (OSError, ValueError, AttributeError):  # no terminal, or no file at all
        return PLAIN_WIDTH


def shows_unicode(stream: TextIO) -> bool:
    """True if the stream's encoding has block characters."""
    try:
        "█░…".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def wrapped(text: str, width: int) -> list[str]:
    """Wrap a line to at most `width` columns; further lines are indented."""
    own = len(text) - len(text.lstrip())
    indent = " " * (own + 2)
    return wrap(
        text,
        max(width, 20),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    ) or [""]


def fitted_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> RenderableType:
    """A Rich table of at most `width` columns.

    Numbers are right-aligned and never broken; text is left-aligned. If even narrow columns do not
    fit beside each other, every row becomes a block with one line per column.

    Args:
        rows: cells, one per column.
        width: columns of the terminal.
    """
    from rich.table import Table
    from rich.text import Text

    widths = column_widths(columns, rows, width)
    if widths is None:
        return Text("\n".join([title, *_blocks(columns, rows, width)]), overflow="fold")
    table = Table(title=Text(title), title_justify="left", show_edge=False, pad_edge=False)
    for at, (column, size) in enumerate(zip(columns, widths, strict=True)):
        is_text = at == 0 or not _is_numeric(row[at] for row in rows)
        table.add_column(
            Text(column), justify="left" if is_text else "right", overflow="fold", width=size
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def column_widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> list[int] | None:
    """Characters of each column, at most `width` in total; None if they do not fit."""
    from rich.cells import cell_len

    def longest(texts: Iterable[str]) -> int:
        return max(map(cell_len, texts), default=0)

    least, wanted = [], []
    for at, column in enumerate(columns):
        cells = [row[at] for row in rows]
        words = longest(word for cell in cells for word in cell.split())
        is_short = longest(cells) <= _LONGEST_NUMBER and _is_numeric(cells)
        unbroken = longest(cells) if is_short else min(words, _LEAST_WORD)
        least.append(max(1, unbroken, longest(column.split())))
        wanted.append(max(least[-1], longest([column, *cells])))
    left = width - _BETWEEN * (len(columns) - 1) - sum(least)
    if left < 0:
        return None
    widths = list(least)
    missing = sorted(range(len(columns)), key=lambda at: wanted[at] - least[at])
    for number, at in enumerate(missing):  # the smallest wishes first; the others share the rest
        more = min(wanted[at] - least[at], left // (len(missing) - number))
        widths[at] += more
        left -= more
    return widths


def _is_numeric(cells: Iterable[str]) -> bool:
    return all(_NUMBER.match(cell) for cell in cells)


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    lines = []
    for row in rows:
        first, *others = zip(columns, row, strict=True)
        lines += wrapped(f"{first[0]}: {first[1]}", width)
        for column, cell in others:
            lines += wrapped(f"  {column}: {cell}", width)
    return lines
