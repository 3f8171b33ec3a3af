"""How many threads the libraries of a worker use."""

from __future__ import annotations

import os

VARIABLES = (
    "OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
)  # fmt: skip


def thread_variables(threads: int) -> dict[str, str]:
    """Environment of a process whose libraries use so many threads."""
    return dict.fromkeys(VARIABLES, str(threads))


def limit_threads(threads: int) -> None:
    """Let this process, which is a worker, use so many threads; for good.

    What starts threads by the number of cores sees so many cores, as with ``PYTHON_CPU_COUNT`` of
    later versions of Python: twenty workers of a machine with twenty cores must not start twenty
    threads each.
    """
    os.environ.update(thread_variables(threads))
    os.cpu_count = lambda: threads
