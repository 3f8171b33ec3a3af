"""Results files of benchmarks: a format, and a row of numbers and texts for each run.

A row is identified by the content of its problem, its method and its budget, never by a path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from placewright.errors import FileFormatError
from placewright.io.json_text import finite, read_json_object
from placewright.io.written import locked_folder_of, write_text

Row = TypeVar("Row")


class ResultsFile(Generic[Row]):
    """The rows of a results file, by identity.

    Args:
        path: read now if it exists; None keeps rows in memory only.
        file_format: required format of the file.
        make: called with the fields of each row by name.
        identity: identity of a row; a later row replaces an earlier one.
        missing: value for null.

    Attributes:
        rows: identity -> row, in the order of arrival.

    Raises:
        FileFormatError: it is not a results file of this benchmark.
        InputError: it cannot be read.
    """

    def __init__(
        self,
        path: Path | None,
        file_format: str,
        make: Callable[..., Row],
        identity: Callable[[Row], Hashable],
        missing: float | None = math.nan,
    ) -> None:
        self._path, self._format, self._identity = path, file_format, identity
        self._make, self._missing = make, missing
        self.rows: dict[Hashable, Row] = {}
        self._lines: dict[Hashable, str] = {}
        self._state: tuple[int, ...] | None = None  # of the file, as it was last read or written
        if path is not None:
            self._read(path)

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows and write all rows, also those that another process has written since.

        Raises:
            FileFormatError: another process has written something else to the file.
            InputError: it cannot be written.
        """
        new = {self._identity(row): row for row in rows}
        if self._path is None:
            self._keep(new)
            return
        with locked_folder_of(self._path):
            self._read(self._path)
            self._keep(new)
            _write_lines(self._path, self._format, self._lines.values())
            self._state = _state_of(self._path)

    def _read(self, path: Path) -> None:
        """Take over the rows of the file if it has changed: reading thousands takes long."""
        state = _state_of(path)
        if state == self._state:
            return
        rows = read_rows(path, self._format, self._make, self._missing)
        try:
            stored = {self._identity(row): row for row in rows}
        except TypeError as error:  # a list in a field of the identity
            raise _foreign(path, error) from None
        self._keep(stored)
        self._state = state

    def _keep(self, rows: Mapping[Hashable, Row]) -> None:
        self.rows.update(rows)
        # Old lines are kept: making thousands of them again took longer than many runs.
        self._lines.update({key: _line(row) for key, row in rows.items()})


def read_rows(
    path: Path, file_format: str, make: Callable[..., Row], missing: float | None = math.nan
) -> list[Row]:
    """Rows of a results file; none if there is no file.

    Args:
        file_format: required format.
        make: called with the fields of each row by name.
        missing: value for null, which stands for numbers that are not finite.

    Raises:
        FileFormatError: it is not a results file of this benchmark.
        InputError: it cannot be read.
    """
    if not path.exists():
        return []
    document = read_json_object(path)
    try:
        if document["format"] != file_format:
            raise ValueError(f"it has format {document['format']!r}, expected '{file_format}'")
        return [
            make(**{key: missing if value is None else value for key, value in row.items()})
            for row in document["rows"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _foreign(path, error) from None


def _state_of(path: Path) -> tuple[int, ...] | None:
    """Numbers that change with a file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _foreign(path: Path, error: Exception) -> FileFormatError:
    return FileFormatError(f"'{path}' is no results file of this benchmark: {error}")


def write_rows(path: Path, file_format: str, rows: Sequence[Any]) -> None:
    """Write a results file with a line per row; numbers that are not finite become null.

    Raises:
        InputError: it cannot be written.
    """
    _write_lines(path, file_format, map(_line, rows))


def _write_lines(path: Path, file_format: str, lines: Iterable[str]) -> None:
    joined = ",\n".join(lines)
    write_text(path, f'{{"format": "{file_format}", "rows": [\n{joined}\n]}}\n')


def _line(row: Any) -> str:
    return json.dumps(finite(asdict(row)), ensure_ascii=False)
