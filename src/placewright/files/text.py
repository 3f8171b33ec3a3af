"""Reading text with clear errors, and writing it so that an earlier file survives a failure."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewright.errors import FileFormatError, InputError


def read_text(path: Path | str) -> str:
    """The UTF-8 content of a file.

    Raises:
        InputError: the file is missing or cannot be read.
        FileFormatError: it is not UTF-8 text.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"file '{path}' does not exist") from None
    except UnicodeDecodeError as error:
        raise FileFormatError(f"file '{path}' is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"file '{path}' cannot be read: {error.strerror}") from None


def read_json_object(path: Path | str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        InputError: the file is missing or cannot be read.
        FileFormatError: it is not JSON, or not an object.
    """
    try:
        value = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise FileFormatError(f"file '{path}' is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise FileFormatError(f"file '{path}' must hold a JSON object")
    return value


def write_text(path: Path | str, text: str) -> None:
    """Write a file whole or not at all: an earlier file stays intact when anything fails.

    A link is followed; what is no regular file (a device, a pipe) is written to directly.

    Raises:
        InputError: the folder is missing, not writable, or the disk is full.
    """
    write_texts({path: text})


def write_texts(texts: Mapping[Path | str, str]) -> None:
    """Write files that belong together: nothing is replaced before all are safely on the disk.

    Args:
        texts: path -> content; files are replaced in this order.

    Raises:
        InputError: a folder is missing, not writable, or the disk is full; earlier files stay.
    """
    written: list[tuple[str, Path]] = []
    path: Path | str = ""
    try:
        for path, text in texts.items():
            target = Path(path).resolve()
            if target.exists() and not target.is_file():
                with target.open("w", encoding="utf-8") as stream:
                    stream.write(text)
                continue
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            written.append((temporary, target))
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, _mode_of(target))
        while written:
            temporary, path = written[0]
            os.replace(temporary, path)
            del written[0]
    except OSError as error:
        raise InputError(f"file '{path}' cannot be written: {error.strerror}") from None
    finally:
        for temporary, _ in written:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _mode_of(target: Path) -> int:
    """Permissions for a new file: those of the file it replaces, else the user's default."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
