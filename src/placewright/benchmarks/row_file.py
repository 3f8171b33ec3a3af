"""Results files of benchmarks: a format and rows, which are dataclasses of numbers and text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from placewright.errors import FileFormatError
from placewright.files.text import read_json_object, write_text

Row = TypeVar("Row")


def read_rows(path: Path, file_format: str, make: Callable[..., Row]) -> list[Row]:
    """Rows of a results file, none where there is no file.

    Args:
        path: of the file.
        file_format: that it must have.
        make: called with the fields of each row by name; null is what is not a number.

    Raises:
        FileFormatError: it is no results file of this benchmark.
        InputError: it cannot be read.
    """
    if not path.exists():
        return []
    document = read_json_object(path)
    try:
        if document["format"] != file_format:
            raise ValueError(f"format is {document['format']!r}")
        return [
            make(**{key: math.nan if value is None else value for key, value in row.items()})
            for row in document["rows"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"'{path}' is no results file of this benchmark: {error}") from None


def write_rows(path: Path, file_format: str, rows: Sequence[Any]) -> None:
    """Write rows in place of what is there; what is not a number becomes null, as JSON has none.

    Raises:
        InputError: it cannot be written.
    """
    listed = [asdict(row) for row in rows]
    for entry in listed:
        entry.update({key: None for key, value in entry.items() if value != value})
    write_text(path, json.dumps({"format": file_format, "rows": listed}, indent=1) + "\n")
