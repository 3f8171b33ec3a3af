"""How many worker processes a machine can be asked for."""

from __future__ import annotations

import os

from placewright.errors import FieldError

_MOST_PROCESSES, _PER_PROCESSOR = 64, 4  # each takes two hundred MiB with its libraries


def require_processes(count: int | None) -> None:
    """Refuse more processes than this machine can be asked for.

    Raises:
        FieldError: there are more.
    """
    most = max(_MOST_PROCESSES, _PER_PROCESSOR * (os.cpu_count() or 1))
    if count is not None and count > most:
        raise FieldError("workers", f"can be at most {most} processes here, got {count}")
