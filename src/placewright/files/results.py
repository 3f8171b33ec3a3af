"""Results files of benchmarks: a format, and a row of numbers and texts for each run.

A row is identified by the content of its problem, its method and its budget, never by a path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from placewright.errors import FileFormatError
from placewright.io.json_text import finite, read_json_object
from placewright.io.written import write_text

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
        rows = [] if path is None else read_rows(path, file_format, make, missing)
        try:
            self.rows: dict[Hashable, Row] = {identity(row): row for row in rows}
        except TypeError as error:  # a list in a field of the identity
            raise _foreign(path, error) from None
        self._lines = {key: _line(row) for key, row in self.rows.items()}

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows and write the file.

        Raises:
            InputError: it cannot be written.
        """
        new = {self._identity(row): row for row in rows}
        self.rows.update(new)
        # Old lines are kept: making thousands of them again took longer than many runs.
        self._lines.update({key: _line(row) for key, row in new.items()})
        if self._path is not None:
            _write_lines(self._path, self._format, self._lines.values())


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


def _foreign(path: Path | None, error: Exception) -> FileFormatError:
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
