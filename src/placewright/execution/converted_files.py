"""Models in the form that a runtime reads, converted once and then found again."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from placewright.errors import InputError
from placewright.io.content import one_line

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
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            made = Path(scratch) / target.name
            save(model, made)
            for beside in sorted(Path(scratch).iterdir()):
                if beside != made:  # first: whoever finds the model finds its data complete
                    os.replace(beside, target.with_name(beside.name))
            os.replace(made, target)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"file '{target}' cannot be written: {one_line(error)}") from None
    return target


def _cache_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("placewright")) / "models"
