"""``--shape past=64|128`` and ``past=64..512``: one request for each of several sizes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from placewright.errors import FieldError

MOST = 64  # plans of one command
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def is_several(text: str) -> bool:
    """Does a text of ``--shape`` give more than one size?"""
    size = text.rpartition("=")[2]
    return "|" in size or ".." in size


def each_size(texts: Sequence[str]) -> list[tuple[str, list[str]]]:
    """For each combination of sizes a label and the texts that give it.

    Args:
        texts: as for ``--shape``; sizes are separated by ``|``, and ``64..512`` is 64 and its
            doubles up to 512, with 512 itself.

    Raises:
        FieldError: a range is none, or there are more than `MOST` combinations.
    """
    choices: list[list[tuple[str, str]]] = []  # of each text: (label, text)
    for text in texts:
        name, _, size = text.rpartition("=")
        if not is_several(text):
            choices.append([("", text)])
            continue
        sizes = dict.fromkeys(one for part in size.split("|") for one in _sizes(part, text))
        choices.append([(f"{name}={one.replace(',', 'x')}", f"{name}={one}") for one in sizes])
    count = 1
    for row in choices:
        count *= len(row)
    if count > MOST:
        raise FieldError("shapes", f"gives {count} combinations of sizes; expected {MOST} at most")
    return [
        (",".join(label for label, _ in row if label), [text for _, text in row])
        for row in itertools.product(*choices)
    ]


def _sizes(part: str, text: str) -> list[str]:
    found = _RANGE.fullmatch(part.strip())
    if found is None:
        if not part.strip() or ".." in part:
            raise FieldError("shapes", f"expects NAME=64|128 or NAME=64..512, got '{text}'")
        return [part.strip()]
    first, last = int(found[1]), int(found[2])
    if not 1 <= first <= last:
        raise FieldError("shapes", f"expects a range from small to large, got '{text}'")
    sizes = []
    while first < last:
        sizes.append(str(first))
        first *= 2
    return [*sizes, str(last)]


def labelled(path: Path, label: str) -> Path:
    """``plan-past=64.json`` for the label ``past=64``."""
    plain = re.sub(r"[^\w.,=-]", "_", label)
    return path.with_name(f"{path.stem}-{plain}{path.suffix}")
