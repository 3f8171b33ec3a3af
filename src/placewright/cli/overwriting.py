"""Files of a command: no output may replace an input.

An output is a parameter whose annotation has `Writes`. All other values that name a file are
inputs, and so are the files behind them: weights of a model, problem and model of a plan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, get_args, get_type_hints

from placewright.errors import InputError, PlacewrightError
from placewright.frameworks.registry import companions_of_model, path_in
from placewright.io.written import is_written_through, require_folder


def refuse_overwriting(written: Iterable[Path], read: Iterable[Path]) -> None:
    """Check that no output is also an input, under any name.

    Links, hard links and other spellings of a path are the same file.

    Args:
        written: outputs; those that do not exist yet replace nothing.
        read: inputs; checked only if an output exists.

    Raises:
        InputError: two of them are one file.
    """
    _refuse_one_name(written := list(written))
    replaced = [(path, identity) for path in written if (identity := _identity(path)) is not None]
    for at, (path, identity) in enumerate(replaced):
        for other, other_identity in replaced[:at]:
            if other_identity == identity:
                raise InputError(f"'{other}' and '{path}' would be written into one file")
    if not replaced:
        return
    for source in read:
        source_identity = _identity(source)
        for path, identity in replaced:
            if source_identity == identity:
                name = f"'{path}'" if str(path) == str(source) else f"'{path}' (read as '{source}')"
                raise InputError(f"{name} is read and would be overwritten; name another output")


def _refuse_one_name(written: list[Path]) -> None:
    """Refuse two outputs with one name, even if neither exists yet."""
    names: dict[Path, Path] = {}
    for path in written:
        real = Path(os.path.realpath(path))
        if real in names and not is_written_through(path):
            raise InputError(f"'{names[real]}' and '{path}' would be written into one file")
        names[real] = path


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a regular file; None if there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if path.is_file() else None


def _nothing_else(path: Path) -> Iterable[Path]:
    return ()


@dataclass(frozen=True)
class Writes:
    """Mark of a parameter: the command writes this path."""

    # path -> further files that the command writes with it
    also: Callable[[Path], Iterable[Path]] = _nothing_else
    may_be_folder: bool = False


def check_outputs(outputs: Mapping[str, Writes], given: Mapping[str, Any]) -> None:
    """Refuse a command that could not write its files after its work, or over what it reads.

    Args:
        outputs: parameter of the command -> its mark.

    Raises:
        InputError: a folder is missing, an input would be replaced, or two outputs are one file.
    """
    if not outputs:
        return
    for name, marker in outputs.items():
        for path in paths_in(given[name]):
            is_within = marker.may_be_folder and path.is_dir()
            require_folder(path / "file" if is_within else path)
    written = [file for name, marker in outputs.items() for file in written_by(marker, given[name])]
    values = [value for name, value in given.items() if name not in outputs]
    named = [path for value in values for path in paths_in(value)]
    refuse_overwriting(written, (file for path in named for file in files_behind(path)))


def outputs_of(command: Callable[..., Any]) -> dict[str, Writes]:
    """Parameter of a command -> its mark, for those that it writes."""
    hints = get_type_hints(command, include_extras=True)
    return {
        name: marker
        for name, hint in hints.items()
        for marker in get_args(hint)
        if isinstance(marker, Writes)
    }


def written_by(marker: Writes, value: Any) -> list[Path]:
    """Files that a command writes for a marked parameter: the named file first, then others."""
    return [file for path in paths_in(value) for file in (path, *marker.also(path))]


def paths_in(value: Any) -> Iterator[Path]:
    """Yield all paths that a value may name: itself, or parts of a text at commas and ``=``.

    A word of a text, such as ``cpu``, names a folder only if that holds a model.
    """
    if isinstance(value, Path):
        yield value
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from paths_in(entry)
    elif isinstance(value, str) and value:
        for part in dict.fromkeys((value, *re.split("[,=]", value))):
            if part and "\0" not in part and len(part) < 4096:
                path = Path(path_in(part))
                if not os.path.isdir(path) or _holds_model(path):
                    yield path


def _holds_model(folder: Path) -> bool:
    return any(os.path.exists(folder / name) for name in _MODEL_OF_FOLDER)


_MODEL_OF_FOLDER = ("saved_model.pb", "config.json")  # of TensorFlow and of Hugging Face
_FILES_PER_FOLDER = 10_000
_DEEPEST = 4  # a plan refers to a problem, that to a model, that to its weights


def files_behind(path: Path, depth: int = 0) -> Iterator[Path]:
    """Yield a file, then the files that it refers to, as far as it can be read.

    Of a folder that a file refers to, only that of a model counts. A damaged file is not refused
    here, but by its reader.
    """
    if depth > _DEEPEST or not os.path.exists(path):  # also for a word too long for a name
        return
    if path.is_dir():
        if depth and not _holds_model(path):
            return
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
    from placewright.io.json_text import read_json_object

    try:
        document = read_json_object(path)
    except PlacewrightError:
        return []
    found: list[Any] = []
    for key, entry in (("problem", "path"), ("model", "source"), ("source", "path")):
        part = document.get(key)
        if isinstance(part, dict):
            found.append(part.get(entry))
    return [path_in(name) for name in found if isinstance(name, str) and name]
