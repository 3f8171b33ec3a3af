"""A cache folder that cannot be written to: said once, and work goes on without it."""

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
_told: list[str] = []


def tell_lost_cache(folder: Path | str, reason: object) -> None:
    """Warn that a folder of the cache cannot be written to; only the first one is told."""
    if not _told:
        _told.append(str(folder))
        _LOG.warning(
            "warning: the cache folder '%s' cannot be written to (%s): what is measured and "
            "compiled is not kept for the next start",
            shown_name(folder),
            reason,
        )


@cache
def folder_instead() -> Path:
    """A temporary folder for what the cache should have held, gone when the process ends.

    Raises:
        OSError: there is no room for one either.
    """
    folder = scratch_folder(Path(tempfile.gettempdir()), "placewright-cache-")
    return _held.enter_context(folder)


_held = contextlib.ExitStack()
atexit.register(_held.close)
