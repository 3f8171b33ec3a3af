"""Printing: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from placewright.cli.options import document_with_options, with_options
from placewright.io.json_text import finite
from placewright.io.opened import printable
from placewright.report.time_left import Report, TimeLeft

if TYPE_CHECKING:
    from pathlib import Path

    from placewright.report.tables import ShownTable

_STDOUT, _STDERR = 1, 2  # file descriptors
_SECONDS_BETWEEN_LINES = 60.0
_recording: ContextVar[list[Any] | None] = ContextVar("recording", default=None)
_LONGEST_LINE = 499  # characters of an error message
_LONGEST_WORD = 40  # characters; a longer one, such as a path, is cut in its middle
_LONGEST_HINT = 200  # characters behind its last semicolon


def keep_standard_output_for_results() -> None:
    """Let only `sys.stdout` write to standard output; redirect everything else to standard error.

    Native libraries print to file descriptor 1, some of them when the process ends, and would
    spoil the JSON document. Nothing changes if `sys.stdout` is replaced, as in a test.
    """
    try:
        if sys.stdout.fileno() != _STDOUT:
            return
        results = os.dup(_STDOUT)
        os.dup2(_STDERR, _STDOUT)
    except (OSError, ValueError, AttributeError):  # closed or not a file
        return
    encoding, buffering = sys.stdout.encoding, 1 if os.isatty(results) else -1
    # Characters that the terminal's encoding lacks are printed by their numbers.
    sys.stdout = open(results, "w", buffering, encoding, "backslashreplace")  # noqa: SIM115


def open_standard_streams() -> None:
    """Open missing standard streams on the null device.

    Otherwise the first file that is opened takes the place of standard output, and libraries
    print into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # It takes the lowest free number, and child processes need it as well.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def drop_results() -> None:
    """Discard further results after standard output was closed."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return


def error_line(message: str) -> str:
    """Shorten a message to one printable line: its beginning and its end.

    The end is the text behind the last semicolon if that has 100 to 200 characters, else the last
    100 characters.
    """
    line = printable("placewright: " + " ".join(message.split()))
    if len(line) <= _LONGEST_LINE:
        return line
    hint = line.rpartition("; ")[2]
    end = hint if 100 < len(hint) <= _LONGEST_HINT else _whole_words(line[-100:][::-1])[::-1]
    return f"{_whole_words(line[: _LONGEST_LINE - 5 - len(end)])} ... {end}"


def _whole_words(cut: str) -> str:
    """Drop the last word of a text, which was cut; keep it if it is long."""
    words, space, last = cut.rpartition(" ")
    return words if space and len(last) < _LONGEST_WORD else cut


def print_json(document: Any) -> None:
    """Print one JSON document; infinite numbers and NaN become null."""
    sys.stdout.write(json.dumps(finite(document_with_options(document)), indent=1) + "\n")


def print_line(text: str = "") -> None:
    """Print one line of a result."""
    text = _safe(text)
    _record(text)
    if "\n" in text or not sys.stdout.isatty():
        sys.stdout.write(text + "\n")
        return
    from placewright.report.terminal import output_width, wrapped

    sys.stdout.write("\n".join(wrapped(text, output_width(sys.stdout))) + "\n")


def print_lines(texts: Iterable[str]) -> None:
    """Print the lines of a result."""
    for text in texts:
        print_line(text)


def print_command(text: str) -> None:
    """Print a command to paste: one line, however narrow the terminal is."""
    _record(text)
    sys.stdout.write(printable(text, "") + "\n")


def print_note(text: str) -> None:
    """Print one line of progress or advice on standard error."""
    sys.stderr.write(_safe(text) + "\n")


def _safe(text: str) -> str:
    """Name options instead of arguments, and remove control characters."""
    return printable(with_options(text), "\n\t")


def write_noted(path: Path | None, text: Callable[[], str]) -> None:
    """Write a text to a file, if there is a path, and tell so."""
    if path is None:
        return
    from placewright.io.written import write_text

    write_text(path, text())
    print_note(f"wrote {path}")


def tell_warning(text: str | None) -> None:
    """Print a warning on standard error, or nothing for None."""
    if text is not None:
        print_note(f"warning: {text}")


@contextmanager
def recorded() -> Iterator[list[Any]]:
    """Record the lines and tables (`ShownTable`) that are printed within the block."""
    shown: list[Any] = []
    token = _recording.set(shown)
    try:
        yield shown
    finally:
        _recording.reset(token)


def _record(shown: Any) -> None:
    recording = _recording.get()
    if recording is not None:
        recording.append(shown)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that fits the terminal, or 80 columns without a terminal."""
    title, rows = _safe(title), [[_safe(cell) for cell in row] for row in rows]
    if _recording.get() is not None:
        from placewright.report.tables import ShownTable

        _record(ShownTable(title, tuple(columns), tuple(tuple(row) for row in rows)))
    from rich.console import Console

    from placewright.report.terminal import fitted_table, output_width

    width = output_width(sys.stdout)
    console = Console(width=width, highlight=False)
    console.print(fitted_table(title, columns, rows, width), markup=False)


