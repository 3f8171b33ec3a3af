"""A cache folder that cannot be written to: one warning, and a temporary folder in its place."""

from __future__ import annotations

import atexit
import contextlib
import logging
import tempfile
from functools import cache
from pathlib import Path

from placewright.io.opened import shown_name
from placewright.io.scratch import scratch_folder

_LOG = logging.getLogger(__name__)
_warned: list[str] = []


def tell_lost_cache(folder: Path | str, reason: object) -> None:
    """Warn once per process that a folder of the cache cannot be written to."""
    if not _warned:
        _warned.append(str(folder))
        _LOG.warning(
            "warning: the cache folder '%s' cannot be written to (%s): measurements and compiled "
            "kernels are lost when this process ends",
            shown_name(folder),
            reason,
        )


@cache
def folder_instead() -> Path:
    """A temporary folder instead of the cache, removed when the process ends.

    Raises:
        OSError: it cannot be created either.
    """
    folder = scratch_folder(Path(tempfile.gettempdir()), "placewright-cache-")
    return _held.enter_context(folder)


_held = contextlib.ExitStack()
atexit.register(_held.close)
