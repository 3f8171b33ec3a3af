"""Our own files as text: read within limits, written whole or not at all; see `io`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from placewright.io.json_text import read_json_object, read_text
from placewright.io.written import write_files

__all__ = ["read_json_object", "read_text", "write_text", "write_texts"]


def write_text(path: Path | str, text: str) -> None:
    """Write a file whole or not at all: an earlier file stays intact when anything fails.

    A link is followed; what is no regular file (a device, a pipe) is written to directly.

    Raises:
        InputError: the folder is missing, not writable, or the disk is full.
    """
    write_texts({path: text})


def write_texts(texts: Mapping[Path | str, str]) -> None:
    """Write files that belong together; see `io.written.write_files`.

    Raises:
        InputError: a folder is missing, not writable, or the disk is full; earlier files stay.
    """
    write_files({path: text.encode() for path, text in texts.items()})
