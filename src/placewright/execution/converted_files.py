"""Models in the form that a runtime reads, converted once and then found again."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from placewright.errors import InputError
from placewright.io.content import one_line
from placewright.io.lost_cache import folder_instead, tell_lost_cache
from placewright.io.scratch import scratch_folder
from placewright.io.written import move_files

_LOG = logging.getLogger(__name__)
Model = TypeVar("Model")


def converted_file(
    name: str,
    key: Sequence[object],
    suffix: str,
    convert: Callable[[], Model],
    save: Callable[[Model, Path], None],
    folder: Path | None = None,
) -> Path:
    """The file of a converted model, made where it is not there yet.

    Args:
        name: of the model; the file's name starts with it.
        key: what the result depends on; a change of any of it makes another file.
        suffix: of the file.
        convert: makes the model.
        save: writes it to a path, and whatever else belongs to it beside that.
        folder: where files are kept; None is ``placewright/models`` in the user's cache folder.

    Raises:
        InputError: the file cannot be written.
    """
    kept = _cache_folder() if folder is None else folder
    text = "\0".join(map(str, (name, *key)))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    target = kept / f"{name.replace('/', '-')}-{digest}{suffix}"
    if target.exists():
        return target
    _LOG.info("converting %s to %s", name, target)
    model = convert()
    try:
        return _saved(model, target, save)
    except (OSError, RuntimeError, ValueError) as error:
        if folder is not None:
            raise InputError(f"file '{target}' cannot be written: {one_line(error)}") from None
        tell_lost_cache(kept, one_line(error))
    try:
        return _saved(model, folder_instead() / target.name, save)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"file '{target}' cannot be written: {one_line(error)}") from None


def _saved(model: Model, target: Path, save: Callable[[Model, Path], None]) -> Path:
    """Raises OSError, RuntimeError or ValueError, after which `target` is as it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(target.parent, ".converting-") as scratch:
        made = scratch / target.name
        save(model, made)
        besides = [file for file in sorted(scratch.iterdir()) if file != made]
        # The model comes last: whoever finds it finds its data complete.
        move_files({file: target.with_name(file.name) for file in (*besides, made)})
    return target


def _cache_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("placewright")) / "models"
