"""What a process of a Ray cluster does for a task."""

from __future__ import annotations

import os
import socket
from typing import Any

from placewright.workers.served import KeptValues
from placewright.workers.tasks import performed
from placewright.workers.threads import limit_threads
from placewright.workers.versions import Versions

_VALUES = KeptValues()


def perform(
    content: bytes, key: str | None, references: list[Any], driver: Versions
) -> tuple[bytes, str]:
    """Do a task.

    Args:
        content: of the task.
        key: of its shared value; None where it has none.
        references: to the shared value; in a list, so that Ray does not fetch it for each task.
        driver: versions of the process that asks.

    Returns:
        What came of it, for `tasks.result_of`, and where.
    """
    import ray

    limit_threads(1)
    worker = f"{socket.gethostname()}:{os.getpid()}"
    shared: tuple[Any, ...] = ()
    if key is not None:
        if key not in _VALUES:
            _VALUES.add(key, ray.get(references[0]))
        shared = (_VALUES.get(key),)
    return performed(content, shared, driver), worker
