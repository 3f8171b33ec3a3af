"""The files behind a path: a model's weights, a plan's problem and model, a folder's content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from placewright.errors import PlacewrightError
from placewright.files.text import read_json_object
from placewright.session.models import companions_of_model

_FILES_PER_FOLDER = 10_000
_DEEPEST = 4  # a plan refers to a problem, that to a model, that to its weights


def files_behind(path: Path, depth: int = 0) -> Iterator[Path]:
    """The file itself first, then those that it refers to, as far as it can be read.

    Nothing is refused here: a damaged file is told by whoever reads it.
    """
    if depth > _DEEPEST or not os.path.exists(
        path
    ):  # False, too, for a word that is too long for a name
        return
    if path.is_dir():
        yield from islice((file for file in path.rglob("*") if file.is_file()), _FILES_PER_FOLDER)
        return
    yield path
    if path.suffix.lower() == ".json":
        for name in _references(path):
            for candidate in dict.fromkeys((Path(name), path.parent / name)):
                yield from files_behind(candidate, depth + 1)
    else:
        yield from companions_of_model(path)


def _references(path: Path) -> list[str]:
    """Paths that a plan, a problem or a graph names."""
    try:
        document = read_json_object(path)
    except PlacewrightError:
        return []
    found: list[Any] = []
    for key, entry in (("problem", "path"), ("model", "source"), ("source", "path")):
        part = document.get(key)
        if isinstance(part, dict):
            found.append(part.get(entry))
    return [name for name in found if isinstance(name, str) and name]