def print_bars(bars: Callable[..., list[str]], *of: Any) -> None:
    """Print the lines that `bars` draws for the width and characters of the terminal."""
    from placewright.report.terminal import output_width, shows_unicode

    plain = not shows_unicode(sys.stdout)
    for line in bars(*of, output_width(sys.stdout), plain=plain):
        sys.stdout.write(printable(line) + "\n")


def print_shown(table: ShownTable) -> None:
    """Print a table that the library made."""
    print_table(table.title, table.columns, table.rows)


def print_all(shown: Iterable[str | ShownTable]) -> None:
    """Print lines and tables in their order."""
    for item in shown:
        if isinstance(item, str):
            print_line(item)
        else:
            print_shown(item)


@contextmanager
def progress(title: str, *, hidden: bool = False) -> Iterator[Report]:
    """Show a progress bar on standard error, with the current step and the time left.

    Without a terminal, print a line at most once a minute. Messages that the steps log meanwhile
    are printed as lines of their own.
    """
    with _logged_lines(title, hidden=hidden), _shown(title, hidden=hidden) as report:
        yield report


def told_with(report: Report, by: str) -> Report:
    """Make a report that also names the workers in each step."""
    return lambda fraction, what: report(fraction, f"{what}, {by}")


@contextmanager
def _logged_lines(title: str, *, hidden: bool) -> Iterator[None]:
    loggers = [logging.getLogger(f"placewright.{room}") for room in ("session", "report")]
    handler, levels = _Lines(title), [logger.level for logger in loggers]
    if hidden:
        yield
        return
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


class _Lines(logging.Handler):
    """Prints each record as one line on the current standard error."""

    def __init__(self, title: str) -> None:
        super().__init__(logging.INFO)
        self._title = title

    def emit(self, record: logging.LogRecord) -> None:
        print_note(f"{self._title}: {record.getMessage()}")


@contextmanager
def _shown(title: str, *, hidden: bool) -> Iterator[Report]:
    is_plain = not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown")
    if hidden or is_plain:
        yield (lambda fraction, what: None) if hidden else spaced_lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[what]}", markup=False, table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, left = bar.add_task(title, total=1.0, what=""), TimeLeft()

        def report(fraction: float, what: str) -> None:
            bar.update(task, completed=fraction, what=_safe(left.with_time(fraction, what)))

        yield report


def spaced_lines(title: str, clock: Callable[[], float] = time.monotonic) -> Report:
    """Print reports as lines on standard error, at most one a minute.

    Args:
        clock: returns seconds.
    """
    last, left = clock(), TimeLeft(clock)

    def report(fraction: float, what: str) -> None:
        nonlocal last
        if clock() - last >= _SECONDS_BETWEEN_LINES:
            last = clock()
            print_note(f"{title}: {fraction:.0%}, {left.with_time(fraction, what)}")

    return report
