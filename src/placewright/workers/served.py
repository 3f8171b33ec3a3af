"""The loop of a worker process: it does tasks until its driver closes the connection."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from multiprocessing.connection import Connection
from typing import Any

from placewright.isolation.confined import end_with_parent
from placewright.workers.tasks import performed

VARIABLES = (
    "OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
)  # fmt: skip
KEPT = 4  # values that a process keeps


class KeptValues:
    """A cache of the last few shared values of a process: key -> value."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, Any] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def add(self, key: str, content: bytes) -> None:
        """Keep a value, and drop the least recently used one."""
        self._values[key] = pickle.loads(content)
        while len(self._values) > KEPT:
            self._values.popitem(last=False)

    def get(self, key: str) -> Any:
        """Return a value that is kept."""
        self._values.move_to_end(key)
        return self._values[key]


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that limit the threads of libraries."""
    return dict.fromkeys(VARIABLES, str(threads))


def limit_threads(threads: int) -> None:
    """Limit the threads of this worker process for good.

    Libraries that start a thread per core see so many cores, as with ``PYTHON_CPU_COUNT`` of
    later versions of Python: twenty workers of a machine with twenty cores must not start twenty
    threads each.
    """
    os.environ.update(thread_variables(threads))
    os.cpu_count = lambda: threads


def main(handle: int, parent: int, threads: int | None) -> None:
    """Serve the process at the other end of a socket.

    Args:
        parent: process that started this one.
        threads: of libraries; None leaves them as they are.
    """
    end_with_parent(parent)
    if threads is not None:
        limit_threads(threads)
    connection, values = Connection(handle), KeptValues()
    while True:
        try:
            key, driver, content = pickle.loads(connection.recv_bytes())
            shared: tuple[Any, ...] = ()
            if key is not None:
                if key not in values:
                    connection.send_bytes(b"")  # asks for the value
                    values.add(key, connection.recv_bytes())
                shared = (values.get(key),)
        except (EOFError, OSError):
            return
        outcome = performed(content, shared, driver)
        try:
            connection.send_bytes(outcome)
        except OSError:
            return
