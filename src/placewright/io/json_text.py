"""Foreign JSON: one object in UTF-8, integers of 64 bits, texts that can be printed, keys once."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from placewright.errors import FileFormatError
from placewright.io.opened import MAX_TEXT_BYTES, read_bytes, shown_name

_DIGITS = 19  # of the largest integer with 64 bits
_BEGINNING = 4096  # bytes that are searched for zeros


def read_text(path: Path | str, *, limit: int = MAX_TEXT_BYTES) -> str:
    """The UTF-8 content of a file.

    Raises:
        InputError: the file is missing, not regular, or cannot be read.
        FileFormatError: it is not UTF-8 text, or larger than `limit` bytes.
    """
    content = read_bytes(path, limit=limit)
    if b"\0" in content[:_BEGINNING]:
        raise FileFormatError(f"file '{shown_name(path)}' is not UTF-8 text: it holds zero bytes")
    try:
        return content.decode("utf-8-sig")  # editors of some systems put a mark before the text
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"file '{shown_name(path)}' is not UTF-8 text (byte {error.start})"
        ) from None


def json_object(text: str, path: object) -> dict[str, Any]:
    """The JSON object in a text.

    Raises:
        FileFormatError: the text is not JSON or not an object, or contains an integer of more than
            64 bits, half of a surrogate pair or a key twice.
    """
    value = _value(text, path)
    if not isinstance(value, dict):
        raise FileFormatError(f"file '{shown_name(str(path))}' must hold a JSON object")
    return value


def json_list(text: str, path: object) -> list[Any]:
    """The JSON list in a text.

    Raises:
        FileFormatError: see `json_object`, for a list.
    """
    value = _value(text, path)
    if not isinstance(value, list):
        raise FileFormatError(f"file '{shown_name(str(path))}' must hold a JSON list")
    return value


def _value(text: str, path: object) -> Any:
    name = shown_name(str(path))
    if text.lstrip()[:1] not in ("{", "[", '"', ""):  # do not parse gigabytes of another format
        raise FileFormatError(f"file '{name}' is not valid JSON: it starts with no object")
    try:
        value = json.loads(text, parse_int=_integer, object_pairs_hook=_once)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise FileFormatError(f"file '{name}' holds half of a surrogate pair in a text") from None
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"file '{name}' is not valid JSON: {error}") from None
    return value


def read_json_object(path: Path | str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        InputError: the file is missing, not regular, or cannot be read.
        FileFormatError: see `read_text` and `json_object`.
    """
    return json_object(read_text(path), path)


def finite(value: Any) -> Any:
    """Replace infinite numbers and NaN, which JSON lacks, by None in a value."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def json_number(value: Any) -> Any:
    """A number of NumPy as one of Python; the writer of JSON calls it for types that it lacks."""
    if getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"JSON has no {type(value).__name__}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its pairs; of a key that stands twice, parsers take different values."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key '{shown_name(twice)}' stands twice")
    return found


def _integer(text: str) -> int:
    if len(text) > _DIGITS + 1 or not -(2**63) <= (value := int(text)) < 2**63:
        raise ValueError(f"the integer {shown_name(text)} has more than 64 bits")
    return value
